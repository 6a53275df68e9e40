import ApusCore

/// One allocation in the machine. The plane handles its packets (RFC 8656 §3.2).
struct TurnAllocation: Sendable {
    struct Permission: Sendable {
        let host: TransportAddress
        var expiry: MonotonicTime
        /// The ports in the plane.
        var ports: ClosedRange<UInt16>
    }

    struct Channel: Sendable {
        let number: UInt16
        let peer: TransportAddress
        var expiry: MonotonicTime
    }

    let id: AllocationID
    var flow: RelayFlow
    let username: String
    let user: String
    /// One relayed address of each family that it has, and the expiry of each (RFC 8656 §8).
    var relayed: [TransportAddress]
    var expiries: [MonotonicTime]
    let isTCP: Bool
    let started: MonotonicTime
    /// The deadline of the heap's valid entry.
    var scheduled: MonotonicTime
    var permissions: [Permission] = []
    var channels: [Channel] = []
    /// Numbers of its TCP connections (RFC 6062).
    var connections: [UInt32] = []
    /// The Allocate request that created it, and its answer, for retransmissions (RFC 8656 §7.2).
    let transaction: TransactionID
    let answer: [UInt8]
    var ticket: MobilityTicket?
    /// The limit on wrong credentials on its flow.
    var proofFailures = TokenBucket()
    var counters = RelayCounters()
    /// Traffic counted by planes that no longer have it.
    var countersBefore = RelayCounters()

    func isRelayed(_ family: TransportAddress.Family) -> Bool { relayed.contains { $0.family == family } }

    func hasPermission(_ host: TransportAddress, at now: MonotonicTime) -> Bool {
        let host = host.host
        return permissions.contains { $0.host == host && $0.expiry > now }
    }

    /// The expiry of its last family. Setting it sets all of them.
    var expiry: MonotonicTime {
        get { expiries.max() ?? started }
        set { for index in expiries.indices { expiries[index] = newValue } }
    }

    /// Sets the expiry of a family, or of all of them.
    mutating func extend(_ family: TransportAddress.Family?, to deadline: MonotonicTime) {
        for index in relayed.indices where family == nil || relayed[index].family == family {
            expiries[index] = deadline
        }
    }

    /// Removes a family with its permissions and channels. The last family ends with the allocation.
    mutating func remove(_ family: TransportAddress.Family) {
        guard relayed.count > 1, let index = relayed.firstIndex(where: { $0.family == family }) else { return }
        relayed.remove(at: index)
        expiries.remove(at: index)
        channels.removeAll { $0.peer.family == family }
        permissions.removeAll { $0.host.family == family }
    }

    /// The time at which the next part of it expires.
    var nextDeadline: MonotonicTime {
        var next = expiries.min() ?? started
        for permission in permissions where permission.expiry < next { next = permission.expiry }
        for channel in channels where channel.expiry < next { next = channel.expiry }
        return next
    }

    func mirror(at now: MonotonicTime) -> AllocationMirror? {
        ticket.map {
            AllocationMirror(
                ticket: $0, username: username, relayed: relayed, remaining: expiry - now,
                permissions: permissions.map(\.host),
                channels: channels.map { AllocationMirror.Channel(number: $0.number, peer: $0.peer) })
        }
    }
}

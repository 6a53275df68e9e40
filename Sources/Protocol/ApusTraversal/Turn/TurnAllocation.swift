import ApusCore

/// One allocation as the machine knows it; its packets are the plane's (RFC 8656 §3.2).
struct TurnAllocation: Sendable {
    struct Permission: Sendable {
        let host: TransportAddress
        var expiry: MonotonicTime
        /// What the plane knows.
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
    /// One of each family that it has, and when each ends (RFC 8656 §8).
    var relayed: [TransportAddress]
    var expiries: [MonotonicTime]
    let isTCP: Bool
    let started: MonotonicTime
    /// The deadline of the heap's entry that counts.
    var scheduled: MonotonicTime
    var permissions: [Permission] = []
    var channels: [Channel] = []
    /// Numbers of its TCP connections (RFC 6062).
    var connections: [UInt32] = []
    /// The Allocate that made it, and its answer, for the same question once more (RFC 8656 §7.2).
    let transaction: TransactionID
    let answer: [UInt8]
    var ticket: MobilityTicket?
    /// Wrong credentials on its flow that are still looked at.
    var proofFailures = TokenBucket()
    var counters = RelayCounters()
    /// What planes carried that have it no more.
    var countersBefore = RelayCounters()

    func isRelayed(_ family: TransportAddress.Family) -> Bool { relayed.contains { $0.family == family } }

    func hasPermission(_ host: TransportAddress, at now: MonotonicTime) -> Bool {
        let host = host.host
        return permissions.contains { $0.host == host && $0.expiry > now }
    }

    /// When the last of its families ends; set for all of them.
    var expiry: MonotonicTime {
        get { expiries.max() ?? started }
        set { for index in expiries.indices { expiries[index] = newValue } }
    }

    /// Sets when a family ends, or all of them.
    mutating func extend(_ family: TransportAddress.Family?, to deadline: MonotonicTime) {
        for index in relayed.indices where family == nil || relayed[index].family == family {
            expiries[index] = deadline
        }
    }

    /// Takes a family out with what belongs to it; the last one ends with the allocation.
    mutating func remove(_ family: TransportAddress.Family) {
        guard relayed.count > 1, let index = relayed.firstIndex(where: { $0.family == family }) else { return }
        relayed.remove(at: index)
        expiries.remove(at: index)
        channels.removeAll { $0.peer.family == family }
        permissions.removeAll { $0.host.family == family }
    }

    /// When the next part of it ends.
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

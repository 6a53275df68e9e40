import ApusCore

/// One allocation as the machine knows it; its packets are the plane's (RFC 8656 §3.2).
struct TurnAllocation: Sendable {
    struct Permission: Sendable {
        let host: TransportAddress
        var expiry: MonotonicTime
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
    let relayed: [TransportAddress]
    let isTCP: Bool
    let started: MonotonicTime
    var expiry: MonotonicTime
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
    var counters = RelayCounters()
    /// What planes carried that have it no more.
    var countersBefore = RelayCounters()

    func isRelayed(_ family: TransportAddress.Family) -> Bool { relayed.contains { $0.family == family } }

    func hasPermission(_ host: TransportAddress, at now: MonotonicTime) -> Bool {
        let host = host.host
        return permissions.contains { $0.host == host && $0.expiry > now }
    }

    /// When the next part of it ends.
    var nextDeadline: MonotonicTime {
        var next = expiry
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

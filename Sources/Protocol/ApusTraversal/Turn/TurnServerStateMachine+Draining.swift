public import ApusCore

/// A door of another node that clients may be sent to.
public struct RelayDoor: Hashable, Sendable {
    public var transport: RelayFlow.Transport
    public var address: TransportAddress

    public init(transport: RelayFlow.Transport, address: TransportAddress) {
        self.transport = transport
        self.address = address
    }
}

/// Where a node that leaves sends its clients: the doors of one other node, the best first, and the name in its
/// certificate where it has one.
public struct RelayAlternate: Hashable, Sendable {
    public var doors: [RelayDoor]
    /// ALTERNATE-DOMAIN (RFC 8489 §14.16), for clients that come over TLS or DTLS.
    public var domain: String?

    public init(doors: [RelayDoor], domain: String? = nil) {
        self.doors = doors
        self.domain = domain
    }

    /// The door for a client that came in this way: of its own family, as RFC 8489 §14.15 wants, over its own
    /// transport, or over another that is as safe from listeners. Nil if there is none.
    func door(for flow: RelayFlow) -> TransportAddress? {
        let fitting = doors.filter { $0.address.family == flow.remote.family }
        if let same = fitting.first(where: { $0.transport == flow.transport }) { return same.address }
        let isSecure = flow.transport == .tls || flow.transport == .dtls
        return fitting.first { ($0.transport == .tls || $0.transport == .dtls) == isSecure }?.address
    }
}

// A node that leaves: new allocations go elsewhere, and those that are here live out or move (RFC 8489 §10).
extension TurnServerStateMachine {
    /// From here on new allocations are sent elsewhere (300), or refused (508) where there is no elsewhere. Allocations
    /// that live here end after ``TurnServerConfiguration/drainLifetime`` at the latest; one that has a ticket is sent
    /// elsewhere at its next Refresh. May be called again with another elsewhere.
    public mutating func drain(to alternate: RelayAlternate?, at now: MonotonicTime) {
        self.alternate = alternate
        guard drainedAt == nil else { return }
        let end = now + configuration.drainLifetime
        drainedAt = end
        for id in allocations.keys.sorted(by: { $0.rawValue < $1.rawValue }) {
            guard let expiry = allocations[id]?.expiry, expiry > end else { continue }
            allocations[id]?.expiry = end
            reschedule(id)
        }
    }

    /// True from ``drain(to:at:)`` on.
    public var isDraining: Bool { drainedAt != nil }

    /// A lifetime as it can be had here: none goes beyond the end of the draining.
    func bounded(_ lifetime: Duration, at now: MonotonicTime) -> Duration {
        drainedAt.map { max(.seconds(0), min(lifetime, .seconds(($0 - now).components.seconds))) } ?? lifetime
    }

    /// Where a new allocation is to go while this node leaves; nil while it stays.
    func answerWhileDraining(_ request: Request) -> TurnAction? {
        guard isDraining else { return nil }
        return elsewhere(request) ?? refusal(request, .insufficientCapacity)
    }

    /// 300 with the other node's door; nil if none fits.
    func elsewhere(_ request: Request) -> TurnAction? {
        guard let alternate, let address = alternate.door(for: request.flow) else { return nil }
        var writer = StunWriter(StunMessageType(.error, request.message.method), request.message.transaction)
        writer.add(errorCode: .tryAlternate)
        writer.add(.alternateServer, address: address)
        let isSecure = request.flow.transport == .tls || request.flow.transport == .dtls
        if isSecure, let domain = alternate.domain { writer.add(.alternateDomain, text: domain) }
        return finish(&writer, to: request.message, request.flow, request.caller)
    }
}

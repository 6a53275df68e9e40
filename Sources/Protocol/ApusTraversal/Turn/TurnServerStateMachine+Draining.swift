public import ApusCore

/// A relay endpoint of another node, to which clients may be redirected.
public struct RelayEndpoint: Hashable, Sendable {
    public var transport: RelayFlow.Transport
    public var address: TransportAddress

    public init(transport: RelayFlow.Transport, address: TransportAddress) {
        self.transport = transport
        self.address = address
    }
}

/// The destination of a draining node's clients: the endpoints of one other node, the best first, and the name in its
/// certificate if there is one.
public struct RelayAlternate: Hashable, Sendable {
    public var endpoints: [RelayEndpoint]
    /// ALTERNATE-DOMAIN (RFC 8489 §14.16), for clients that connect over TLS or DTLS.
    public var domain: String?

    public init(endpoints: [RelayEndpoint], domain: String? = nil) {
        self.endpoints = endpoints
        self.domain = domain
    }

    /// The endpoint for a client of this flow: of its own family, as RFC 8489 §14.15 demands, over its own transport or
    /// another one that is as secure. Nil if there is none.
    func endpoint(for flow: RelayFlow) -> TransportAddress? {
        let fitting = endpoints.filter { $0.address.family == flow.remote.family }
        if let same = fitting.first(where: { $0.transport == flow.transport }) { return same.address }
        let isSecure = flow.transport == .tls || flow.transport == .dtls
        return fitting.first { ($0.transport == .tls || $0.transport == .dtls) == isSecure }?.address
    }
}

// A draining node: new allocations are redirected; existing ones expire or move (RFC 8489 §10).
extension TurnServerStateMachine {
    /// From now on new allocations are redirected (300), or refused (508) if there is no alternate. Existing
    /// allocations end after ``TurnServerConfiguration/drainLifetime`` at the latest. One with a ticket is redirected
    /// at its next Refresh. May be called again with another alternate.
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

    /// Ends a drain: new allocations are accepted again. Existing ones keep their shortened lifetimes until their next
    /// Refresh.
    public mutating func undrain() { (drainedAt, alternate) = (nil, nil) }

    /// True from ``drain(to:at:)`` to ``undrain()``.
    public var isDraining: Bool { drainedAt != nil }

    /// A lifetime, limited to the end of the drain.
    func bounded(_ lifetime: Duration, at now: MonotonicTime) -> Duration {
        drainedAt.map { max(.seconds(0), min(lifetime, .seconds(($0 - now).components.seconds))) } ?? lifetime
    }

    /// The redirection of a new allocation while this node drains; nil if it does not.
    func answerWhileDraining(_ request: Request) -> TurnAction? {
        guard isDraining else { return nil }
        return elsewhere(request) ?? refusal(request, .insufficientCapacity)
    }

    /// 300 with the other node's endpoint; nil if none fits.
    func elsewhere(_ request: Request) -> TurnAction? {
        guard let alternate, let address = alternate.endpoint(for: request.flow) else { return nil }
        var writer = StunWriter(StunMessageType(.error, request.message.method), request.message.transaction)
        writer.add(errorCode: .tryAlternate)
        writer.add(.alternateServer, address: address)
        let isSecure = request.flow.transport == .tls || request.flow.transport == .dtls
        if isSecure, let domain = alternate.domain { writer.add(.alternateDomain, text: domain) }
        return finish(&writer, to: request.message, request.flow, request.caller)
    }
}

import ApusCore
import ApusTraversal
import Testing

/// A machine with a clock that stands still until it is moved, and a client that knows its manners.
struct TurnDriver {
    static let epoch: Int64 = 1_800_000_000
    static let secret = Array("north".utf8)
    static let credentials = RelayCredentials(realm: "apus", current: secret)

    var machine: TurnServerStateMachine
    var now = MonotonicTime(nanoseconds: 1_000_000_000)
    var lastTransaction: UInt64 = 0
    var nonces: [RelayFlow: String] = [:]
    var port: UInt16 = 50_000

    init(seed: UInt64 = 7, _ change: (inout TurnServerConfiguration) -> Void = { _ in }) {
        var configuration = TurnServerConfiguration(credentials: Self.credentials, nonceKey: [1, 2, 3])
        configuration.families = [.v4, .v6]
        configuration.sourceRows = 256
        change(&configuration)
        machine = TurnServerStateMachine(
            configuration, random: SeededRandom(seed: seed), unixSeconds: Self.epoch, now: now)
    }

    static func flow(_ port: UInt16 = 1000, host: UInt32 = 0x0505_0505, transport: RelayFlow.Transport = .udp)
        -> RelayFlow
    {
        RelayFlow(
            plane: 0, transport: transport, local: TransportAddress(v4: 0x0606_0606, port: 3478),
            remote: TransportAddress(v4: host, port: port), connection: transport.isStream ? UInt64(port) : 0)
    }

    static func user(_ name: String = "ann", expiresIn seconds: Int64 = 3600) -> (username: String, password: String) {
        credentials.issue(user: name, expiry: epoch + seconds)
    }

    mutating func advance(_ span: Duration) -> [TurnAction] {
        now = now + span
        var actions: [TurnAction] = []
        while let next = machine.nextDeadline, next <= now { actions += machine.tick(at: now) }
        return actions
    }

    mutating func transaction() -> TransactionID {
        lastTransaction += 1
        return TransactionID(high: 9, low: lastTransaction)
    }

    mutating func send(_ writer: StunWriter, on flow: RelayFlow) -> [TurnAction] {
        machine.receive(writer.bytes, on: flow, at: now)
    }

    /// The nonce for a flow, fetched by a request without a credential.
    mutating func nonce(for flow: RelayFlow) throws -> String {
        if let nonce = nonces[flow] { return nonce }
        var writer = StunWriter(StunMessageType(.request, .allocate), transaction())
        writer.add(requestedTransport: 17)
        let answer = try #require(try answer(send(writer, on: flow)))
        let nonce = try #require(try answer.text(.nonce))
        nonces[flow] = nonce
        return nonce
    }

    /// A signed request of this method.
    mutating func ask(
        _ method: StunMethod, on flow: RelayFlow = TurnDriver.flow(),
        as user: (username: String, password: String) = TurnDriver.user(), transaction: TransactionID? = nil,
        algorithm: StunPasswordAlgorithm? = nil, _ fill: (inout StunWriter) -> Void = { _ in }
    ) throws -> [TurnAction] {
        let number = transaction ?? self.transaction()
        var writer = StunWriter(StunMessageType(.request, method), number)
        fill(&writer)
        writer.add(.username, text: user.username)
        writer.add(.realm, text: "apus")
        writer.add(.nonce, text: try nonce(for: flow))
        if let algorithm {
            writer.add(.passwordAlgorithms, [0, 2, 0, 0, 0, 1, 0, 0])
            writer.add(.passwordAlgorithm, [0, UInt8(algorithm.rawValue), 0, 0])
        }
        let key = StunKey(
            username: user.username, realm: "apus", password: user.password, algorithm: algorithm ?? .md5)
        writer.addIntegrity(algorithm == .sha256 ? .sha256 : .sha1, key: key)
        writer.addFingerprint()
        return send(writer, on: flow)
    }

    /// Allocates and opens the relayed address; answers the allocation.
    @discardableResult
    mutating func allocate(
        on flow: RelayFlow = TurnDriver.flow(), as user: (username: String, password: String) = TurnDriver.user(),
        transport: UInt8 = 17, _ fill: (inout StunWriter) -> Void = { _ in }
    ) throws -> AllocationID {
        let asked = try ask(.allocate, on: flow, as: user) { writer in
            writer.add(requestedTransport: transport)
            fill(&writer)
        }
        return try #require(installed(open(asked)))
    }

    /// Binds a channel to a peer.
    @discardableResult
    mutating func bind(_ number: UInt16, _ peer: TransportAddress) throws -> [TurnAction] {
        try ask(.channelBind) { writer in
            writer.add(channelNumber: number)
            writer.add(.xorPeerAddress, xorAddress: peer)
        }
    }

    /// Answers the openings among the actions with addresses of this node.
    mutating func open(_ actions: [TurnAction]) -> [TurnAction] {
        actions.flatMap { action -> [TurnAction] in
            guard case .openRelay(let opening) = action else { return [] }
            port = port > 65_000 ? 50_000 : port + 2
            let addresses = opening.families.map { relayed($0) }
            return machine.relayOpened(opening.request, addresses: addresses, at: now)
        }
    }

    func relayed(_ family: TransportAddress.Family) -> TransportAddress {
        family == .v4
            ? TransportAddress(v4: 0x0606_0606, port: port)
            : TransportAddress(v6High: 0x2606_4700_0000_0000, low: 6, port: port)
    }

    func installed(_ actions: [TurnAction]) -> AllocationID? {
        for case .install(let id, _, _, _) in actions { return id }
        return nil
    }

    func opening(_ actions: [TurnAction]) -> RelayOpening? {
        for case .openRelay(let opening) in actions { return opening }
        return nil
    }

    /// The answer among the actions; nil where there is none.
    func answer(_ actions: [TurnAction]) throws -> StunMessage? {
        for case .reply(_, let bytes) in actions { return try StunMessage(bytes) }
        return nil
    }

    /// The number of the error answer; 0 for success, nil for silence.
    func code(_ actions: [TurnAction]) throws -> UInt16? {
        guard let answer = try answer(actions) else { return nil }
        return answer.kind == .success ? 0 : try answer.errorValue()?.code.rawValue
    }
}

let peer = TransportAddress(v4: 0x0808_0808, port: 4000)

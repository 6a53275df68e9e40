public import ApusCore

/// A STUN and TURN server without sockets: messages and events in, actions out (RFC 8489, 8656, 8016, 6062; D8).
///
/// One machine serves all planes of a node, on one thread. It holds allocations, permissions, channels, reservations
/// and the mirrors of other nodes' allocations. ``TurnServerConfiguration`` limits each of these. Data packets never
/// come here, except a Send indication that the plane cannot handle.
///
/// A sender with a forged address gains nothing: until a request shows a nonce that was sent to its address, nothing is
/// stored for it, each answer is about as small as the request, and answers are limited per source. A request is
/// checked in the order of cost: form, nonce, name, MAC. If a source has sent too many wrong MACs, none of its MACs is
/// checked for a while. See ``SourceBounds``.
///
/// States of an allocation: `allocate` → opening (a request to the shell) → live → ended, by Refresh 0, by expiry, by
/// its stream's end (unless it has a ticket), or by the node. When this node dies, its allocations end, and clients
/// with a ticket continue at another node: see `adopt`, and `claimed` for allocations held by other nodes. When it
/// drains, ``drain(to:at:)`` redirects new clients (ALTERNATE-SERVER), and later the existing ones.
///
/// Time, wall clock and randomness are passed in. Not thread-safe: its owner is one thread or actor.
public struct TurnServerStateMachine: Sendable {
    /// The subject of a timer in the heap.
    enum Subject: Hashable, Sendable {
        case allocation(AllocationID)
        case opening(UInt32)
        case reservation(UInt64)
        case mirror(MobilityTicket)
        case ending(AllocationID)
        case connection(UInt32)
        case claim(UInt32)
    }

    /// The authenticated sender of a request.
    struct Caller: Sendable {
        let username: String
        let user: String
        let key: StunKey
        let integrity: StunIntegrity.Algorithm
    }

    /// A request with everything that its answer needs.
    struct Request: Sendable {
        let message: StunMessage
        let flow: RelayFlow
        let caller: Caller
    }

    /// An allocation whose relayed address is being opened.
    struct Opening: Sendable {
        let request: Request
        let families: [TransportAddress.Family]
        let lifetime: Duration
        let isTCP: Bool
        let wantsTicket: Bool
        let reservation: UInt64?
        /// The allocation of another node that continues here.
        let revived: Revived?
        /// The reason for which the second family is missing already.
        let secondFamilyError: StunErrorCode?
        /// The token under which the next port is reserved.
        var reservesNextAs: UInt64?
    }

    /// An allocation of another node that continues here, and the incarnation of that node.
    struct Revived: Sendable {
        let state: AllocationMirror
        let home: UInt64
    }

    /// A client whose allocation is being looked up at other nodes.
    struct Claim: Sendable {
        let request: Request
        let asked: UInt32?
        let ticket: MobilityTicketSealer.Content
    }

    struct Reservation: Sendable {
        let user: String
        let expiry: MonotonicTime
    }

    /// An ended allocation whose last counters are awaited.
    struct Ending: Sendable {
        let life: AllocationSummary
        var countersBefore: RelayCounters
        /// The last counters of its plane, once reported.
        var counted: RelayCounters?
        /// Its data connections whose end has not been reported (RFC 6062).
        var connectionCount: Int
    }

    struct Mirror: Sendable {
        let state: AllocationMirror
        let expiry: MonotonicTime
    }

    var configuration: TurnServerConfiguration
    let nonce: StatelessNonce
    let sealer: MobilityTicketSealer
    /// The offered PASSWORD-ALGORITHMS, the stronger one first (RFC 8489 §14.11).
    static let passwordAlgorithms: [UInt8] = [0, 2, 0, 0, 0, 1, 0, 0]

    var random: any RandomNumberGenerator & Sendable
    private var wallSeconds: Int64
    private var wallReadAt: MonotonicTime
    var challenges: SourceBounds
    var proofFailures: SourceBounds
    var bindings: SourceLimiter
    var userhashes: UserhashTable

    var allocations: [AllocationID: TurnAllocation] = [:]
    var byFlow: [RelayFlow: AllocationID] = [:]
    var byTicket: [MobilityTicket: AllocationID] = [:]
    var connectionByFlow: [RelayFlow: UInt32] = [:]
    var openings: [UInt32: Opening] = [:]
    var openingByFlow: [RelayFlow: UInt32] = [:]
    var reservations: [UInt64: Reservation] = [:]
    var mirrors: [MobilityTicket: Mirror] = [:]
    var claims: [UInt32: Claim] = [:]
    var claimByFlow: [RelayFlow: UInt32] = [:]
    var lastClaim: UInt32 = 0
    var users: [String: TurnUser] = [:]
    var allocationsElsewhere: [String: Int] = [:]
    /// Bounded, because it is read once a second.
    var changedUsers: Set<String> = []
    var endings: [AllocationID: Ending] = [:]
    var connections: [UInt32: TurnConnection] = [:]
    /// Allocations that must still be checked against changed rules for peers, the next one last.
    var toJudge: [AllocationID] = []
    var heap = DeadlineHeap<Subject>()
    var lastAllocation: UInt32 = 0
    var lastOpening: UInt32 = 0
    /// The end of the last allocation if this node drains; nil if it does not.
    var drainedAt: MonotonicTime?
    var alternate: RelayAlternate?
    /// True for user names whose credentials are revoked.
    var isRevoked: @Sendable (_ username: String) -> Bool = { _ in false }

    /// - Parameters:
    ///   - random: Makes tickets and tokens. A server must use the system's generator.
    ///   - unixSeconds: The wall clock at `now`; see ``wallClockRead(seconds:at:)``.
    public init(
        _ configuration: TurnServerConfiguration, random: any RandomNumberGenerator & Sendable, unixSeconds: Int64,
        now: MonotonicTime
    ) {
        var random = random
        self.configuration = configuration
        nonce = StatelessNonce(
            key: configuration.nonceKey, lifetimeSeconds: configuration.nonceLifetime.components.seconds)
        sealer = MobilityTicketSealer(key: configuration.ticketKey)
        challenges = SourceBounds(
            rowCount: configuration.sourceRows, port: configuration.portChallenges,
            address: TurnServerConfiguration.Rate(
                burst: configuration.challengeBurst, perSecond: configuration.challengesPerSecond),
            salt: random.next())
        proofFailures = SourceBounds(
            rowCount: configuration.sourceRows, port: configuration.portProofFailures,
            address: configuration.addressProofFailures, reserve: configuration.proofReserve, salt: random.next())
        bindings = SourceLimiter(
            rowCount: configuration.sourceRows, burst: configuration.bindingBurst,
            perSecond: configuration.bindingsPerSecond, salt: random.next())
        userhashes = UserhashTable(capacity: configuration.userhashesMax)
        self.random = random
        wallSeconds = unixSeconds
        wallReadAt = now
    }

    /// The number of live allocations.
    public var allocationCount: Int { allocations.count }

    /// Allocations that were refused by a user's limit, since the start.
    public internal(set) var limitedAllocationCount: UInt64 = 0

    /// Peers that were refused because their user named them too fast, since the start.
    public internal(set) var limitedPeerCount: UInt64 = 0

    /// Challenges and refusals (401, 438, 400) that were not sent because of their source's limit, since the start.
    public var limitedChallengeCount: UInt64 { challenges.refusedCount }

    /// Requests that were dropped because their source, or the allocation of their flow, had sent too many wrong
    /// credentials, since the start.
    public internal(set) var limitedProofCount: UInt64 = 0

    /// Answers to Binding requests that were not sent because of their source's limit, since the start.
    public var limitedBindingCount: UInt64 { bindings.refusedCount }

    /// Sets the wall clock, by which credentials and nonces are validated. Called from time to time, since clocks are
    /// adjusted.
    public mutating func wallClockRead(seconds: Int64, at now: MonotonicTime) {
        wallSeconds = seconds
        wallReadAt = now
    }

    func unixSeconds(at now: MonotonicTime) -> Int64 { wallSeconds + (now - wallReadAt).components.seconds }

    // MARK: Messages

    /// A STUN message arrived from a client.
    ///
    /// Malformed messages, those with a wrong FINGERPRINT, and responses are dropped silently.
    public mutating func receive(_ bytes: [UInt8], on flow: RelayFlow, at now: MonotonicTime) -> [TurnAction] {
        guard let message = try? StunMessage(bytes), message.isFingerprintRight != false else { return [] }
        switch (message.kind, message.method) {
        case (.request, .binding): return binding(message, flow, at: now)
        case (.request, .allocate), (.request, .refresh), (.request, .createPermission), (.request, .channelBind),
            (.request, .connect), (.request, .connectionBind):
            return request(message, flow, at: now)
        case (.indication, .send): return sendIndication(message, flow, at: now)
        case (.request, _), (.indication, _), (.success, _), (.error, _): return []
        }
    }

    /// RFC 8489 §12.1: returns the client's address as seen by the server. Needs no credential.
    private mutating func binding(_ message: StunMessage, _ flow: RelayFlow, at now: MonotonicTime) -> [TurnAction] {
        guard flow.transport.isStream || bindings.take(flow.remote, at: now) else { return [] }
        let unknown = message.unknownAttributes(known: Self.known + [.priority, .useCandidate])
        guard unknown.isEmpty else { return [refusal(message, flow, .unknownAttribute, unknown: unknown)] }
        var writer = StunWriter(StunMessageType(.success, .binding), message.transaction)
        writer.add(.xorMappedAddress, xorAddress: flow.remote)
        return [finish(&writer, to: message, flow, nil)]
    }

    private mutating func request(_ message: StunMessage, _ flow: RelayFlow, at now: MonotonicTime) -> [TurnAction] {
        if message.attributes.isEmpty || (message.method == .allocate && !message.has(.requestedTransport)) {
            // No challenge. Over UDP the sender's address may be forged, so it gets no more bytes than it sent. A bare
            // header is therefore not answered.
            let answer = refusal(message, flow, .badRequest)
            if flow.transport == .udp, case .reply(_, let bytes) = answer, bytes.count > message.bytes.count {
                return []
            }
            return unauthenticatedAnswer(answer, to: message, flow, at: now)
        }
        switch authenticate(message, flow, at: now) {
        case .refused(let actions): return actions
        case .accepted(let caller):
            let request = Request(message: message, flow: flow, caller: caller)
            let unknown = message.unknownAttributes(known: Self.known)
            guard unknown.isEmpty else {
                return [refusal(message, flow, .unknownAttribute, caller: caller, unknown: unknown)]
            }
            do throws(ApusError) {
                return try serve(request, at: now)
            } catch {
                return [refusal(request, .badRequest)]
            }
        }
    }

    private mutating func serve(_ request: Request, at now: MonotonicTime) throws(ApusError) -> [TurnAction] {
        switch request.message.method {
        case .allocate: return try allocate(request, at: now)
        case .refresh: return try refresh(request, at: now)
        case .connectionBind: return try connectionBind(request, at: now)
        default: break
        }
        guard let id = byFlow[request.flow], let allocation = allocations[id] else {
            return [refusal(request, .allocationMismatch)]
        }
        guard allocation.username == request.caller.username else { return [refusal(request, .wrongCredentials)] }
        switch request.message.method {
        case .createPermission: return try createPermission(request, id, at: now)
        case .channelBind: return try channelBind(request, id, at: now)
        case .connect: return try connect(request, id, at: now)
        default: return []
        }
    }

    /// The attributes that this server understands in requests.
    static let known: [StunAttribute] = [
        .mappedAddress, .username, .messageIntegrity, .realm, .nonce, .messageIntegritySHA256, .passwordAlgorithm,
        .userhash, .channelNumber, .lifetime, .xorPeerAddress, .data, .requestedAddressFamily, .evenPort,
        .requestedTransport, .dontFragment, .reservationToken, .connectionID,
    ]
}

// MARK: Credentials and answers

extension TurnServerStateMachine {
    enum Verdict {
        case accepted(Caller)
        case refused([TurnAction])
    }

    /// The long-term credential mechanism (RFC 8489 §9.2.4). The nonce is checked before the MAC, since it is cheaper.
    mutating func authenticate(_ message: StunMessage, _ flow: RelayFlow, at now: MonotonicTime) -> Verdict {
        guard let integrity = message.integrity else { return challenge(message, flow, .unauthenticated, at: now) }
        let seconds = unixSeconds(at: now)
        let realmText: String?
        let nonceText: String?
        let usernameText: String?
        let algorithm: StunPasswordAlgorithm?
        do throws(ApusError) {
            realmText = try message.text(.realm)
            nonceText = try message.text(.nonce)
            usernameText = try message.text(.username, byteCountMax: RelayCredentials.usernameByteCountMax)
            algorithm = try passwordAlgorithm(of: message)
        } catch { return unproven(message, flow, .badRequest, at: now) }
        guard let realmText, let nonceText, usernameText != nil || message.has(.userhash), let algorithm else {
            return unproven(message, flow, .badRequest, at: now)
        }
        guard nonce.isFresh(nonceText, for: flow.nonceAddress, at: seconds) else {
            return challenge(message, flow, .staleNonce, at: now)
        }
        guard mayProve(flow, at: now) else { return .refused([]) }
        // Long names are the most expensive to prepare. Only senders with a verified address get this far, and the
        // length is bounded.
        let prepared = usernameText.flatMap(OpaqueString.prepare)
        guard (usernameText == nil) == (prepared == nil) else {
            countFailure(flow, at: now)
            return .refused([refusal(message, flow, .badRequest)])
        }
        guard realmText.utf8.elementsEqual(configuration.credentials.realm.utf8),
            let username = prepared ?? message.value(of: .userhash).flatMap({ userhashes[Array($0)] }),
            let (expiry, user) = configuration.identity(of: username)
        else { return notProven(message, flow, at: now) }
        guard !isRevoked(username) else { return notProven(message, flow, at: now) }
        // A live allocation may be refreshed for a while after its credential has expired. Nothing new may be created
        // with it.
        let isNew = message.method == .allocate || message.has(.mobilityTicket)
        let grace = isNew ? 0 : configuration.credentialGrace.components.seconds
        guard seconds < expiry || seconds - expiry < grace else { return notProven(message, flow, at: now) }
        for key in configuration.keys(of: username, algorithm: algorithm)
        where message.verifies(integrity, key: key) {
            userhashes.insert(username, realm: configuration.credentials.realm)
            if message.method == .allocate, flow.transport == .udp {
                challenges.give(
                    configuration.challengesPerProof, countMax: configuration.challengeCreditMax, to: flow.remote,
                    at: now)
            }
            return .accepted(Caller(username: username, user: user, key: key, integrity: integrity))
        }
        return notProven(message, flow, at: now)
    }

    /// The algorithm that the request chose; MD5 if it chose none. Our nonces always offer the choice. A request is
    /// therefore refused if it has only one of the two attributes, a different offer, or an algorithm that was not
    /// offered (RFC 8489 §9.2.4).
    private func passwordAlgorithm(of message: StunMessage) throws(ApusError) -> StunPasswordAlgorithm? {
        let chosen = try message.passwordAlgorithm()
        guard let offered = message.value(of: .passwordAlgorithms) else { return chosen == nil ? .md5 : nil }
        guard let chosen, Array(offered) == Self.passwordAlgorithms else { return nil }
        return chosen
    }

    /// 401 or 438 with what the client needs to try again (RFC 8489 §9.2.4). No answer if the source is at its limit.
    private mutating func challenge(
        _ message: StunMessage, _ flow: RelayFlow, _ code: StunErrorCode, at now: MonotonicTime
    ) -> Verdict {
        .refused(unauthenticatedAnswer(challengeAnswer(message, flow, code, at: now), to: message, flow, at: now))
    }

    /// An answer to an unauthenticated source. An answer that is no longer than its request cannot be used for
    /// amplification, so it is not limited per source: otherwise a sender that forges a client's address could use up
    /// the 438 on which the client's allocation depends. Longer answers are counted for their source.
    private mutating func unauthenticatedAnswer(
        _ answer: TurnAction, to message: StunMessage, _ flow: RelayFlow, at now: MonotonicTime
    ) -> [TurnAction] {
        if case .reply(_, let bytes) = answer, bytes.count <= message.bytes.count { return [answer] }
        return mayAnswer(flow, at: now) ? [answer] : []
    }

    private func challengeAnswer(
        _ message: StunMessage, _ flow: RelayFlow, _ code: StunErrorCode, at now: MonotonicTime
    ) -> TurnAction {
        var writer = StunWriter(StunMessageType(.error, message.method), message.transaction)
        writer.add(errorCode: code)
        writer.add(.realm, text: configuration.credentials.realm)
        writer.add(.nonce, text: nonce.make(for: flow.nonceAddress, at: unixSeconds(at: now)))
        writer.add(.passwordAlgorithms, Self.passwordAlgorithms)
        return finish(&writer, to: message, flow, nil)
    }

    /// True if a source may have an unauthenticated answer. Only over UDP can its address be forged: on other
    /// transports a handshake or a cookie has verified it.
    private mutating func mayAnswer(_ flow: RelayFlow, at now: MonotonicTime) -> Bool {
        challenges.take(flow.remote, isAddressProven: flow.transport != .udp, at: now)
    }

    /// True if the credential of a request with a fresh nonce may be checked. Wrong ones are limited per source, and
    /// separately on the flow of an allocation, so that a neighbour cannot end a live allocation.
    private mutating func mayProve(_ flow: RelayFlow, at now: MonotonicTime) -> Bool {
        let bounds = configuration.allocationProofFailures
        let isAllowed =
            if let id = byFlow[flow] {
                allocations[id]?.proofFailures.has(
                    at: now.nanoseconds, burst: Double(bounds.burst), perSecond: bounds.perSecond) ?? true
            } else {
                proofFailures.has(flow.remote, at: now)
            }
        if !isAllowed { limitedProofCount &+= 1 }
        return isAllowed
    }

    /// 401 for a wrong credential with a fresh nonce. The nonce has verified the sender's address, so it counts as a
    /// failed authentication, not as a challenge.
    private mutating func notProven(_ message: StunMessage, _ flow: RelayFlow, at now: MonotonicTime) -> Verdict {
        countFailure(flow, at: now)
        return .refused([challengeAnswer(message, flow, .unauthenticated, at: now)])
    }

    /// Counts a wrong credential for the allocation of its flow, or for its source.
    private mutating func countFailure(_ flow: RelayFlow, at now: MonotonicTime) {
        if let id = byFlow[flow] {
            let bounds = configuration.allocationProofFailures
            _ = allocations[id]?.proofFailures.take(
                at: now.nanoseconds, burst: Double(bounds.burst), perSecond: bounds.perSecond)
        } else {
            _ = proofFailures.take(flow.remote, at: now)
        }
    }

    private mutating func unproven(
        _ message: StunMessage, _ flow: RelayFlow, _ code: StunErrorCode, at now: MonotonicTime
    ) -> Verdict {
        .refused(unauthenticatedAnswer(refusal(message, flow, code), to: message, flow, at: now))
    }

    /// An error answer to an authenticated caller.
    func refusal(_ request: Request, _ code: StunErrorCode) -> TurnAction {
        refusal(request.message, request.flow, code, caller: request.caller)
    }

    /// An error answer, without a reason, to keep it small.
    func refusal(
        _ message: StunMessage, _ flow: RelayFlow, _ code: StunErrorCode, caller: Caller? = nil,
        unknown: [StunAttribute] = []
    ) -> TurnAction {
        var writer = StunWriter(StunMessageType(.error, message.method), message.transaction)
        writer.add(errorCode: code)
        if !unknown.isEmpty { writer.add(unknownAttributes: unknown) }
        return finish(&writer, to: message, flow, caller)
    }

    /// A success answer, filled in by `fill`.
    func success(_ request: Request, _ fill: (inout StunWriter) -> Void = { _ in }) -> TurnAction {
        var writer = StunWriter(StunMessageType(.success, request.message.method), request.message.transaction)
        fill(&writer)
        return finish(&writer, to: request.message, request.flow, request.caller)
    }

    /// Adds the integrity that the request used, and a fingerprint if it had one.
    func finish(
        _ writer: inout StunWriter, to message: StunMessage, _ flow: RelayFlow, _ caller: Caller?
    ) -> TurnAction {
        if let caller { writer.addIntegrity(caller.integrity, key: caller.key) }
        if message.has(.fingerprint) { writer.addFingerprint() }
        return .reply(flow, writer.bytes)
    }
}

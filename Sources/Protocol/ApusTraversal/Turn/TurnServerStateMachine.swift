public import ApusCore

/// A STUN and TURN server without a socket: messages and events in, actions out (RFC 8489, 8656, 8016, 6062; D8).
///
/// One machine serves all planes of a node, on one thread. It holds allocations, permissions, channels, reservations
/// and the mirrors of other nodes' allocations, and each of these is bounded by ``TurnServerConfiguration``. Packets of
/// data never come here, except a Send indication that the plane finds unusual.
///
/// Whoever sends from an address that is not his gets nothing here that is worth having: until a request shows a nonce
/// that was sent to its address, nothing is remembered of it, each answer is about as small as the question, and
/// answers are limited per source. A request is checked in the order of its cost: shape, nonce, name, code; and a
/// source whose codes were wrong too often has none of them looked at for a while. See ``SourceBounds``.
///
/// The life of an allocation: `allocate` → opening (a question to the shell) → live → ended, by Refresh 0, by expiry,
/// by its stream's end (unless it has a ticket), or by the node. When this node dies, its allocations end here and go
/// on at another for clients that hold a ticket: see `adopt`, and `claimed` for what other nodes hold. When it
/// leaves, ``drain(to:at:)`` sends new clients elsewhere (ALTERNATE-SERVER) and those that are here after them.
///
/// Time, wall clock and chance are passed in. Not safe to share; its owner is one thread or actor.
public struct TurnServerStateMachine: Sendable {
    /// What a timer of the heap is for.
    enum Subject: Hashable, Sendable {
        case allocation(AllocationID)
        case opening(UInt32)
        case reservation(UInt64)
        case mirror(MobilityTicket)
        case ending(AllocationID)
        case connection(UInt32)
        case claim(UInt32)
    }

    /// Who sent a request, once it is proven.
    struct Caller: Sendable {
        let username: String
        let user: String
        let key: StunKey
        let integrity: StunIntegrity.Algorithm
    }

    /// A request with all that an answer to it needs.
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
        /// The allocation of another node that goes on here.
        let revived: Revived?
        /// Why the second family is missing already.
        let secondFamilyError: StunErrorCode?
        /// The token under which the next port is kept.
        var reservesNextAs: UInt64?
    }

    /// An allocation of another node that goes on here, and the life of that node.
    struct Revived: Sendable {
        let state: AllocationMirror
        let home: UInt64
    }

    /// A client whose allocation the other nodes are asked for.
    struct Claim: Sendable {
        let request: Request
        let asked: UInt32?
        let ticket: MobilityTicketSealer.Content
    }

    struct Reservation: Sendable {
        let user: String
        let expiry: MonotonicTime
    }

    /// An allocation that has ended and whose last counters are waited for.
    struct Ending: Sendable {
        let life: AllocationLife
        var countersBefore: RelayCounters
        /// The last of its plane, once it was told.
        var counted: RelayCounters?
        /// Its data connections whose end has not been told (RFC 6062).
        var connectionCount: Int
    }

    struct Mirror: Sendable {
        let state: AllocationMirror
        let expiry: MonotonicTime
    }

    var configuration: TurnServerConfiguration
    let nonce: StatelessNonce
    let sealer: MobilityTicketSealer
    /// PASSWORD-ALGORITHMS as it is offered, the better one first (RFC 8489 §14.11).
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
    /// Bounded by what asks for it once a second.
    var changedUsers: Set<String> = []
    var endings: [AllocationID: Ending] = [:]
    var connections: [UInt32: TurnConnection] = [:]
    /// Allocations that rules for peers which have changed are yet to judge, the next one last.
    var toJudge: [AllocationID] = []
    var heap = DeadlineHeap<Subject>()
    var lastAllocation: UInt32 = 0
    var lastOpening: UInt32 = 0
    /// When the last allocation ends where this node leaves; nil while it stays.
    var drainedAt: MonotonicTime?
    var alternate: RelayAlternate?
    /// Whose credentials are taken no more.
    var isRevoked: @Sendable (_ username: String) -> Bool = { _ in false }

    /// - Parameters:
    ///   - random: Makes tickets and tokens; in a server it must be the system's.
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

    /// Allocations that live here.
    public var allocationCount: Int { allocations.count }

    /// Allocations that were refused because their user had as many as it may have, since the start.
    public internal(set) var limitedAllocationCount: UInt64 = 0

    /// Peers that were refused because their user named them faster than it may, since the start.
    public internal(set) var limitedPeerCount: UInt64 = 0

    /// Challenges and refusals (401, 438, 400) that were not sent because their source had had enough, since the start.
    public var limitedChallengeCount: UInt64 { challenges.refusedCount }

    /// Requests that were dropped because their source, or the allocation of their flow, had shown too many wrong
    /// credentials, since the start.
    public internal(set) var limitedProofCount: UInt64 = 0

    /// Answers to Binding requests that were not sent because their source had had enough, since the start.
    public var limitedBindingCount: UInt64 { bindings.refusedCount }

    /// The wall clock, which decides about credentials and nonces; told now and then, since clocks are set.
    public mutating func wallClockRead(seconds: Int64, at now: MonotonicTime) {
        wallSeconds = seconds
        wallReadAt = now
    }

    func unixSeconds(at now: MonotonicTime) -> Int64 { wallSeconds + (now - wallReadAt).components.seconds }

    // MARK: Messages

    /// A STUN message that came from a client.
    ///
    /// What cannot be read, has a wrong FINGERPRINT, or is an answer, is dropped without a word.
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

    /// RFC 8489 §12.1: tells a client which address it is seen from. Needs no credential.
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
            // No challenge. Over UDP the sender may be another than it says: it gets no more bytes than came, so that a
            // bare header is not answered at all.
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

    /// Attributes that a server of ours understands in requests.
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

    /// The long-term credential mechanism (RFC 8489 §9.2.4), with the nonce before the code, since it is the cheaper.
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
        // Long names cost more to prepare than all the rest: of senders that showed where they are, and bounded.
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
        // What lives may be refreshed for a while after its credential has ended; nothing new begins with it.
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

    /// The algorithm that the request chose; MD5 where it chose none. Our nonces always offer the choice, so one half
    /// of the choice, another offer than ours, or an algorithm that we did not offer, is refused (RFC 8489 §9.2.4).
    private func passwordAlgorithm(of message: StunMessage) throws(ApusError) -> StunPasswordAlgorithm? {
        let chosen = try message.passwordAlgorithm()
        guard let offered = message.value(of: .passwordAlgorithms) else { return chosen == nil ? .md5 : nil }
        guard let chosen, Array(offered) == Self.passwordAlgorithms else { return nil }
        return chosen
    }

    /// 401 or 438 with what the client needs to ask again (RFC 8489 §9.2.4); nothing where the source had enough.
    private mutating func challenge(
        _ message: StunMessage, _ flow: RelayFlow, _ code: StunErrorCode, at now: MonotonicTime
    ) -> Verdict {
        .refused(unauthenticatedAnswer(challengeAnswer(message, flow, code, at: now), to: message, flow, at: now))
    }

    /// An answer to a source that has shown nothing. One that is no longer than its question makes nothing larger,
    /// whoever is said to have sent it: it is bounded by nothing but control's second place, so that nobody who forges
    /// a client's address keeps its 438 from it, which what it has depends on. Others are counted for their source.
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

    /// Whether a source may have an answer that it has not authenticated for. Only over UDP can it be another than it
    /// says: a handshake or a cookie has proven the others.
    private mutating func mayAnswer(_ flow: RelayFlow, at now: MonotonicTime) -> Bool {
        challenges.take(flow.remote, isAddressProven: flow.transport != .udp, at: now)
    }

    /// Whether the credential of a request with a fresh nonce is looked at: wrong ones are limited per source, and
    /// those on the flow of an allocation by themselves, so that nobody's neighbour ends what lives.
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

    /// 401 for a wrong credential with a fresh nonce, which has shown where its sender is: it is counted as a failed
    /// proof, not as a challenge.
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

    /// An error answer to a proven caller.
    func refusal(_ request: Request, _ code: StunErrorCode) -> TurnAction {
        refusal(request.message, request.flow, code, caller: request.caller)
    }

    /// An error answer, without a sentence, so that it stays small.
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

    /// Integrity as the question had it, and a fingerprint where it had one.
    func finish(
        _ writer: inout StunWriter, to message: StunMessage, _ flow: RelayFlow, _ caller: Caller?
    ) -> TurnAction {
        if let caller { writer.addIntegrity(caller.integrity, key: caller.key) }
        if message.has(.fingerprint) { writer.addFingerprint() }
        return .reply(flow, writer.bytes)
    }
}

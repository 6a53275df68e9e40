package import ApusCore
import SwiftProtobuf

/// One call: who is called, who rings, who wins, and how it ends for each leg (CALL-3 to CALL-9).
///
/// **Parts.** A call has legs. The first leg is the caller's; each other leg is a device, or one app of an account. The
/// legs of one account are one party. The phases and what moves a call between them are the table ``CallTransition``.
///
/// **The winner.** Events of all legs come to the owner of the call, one after the other. The first accept wins, and
/// ends the other legs with −2522. No leg decides for itself that it has won.
///
/// **Types** (CALL-4). A reject ends a call of type 1 or 2. In a call of type 3 it removes the party that rejects, and
/// the call ends when no party is left. A busy or unreachable leg is removed in every type.
///
/// **Glare.** A cancel that arrives after the accept hangs up, so both sides see the end. An accept that arrives after
/// the cancel has lost, and its leg receives −2523. For two parties that call each other see ``PartyStateMachine``.
///
/// **Parties.** A party is on one call at a time (CALL-5). The call claims the caller's party, then the called ones,
/// and rings a leg when its party is claimed. Claims may be made before the call is placed: the call then begins with
/// their answers, and rings with its first change. A claim expires unless the call renews it, so the loss of a call
/// without a trace keeps no party busy for longer than ``CallConfiguration/claimTime``.
///
/// **Notices.** The state has what each leg has to be notified of and what it has confirmed. What is not confirmed is
/// sent again, also by the next owner after a death. A leg ignores repetitions, so it handles each notice once.
/// Claims, channels and the record are repeated in the same manner.
///
/// **Events** can be repeated without a further effect. An event that comes too late changes nothing, and its answer
/// says how the call has ended for the leg.
///
/// **Answering machine.** If no leg accepts in time, or none is left that could, the answering machine of a called
/// party answers. The called parties are free again, and the caller publishes until it hangs up or the message has its
/// longest length.
///
/// **Sessions.** A leg whose session has ended has ``CallConfiguration/grace`` to return, unless a push reaches it. A
/// report about a session older than one already seen has no effect.
///
/// Pure value: confined to its owner. Times are Unix milliseconds of the cluster's clock. An input that throws has
/// changed nothing.
package struct CallStateMachine: Sendable {
    /// The state to replicate. Its phase is unspecified if there is no call.
    package internal(set) var state = CallState()
    package let configuration: CallConfiguration

    /// No call.
    package init(_ configuration: CallConfiguration = CallConfiguration()) { self.configuration = configuration }

    // MARK: Clients

    /// The caller places the call (CALL-6). A repetition has no further effect.
    ///
    /// - Throws: −2500 if a parameter is out of range, or another call has the id.
    package mutating func start(
        _ start: CallStart, at now: Int64, _ actions: inout [CallAction]
    ) throws(ApusError) -> CallView {
        guard state.phase == .unspecified else {
            guard state.isStarted(by: start, configuration) else {
                throw ApusError(.callParametersInvalid, "another call has this session id")
            }
            for answer in start.claims where answer.granted { releaseAgain(answer.party, at: now, &actions) }
            return view(0)
        }
        try start.check(configuration)
        _ = move(.started)
        (state.id, state.type, state.startedMs) = (start.id.rawValue, start.type, now)
        (state.extra, state.keepConnect) = (start.extra.bytes, start.extra.keepConnect)
        state.ringEndMs = Self.time(now, plus: start.timeout ?? configuration.ringTime)
        if let answering = start.answering { state.answering = answering }
        state.claims = [.with { $0.party = start.caller.party }]
        state.legs = [
            .with {
                ($0.endpoint, $0.session) = (start.caller.endpoint.rawValue, start.caller.session)
                $0.status = .calling
            }
        ]
        for target in start.targets { add(target) }
        claim(0, at: now, &actions)
        for answer in start.claims { claimedAhead(answer, at: now, &actions) }
        return view(0)
    }

    /// A client, or the cluster on behalf of a client, reports an event.
    ///
    /// - Returns: what the leg has to know. If the call is over for it, the view has the reason.
    /// - Throws: −2508 if there is no such call, or the leg was not notified of it; 8003 if the sender is no leg, which
    ///   reveals nothing else; −2500 if the event is not one of this leg, such as a cancel of a called leg.
    package mutating func handle(
        _ event: CallEvent, from sender: CallSender, at now: Int64, _ actions: inout [CallAction]
    ) throws(ApusError) -> CallView {
        var (next, caused) = (self, [CallAction]())
        next.expire(at: now, &caused)
        let leg = try next.leg(of: sender, event)
        next.notePresence(of: leg, event, sender.session, at: now, &caused)
        try next.carryOut(event, of: leg, at: now, &caused)
        // Last, so that nothing is sent again that the event has made obsolete.
        next.resendDue(at: now, &caused)
        self = next
        actions += caused
        return view(leg)
    }

    /// What the leg sees of the call.
    ///
    /// - Precondition: the call has such a leg.
    package func view(_ leg: Int) -> CallView {
        let entry = state.legs[leg]
        var flags = CallFlags()
        flags.outgoing = leg == 0
        flags.answered = leg == 0 ? state.respondedMs != 0 : entry.rangMs != 0
        flags.accepted = state.winner != 0 && (leg == 0 || leg == Int(state.winner))
        flags.connected = flags.accepted && state.connectedMs != 0
        flags.end = entry.status == .ended
        return CallView(leg: leg, flags: flags, end: flags.end ? CallLegEnd(entry.reason, entry.number) : nil)
    }

    /// - Throws: as ``handle(_:from:at:_:)``.
    private mutating func leg(of sender: CallSender, _ event: CallEvent) throws(ApusError) -> Int {
        guard state.phase != .unspecified else { throw ApusError(.callUnknown) }
        let known = state.legs.indices.first { index in
            state.legs[index].endpoint == sender.endpoint.rawValue && party(of: index) == sender.party
        }
        guard let known else {
            guard event == .joined, sender.party.kind == .account,
                let claim = state.claims.dropFirst().firstIndex(where: { $0.party == sender.party })
            else { throw ApusError(.illegalRelation, "no leg of this call") }
            return try joining(sender, claim)
        }
        switch event {
        case .sessionStarted, .sessionEnded: return known
        case .joined, .rang, .accepted, .rejected, .wasBusy, .cancelled, .hungUp, .connected, .failed, .confirmed:
            // To a leg that was not notified of the call, the answer does not reveal it.
            guard known == 0 || state.legs[known].sends > 0 else { throw ApusError(.callUnknown) }
            return known
        }
    }

    /// A new leg for an app of a called account.
    ///
    /// - Throws: the number of a called leg if the call is over for the account, −2508 if it was not called yet, 10007
    ///   if the call has too many legs.
    private mutating func joining(_ sender: CallSender, _ claim: Int) throws(ApusError) -> Int {
        let end = CallLegEnd(of: state.end, for: state.legs.count, isAccepted: state.winner != 0)
        switch state.claims[claim].status {
        case .claimed where state.winner == 0:
            guard state.legs.count <= configuration.legsMax else {
                throw ApusError(.overloaded, "the call has too many legs")
            }
            add(CallTarget(sender.party, sender.endpoint, hasPush: true))
            return state.legs.endIndex - 1
        case .unspecified, .claiming, .UNRECOGNIZED: throw ApusError(.callUnknown)
        case .refused where state.phase != .ended: throw ApusError(.onCalling)
        case .claimed, .refused, .releasing, .released:
            if state.phase == .recording { throw ApusError(.callTimedOut) }
            throw ApusError(state.winner != 0 ? .answeredByOthers : end.error ?? .rejectedByOthers)
        }
    }

    private mutating func add(_ target: CallTarget) {
        let known = state.claims.dropFirst().firstIndex { $0.party == target.party }
        if known == nil {
            state.claims.append(.with { ($0.party, $0.guest) = (target.party, target.isOfGuest) })
        }
        state.legs.append(
            .with {
                $0.claim = UInt32(known ?? state.claims.endIndex - 1)
                ($0.endpoint, $0.byPush) = (target.endpoint.rawValue, target.hasPush)
                guard target.isAbsent else { return }
                ($0.status, $0.reason, $0.number) = (.ended, .unreachable, ErrorCode.mediaDisconnected.number)
                ($0.stage, $0.confirmed) = (.ended, .ended)
            })
    }

    private mutating func carryOut(
        _ event: CallEvent, of leg: Int, at now: Int64, _ actions: inout [CallAction]
    ) throws(ApusError) {
        let isCaller = leg == 0
        switch event {
        case .rang, .accepted, .rejected, .wasBusy, .joined:
            guard !isCaller else { throw ApusError(.callParametersInvalid, "this is an event of a called leg") }
        case .cancelled:
            guard isCaller else { throw ApusError(.callParametersInvalid, "only the caller cancels a call") }
        case .failed(let number):
            guard CallLegEnd.reportable.contains(where: { $0.number == number }) else {
                throw ApusError(.callParametersInvalid, "a leg does not report this error")
            }
        case .hungUp, .connected, .confirmed, .sessionStarted, .sessionEnded: break
        }
        switch event {
        case .joined: join(leg, at: now, &actions)
        case .rang: rang(leg, at: now, &actions)
        case .accepted: accepted(leg, at: now, &actions)
        case .rejected: rejected(leg, at: now, &actions)
        case .wasBusy: remove(leg, .busy, .onCalling, isOwn: true, at: now, &actions)
        case .cancelled, .hungUp:
            if state.winner != 0 {
                if isPart(leg) { end(.hungUp, by: leg, at: now, &actions) }
            } else if isCaller, state.phase == .recording {
                end(.messageEnded, by: leg, at: now, &actions)
            } else if isCaller {
                end(.cancelled, by: leg, at: now, &actions)
            } else {
                rejected(leg, at: now, &actions)
            }
        case .connected: connected(leg, at: now)
        case .failed(let number):
            if isPart(leg) {
                end(.failed, by: leg, number: number, at: now, &actions)
            } else {
                remove(leg, .failed, ErrorCode(number: number), isOwn: true, at: now, &actions)
            }
        case .confirmed(let stage): confirm(stage, of: leg)
        case .sessionStarted, .sessionEnded: break
        }
    }

    // MARK: Called legs

    private mutating func join(_ leg: Int, at now: Int64, _ actions: inout [CallAction]) {
        if state.legs[leg].status == .waiting {
            ring(leg, at: now, &actions)
        } else if state.legs[leg].confirmed != .ended {
            resend(leg, at: now, &actions)
        }
    }

    mutating func ring(_ leg: Int, at now: Int64, _ actions: inout [CallAction]) {
        state.legs[leg].status = .calling
        notify(leg, .ring, at: now, &actions)
    }

    private mutating func rang(_ leg: Int, at now: Int64, _ actions: inout [CallAction]) {
        guard state.legs[leg].status == .calling, move(.legRang) != nil else { return }
        (state.legs[leg].status, state.legs[leg].rangMs) = (.ringing, now)
        confirm(.ring, of: leg)
        guard state.respondedMs == 0 else { return }
        state.respondedMs = now
        notify(0, .ring, at: now, &actions)
    }

    private mutating func accepted(_ leg: Int, at now: Int64, _ actions: inout [CallAction]) {
        if Int(state.winner) == leg, state.legs[leg].status == .accepted { return resend(leg, at: now, &actions) }
        guard isOpen(leg), move(.accepted) != nil else { return }
        (state.winner, state.acceptedMs) = (UInt32(leg), now)
        if state.respondedMs == 0 { state.respondedMs = now }
        if state.legs[leg].rangMs == 0 { state.legs[leg].rangMs = now }
        (state.legs[0].status, state.legs[leg].status) = (.accepted, .accepted)
        for other in state.legs.indices where other != leg && isOpen(other) {
            finish(other, .answeredByOthers, .answeredByOthers, at: now, &actions)
        }
        for claim in state.claims.indices.dropFirst() where claim != Int(state.legs[leg].claim) {
            release(claim, at: now, &actions)
        }
        notify(0, .accepted, at: now, &actions)
        notify(leg, .accepted, at: now, &actions)
        // From now on no other call takes the party over.
        let index = Int(state.legs[leg].claim)
        if state.claims[index].guest { claim(index, at: now, &actions) }
    }

    private mutating func rejected(_ leg: Int, at now: Int64, _ actions: inout [CallAction]) {
        if Int(state.winner) == leg { return end(.hungUp, by: leg, at: now, &actions) }
        guard isOpen(leg) else { return }
        switch state.type {
        case .oneToManySpecial:
            for other in state.legs.indices where other != leg && isOpen(other) {
                guard state.legs[other].claim == state.legs[leg].claim else { continue }
                finish(other, .rejected, .rejectedByOthers, at: now, &actions)
            }
            remove(leg, .rejected, nil, isOwn: true, at: now, &actions)
        case .oneToOne, .oneToMany, .unspecified, .UNRECOGNIZED:
            end(.rejected, by: leg, at: now, &actions)
        }
    }

    /// Ends a called leg before the accept. The call continues as long as a leg is left.
    mutating func remove(
        _ leg: Int, _ reason: CallEndReason, _ code: ErrorCode?, isOwn: Bool, at now: Int64,
        _ actions: inout [CallAction]
    ) {
        guard leg != 0, isOpen(leg) else { return }
        finish(leg, reason, code, isOwn: isOwn, at: now, &actions)
        leave(Int(state.legs[leg].claim), at: now, &actions)
    }

    /// A leg of this party has left.
    mutating func leave(_ claim: Int, at now: Int64, _ actions: inout [CallAction]) {
        let called = state.legs.indices.dropFirst()
        if !called.contains(where: { isOpen($0) && Int(state.legs[$0].claim) == claim }) {
            release(claim, at: now, &actions)
        }
        guard !called.contains(where: isOpen) else {
            _ = move(.legLeft)
            return
        }
        let isRejected = called.contains { state.legs[$0].reason == .rejected }
        if !isRejected, answerByMachine(at: now, &actions) { return }
        if let leg = called.last(where: { state.legs[$0].reason == .rejected && state.legs[$0].number == 0 }) {
            end(.rejected, by: leg, at: now, &actions)
        } else if let leg = called.last(where: { state.legs[$0].reason == .busy }) {
            end(.allBusy, by: leg, at: now, &actions)
        } else {
            end(.nobodyLeft, by: called.last ?? 0, at: now, &actions)
        }
    }

    // MARK: The answering machine

    /// The answering machine of a called party takes a message. False if no called party has one, or the call is not in
    /// a phase for it.
    mutating func answerByMachine(at now: Int64, _ actions: inout [CallAction]) -> Bool {
        guard state.hasAnswering, move(.machineAnswers) != nil else { return false }
        (state.messageMs, state.keepConnect) = (now, false)
        state.legs[0].status = .accepted
        for leg in state.legs.indices where isOpen(leg) {
            finish(leg, .notAnswered, .callTimedOut, at: now, &actions)
        }
        for claim in state.claims.indices.dropFirst() { release(claim, at: now, &actions) }
        want(.recordMessage, at: now, &actions)
        notify(0, .accepted, at: now, &actions)
        return true
    }

    /// When the message has its longest length.
    var messageEndMs: Int64 { Self.time(state.messageMs, plus: .milliseconds(state.answering.lengthMs)) }

    /// The caller and the winner were chosen, or the answering machine has answered.
    var isAnswered: Bool { state.winner != 0 || state.messageMs != 0 }

    // MARK: The accepted call

    private mutating func connected(_ leg: Int, at now: Int64) {
        if state.phase == .recording { confirm(.accepted, of: leg) }
        guard isPart(leg), state.winner != 0, !state.legs[leg].isConnected else { return }
        let peer = leg == 0 ? Int(state.winner) : 0
        guard move(state.legs[peer].isConnected ? .bothConnected : .legConnected) != nil else { return }
        state.legs[leg].isConnected = true
        confirm(.accepted, of: leg)
        if state.legs[peer].isConnected { state.connectedMs = now }
    }

    /// Ends the call for all legs.
    ///
    /// - Parameters:
    ///   - trigger: has no effect if the present phase has no row for it.
    ///   - leg: the leg that has caused it. It knows the end already if it has asked for it.
    mutating func end(
        _ trigger: CallTrigger, by leg: Int, number: Int32 = 0, at now: Int64, _ actions: inout [CallAction]
    ) {
        guard let reason = move(trigger)?.reason else { return }
        state.end = .with { ($0.reason, $0.leg, $0.number) = (reason, UInt32(leg), number) }
        state.endedMs = now
        // If an answering machine has answered in the same change, the caller is notified of the end only.
        actions.removeAll { if case .reportAccepted = $0 { true } else { false } }
        // No leg is called from now on. What the caller has sent must not fill the owner's memory.
        state.extra = CallState().extra
        let isOwn = [.cancelled, .hungUp, .messageEnded, .rejected, .failed].contains(trigger)
        for other in state.legs.indices where other == 0 || state.legs[other].status != .ended {
            let end = CallLegEnd(of: state.end, for: other, isAccepted: state.winner != 0)
            finish(other, reason, end.error, isOwn: isOwn && other == leg, at: now, &actions)
        }
        for claim in state.claims.indices { release(claim, at: now, &actions) }
        if isAnswered { want(.releaseChannels, at: now, &actions) }
        if state.recordMessage.status == .wanted { sendAgain(.recordMessage, at: now, &actions) }
        want(.writeRecord, at: now, &actions)
    }

    /// Ends one leg.
    mutating func finish(
        _ leg: Int, _ reason: CallEndReason, _ code: ErrorCode?, isOwn: Bool = false, at now: Int64,
        _ actions: inout [CallAction]
    ) {
        let isNotified = state.legs[leg].status != .waiting || reason == .busy
        state.legs[leg].status = .ended
        (state.legs[leg].reason, state.legs[leg].number, state.legs[leg].endedMs) = (reason, code?.number ?? 0, now)
        if isOwn || !isNotified {
            (state.legs[leg].stage, state.legs[leg].confirmed) = (.ended, .ended)
        } else {
            notify(leg, .ended, at: now, &actions)
        }
    }

    // MARK: Questions

    /// Moves the call to the next phase; nil if the trigger has no effect in the present one.
    mutating func move(_ trigger: CallTrigger) -> CallTransition? {
        guard let row = CallTransition.row(state.phase, trigger) else { return nil }
        state.phase = row.to
        return row
    }

    func party(of leg: Int) -> CallParty { state.party(of: leg) }

    /// A called leg that can still accept, or wait for its party.
    func isOpen(_ leg: Int) -> Bool {
        switch state.legs[leg].status {
        case .waiting, .calling, .ringing: leg != 0
        case .accepted, .ended, .UNRECOGNIZED: false
        }
    }

    /// The caller or the winner, whose exit ends the call.
    func isPart(_ leg: Int) -> Bool { leg == 0 || leg == Int(state.winner) }

    /// Saturates.
    static func time(_ time: Int64, plus duration: Duration) -> Int64 {
        let (sum, isOver) = time.addingReportingOverflow(duration.nanoseconds / 1_000_000)
        return isOver ? (time < 0 ? .min : .max) : sum
    }
}

extension CallState {
    func party(of leg: Int) -> CallParty { claims[Int(legs[leg].claim)].party }
}

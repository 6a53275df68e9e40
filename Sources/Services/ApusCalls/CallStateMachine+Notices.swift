import ApusCore
import SwiftProtobuf

/// What is repeated until it is confirmed: notices of legs, and requests to other parts of the cluster.
extension CallStateMachine {
    /// Notifies the leg of this stage.
    mutating func notify(_ leg: Int, _ stage: CallStage, at now: Int64, _ actions: inout [CallAction]) {
        guard stage.rawValue > state.legs[leg].stage.rawValue else { return }
        (state.legs[leg].stage, state.legs[leg].sends) = (stage, 0)
        resend(leg, at: now, &actions)
    }

    /// Sends the leg what it has to know.
    mutating func resend(_ leg: Int, at now: Int64, _ actions: inout [CallAction]) {
        guard let action = notice(leg) else { return }
        state.legs[leg].sentMs = now
        state.legs[leg].sends = min(state.legs[leg].sends, 1 << 16) + 1
        actions.append(action)
    }

    mutating func confirm(_ stage: CallStage, of leg: Int) {
        let isNewer = stage.rawValue > state.legs[leg].confirmed.rawValue
        if isNewer, stage.rawValue <= state.legs[leg].stage.rawValue { state.legs[leg].confirmed = stage }
    }

    private func notice(_ leg: Int) -> CallAction? {
        let entry = state.legs[leg]
        switch entry.stage {
        case .unspecified, .UNRECOGNIZED: return nil
        case .ring: return leg == 0 ? .reportRinging : .ring(leg: leg)
        case .accepted: return .reportAccepted(leg: leg, peer: leg == 0 ? Int(state.winner) : 0)
        case .ended:
            let end = CallLegEnd(entry.reason, entry.number)
            return isPart(leg) ? .reportEnd(leg: leg, end) : .stopRinging(leg: leg, end)
        }
    }

    // MARK: Sessions

    /// An event shows that the leg is present; the end of its newest session, that it is not.
    mutating func notePresence(
        of leg: Int, _ event: CallEvent, _ session: UInt64, at now: Int64, _ actions: inout [CallAction]
    ) {
        let newest = state.legs[leg].session
        guard session >= newest else { return }
        state.legs[leg].session = session
        if event == .sessionEnded {
            if state.legs[leg].lostMs == 0 { state.legs[leg].lostMs = max(1, now) }
            return
        }
        if session > newest { state.legs[leg].lostMs = 0 }
        // The client may have restarted, and needs again what it has confirmed.
        if event == .sessionStarted, state.legs[leg].confirmed != .ended { resend(leg, at: now, &actions) }
    }

    // MARK: Parties

    mutating func claim(_ index: Int, at now: Int64, _ actions: inout [CallAction]) {
        if state.claims[index].status == .unspecified { state.claims[index].status = .claiming }
        let until = Self.time(now, plus: configuration.claimTime)
        (state.claims[index].untilMs, state.claims[index].sentMs) = (until, now)
        state.claims[index].sends = min(state.claims[index].sends, 1 << 16) + 1
        actions.append(
            .claim(
                state.claims[index].party,
                .with {
                    ($0.call, $0.isCaller, $0.untilMs) = (state.id, index == 0, until)
                    ($0.guest, $0.answered) = (state.claims[index].guest, isAnswered)
                    if state.claims.count == 2 { $0.peer = state.claims[1 - index].party }
                }))
    }

    /// A party has answered a claim that was made before the call was placed. Has no effect unless the call is about to
    /// make that claim.
    mutating func claimedAhead(_ answer: CallClaimAnswer, at now: Int64, _ actions: inout [CallAction]) {
        let claim = actions.firstIndex {
            if case .claim(let party, _) = $0 { party == answer.party } else { false }
        }
        guard let claim, let index = state.claims.firstIndex(where: { $0.party == answer.party }) else {
            if answer.granted, state.phase == .ended { actions.append(.release(answer.party)) }
            return
        }
        actions.remove(at: claim)
        // It may have been sent more than once.
        state.claims[index].sends = 2
        if answer.granted {
            partyClaimed(answer.party, at: now, &actions)
        } else if answer.crossed {
            partyCrossed(answer.party, at: now, &actions)
        } else {
            partyRefused(answer.party, at: now, &actions)
        }
    }

    mutating func release(_ index: Int, at now: Int64, _ actions: inout [CallAction]) {
        switch state.claims[index].status {
        case .claiming, .claimed:
            state.claims[index].status = .releasing
            state.claims[index].sends = 0
            sendRelease(index, at: now, &actions)
        case .unspecified: state.claims[index].status = .released
        case .refused, .releasing, .released, .UNRECOGNIZED: break
        }
    }

    /// A repeated start has claimed a party that the call has released, or that had refused it.
    mutating func releaseAgain(_ party: CallParty, at now: Int64, _ actions: inout [CallAction]) {
        guard let index = state.claims.firstIndex(where: { $0.party == party }) else { return }
        switch state.claims[index].status {
        case .refused, .released:
            (state.claims[index].status, state.claims[index].sends) = (.releasing, 0)
            state.claims[index].untilMs = Self.time(now, plus: configuration.claimTime)
            sendRelease(index, at: now, &actions)
        case .unspecified, .claiming, .claimed, .releasing, .UNRECOGNIZED: break
        }
    }

    private mutating func sendRelease(_ index: Int, at now: Int64, _ actions: inout [CallAction]) {
        state.claims[index].sentMs = now
        state.claims[index].sends = min(state.claims[index].sends, 1 << 16) + 1
        actions.append(.release(state.claims[index].party))
    }

    mutating func partyClaimed(_ party: CallParty, at now: Int64, _ actions: inout [CallAction]) {
        guard let index = state.claims.firstIndex(where: { $0.party == party }) else {
            return actions.append(.release(party))
        }
        switch state.claims[index].status {
        case .claiming:
            (state.claims[index].status, state.claims[index].sends) = (.claimed, 0)
            if index == 0 {
                guard move(.callerClaimed) != nil else { return }
                guard state.legs.indices.contains(where: isOpen) else { return leave(1, at: now, &actions) }
                for called in state.claims.indices.dropFirst() { claim(called, at: now, &actions) }
            } else {
                for leg in state.legs.indices where Int(state.legs[leg].claim) == index && leg != 0 {
                    if state.legs[leg].status == .waiting { ring(leg, at: now, &actions) }
                }
            }
        case .claimed: state.claims[index].sends = 0
        // The answer to a claim came late. The party must not wait until the claim expires.
        case .unspecified, .refused, .releasing, .released, .UNRECOGNIZED: actions.append(.release(party))
        }
    }

    mutating func partyCrossed(_ party: CallParty, at now: Int64, _ actions: inout [CallAction]) {
        // The caller talks to that party in the other call.
        if !isAnswered { state.clearAnswering() }
        partyRefused(party, at: now, &actions)
    }

    mutating func partyRefused(_ party: CallParty, at now: Int64, _ actions: inout [CallAction]) {
        guard let index = state.claims.firstIndex(where: { $0.party == party }),
            state.claims[index].status == .claiming || state.claims[index].status == .claimed
        else { return }
        if index == 0, state.phase == .recording {
            release(index, at: now, &actions)
            return end(.glareLost, by: 0, at: now, &actions)
        }
        guard !isAnswered else {
            // The claim had expired, and the call continues without it. It is renewed at the next time.
            state.claims[index].sends = 0
            return
        }
        // A party that has refused a claim may have accepted another one that was sent before or after it.
        if state.claims[index].status == .claimed || state.claims[index].sends > 1 {
            release(index, at: now, &actions)
        } else {
            state.claims[index].status = .refused
        }
        guard index != 0 else {
            end(state.phase == .placing ? .callerBusy : .glareLost, by: 0, at: now, &actions)
            return
        }
        let legs = state.legs.indices.dropFirst().filter { isOpen($0) && Int(state.legs[$0].claim) == index }
        for leg in legs { finish(leg, .busy, .onCalling, at: now, &actions) }
        if !legs.isEmpty { leave(index, at: now, &actions) }
    }

    // MARK: Channels and the record

    /// A request to another part of the cluster. It is repeated until it is confirmed, except for the release of the
    /// channels, which is made once.
    enum Request: CaseIterable {
        case releaseChannels, writeRecord, recordMessage
    }

    mutating func want(_ request: Request, at now: Int64, _ actions: inout [CallAction]) {
        state[request].status = .wanted
        sendRequests(at: now, &actions)
    }

    /// Repeats a request at once, because there is more to say.
    mutating func sendAgain(_ request: Request, at now: Int64, _ actions: inout [CallAction]) {
        state[request].sends = 0
        sendRequests(at: now, &actions)
    }

    mutating func confirm(_ request: Request) {
        if state[request].status == .wanted { state[request].status = .done }
    }

    private mutating func sendRequests(at now: Int64, _ actions: inout [CallAction]) {
        for request in Request.allCases {
            guard let due = dueMs(request), now >= due else { continue }
            state[request].sentMs = now
            state[request].sends = min(state[request].sends, 1 << 16) + 1
            switch request {
            case .releaseChannels:
                actions.append(.releaseChannels)
                confirm(.releaseChannels)
            case .writeRecord: actions.append(.writeRecord)
            case .recordMessage: actions.append(.recordMessage(isOver: state.phase == .ended))
            }
        }
    }

    private func dueMs(_ request: Request) -> Int64? {
        let entry = state[request]
        guard entry.status == .wanted else { return nil }
        if entry.sends > 0 {
            guard request == .writeRecord else { return unlessOver(retryMs(entry.sentMs, entry.sends)) }
            return retryMs(entry.sentMs, entry.sends, max: configuration.recordRetryMax)
        }
        guard request == .releaseChannels, state.keepConnect, state.end.reason == .hungUp else { return .min }
        return Self.time(state.endedMs, plus: configuration.keepConnectTime)
    }

    // MARK: Repetitions

    /// Sends what is due. After a death everything that is not confirmed is due.
    mutating func resendDue(at now: Int64, all: Bool = false, _ actions: inout [CallAction]) {
        for leg in state.legs.indices {
            if all { state.legs[leg].sends = min(state.legs[leg].sends, 1) }
            guard let due = dueMs(leg: leg), all || now >= due else { continue }
            resend(leg, at: now, &actions)
        }
        for index in state.claims.indices {
            guard let due = dueMs(claim: index), all || now >= due else { continue }
            if state.claims[index].status == .releasing {
                guard now < state.claims[index].untilMs else {
                    state.claims[index].status = .released
                    continue
                }
                sendRelease(index, at: now, &actions)
            } else {
                claim(index, at: now, &actions)
            }
        }
        if all {
            for request in Request.allCases where state[request].sends > 0 {
                state[request].sentMs = .min
            }
        }
        sendRequests(at: now, &actions)
    }

    /// When something is sent again; nil if everything is confirmed.
    var resendMs: Int64? {
        let legs = state.legs.indices.compactMap { dueMs(leg: $0) }
        let claims = state.claims.indices.compactMap { dueMs(claim: $0) }
        return (legs + claims + Request.allCases.compactMap { dueMs($0) }).min()
    }

    private func dueMs(leg index: Int) -> Int64? {
        let leg = state.legs[index]
        guard leg.confirmed.rawValue < leg.stage.rawValue else { return nil }
        return unlessOver(retryMs(leg.sentMs, leg.sends))
    }

    private func dueMs(claim index: Int) -> Int64? {
        let claim = state.claims[index]
        switch claim.status {
        case .claimed where claim.sends == 0: return Self.time(claim.sentMs, plus: configuration.claimTime / 3)
        case .claiming, .claimed: return retryMs(claim.sentMs, claim.sends)
        case .releasing: return unlessOver(min(retryMs(claim.sentMs, claim.sends), claim.untilMs))
        case .unspecified, .refused, .released, .UNRECOGNIZED: return nil
        }
    }

    private func retryMs(_ sentMs: Int64, _ sends: UInt32, max longest: Duration? = nil) -> Int64 {
        let first = max(.milliseconds(1), configuration.resendAfter)
        let factor = 1 << min(Int(sends.clamped) - 1, 16)
        return Self.time(sentMs, plus: min(first * factor, max(first, longest ?? configuration.resendAfterMax)))
    }

    /// Nil for a time at which an ended call is kept for its record alone.
    private func unlessOver(_ due: Int64) -> Int64? {
        guard state.phase == .ended else { return due }
        return due < Self.time(state.endedMs, plus: max(.zero, configuration.endedTimeMax)) ? due : nil
    }
}

extension CallState {
    /// What has become of a request. No key path: each use of one looks it up.
    fileprivate subscript(request: CallStateMachine.Request) -> CallEffect {
        get {
            switch request {
            case .releaseChannels: releaseChannels
            case .writeRecord: writeRecord
            case .recordMessage: recordMessage
            }
        }
        set {
            switch request {
            case .releaseChannels: releaseChannels = newValue
            case .writeRecord: writeRecord = newValue
            case .recordMessage: recordMessage = newValue
            }
        }
    }

    /// True if nothing has changed since an earlier state but what legs, parties and other parts of the cluster have
    /// confirmed. A node that has not heard of that sends the same again, which has no effect.
    package func hasOnlyConfirmed(since earlier: CallState) -> Bool {
        guard legs.count == earlier.legs.count, claims.count == earlier.claims.count else { return false }
        var expected = earlier
        for leg in legs.indices { expected.legs[leg].confirmed = legs[leg].confirmed }
        for claim in claims.indices {
            let isReleased = claims[claim].status == .released && earlier.claims[claim].status == .releasing
            if isReleased { expected.claims[claim].status = .released }
            if claims[claim].sends == 0 { expected.claims[claim].sends = 0 }
        }
        for request in CallStateMachine.Request.allCases where self[request].status == .done {
            expected[request].status = .done
        }
        return expected == self
    }
}

extension UInt32 {
    /// At least 1, for a state that a foreign version has written.
    fileprivate var clamped: UInt32 { Swift.max(self, 1) }
}

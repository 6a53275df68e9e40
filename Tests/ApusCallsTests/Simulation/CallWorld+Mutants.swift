import ApusCalls
import ApusCore
import Foundation
import SwiftProtobuf

/// The deliberate errors: each changes a state, or what a change causes.
extension CallWorld {
    var mutantConfiguration: CallConfiguration {
        var changed = configuration
        switch mutant {
        case .neverConnects: changed.connectTime = .seconds(86_400)
        case .neverEnds: changed.durationMax = .seconds(86_400)
        case .noGrace: changed.grace = .seconds(86_400)
        case .neverForgets: (changed.endedTime, changed.endedTimeMax) = (.seconds(86_400), .seconds(86_400))
        default: break
        }
        return changed
    }

    private mutating func set(_ state: CallState, _ call: Int) {
        if let machine = try? CallStateMachine(restoring: state, mutantConfiguration) { calls[call].machine = machine }
    }

    /// After the start.
    mutating func alter(_ call: Int) {
        var state = calls[call].machine.state
        switch mutant {
        case .rejectRemoves: state.type = .oneToManySpecial
        case .rejectEnds: state.type = .oneToMany
        case .neverFull where state.hasAnswering: state.answering.lengthMs = 86_400_000
        case .neverTimesOut: state.ringEndMs = now + 86_400_000
        default: return
        }
        set(state, call)
    }

    /// After any other input.
    mutating func alter(_ call: Int, _ event: CallEvent?, _ before: CallState, _ actions: inout [CallAction]) {
        var state = calls[call].machine.state
        let hasEnded = before.phase != .ended && state.phase == .ended
        func isStop(_ action: CallAction) -> Bool { if case .stopRinging = action { true } else { false } }
        switch mutant {
        case .sendsOnce:
            for leg in state.legs.indices where state.legs[leg].status != .waiting {
                state.legs[leg].confirmed = state.legs[leg].stage
            }
        case .losersRingOn:
            actions.removeAll(where: isStop)
            for leg in state.legs.indices where state.legs[leg].reason == .answeredByOthers {
                state.legs[leg].confirmed = .ended
            }
        case .secondWins: if event == .accepted, let leg = lastAccepted(before, call) { letWin(leg, &state) }
        case .wrongNumber:
            for leg in state.legs.indices where state.legs[leg].number == -2513 { state.legs[leg].number = -2510 }
        case .swapsNumbers:
            for leg in state.legs.indices where state.legs[leg].number == -2523 { state.legs[leg].number = -2530 }
        case .ringsAfterEnd: if hasEnded { actions.append(.ring(leg: 1)) }
        case .changesEnd:
            if event == .cancelled || event == .hungUp, before.phase == .ended, !state.legs.isEmpty {
                state.legs[0].number = -2512
            }
        case .neverReleases:
            actions.removeAll { if case .release = $0 { true } else { false } }
            for claim in state.claims.indices where state.claims[claim].status == .releasing {
                state.claims[claim].status = .released
            }
        case .neverRenews:
            for claim in state.claims.indices where state.claims[claim].status == .claimed {
                (state.claims[claim].sentMs, state.claims[claim].sends) = (now + 86_400_000, 0)
            }
        case .grows: state.extra += Data(repeating: 0x20, count: 600)
        case .dropsRecord:
            actions.removeAll { $0 == .writeRecord }
            if state.phase == .ended { state.writeRecord.status = .done }
        case .keepsChannels:
            actions.removeAll { $0 == .releaseChannels }
            if state.phase == .ended { state.releaseChannels.status = .done }
        case .dropsMessage:
            actions.removeAll { $0 == .recordMessage(isOver: true) }
            if state.phase == .ended, state.recordMessage.status == .wanted { state.recordMessage.status = .done }
        case .tokenForLoser:
            if before.winner == 0, state.winner != 0, state.legs.count > 2 {
                let loser = state.winner == 1 ? 2 : 1
                actions.append(.reportAccepted(leg: loser, peer: 0))
            }
        default: return
        }
        guard state.phase != .unspecified else { return }
        set(state, call)
    }

    /// The leg that a second accept has come from.
    private func lastAccepted(_ before: CallState, _ call: Int) -> Int? {
        guard before.winner != 0, before.phase == .accepted || before.phase == .connected else { return nil }
        return before.legs.indices.dropFirst().first { index in
            index != Int(before.winner) && before.legs[index].number == -2522 && before.legs[index].rangMs != 0
        }
    }

    private func letWin(_ leg: Int, _ state: inout CallState) {
        let former = Int(state.winner)
        (state.legs[former].status, state.legs[former].stage, state.legs[former].reason) = (
            .ended, .ended, .answeredByOthers
        )
        (state.legs[former].number, state.legs[former].sends) = (-2522, 1)
        (state.legs[leg].status, state.legs[leg].stage, state.legs[leg].confirmed) = (.accepted, .accepted, .ring)
        (state.legs[leg].reason, state.legs[leg].number) = (.unspecified, 0)
        (state.winner, state.legs[0].confirmed) = (UInt32(leg), .ring)
    }

    mutating func alterRestored(_ state: inout CallState) {
        switch mutant {
        case .forgetsNotices:
            for leg in state.legs.indices where state.legs[leg].status != .waiting {
                state.legs[leg].confirmed = state.legs[leg].stage
            }
        case .resetsFlags: (state.respondedMs, state.connectedMs) = (0, 0)
        default: break
        }
    }

    /// What a call makes of an event of the cluster.
    func altered(_ event: CallClusterEvent, _ call: Int) -> CallClusterEvent {
        switch (mutant, event) {
        case (.ringsBusyParties, .partyRefused(let party)): .partyClaimed(party)
        case (.speaksOn, .partyRefused) where calls[call].machine.state.phase == .recording: .timeAdvanced
        case (.recordsCrossing, .partyCrossed(let party)): .partyRefused(party)
        default: event
        }
    }

    /// What a call makes of the claims that were made before it was placed.
    func altered(_ claims: [CallClaimAnswer]) -> [CallClaimAnswer] {
        guard mutant == .trustsClaims || mutant == .forgetsClaims else { return claims }
        return claims.enumerated().map { index, claim in
            var claim = claim
            // The caller's claim is the first.
            if mutant == .trustsClaims || index > 0 { claim.granted = true }
            return claim
        }
    }

    func altered(_ view: CallView, _ call: Int) -> CallView {
        guard mutant == .acceptsAfterEnd, view.end != nil, calls[call].machine.state.phase == .ended else {
            return view
        }
        var flags = view.flags
        (flags.accepted, flags.end) = (true, false)
        return CallView(leg: view.leg, flags: flags, end: nil)
    }

    mutating func addLeg(_ sender: CallSender, _ call: Int) {
        var state = calls[call].machine.state
        guard let leg = state.legs.last, leg.endpoint == sender.endpoint.rawValue, state.phase == .ringing else {
            return
        }
        state.legs.append(leg)
        set(state, call)
    }
}

import ApusCalls
import ApusCluster
import ApusCore
import SwiftProtobuf

/// The invariants of calls after every step, and at the end.
extension CallWorkload {
    /// The most that a call may ring out late, in milliseconds.
    private static let latenessMax: Int64 = 2000

    // MARK: On the way

    /// Checks the state with which an owner continues a call.
    func checkContinued(_ state: CallState, _ cell: SimulatedCell, at node: EntityNode) {
        let shard = cell.address.shard
        guard let index = index(of: cell.address.key), simulation.store.map[shard].epoch == cell.epoch,
            !mayHaveLost([shard])
        else { return }
        let call = calls[index]
        if let confirmed = call.confirmed, confirmed.phase != .unspecified {
            // The owner that has forgotten it may have died before it knew that this is confirmed.
            let mayBeForgotten = confirmed.phase == .ended && wallMilliseconds >= confirmed.endedMs + 2000
            guard state.phase.rank >= confirmed.phase.rank || (state.phase == .unspecified && mayBeForgotten) else {
                return fail("\(node.id) continues call \(index) as \(state.phase), and it was \(confirmed.phase)")
            }
            if confirmed.winner != 0, state.winner != confirmed.winner, state.phase != .unspecified {
                fail("\(node.id) continues call \(index) with winner \(state.winner) instead of \(confirmed.winner)")
            }
        }
        guard state.phase != .unspecified else {
            let isKnown = call.isAcknowledged || !call.seen.called.isEmpty
            if isKnown, call.confirmed == nil { fail("\(node.id) does not know call \(index)") }
            return
        }
        if let winner = call.seen.winner, state.winner == 0 || state.party(at: Int(state.winner)) != winner {
            fail("\(node.id) continues call \(index) without its winner \(winner.id)")
        }
        for endpoint in call.seen.called.sorted() {
            let leg = state.legs.dropFirst().first { $0.endpoint == endpoint }
            if leg?.stage == .unspecified { fail("\(node.id) does not know that call \(index) rings \(endpoint)") }
        }
        for (endpoint, number) in call.seen.ends.sorted(by: { $0.key < $1.key }) {
            guard let leg = state.legs.first(where: { $0.endpoint == endpoint }) else { continue }
            guard leg.status != .ended || leg.number != number else { continue }
            fail("\(endpoint) learned \(number) of call \(index), and \(node.id) has \(leg.number), \(leg.status)")
        }
    }

    /// Checks a change of a call that is confirmed.
    func confirmed(_ state: CallState, of index: Int, at node: EntityNode) {
        let earlier = calls[index].confirmed
        guard state.phase != .unspecified || earlier != nil else { return }
        if let earlier, state.phase.rank < earlier.phase.rank {
            // An owner that has lost its shard may end later than the next one begins.
            guard state.phase == .unspecified, earlier.phase == .ended else { return }
        }
        calls[index].confirmed = state
        noteHolders(of: index, state)
        guard state.phase == .ended, earlier?.phase != .ended else { return }
        reasons["\(state.end.reason)", default: 0] += 1
        tell("call \(index) has ended: \(state.end.reason)")
        checkTimes(state, of: index, at: node)
    }

    /// A party is on one call at a time.
    private func noteHolders(of index: Int, _ state: CallState) {
        for claim in state.claims {
            let isHeld = claim.status == .claimed && state.phase != .ended && claim.untilMs > wallMilliseconds
            guard isHeld else {
                holders[claim.party]?.remove(index)
                continue
            }
            for other in (holders[claim.party] ?? []).sorted() where other != index && !areCrossing(index, other) {
                let shards = [calls[index].address.shard, calls[other].address.shard, claim.party.address.shard]
                let until = calls[other].confirmed?.claims.first { $0.party == claim.party }?.untilMs ?? 0
                guard until > wallMilliseconds, !mayHaveLost(shards) else { continue }
                fail("\(claim.party.id) is on call \(index) and on call \(other)")
            }
            holders[claim.party, default: []].insert(index)
        }
    }

    /// Checks when a call rang out, and whether those that were called knew.
    private func checkTimes(_ state: CallState, of index: Int, at node: EntityNode) {
        guard state.end.reason == .notAnswered else { return }
        let early = state.ringEndMs - state.endedMs
        if early > 0 { fail("call \(index) rings out \(early) ms early") }
        guard let gained = node.gainedAt[calls[index].address.shard] else { return }
        let gainedMs = Int64(gained.nanoseconds / 1_000_000)
        var due = max(state.ringEndMs, gainedMs)
        if simulation.profile != .kills {
            guard simulation.isHealed else { return }
            due = max(due, Int64(simulation.lastMapUnrest.nanoseconds / 1_000_000))
        }
        if state.endedMs - due > Self.latenessMax { fail("call \(index) rings out \(state.endedMs - due) ms late") }
        guard simulation.profile == .kills, state.endedMs - max(gainedMs, state.startedMs) > 2500 else { return }
        for leg in state.legs.dropFirst() where leg.byPush && leg.reason == .notAnswered && leg.sends > 0 {
            let call = calls[index]
            let isNotified = call.pushed.contains(leg.endpoint) || call.seen.called.contains(leg.endpoint)
            if !isNotified { fail("\(leg.endpoint) was not notified of call \(index), which has rung out") }
        }
    }

    /// Checks that a client may ring.
    func checkRing(_ notice: CallNotice, _ phone: SimulatedPhone, _ call: Int) {
        // A notice waits as long as the node is paused that passes it on.
        let latenessMax = Self.latenessMax + (simulation.profile == .kills ? 0 : 3000)
        if wallMilliseconds > notice.ringEndMs + latenessMax {
            fail("\(phone.endpoint) rings \(wallMilliseconds - notice.ringEndMs) ms after the time of call \(call)")
        }
        guard let state = calls[call].confirmed, !mayHaveLost([calls[call].address.shard]),
            let leg = state.legs.first(where: { $0.endpoint == phone.endpoint.rawValue })
        else { return }
        if leg.status == .ended, wallMilliseconds > leg.endedMs + latenessMax {
            fail("\(phone.endpoint) rings \(wallMilliseconds - leg.endedMs) ms after the end of call \(call)")
        }
    }

    /// A client has learned who talks.
    func sawWinner(_ party: CallParty, _ call: Int) {
        guard !mayHaveLost([calls[call].address.shard]) else { return }
        if let known = calls[call].seen.winner, known != party {
            fail("\(party.id) and \(known.id) have accepted call \(call)")
        }
        calls[call].seen.winner = party
    }

    /// A client was notified that there is no such call.
    func checkUnknown(_ phone: SimulatedPhone, _ call: Int) {
        guard let state = calls[call].confirmed, state.phase != .ended, state.phase != .unspecified,
            !mayHaveLost([calls[call].address.shard])
        else { return }
        fail("\(phone.endpoint) learns that there is no call \(call), which is \(state.phase)")
    }

    // MARK: The end

    func unrest() -> String? {
        if let unrest = callUnrest() {
            quietSinceMs = probe.call == nil ? nil : quietSinceMs
            return unrest
        }
        guard let quietSinceMs else {
            self.quietSinceMs = wallMilliseconds
            return "the last calls have just ended"
        }
        // Releases are repeated until they arrive.
        guard wallMilliseconds - quietSinceMs > 2000 else { return "the last calls have just ended" }
        return probeNext()
    }

    private func callUnrest() -> String? {
        for phone in phones where !phone.isGone {
            guard phone.isListening else { return "\(phone.endpoint) is not connected" }
            if let call = phone.active.first { return "\(phone.endpoint) is in call \(call)" }
        }
        while overCount < calls.count {
            let call = calls[overCount]
            let phase = state(of: call)?.phase ?? .unspecified
            guard phase == .ended || phase == .unspecified else { return "call \(overCount) is \(phase)" }
            let hasEnded = call.confirmed?.phase == .ended || phase == .ended
            let hasRecord = call.written != nil || mayHaveLost([call.address.shard])
            if hasEnded, !hasRecord { return "call \(overCount) has no record" }
            overCount += 1
        }
        return nil
    }

    private func state(of call: SimulatedPhoneCall) -> CallState? {
        world.truth(of: call.address).flatMap { try? CallEntity(reading: Array($0.content.value)).state }
    }

    /// Calls each party once more.
    private func probeNext() -> String? {
        while probe.party < parties.count {
            let party = parties[probe.party]
            if let call = probe.call {
                if !calls[call].hasRung {
                    fail("\(party.id) is left busy: call \(call) has ended with \(calls[call].seen.ends)")
                }
                probe = (probe.party + 1, nil)
                // The release of the parties is on its way.
                quietSinceMs = wallMilliseconds - 1600
                return "a last call has just ended"
            }
            guard phones.contains(where: { $0.party == party && !$0.isGone }),
                let caller = phones.first(where: { $0.party != party && !$0.isGone })
            else {
                probe.party += 1
                continue
            }
            guard !waitsForClaim(of: [party, caller.party]) else { return "the claim of a lost call has not ended" }
            probe.call = place(.oneToOne, from: caller, to: [party], isProbe: true)
            return "\(party.id) is called once more"
        }
        return nil
    }

    /// True if a party is claimed by a call that may be lost, or that has ended before the claim arrived.
    private func waitsForClaim(of parties: [CallParty]) -> Bool {
        parties.contains { party in
            guard let content = world.truth(of: party.address)?.content.value,
                let claim = try? CallPartyEntity(reading: Array(content)).state.claim, claim.untilMs > wallMilliseconds,
                let index = index(of: claim.call)
            else { return false }
            return lateClaims.contains(claim.call) || mayHaveLost([calls[index].address.shard])
        }
    }

    func checkEnd() {
        for (index, call) in calls.enumerated() where !mayHaveLost([call.address.shard]) {
            guard let state = call.written else {
                if call.seen.winner != nil || !call.seen.called.isEmpty { fail("call \(index) has no record") }
                continue
            }
            checkRecord(state, of: index)
        }
    }

    /// Checks a record: its reasons fit each other, and are what its clients have learned.
    private func checkRecord(_ state: CallState, of index: Int) {
        let call = calls[index]
        let areReasonsKnown = CallTransition.all.contains { $0.to == .ended && $0.reason == state.end.reason }
        if !areReasonsKnown { fail("call \(index) has ended with \(state.end.reason)") }
        let isAccepted = state.winner != 0
        for leg in Set([0, Int(state.winner)]).sorted() {
            let expected = CallLegEnd(of: state.end, for: leg, isAccepted: isAccepted)
            guard (state.legs[leg].reason, state.legs[leg].number) == (expected.reason, expected.number) else {
                fail("leg \(leg) of call \(index) has ended with \(state.legs[leg].number), not \(expected.number)")
                continue
            }
        }
        if let winner = call.seen.winner, !isAccepted || state.party(at: Int(state.winner)) != winner {
            fail("the record of call \(index) has another winner than \(winner.id)")
        }
        for (endpoint, number) in call.seen.ends.sorted(by: { $0.key < $1.key }) {
            guard let leg = state.legs.first(where: { $0.endpoint == endpoint }), leg.number != number else { continue }
            fail("\(endpoint) has learned \(number) of call \(index), and its record says \(leg.number)")
        }
    }
}

extension CallState {
    fileprivate func party(at leg: Int) -> CallParty { claims[Int(legs[leg].claim)].party }
}

extension CallPhase {
    /// Grows while a call goes on.
    fileprivate var rank: Int {
        switch self {
        case .unspecified, .UNRECOGNIZED: 0
        case .placing: 1
        case .calling: 2
        case .ringing: 3
        case .accepted, .recording: 4
        case .connected: 5
        case .ended: 6
        }
    }
}

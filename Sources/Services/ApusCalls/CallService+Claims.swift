import ApusCluster
import ApusCore
import SwiftProtobuf

// Claims that are made before a call is placed. The call then rings with its first change: three changes one after the
// other (the caller's party, the called party, the call), and not five.

extension CallService {
    /// A party that does not answer within this time is claimed by the call itself.
    private static let claimAheadTime = Duration.seconds(2)

    /// Claims the caller's party, then the called ones. Called parties are claimed only if the caller's is granted:
    /// when two parties call each other, each call must hold its caller's party first (``PartyStateMachine``).
    ///
    /// A claim of a call that is never placed expires after half of ``CallConfiguration/claimTime``.
    ///
    /// - Returns: the answers, the caller's first. Without those of parties that have not answered, and of parties
    ///   whose owner is a node of a release without such claims.
    func claimAhead(_ place: CallPlace, of call: CallID, _ deadline: MonotonicTime) async -> [CallClaimAnswer] {
        let deadline = min(deadline, MonotonicTime.now() + Self.claimAheadTime)
        var called: [CallCallee] = []
        for callee in place.callees where !called.contains(where: { $0.party == callee.party }) {
            called.append(callee)
        }
        let isOfTwo = called.count == 1
        let own = makeClaim(call, isCaller: true, peer: isOfTwo ? called[0].party : nil)
        guard let caller = await answer(of: place.caller, to: own, deadline) else { return [] }
        // If no called party has a client, none is claimed: an answering machine answers.
        guard caller.granted, !place.callees.allSatisfy(\.absent) else { return [caller] }
        let claims = called.map { callee in
            var claim = makeClaim(call, isCaller: false, peer: isOfTwo ? place.caller : nil)
            claim.guest = callee.guest
            return (party: callee.party, claim: claim)
        }
        if isOfTwo, let answer = await answer(of: claims[0].party, to: claims[0].claim, deadline) {
            return [caller, answer]
        }
        guard !isOfTwo else { return [caller] }
        return await withTaskGroup(of: CallClaimAnswer?.self) { group in
            for (party, claim) in claims { group.addTask { await self.answer(of: party, to: claim, deadline) } }
            var answers = [caller]
            for await answer in group { if let answer { answers.append(answer) } }
            return answers
        }
    }

    private func makeClaim(_ call: CallID, isCaller: Bool, peer: CallParty?) -> CallPartyClaim {
        .with {
            ($0.call, $0.isCaller) = (call.rawValue, isCaller)
            $0.untilMs = CallStateMachine.time(view.clock.wallMilliseconds(), plus: configuration.claimTime / 2)
            if let peer { $0.peer = peer }
        }
    }

    /// - Returns: nil if it is unknown whether the party was claimed. The call's own claim is a renewal then.
    private func answer(
        of party: CallParty, to claim: CallPartyClaim, _ deadline: MonotonicTime
    ) async -> CallClaimAnswer? {
        do throws(ApusError) {
            return try await ref(party).ask(CallClaimAhead.with { $0.claim = claim }, timeout: try deadline.timeLeft())
        } catch {
            return nil
        }
    }
}

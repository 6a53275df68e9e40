import ApusCalls
import ApusCore
import SwiftProtobuf

/// Claims that are made before a call is placed, at the node of the call's owner.
extension CallWorld {
    /// The node of the call's owner places a call. Half of the calls have their parties claimed before.
    mutating func order(_ call: Int, _ client: Int) {
        guard claimRandom.nextUnit() < 0.5 else { return start(call, client) }
        claimNext(call, client, [])
    }

    /// Claims the next party, or places the call if all have answered, or one does not answer in time.
    mutating func claimNext(_ call: Int, _ client: Int, _ answers: [CallClaimAnswer]) {
        let start = starts[call]
        let isAhead = (answers.first?.granted ?? true) && !start.targets.allSatisfy(\.isAbsent)
        guard isAhead || answers.isEmpty, answers.count < partiesInOrder(of: start).count,
            claimRandom.nextUnit() > 0.05
        else { return self.start(call, client, answers) }
        send(.claimAhead(call: call, client: client, answers), isInside: true)
    }

    private func partiesInOrder(of start: CallStart) -> [CallParty] {
        var parties = [start.caller.party]
        for target in start.targets where !parties.contains(target.party) { parties.append(target.party) }
        return parties
    }

    /// A party is claimed for a call that is about to be placed.
    mutating func claimAhead(_ call: Int, _ client: Int, _ answers: [CallClaimAnswer]) {
        let start = starts[call]
        let inOrder = partiesInOrder(of: start)
        let party = inOrder[answers.count]
        guard let index = parties.firstIndex(where: { $0.party == party }), !parties[index].isDown else {
            // The call claims this party, and those after it.
            return self.start(call, client, answers)
        }
        let claim = CallPartyClaim.with {
            ($0.call, $0.isCaller) = (start.id.rawValue, answers.isEmpty)
            $0.untilMs = now + Int64(configuration.claimTime.milliseconds) / 2
            if inOrder.count == 2 { $0.peer = inOrder[1 - answers.count] }
        }
        guard let (answer, outputs) = decide(claim, index) else { return }
        let claimed = CallClaimAnswer.with {
            $0.party = party
            switch answer {
            case .granted, .grantedInsteadOf: $0.granted = true
            case .refused: break
            case .crossed: $0.crossed = true
            }
        }
        if claimed.granted { calls[call].claimsAhead.insert(claim.untilMs) }
        hold([.claimedAhead(call: call, client: client, answers + [claimed])] + outputs, index)
    }
}

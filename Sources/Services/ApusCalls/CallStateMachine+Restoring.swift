package import ApusCore

/// A state that comes from another node, or from a standby.
extension CallStateMachine {
    /// The most legs of a state from elsewhere, with the caller's. It does not depend on the configuration, which may
    /// have changed since the call began.
    package static let restoredLegsMax = 257
    /// The longest `extra` of such a state, in bytes.
    package static let restoredExtraByteCountMax = 64 << 10

    /// Continues a call from its state. The owner then reports ``CallClusterEvent/restored``.
    ///
    /// - Throws: 10001 if the state is not one of a call. The machine would act on legs that do not exist.
    package init(
        restoring state: CallState, _ configuration: CallConfiguration = CallConfiguration()
    ) throws(ApusError) {
        guard state.isConsistent else { throw ApusError(.malformed, "the state is not one of a call") }
        self.init(configuration)
        self.state = state
    }
}

extension CallState {
    fileprivate var isConsistent: Bool {
        guard phase != .unspecified else { return self == CallState() }
        return isComplete && legs.indices.allSatisfy(isLeg) && claims.allSatisfy(\.isKnown) && isPhaseConsistent
    }

    private var isComplete: Bool {
        let isType = type == .oneToOne || type == .oneToMany || type == .oneToManySpecial
        let areEffects = [releaseChannels, writeRecord, recordMessage].allSatisfy {
            [.none, .wanted, .done].contains($0.status)
        }
        return CallID(rawValue: id) != nil && isType && areEffects
            && (2...CallStateMachine.restoredLegsMax).contains(legs.count) && (2...legs.count).contains(claims.count)
            && extra.count <= CallStateMachine.restoredExtraByteCountMax && winner < legs.count && end.leg < legs.count
            && end.reason.isKnown && (!hasAnswering || claims.dropFirst().contains { $0.party == answering.party })
    }

    private func isLeg(_ index: Int) -> Bool {
        let leg = legs[index]
        let isOfParty = index == 0 ? leg.claim == 0 : leg.claim > 0 && leg.claim < claims.count
        let isStatus = [CallLegStatus.waiting, .calling, .ringing, .accepted, .ended].contains(leg.status)
        let stages = [CallStage.unspecified, .ring, .accepted, .ended]
        return isOfParty && isStatus && leg.reason.isKnown && stages.contains(leg.stage)
            && stages.contains(leg.confirmed) && leg.confirmed.rawValue <= leg.stage.rawValue
            && (leg.status == .ended) == (leg.stage == .ended) && AccessID(rawValue: leg.endpoint) != nil
    }

    /// The winner and the ends of the legs fit the phase.
    private var isPhaseConsistent: Bool {
        let called = legs.indices.dropFirst()
        switch phase {
        case .placing, .calling, .ringing:
            return winner == 0 && legs[0].status == .calling && called.allSatisfy { legs[$0].status != .accepted }
        case .accepted, .connected:
            return winner != 0 && legs[0].status == .accepted
                && called.allSatisfy { legs[$0].status == ($0 == Int(winner) ? .accepted : .ended) }
        case .recording:
            return winner == 0 && hasAnswering && messageMs != 0 && legs[0].status == .accepted
                && called.allSatisfy { legs[$0].status == .ended }
        case .ended: return legs.allSatisfy { $0.status == .ended }
        case .unspecified, .UNRECOGNIZED: return false
        }
    }
}

extension CallClaim {
    fileprivate var isKnown: Bool {
        let statuses = [CallClaimStatus.unspecified, .claiming, .claimed, .refused, .releasing, .released]
        return statuses.contains(status) && party.isValid
    }
}

extension CallEndReason {
    fileprivate var isKnown: Bool {
        if case .UNRECOGNIZED = self { false } else { true }
    }
}

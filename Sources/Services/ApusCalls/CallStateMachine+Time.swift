import ApusCore

/// Events of the cluster, and what expires.
extension CallStateMachine {
    /// The cluster reports an event. It has no effect if the call does not expect it.
    package mutating func handle(_ event: CallClusterEvent, at now: Int64, _ actions: inout [CallAction]) {
        expire(at: now, &actions)
        switch event {
        case .partyClaimed(let party): partyClaimed(party, at: now, &actions)
        case .partyRefused(let party): partyRefused(party, at: now, &actions)
        case .partyCrossed(let party): partyCrossed(party, at: now, &actions)
        case .partyReleased(let party):
            guard let index = state.claims.firstIndex(where: { $0.party == party }),
                state.claims[index].status == .releasing
            else { break }
            state.claims[index].status = .released
        case .recordWritten: confirm(.writeRecord)
        case .messageStored: confirm(.recordMessage)
        case .messageFull: end(.messageFull, by: 0, at: now, &actions)
        case .restored, .timeAdvanced: break
        }
        resendDue(at: now, all: event == .restored, &actions)
    }

    /// When ``CallClusterEvent/timeAdvanced`` has to come next; nil if there is no call.
    package var nextMs: Int64? {
        guard state.phase != .unspecified else { return nil }
        return [resendMs, timeout?.due, forgetMs].compactMap { $0 }.min()
    }

    /// Ends what is over, in the order of the times.
    mutating func expire(at now: Int64, _ actions: inout [CallAction]) {
        while let timeout, now >= timeout.due {
            switch timeout.trigger {
            case .legLeft: remove(timeout.leg, .lost, .mediaDisconnected, isOwn: false, at: now, &actions)
            case .ringTimedOut where answerByMachine(at: now, &actions): break
            default: end(timeout.trigger, by: timeout.leg, at: now, &actions)
            }
        }
        if let forgetMs, now >= forgetMs, move(.forgotten) != nil { state = CallState() }
    }

    /// The next end of a call or of a leg, if nothing happens before; nil once the call has ended.
    private var timeout: (due: Int64, trigger: CallTrigger, leg: Int)? {
        var timeouts: [(due: Int64, trigger: CallTrigger, leg: Int)] = []
        switch state.phase {
        case .placing: timeouts.append((state.ringEndMs, .ringTimedOut, 0))
        case .calling, .ringing: timeouts.append((min(state.ringEndMs, state.machineAnswersMs), .ringTimedOut, 0))
        case .recording: timeouts.append((messageEndMs, .messageFull, 0))
        case .accepted:
            timeouts.append((Self.time(state.acceptedMs, plus: configuration.connectTime), .connectTimedOut, 0))
            timeouts.append((Self.time(state.acceptedMs, plus: configuration.durationMax), .durationEnded, 0))
        case .connected:
            timeouts.append((Self.time(state.acceptedMs, plus: configuration.durationMax), .durationEnded, 0))
        case .ended, .unspecified, .UNRECOGNIZED: return nil
        }
        for leg in state.legs.indices where state.legs[leg].lostMs != 0 {
            let due = Self.time(state.legs[leg].lostMs, plus: configuration.grace)
            if isPart(leg) {
                timeouts.append((due, .lost, leg))
            } else if isOpen(leg), !state.legs[leg].byPush {
                timeouts.append((due, .legLeft, leg))
            }
        }
        return timeouts.min { $0.due < $1.due }
    }

    /// When an ended call is forgotten; nil before its end.
    private var forgetMs: Int64? {
        guard state.phase == .ended else { return nil }
        let isConfirmed =
            state.legs.allSatisfy { $0.confirmed == .ended } && state.writeRecord.status == .done
            && state.releaseChannels.status != .wanted && state.recordMessage.status != .wanted
            && state.claims.allSatisfy { $0.status == .released || $0.status == .refused }
        let longest =
            state.writeRecord.status == .done
            ? configuration.endedTimeMax : max(configuration.endedTimeMax, configuration.recordTimeMax)
        return Self.time(state.endedMs, plus: max(.zero, isConfirmed ? configuration.endedTime : longest))
    }
}

extension CallState {
    /// When the answering machine answers a call that still rings.
    fileprivate var machineAnswersMs: Int64 {
        guard hasAnswering, answering.afterMs > 0 else { return .max }
        return CallStateMachine.time(startedMs, plus: .milliseconds(answering.afterMs))
    }
}

/// What moves a call from one phase to another.
///
/// An event of a client becomes a trigger when the machine has checked who has sent it and what it means at that
/// moment: a reject that leaves other legs to ring is ``legLeft``, and one that ends the call is ``rejected``.
package enum CallTrigger: String, Sendable, CaseIterable {
    case started
    case callerClaimed = "caller is free"
    case callerBusy = "caller is on another call"
    case glareLost = "glare"
    case legRang = "a leg rings"
    case legLeft = "a leg leaves"
    case rejected
    case allBusy = "all busy"
    case nobodyLeft = "nobody left"
    case ringTimedOut = "time-out"
    case accepted
    case cancelled
    case hungUp = "hung up"
    case legConnected = "one connected"
    case bothConnected = "both connected"
    /// An exception of the caller or of the winner; another leg leaves.
    case failed = "exception"
    /// The caller or the winner was away for too long; another leg leaves.
    case lost
    case connectTimedOut = "connect time-out"
    case durationEnded = "duration"
    /// No leg has accepted in time, or none is left that could, and a called party has an answering machine.
    case machineAnswers = "answering machine"
    /// The caller has left its message, and hangs up.
    case messageEnded = "message ended"
    /// The message has its longest length.
    case messageFull = "message full"
    case forgotten
}

/// The transitions of a call: the table that ``CallStateMachine`` uses, that its tests check, and of which the state
/// diagram in docs/calls.md is made.
///
/// A trigger without a row for the present phase has no effect.
package struct CallTransition: Sendable, Hashable {
    package let from: CallPhase
    package let trigger: CallTrigger
    package let to: CallPhase
    /// Why the call ends; nil if it does not.
    package let reason: CallEndReason?

    private init(_ from: CallPhase, _ trigger: CallTrigger, _ to: CallPhase, _ reason: CallEndReason? = nil) {
        (self.from, self.trigger, self.to, self.reason) = (from, trigger, to, reason)
    }

    package static let all: [CallTransition] = [
        CallTransition(.unspecified, .started, .placing),
        CallTransition(.placing, .callerClaimed, .calling),
        CallTransition(.placing, .callerBusy, .ended, .onCalling),
        CallTransition(.placing, .cancelled, .ended, .cancelled),
        CallTransition(.placing, .failed, .ended, .failed),
        CallTransition(.placing, .lost, .ended, .lost),
        CallTransition(.placing, .ringTimedOut, .ended, .notAnswered),

        CallTransition(.calling, .legRang, .ringing),
        CallTransition(.calling, .legLeft, .calling),
        CallTransition(.calling, .accepted, .accepted),
        CallTransition(.calling, .rejected, .ended, .rejected),
        CallTransition(.calling, .allBusy, .ended, .busy),
        CallTransition(.calling, .nobodyLeft, .ended, .unreachable),
        CallTransition(.calling, .glareLost, .ended, .glare),
        CallTransition(.calling, .cancelled, .ended, .cancelled),
        CallTransition(.calling, .failed, .ended, .failed),
        CallTransition(.calling, .lost, .ended, .lost),
        CallTransition(.calling, .ringTimedOut, .ended, .notAnswered),
        CallTransition(.calling, .machineAnswers, .recording),

        CallTransition(.ringing, .legRang, .ringing),
        CallTransition(.ringing, .legLeft, .ringing),
        CallTransition(.ringing, .accepted, .accepted),
        CallTransition(.ringing, .rejected, .ended, .rejected),
        CallTransition(.ringing, .allBusy, .ended, .busy),
        CallTransition(.ringing, .nobodyLeft, .ended, .unreachable),
        CallTransition(.ringing, .glareLost, .ended, .glare),
        CallTransition(.ringing, .cancelled, .ended, .cancelled),
        CallTransition(.ringing, .failed, .ended, .failed),
        CallTransition(.ringing, .lost, .ended, .lost),
        CallTransition(.ringing, .ringTimedOut, .ended, .notAnswered),
        CallTransition(.ringing, .machineAnswers, .recording),

        CallTransition(.recording, .messageEnded, .ended, .messageLeft),
        CallTransition(.recording, .messageFull, .ended, .messageLeft),
        CallTransition(.recording, .glareLost, .ended, .messageLeft),
        CallTransition(.recording, .failed, .ended, .failed),
        CallTransition(.recording, .lost, .ended, .lost),

        CallTransition(.accepted, .legConnected, .accepted),
        CallTransition(.accepted, .bothConnected, .connected),
        CallTransition(.accepted, .hungUp, .ended, .hungUp),
        CallTransition(.accepted, .failed, .ended, .failed),
        CallTransition(.accepted, .lost, .ended, .lost),
        CallTransition(.accepted, .connectTimedOut, .ended, .connectTimedOut),
        CallTransition(.accepted, .durationEnded, .ended, .durationEnded),

        CallTransition(.connected, .hungUp, .ended, .hungUp),
        CallTransition(.connected, .failed, .ended, .failed),
        CallTransition(.connected, .lost, .ended, .lost),
        CallTransition(.connected, .durationEnded, .ended, .durationEnded),

        CallTransition(.ended, .forgotten, .unspecified),
    ]

    /// The row for a trigger; nil if it has no effect in this phase.
    package static func row(_ phase: CallPhase, _ trigger: CallTrigger) -> CallTransition? {
        all.first { $0.from == phase && $0.trigger == trigger }
    }

    /// The state diagram of the table, in Mermaid's language.
    package static var diagram: String {
        var edges: [(from: String, to: String, triggers: [String])] = []
        for row in all {
            let (from, to) = (name(row.from), name(row.to))
            if let index = edges.firstIndex(where: { $0.from == from && $0.to == to }) {
                edges[index].triggers.append(row.trigger.rawValue)
            } else {
                edges.append((from, to, [row.trigger.rawValue]))
            }
        }
        let lines = edges.map { "    \($0.from) --> \($0.to): \($0.triggers.joined(separator: ", "))" }
        return (["stateDiagram-v2"] + lines).joined(separator: "\n") + "\n"
    }

    private static func name(_ phase: CallPhase) -> String {
        phase == .unspecified ? "[*]" : phase.name
    }
}

extension CallPhase {
    /// The name in documents and logs.
    package var name: String {
        switch self {
        case .unspecified: "none"
        case .placing: "placing"
        case .calling: "calling"
        case .ringing: "ringing"
        case .accepted: "accepted"
        case .connected: "connected"
        case .recording: "recording"
        case .ended: "ended"
        case .UNRECOGNIZED: "unknown"
        }
    }
}

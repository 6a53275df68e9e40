import ApusCore
import Synchronization

/// What the dialogs of all rounds have measured, and what their devices must have been asked for.
///
/// Concurrency model: any thread, behind a `Mutex`.
final class DialogKillLedger: Sendable {
    struct Values: Sendable {
        /// Of the round.
        var spans: [DialogKillSpan] = []
        /// How late the timers of all rounds rang, in milliseconds.
        var lateness: [Double] = []
        /// How often each device may have been asked for each action, in all rounds.
        var actionsMax: [DeviceID: [String: Int]] = [:]
    }

    private let state = Mutex(Values())

    var values: Values { state.withLock { $0 } }

    func answered(_ span: DialogKillSpan) { state.withLock { $0.spans.append(span) } }

    func rang(late milliseconds: Double) { state.withLock { $0.lateness.append(milliseconds) } }

    func mayAct(_ device: DeviceID, _ action: String) {
        state.withLock { $0.actionsMax[device, default: [:]][action, default: 0] += 1 }
    }

    /// The spans since the last call.
    func takeSpans() -> [DialogKillSpan] {
        state.withLock { state in
            defer { state.spans = [] }
            return state.spans
        }
    }
}

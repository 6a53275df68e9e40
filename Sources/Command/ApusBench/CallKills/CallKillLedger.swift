import ApusCore
import Synchronization

/// What the calls of all rounds have measured, in milliseconds.
///
/// Concurrency model: any thread, behind a `Mutex`.
final class CallKillLedger: Sendable {
    /// A time-out may come so much before its time: the clocks of two nodes differ.
    static let earlyMax = Duration.milliseconds(100)
    /// A time-out may come so much after its time, also if the owner dies at that moment.
    static let lateMax = Duration.seconds(2)
    /// A ring that is on its way when the caller's cancel is acknowledged may come so much later.
    static let lateRingMax = Duration.seconds(1)

    struct Values: Sendable {
        var calls: Set<String> = []
        /// Starts that were refused since the client of the called party had not returned (8000).
        var refused = 0
        /// From a request that ends a call to the end at the other side.
        var ends: [Double] = []
        /// From the start to the ring, of calls that are placed meanwhile.
        var rings: [Double] = []
        /// Rings after a cancel was acknowledged to the caller.
        var lateRings: [Double] = []
        /// How late time-outs were.
        var timeouts: [Double] = []
    }

    private let state = Mutex(Values())

    var values: Values { state.withLock { $0 } }

    func placed(_ call: String) { state.withLock { _ = $0.calls.insert(call) } }
    func refused() { state.withLock { $0.refused += 1 } }
    func ended(after time: Duration) { state.withLock { $0.ends.append(time.milliseconds) } }
    func rang(after time: Duration) { state.withLock { $0.rings.append(time.milliseconds) } }
    func rangLate(by time: Duration) { state.withLock { $0.lateRings.append(time.milliseconds) } }
    func timedOut(late: Duration) { state.withLock { $0.timeouts.append(late.milliseconds) } }
}

import CoreMetrics
import Synchronization

/// One line, or one block of lines, of the text format.
protocol PrometheusSeries: AnyObject, Sendable {
    func write(name: String, labels: String, into text: inout String)
}

/// A number that only grows.
final class CounterSeries: PrometheusSeries, CounterHandler {
    private let value = Atomic<Int64>(0)

    func increment(by amount: Int64) { value.wrappingAdd(amount, ordering: .relaxed) }
    func reset() { value.store(0, ordering: .relaxed) }

    func write(name: String, labels: String, into text: inout String) {
        let braces = labels.isEmpty ? "" : "{\(labels)}"
        text += "\(name)\(braces) \(value.load(ordering: .relaxed))\n"
    }
}

/// A number that is set, or goes up and down.
final class GaugeSeries: PrometheusSeries, MeterHandler, RecorderHandler {
    /// The bit pattern of a Double.
    private let bits = Atomic<UInt64>(0)

    func set(_ value: Int64) { set(Double(value)) }
    func set(_ value: Double) { bits.store(value.bitPattern, ordering: .relaxed) }
    func decrement(by amount: Double) { increment(by: -amount) }
    func record(_ value: Int64) { set(value) }
    func record(_ value: Double) { set(value) }

    func increment(by amount: Double) {
        var seen = bits.load(ordering: .relaxed)
        while true {
            let sum = (Double(bitPattern: seen) + amount).bitPattern
            let (exchanged, original) = bits.weakCompareExchange(expected: seen, desired: sum, ordering: .relaxed)
            if exchanged { return }
            seen = original
        }
    }

    func write(name: String, labels: String, into text: inout String) {
        let braces = labels.isEmpty ? "" : "{\(labels)}"
        text += "\(name)\(braces) \(PrometheusText.number(Double(bitPattern: bits.load(ordering: .relaxed))))\n"
    }
}

/// Counts of values in fixed buckets. Timers are exported in seconds.
final class HistogramSeries: PrometheusSeries, RecorderHandler, TimerHandler {
    private struct Counts {
        /// One count per bound, and one for larger values.
        var buckets: [UInt64]
        var sum = 0.0
    }

    private let bounds: [Double]
    private let counts: Mutex<Counts>

    /// - Parameter bounds: upper bounds, rising.
    init(bounds: [Double]) {
        self.bounds = bounds
        counts = Mutex(Counts(buckets: Array(repeating: 0, count: bounds.count + 1)))
    }

    func record(_ value: Int64) { record(Double(value)) }
    func recordNanoseconds(_ duration: Int64) { record(Double(duration) / 1_000_000_000) }

    func record(_ value: Double) {
        let index = bounds.firstIndex { value <= $0 } ?? bounds.count
        counts.withLock {
            $0.buckets[index] += 1
            $0.sum += value
        }
    }

    func write(name: String, labels: String, into text: inout String) {
        let counts = counts.withLock { $0 }
        let prefix = labels.isEmpty ? "" : labels + ","
        let braces = labels.isEmpty ? "" : "{\(labels)}"
        var total: UInt64 = 0
        for (index, count) in counts.buckets.enumerated() {
            total += count
            let bound = index < bounds.count ? PrometheusText.number(bounds[index]) : "+Inf"
            text += "\(name)_bucket{\(prefix)le=\"\(bound)\"} \(total)\n"
        }
        text += "\(name)_sum\(braces) \(PrometheusText.number(counts.sum))\n"
        text += "\(name)_count\(braces) \(total)\n"
    }
}

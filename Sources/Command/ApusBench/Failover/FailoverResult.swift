import ApusCore
import ApusLocal
import Foundation

/// The results of the rounds of one kind.
struct FailoverResult {
    let kind: BenchFailoverCommand.Kind
    private(set) var rounds = 0
    private var gaps: [Double] = []
    private var secondGaps: [Double] = []
    private var standbyDelays: [Double] = []
    private(set) var lost = 0
    private(set) var doubled = 0
    private(set) var wrong = 0
    private(set) var withoutStandby = 0

    init(kind: BenchFailoverCommand.Kind) { self.kind = kind }

    /// True if no frame was lost, duplicated or changed, and a standby followed every failure.
    var isClean: Bool { lost == 0 && doubled == 0 && wrong == 0 && withoutStandby == 0 }

    mutating func add(
        first cast: FailoverCast, from start: MonotonicTime, to end: MonotonicTime, standbyDelay: Duration?
    ) {
        gaps += cast.viewers.map { $0.viewer.gap(from: start, to: end).milliseconds }
        if let standbyDelay { standbyDelays.append(standbyDelay.milliseconds) } else { withoutStandby += 1 }
    }

    mutating func add(second cast: FailoverCast, from start: MonotonicTime, to end: MonotonicTime) {
        secondGaps += cast.viewers.map { $0.viewer.gap(from: start, to: end).milliseconds }
    }

    mutating func count(_ cast: FailoverCast) {
        rounds += 1
        for entry in cast.viewers {
            let missing = max(0, cast.publishers[entry.channel].sent - 1 - Int(entry.viewer.newest ?? 0))
            lost += entry.viewer.lostCount + missing
            doubled += entry.viewer.doubledCount
            wrong += entry.viewer.wrongCount
        }
    }

    var line: String {
        "gap p50 \(Self.text(gaps, 0.5)) p99 \(Self.text(gaps, 0.99)) max \(Self.text(gaps, 1)) ms, "
            + "lost \(lost), doubled \(doubled), "
            + "second p99 \(Self.text(secondGaps, 0.99)) ms, standby max \(Self.text(standbyDelays, 1)) ms"
    }

    static func quantile(_ values: [Double], _ share: Double) -> Double? {
        guard !values.isEmpty else { return nil }
        let sorted = values.sorted()
        return sorted[min(sorted.count - 1, Int((Double(sorted.count) * share).rounded(.up)) - 1)]
    }

    private static func text(_ values: [Double], _ share: Double) -> String {
        quantile(values, share).map { String(format: "%.0f", $0) } ?? "-"
    }

    static func table(_ results: [FailoverResult]) -> String {
        let head = [
            "FAILURE", "ROUNDS", "VIEWERS", "LOST", "DOUBLED", "GAP P50", "P99", "MAX ms", "2ND KILL P99", "MAX ms",
            "STANDBY P50",
            "MAX ms",
        ]
        let rows = results.map { result in
            [
                result.kind.says, "\(result.rounds)", "\(result.gaps.count)", "\(result.lost)", "\(result.doubled)",
                text(result.gaps, 0.5), text(result.gaps, 0.99), text(result.gaps, 1), text(result.secondGaps, 0.99),
                text(result.secondGaps, 1), text(result.standbyDelays, 0.5), text(result.standbyDelays, 1),
            ]
        }
        return TextTable.lines([head] + rows).joined(separator: "\n")
    }

    static func json(_ results: [FailoverResult]) throws -> String {
        let entries = results.map { result -> (String, [String: Double]) in
            var values: [String: Double] = [
                "rounds": Double(result.rounds), "viewers": Double(result.gaps.count), "lost": Double(result.lost),
                "doubled": Double(result.doubled), "wrong": Double(result.wrong),
            ]
            values["gap_p50_ms"] = quantile(result.gaps, 0.5)
            values["gap_p99_ms"] = quantile(result.gaps, 0.99)
            values["gap_max_ms"] = quantile(result.gaps, 1)
            values["second_gap_p99_ms"] = quantile(result.secondGaps, 0.99)
            values["second_gap_max_ms"] = quantile(result.secondGaps, 1)
            values["standby_max_ms"] = quantile(result.standbyDelays, 1)
            return (result.kind.rawValue, values)
        }
        let data = try JSONSerialization.data(
            withJSONObject: Dictionary(uniqueKeysWithValues: entries), options: [.sortedKeys])
        return String(decoding: data, as: UTF8.self)
    }
}

import ApusCore
import ApusHistory
import ApusLocal
import Foundation

/// The results of the episodes of one fault.
struct ClusterFaultResult: Sendable {
    let fault: ClusterFault
    private(set) var episodes = 0
    /// Milliseconds.
    private(set) var detects: [Double] = []
    private(set) var undetected = 0
    private(set) var serves: [Double] = []
    private(set) var unserved = 0
    private(set) var gaps: [Double] = []
    private(set) var lost = 0
    private(set) var doubled = 0
    private(set) var wrong = 0
    private(set) var stale = 0
    private(set) var ended = 0
    private(set) var falseDeaths = 0
    private(set) var acknowledged = 0
    private(set) var unknown = 0
    private(set) var violations = 0
    private(set) var undecided = 0
    private(set) var failures: [String] = []

    init(fault: ClusterFault) { self.fault = fault }

    mutating func addEpisode() { episodes += 1 }

    mutating func detected(_ time: Duration?) {
        if let time { detects.append(time.milliseconds) } else { undetected += 1 }
    }

    mutating func served(_ time: Duration?) {
        if let time { serves.append(time.milliseconds) } else { unserved += 1 }
    }

    mutating func saw(_ window: FrameWindow) {
        gaps += window.gaps.map(\.milliseconds)
        lost += window.lost
        doubled += window.doubled
        wrong += window.wrong
        stale += window.stale
        ended += window.ended
    }

    mutating func falseDeath(_ count: Int) { falseDeaths += count }

    mutating func changed(acknowledged: Int, unknown: Int) {
        self.acknowledged += acknowledged
        self.unknown += unknown
    }

    mutating func judged(_ verdict: LinearizabilityChecker.Verdict) {
        switch verdict {
        case .linearizable: break
        case .violation: violations += 1
        case .undecided: undecided += 1
        }
    }

    mutating func failed(_ what: String) { failures.append(what) }

    /// The bounds that were exceeded, as sentences.
    var misses: [String] {
        var misses = failures
        func zero(_ value: Int, _ what: String) { if value > 0 { misses.append("\(value) \(what), 0 allowed") } }
        func most(_ values: [Double], _ bound: Double?, _ what: String) {
            guard let bound, let value = values.max(), value > bound else { return }
            misses.append("\(what) max \(Int(value.rounded(.up))) ms, at most \(Int(bound)) allowed")
        }
        zero(violations, "violations of linearizability")
        zero(undecided, "histories undecided")
        zero(lost, "frames lost")
        zero(doubled, "frames doubled")
        zero(wrong, "frames wrong")
        zero(stale, "frames stale")
        zero(ended, "clients ended")
        zero(falseDeaths, "false deaths")
        if fault.detectMax != nil || !fault.conditions.isEmpty { zero(undetected, "faults not detected") }
        zero(unserved, "episodes without service")
        most(detects, fault.detectMax, "detection")
        most(serves, fault.serveMax, "service")
        return misses
    }

    static func table(_ results: [Self]) -> String {
        let head = [
            "FAULT", "EPISODES", "DETECT P50", "P99", "MAX ms", "SERVE P50", "P99", "MAX ms", "GAP P50", "P99",
            "MAX ms", "LOST", "DOUBLED", "ENDED", "FALSE DEATHS", "CHANGES", "UNKNOWN", "VIOLATIONS", "BOUNDS",
        ]
        return TextTable.lines([head] + results.map(\.cells)).joined(separator: "\n")
    }

    private var cells: [String] {
        [fault.says, "\(episodes)"] + Self.quantiles(detects) + Self.quantiles(serves) + Self.quantiles(gaps)
            + [lost, doubled, ended, falseDeaths, acknowledged, unknown, violations].map { "\($0)" }
            + [misses.isEmpty ? "kept" : "missed"]
    }

    private static func quantiles(_ values: [Double]) -> [String] {
        [0.5, 0.99, 1].map { share in
            FailoverResult.quantile(values, share).map { String(format: "%.0f", $0) } ?? "-"
        }
    }

    static func json(_ results: [Self], nodes: Int) throws -> String {
        let rows = Dictionary(results.map { ($0.fault.rawValue, $0.values) }) { $1 }
        let data = try JSONSerialization.data(
            withJSONObject: ["nodes": nodes, "faults": rows] as [String: Any],
            options: [.sortedKeys, .withoutEscapingSlashes])
        return String(decoding: data, as: UTF8.self)
    }

    private var values: [String: Any] {
        var values: [String: Any] = [
            "episodes": episodes, "undetected": undetected, "unserved": unserved, "lost": lost, "doubled": doubled,
            "wrong": wrong, "stale": stale, "ended": ended, "false_deaths": falseDeaths,
            "acknowledged": acknowledged, "unknown": unknown, "violations": violations, "undecided": undecided,
            "misses": misses,
        ]
        for (name, list) in [("detect", detects), ("serve", serves), ("gap", gaps)] {
            values["\(name)_p50_ms"] = FailoverResult.quantile(list, 0.5)
            values["\(name)_p99_ms"] = FailoverResult.quantile(list, 0.99)
            values["\(name)_max_ms"] = list.max()
        }
        return values
    }
}

/// What viewers saw between two times.
struct FrameWindow: Sendable {
    private struct Mark: Sendable {
        var recordCount: Int
        var doubled: Int
        var wrong: Int
        var stale: Int
        var hasEnded: Bool
    }

    private let began = MonotonicTime.now()
    private let marks: [Mark]
    private let endedPublishers: Int
    private(set) var gaps: [Duration] = []
    /// When the longest of all gaps began, after the window began.
    private(set) var longestFrom = Duration.zero
    private(set) var lost = 0
    private(set) var doubled = 0
    private(set) var wrong = 0
    private(set) var stale = 0
    private(set) var ended = 0

    /// Begins a window.
    init(_ cast: FailoverCast) {
        marks = cast.viewers.map { Self.mark($0.viewer) }
        endedPublishers = cast.publishers.count { $0.endError != nil }
    }

    private static func mark(_ viewer: BenchViewer) -> Mark {
        Mark(
            recordCount: viewer.records.count, doubled: viewer.doubledCount, wrong: viewer.wrongCount,
            stale: viewer.staleCount, hasEnded: viewer.endError != nil)
    }

    /// Ends it: counts what has arrived since it began.
    mutating func end(_ cast: FailoverCast, now: MonotonicTime) {
        ended = cast.publishers.count { $0.endError != nil } - endedPublishers
        for (mark, entry) in zip(marks, cast.viewers) {
            let after = Self.mark(entry.viewer)
            let records = entry.viewer.records.dropFirst(max(0, mark.recordCount - 1))
            var longest = records.last.map { now - $0.at } ?? .zero
            var longestAt = records.last?.at
            // What is doubled counts there, and is no step back here.
            let again = after.doubled - mark.doubled
            lost += again
            for (previous, next) in zip(records, records.dropFirst()) {
                if next.at - previous.at > longest { (longest, longestAt) = (next.at - previous.at, previous.at) }
                if previous.epoch == next.epoch { lost += Int(next.sequence) - Int(previous.sequence) - 1 }
            }
            if longest > gaps.max() ?? .zero, let longestAt { longestFrom = longestAt - began }
            gaps.append(longest)
            doubled += again
            wrong += after.wrong - mark.wrong
            stale += after.stale - mark.stale
            if after.hasEnded, !mark.hasEnded { ended += 1 }
        }
    }
}

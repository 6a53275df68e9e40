import ApusCore
import ApusLocal
import Foundation
import Synchronization

/// The results of a long run. Each event is printed to standard error at once.
final class EnduranceReport: Sendable {
    private struct State {
        var kills = 0
        var falseDeaths: [String] = []
        var seen: [Double] = []
        var unseen = 0
        var standbys: [Double] = []
        var unprotected = 0
        var ended: [Int32: Int] = [:]
        var lost = 0
        var doubled = 0
        var wrong = 0
        var stale = 0
        var gaps: [Double] = []
        var lostHeartbeats: UInt64?
        var failures: [String] = []
        var end = MonotonicTime.now()
    }

    /// A kill must be in the map within this time.
    static let seenMax = Duration.seconds(1)
    /// Every channel must have a standby that confirms its frames within this time after a kill.
    static let protectedMax = Duration.seconds(3)

    private let kind: String
    private let start = MonotonicTime.now()
    private let state = Mutex(State())

    init(kind: String) { self.kind = kind }

    /// Prints an event.
    func note(_ line: String) {
        let seconds = Int((MonotonicTime.now() - start).milliseconds / 1_000)
        BenchScope.say("\(seconds / 60):\(String(format: "%02d", seconds % 60)) \(line)")
        state.withLock { $0.end = .now() }
    }

    func killed(_ what: String, seen: Duration?) {
        state.withLock { state in
            state.kills += 1
            if let seen { state.seen.append(seen.milliseconds) } else { state.unseen += 1 }
        }
        note(
            "killed \(what): in the map after \(seen.map { "\(Int($0.milliseconds)) ms" } ?? "no time that was waited")"
        )
    }

    func protected(_ what: String, after time: Duration?, gap: Duration) {
        state.withLock { state in
            state.gaps.append(gap.milliseconds)
            if let time { state.standbys.append(time.milliseconds) } else { state.unprotected += 1 }
        }
        note(
            "\(what): "
                + (time.map { "every channel protected after \(Int($0.milliseconds)) ms" }
                    ?? "not every channel protected")
                + ", longest gap \(Int(gap.milliseconds)) ms")
    }

    func falseDeath(_ what: String) {
        state.withLock { $0.falseDeaths.append(what) }
        note("a false death: \(what)")
    }

    func failed(_ what: String) {
        state.withLock { $0.failures.append(what) }
        note(what)
    }

    func lostHeartbeats(_ count: UInt64) { state.withLock { $0.lostHeartbeats = count } }

    /// Counts what all clients have seen so far. Replaces the earlier counts.
    func count(_ cast: FailoverCast) {
        state.withLock { state in
            state.ended = [:]
            (state.lost, state.doubled, state.wrong, state.stale) = (0, 0, 0, 0)
            for error in cast.publishers.compactMap(\.endError) + cast.viewers.compactMap(\.viewer.endError) {
                state.ended[error.code.number, default: 0] += 1
            }
            for entry in cast.viewers {
                state.lost += entry.viewer.lostCount
                state.doubled += entry.viewer.doubledCount
                state.wrong += entry.viewer.wrongCount
                state.stale += entry.viewer.staleCount
            }
        }
    }

    /// Adds frames that a viewer still misses at the end.
    func missing(_ count: Int) { state.withLock { $0.lost += count } }

    private static func isClean(_ state: State) -> Bool {
        state.falseDeaths.isEmpty && state.unseen == 0 && state.unprotected == 0 && state.failures.isEmpty
            && state.ended.isEmpty && state.lost == 0 && state.doubled == 0 && state.wrong == 0 && state.stale == 0
            && (state.seen.max() ?? 0) <= seenMax.milliseconds
            && (state.standbys.max() ?? 0) <= protectedMax.milliseconds
    }

    var isClean: Bool { state.withLock { Self.isClean($0) } }

    var summary: String {
        let state = state.withLock { $0 }
        func text(_ value: Double?) -> String { value.map { String(format: "%.0f", $0) } ?? "-" }
        let head = [
            "RUN", "MINUTES", "KILLS", "FALSE DEATHS", "SEEN P50", "MAX ms", "PROTECTED P50", "MAX ms", "UNPROTECTED",
            "ENDED", "LOST", "DOUBLED", "STALE", "GAP MAX ms", "BOUNDS",
        ]
        let row = [
            kind, String(format: "%.1f", minutes(state)), "\(state.kills)", "\(state.falseDeaths.count)",
            text(FailoverResult.quantile(state.seen, 0.5)), state.unseen > 0 ? "never" : text(state.seen.max()),
            text(FailoverResult.quantile(state.standbys, 0.5)), text(state.standbys.max()), "\(state.unprotected)",
            "\(state.ended.values.reduce(0, +))", "\(state.lost)", "\(state.doubled)", "\(state.stale)",
            text(state.gaps.max()), Self.isClean(state) ? "kept" : "missed",
        ]
        return (TextTable.lines([head, row]) + state.failures.map { "FAILED  \($0)" }).joined(separator: "\n")
    }

    private func minutes(_ state: State) -> Double { (state.end - start).milliseconds / 60_000 }

    func json() throws -> String {
        let state = state.withLock { $0 }
        var values: [String: Any] = [
            "kind": kind, "minutes": minutes(state), "kills": state.kills, "false_deaths": state.falseDeaths,
            "unseen": state.unseen, "unprotected": state.unprotected, "ended": state.ended.values.reduce(0, +),
            "lost": state.lost, "doubled": state.doubled, "wrong": state.wrong, "stale": state.stale,
            "failures": state.failures, "kept": Self.isClean(state),
        ]
        values["seen_max_ms"] = state.seen.max()
        values["protected_max_ms"] = state.standbys.max()
        values["gap_max_ms"] = state.gaps.max()
        values["lost_heartbeats"] = state.lostHeartbeats
        let data = try JSONSerialization.data(
            withJSONObject: values, options: [.sortedKeys, .withoutEscapingSlashes])
        return String(decoding: data, as: UTF8.self)
    }
}

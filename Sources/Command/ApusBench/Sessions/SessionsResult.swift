import ApusCore
import ApusLocal
import Foundation

/// The memory of a cluster's nodes and of the kernel, at one moment.
struct MemorySample {
    /// Resident bytes of each node, the one with the sessions first.
    var nodes: [Int]
    /// Bytes of the kernel's objects (`Slab` of proc(5) `meminfo`), and of its buffers of sockets (`sockstat`).
    var kernel: Int

    /// - Throws: 10018 if a node does not run.
    init(_ stage: SignInStage, _ names: [String]) throws(ApusError) {
        var nodes: [Int] = []
        for name in names {
            guard let pid = NodeProcess(name, in: stage.local.directory).pid else {
                throw ApusError(.internalFailure, "the node \(name) is not running")
            }
            nodes.append(try BenchProcess.residentByteCount(of: pid))
        }
        self.nodes = nodes
        kernel = Self.slab() + Self.buffers()
    }

    private static func lines(_ path: String) -> [Substring] {
        ((try? String(contentsOfFile: path, encoding: .utf8)) ?? "").split(separator: "\n")
    }

    private static func slab() -> Int {
        let line = lines("/proc/meminfo").first { $0.hasPrefix("Slab:") }
        return (line?.split(separator: " ").dropFirst().first.flatMap { Int($0) } ?? 0) * 1024
    }

    private static func buffers() -> Int {
        let line = lines("/proc/net/sockstat").first { $0.hasPrefix("TCP:") }
        return (line?.split(separator: " ").last.flatMap { Int($0) } ?? 0) * Int(getpagesize())
    }
}

/// The results of `apus-bench sessions`.
struct SessionsResult {
    /// Bounds (docs/benchmarks.md): bytes of the process for each session; milliseconds until all are back.
    private static let byteCountMax = 28 * 1024
    private static let backMax = 5_000.0

    private var sessions = 0
    /// The sessions of each node.
    private var counts: [Int] = []
    /// The bytes of one session in the process of its node.
    private var sessionByteCount = 0
    /// The bytes of one device's entity at a node, as its owner or standby.
    private var entityByteCount = 0
    private var kernel = 0
    private var rate = 0.0
    private var signInMicroseconds = 0.0
    private var idleMicroseconds = 0.0
    private var endedCount = 0
    /// Of one established TLS connection.
    var tlsByteCount: Int?

    private var rounds = 0
    private var backs: [Double] = []
    private var lasts: [Double] = []
    private var peaks: [Int] = []
    private var missing = 0
    private var gaps: [Double] = []
    private var lost = 0
    private var doubled = 0

    private var here: Int { counts.first ?? 0 }

    /// - Parameter counts: the sessions of each node, that with the most first.
    mutating func opened(_ counts: [Int], seconds: Double, nodeSeconds: Double) {
        self.counts = counts
        sessions = counts.reduce(0, +)
        rate = Double(sessions) / seconds
        signInMicroseconds = nodeSeconds * 1_000_000 / Double(max(1, here))
    }

    /// Each node has an owner's or a standby's entity of as many devices as another, so two nodes differ by their
    /// sessions alone.
    mutating func grew(from before: MemorySample, to after: MemorySample) {
        let growth = zip(before.nodes, after.nodes).map { $1 - $0 }
        guard let least = counts.indices.min(by: { counts[$0] < counts[$1] }), counts[least] < here else { return }
        sessionByteCount = (growth[0] - growth[least]) / (here - counts[least])
        let entities = sessions * 2 / counts.count
        entityByteCount = (growth[least] - counts[least] * sessionByteCount) / max(1, entities)
        // The clients are on the same machine, and have as many sockets.
        kernel = (after.kernel - before.kernel) / sessions / 2
    }

    mutating func idled(seconds: Double, nodeSeconds: Double) {
        idleMicroseconds = nodeSeconds * 1_000_000 / seconds / Double(max(1, here))
    }

    mutating func ended(_ count: Int) { endedCount = count }

    mutating func killed(backs times: [Duration], of count: Int, gaps viewers: [Duration], lost: Int, doubled: Int) {
        rounds += 1
        let milliseconds = times.map(\.milliseconds)
        backs += milliseconds
        if let last = milliseconds.max() { lasts.append(last) }
        missing += count - times.count
        gaps += viewers.map(\.milliseconds)
        self.lost += lost
        self.doubled += doubled
        // The most sessions that came back in a tenth of a second.
        peaks.append(Dictionary(grouping: milliseconds) { Int($0 / 100) }.values.map(\.count).max() ?? 0)
    }

    // MARK: Text

    var killLine: String {
        "back p50 \(Self.text(backs, 0.5)), p99 \(Self.text(backs, 0.99)), last \(Self.text(lasts, 1)) ms; at most "
            + "\(peaks.max() ?? 0) in 100 ms; missing \(missing); viewers of other nodes: longest gap "
            + "\(Self.text(gaps, 1)) ms, lost \(lost), doubled \(doubled)"
    }

    private static func text(_ values: [Double], _ share: Double) -> String {
        FailoverResult.quantile(values, share).map { String(format: "%.0f", $0) } ?? "-"
    }

    private static func kibibytes(_ count: Int) -> String { String(format: "%.1f", Double(count) / 1024) }

    var table: String {
        var rows: [[String]] = []
        if sessions > 0 {
            rows += [
                ["idle sessions of each node", counts.map { "\($0)" }.joined(separator: "; ")],
                ["memory of the node's process for each, KiB", Self.kibibytes(sessionByteCount)],
                ["of it TLS", tlsByteCount.map { Self.kibibytes($0) } ?? "-"],
                ["of it the session and its connection", Self.kibibytes(sessionByteCount - (tlsByteCount ?? 0))],
                ["a device's entity at a node, KiB", Self.kibibytes(entityByteCount)],
                ["memory of the kernel for the node's socket, KiB", Self.kibibytes(kernel)],
                ["sign-ins a second, with the client on the same cores", String(format: "%.0f", rate)],
                ["CPU of the node for each of its sign-ins, µs", String(format: "%.0f", signInMicroseconds)],
                ["CPU of the node for an idle session, µs a second", String(format: "%.1f", idleMicroseconds)],
                ["sessions that ended", "\(endedCount)"],
            ]
        }
        if rounds > 0 {
            rows += [
                ["kill -9 of a node: rounds", "\(rounds)"],
                ["sessions back, ms: p50", Self.text(backs, 0.5)], ["p99", Self.text(backs, 0.99)],
                ["the last one, median of the rounds", Self.text(lasts, 0.5)],
                ["the last one, longest", Self.text(lasts, 1)],
                ["most that came back in 100 ms", "\(peaks.max() ?? 0)"], ["not back", "\(missing)"],
                ["viewers at other nodes, longest gap, ms: p50", Self.text(gaps, 0.5)],
                ["p99", Self.text(gaps, 0.99)], ["max", Self.text(gaps, 1)],
                ["frames lost; doubled", "\(lost); \(doubled)"],
            ]
        }
        return TextTable.lines([["SESSIONS", ""]] + rows).joined(separator: "\n")
    }

    /// The bounds that were exceeded, as sentences.
    var misses: [String] {
        var misses: [String] = []
        if sessions > 0, sessionByteCount > Self.byteCountMax {
            misses.append(
                "a session takes \(Self.kibibytes(sessionByteCount)) KiB, at most "
                    + "\(Self.kibibytes(Self.byteCountMax)) allowed")
        }
        if here < sessions { misses.append("\(here) sessions are at the node, of \(sessions)") }
        if endedCount > 0 { misses.append("\(endedCount) idle sessions ended, 0 allowed") }
        if let last = lasts.max(), last > Self.backMax {
            misses.append("the last session was back after \(Int(last)) ms, at most \(Int(Self.backMax)) allowed")
        }
        if missing > 0 { misses.append("\(missing) sessions not back, 0 allowed") }
        if lost + doubled > 0 { misses.append("\(lost) frames lost and \(doubled) doubled, 0 allowed") }
        return misses
    }

    func json() throws -> String {
        var values: [String: Any] = [
            "sessions": counts, "session_bytes": sessionByteCount, "entity_bytes": entityByteCount,
            "kernel_bytes": kernel,
            "sign_ins_per_second": rate, "sign_in_node_us": signInMicroseconds, "idle_node_us": idleMicroseconds,
            "ended": endedCount, "missing": missing, "lost": lost, "doubled": doubled, "misses": misses,
        ]
        values["tls_bytes"] = tlsByteCount
        values["back_p50_ms"] = FailoverResult.quantile(backs, 0.5)
        values["back_p99_ms"] = FailoverResult.quantile(backs, 0.99)
        values["back_last_max_ms"] = lasts.max()
        values["back_peak_per_100_ms"] = peaks.max()
        values["gap_p99_ms"] = FailoverResult.quantile(gaps, 0.99)
        values["gap_max_ms"] = gaps.max()
        let data = try JSONSerialization.data(withJSONObject: values, options: [.sortedKeys])
        return String(decoding: data, as: UTF8.self)
    }
}

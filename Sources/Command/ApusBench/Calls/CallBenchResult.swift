import ApusCore
import ApusLocal
import Foundation

/// What is measured of a call, in milliseconds.
enum CallMeasure: String, CaseIterable, Sendable {
    case placed, ring, ringing, accepted, ended
    /// Of a forked call.
    case allRing = "all_ring"
    case stopped
    /// Of a call with media.
    case firstFrames = "first_frames"

    var says: String {
        switch self {
        case .placed: "start → answer of the cluster"
        case .ring: "start → ring at the callee"
        case .ringing: "start → ringing at the caller"
        case .accepted: "accept → accepted at the caller"
        case .ended: "hang-up → end at the other side"
        case .allRing: "start → ring at all 3 apps"
        case .stopped: "accept → stopped at the others"
        case .firstFrames: "accept → first frames at both sides"
        }
    }
}

/// How one call went.
struct CallOutcome: Sendable {
    var times: [CallMeasure: Double] = [:]
    /// How long after it was due the call was placed, in milliseconds.
    var lateness = 0.0
    /// The step that failed, and its number.
    var failure: String?
}

/// The calls of one load.
struct CallPart: Sendable {
    var times: [CallMeasure: [Double]] = [:]
    var lateness: [Double] = []
    /// By step and number: how many calls did not finish.
    var failures: [String: Int] = [:]
    var count = 0
    var seconds = 0.0
    /// CPU time of the servers' processes, above what they use while nobody calls.
    var serverSeconds = 0.0
    /// CPU time of the clients.
    var clientSeconds = 0.0

    mutating func add(_ outcome: CallOutcome) {
        count += 1
        lateness.append(outcome.lateness)
        for (measure, time) in outcome.times { times[measure, default: []].append(time) }
        if let failure = outcome.failure { failures[failure, default: 0] += 1 }
    }

    mutating func add(_ other: CallPart) {
        times.merge(other.times, uniquingKeysWith: +)
        failures.merge(other.failures, uniquingKeysWith: +)
        lateness += other.lateness
        count += other.count
        seconds += other.seconds
        serverSeconds += other.serverSeconds
        clientSeconds += other.clientSeconds
    }

    var failed: Int { failures.values.reduce(0, +) }

    /// Nil if there are no times.
    func quantile(_ measure: CallMeasure, _ share: Double) -> Double? {
        FailoverResult.quantile(times[measure] ?? [], share)
    }

    /// Of the servers, in microseconds for each call.
    var cpu: Double { serverSeconds * 1e6 / Double(max(1, count)) }

    var line: String {
        let parts = CallMeasure.allCases.compactMap { measure -> String? in
            guard let p50 = quantile(measure, 0.5), let p99 = quantile(measure, 0.99) else { return nil }
            return String(format: "%@ %.1f, %.1f", measure.rawValue, p50, p99)
        }
        return parts.joined(separator: "; ")
            + String(
                format: " ms (p50, p99); placed late p99 %.1f ms; servers %.0f µs a call, clients %.0f µs; %d failed",
                FailoverResult.quantile(lateness, 0.99) ?? 0, cpu, clientSeconds * 1e6 / Double(max(1, count)), failed
            )
    }
}

/// Calls that are in progress.
struct CallMemory: Sendable {
    var calls = 0
    /// Of all nodes' processes together, for each call, in KiB.
    var kibibytes = 0.0
    /// CPU time of all nodes for each call and second, above what they use while nobody calls, in microseconds.
    var microsecondsPerSecond = 0.0
    var failures: [String: Int] = [:]
}

/// The results of `apus-bench calls`.
struct CallBenchResult {
    var apus = CallPart()
    var kamailio: CallPart?
    var forks: CallPart?
    var media: CallPart?
    /// The highest rate that kept the bound, and the rates that were tried with their p99 and failures.
    var highest: Double?
    var steps: [(rate: Double, p99: Double, failed: Int)] = []
    var memory: CallMemory?
    /// CPU time of the nodes while nobody calls, in seconds for each second.
    var idle = 0.0

    /// All calls but those of the search finished.
    var isClean: Bool {
        apus.failed == 0 && (forks?.failed ?? 0) == 0 && (media?.failed ?? 0) == 0 && (kamailio?.failed ?? 0) == 0
            && (memory?.failures.isEmpty ?? true)
    }

    private var parts: [(name: String, part: CallPart)] {
        [("apus", apus), ("apus_forked", forks), ("apus_media", media), ("kamailio", kamailio)].compactMap {
            name, part in
            part.flatMap { $0.count > 0 ? (name, $0) : nil }
        }
    }

    var table: String {
        var rows = [["SYSTEM", "MEASURE", "CALLS", "P50 MS", "P99 MS", "MAX MS"]]
        for (name, part) in parts {
            for measure in CallMeasure.allCases {
                guard let times = part.times[measure] else { continue }
                rows.append(
                    [name.replacing("_", with: ", "), measure.says, "\(times.count)"]
                        + [0.5, 0.99, 1].map { String(format: "%.2f", part.quantile(measure, $0) ?? 0) })
            }
        }
        let numbers = [["MEASURE", "VALUE"]] + values.map { [$0.says, String(format: "%.1f", $0.value)] }
        return (TextTable.lines(rows) + [""] + TextTable.lines(numbers) + tried + failures + [Self.differences])
            .joined(separator: "\n")
    }

    private var tried: [String] {
        steps.map { step in
            String(
                format: "apus: %.0f/s: start → ring p99 %.1f ms, %d failed", step.rate, step.p99, step.failed)
        }
    }

    private var failures: [String] {
        (parts.map { ($0.name, $0.part.failures) } + [("apus, in progress", memory?.failures ?? [:])])
            .flatMap { name, failures in
                failures.sorted { $0.key < $1.key }.map { "\(name): \($0.value) calls failed: \($0.key)" }
            }
    }

    private static let differences = """

        What differs: Apus is three nodes, clients speak TLS 1.3, and the owner's standby has each change of a call
        before it is acknowledged. Caller and callee are at different nodes. kamailio is one node, over UDP without
        TLS (Debian's sipp has none), with its registrar and dialogs in its own memory and nothing replicated. The
        times of sipp are those of its message logs, on the same clock.
        """

    private var values: [(key: String, says: String, value: Double)] {
        var values: [(key: String, says: String, value: Double)] = []
        for (name, part) in [("apus", apus), ("kamailio", kamailio ?? CallPart())] where part.count > 0 {
            values.append(("\(name)_cpu_us", "\(name): server CPU for each call, µs", part.cpu))
            // That of sipp is not measured.
            if part.clientSeconds > 0 {
                let clients = part.clientSeconds * 1e6 / Double(part.count)
                values.append(("\(name)_client_cpu_us", "\(name): client CPU for each call, µs", clients))
            }
            values.append(("\(name)_per_s", "\(name): calls a second", Double(part.count) / part.seconds))
            values.append(("\(name)_failed", "\(name): calls that did not finish", Double(part.failed)))
        }
        if let late = FailoverResult.quantile(apus.lateness, 0.99) {
            values.append(("apus_late_p99_ms", "apus: placed later than due, p99, ms", late))
        }
        if let forks {
            values.append(("forks_cpu_us", "apus: server CPU for each forked call, µs", forks.cpu))
            values.append(("forks_failed", "apus: forked calls that did not finish", Double(forks.failed)))
        }
        if let media {
            values.append(("media_cpu_us", "apus: server CPU for each call with media, µs", media.cpu))
            values.append(("media_failed", "apus: calls with media that did not finish", Double(media.failed)))
        }
        if let highest {
            values.append(("highest_per_s", "apus: highest rate with start → ring p99 in the bound, /s", highest))
        }
        values.append(("idle_cpu_percent", "apus: CPU of all nodes while nobody calls, % of a core", idle * 100))
        if let memory {
            values.append(("in_progress", "apus: calls in progress", Double(memory.calls)))
            values.append(("memory_kib", "apus: memory of all nodes for each of them, KiB", memory.kibibytes))
            values.append(
                (
                    "in_progress_cpu_us", "apus: server CPU for each of them and second, µs",
                    memory.microsecondsPerSecond
                ))
        }
        return values
    }

    func json() throws -> String {
        var object = Dictionary(uniqueKeysWithValues: values.map { ($0.key, $0.value) })
        for (name, part) in parts {
            for measure in CallMeasure.allCases {
                for (share, word) in [(0.5, "p50"), (0.99, "p99"), (1, "max")] {
                    if let value = part.quantile(measure, share) {
                        object["\(name)_\(measure.rawValue)_\(word)_ms"] = value
                    }
                }
            }
        }
        return String(decoding: try JSONSerialization.data(withJSONObject: object, options: .sortedKeys), as: UTF8.self)
    }
}

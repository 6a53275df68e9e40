import ApusClient
import ApusCore
import ApusLocal
import Foundation

/// The results of the rounds of `apus-bench signin`.
struct SignInResult {
    enum Kind: String, CaseIterable {
        case fresh = "token"
        case resumed = "ticket"

        var says: String {
            switch self {
            case .fresh: "full handshake, token"
            case .resumed: "resumed handshake, ticket"
            }
        }
    }

    private struct Rate {
        /// Sign-ins per second.
        var rate: Double
        /// The node's CPU time per sign-in.
        var microseconds: Double
    }

    private struct Death {
        var times: [Double] = []
        var lost = 0
        var doubled = 0
        /// The number of viewers without a picture at the time limit.
        var missing = 0
        /// The time of the slowest viewer in each round.
        var lasts: [Double] = []
    }

    private var rates: [String: [Rate]] = [:]
    private var deaths: [String: Death] = [:]
    private var sides: [String] = []
    /// The number of failed sign-ins.
    private(set) var failed = 0

    var missing: Int { deaths.values.reduce(0) { $0 + $1.missing } }

    mutating func add(
        side: String, kind: Kind, counts: [SignInProbe.Result], seconds: Double, nodeSeconds: Double
    ) {
        note(side)
        let count = Double(counts.reduce(0) { $0 + $1.signedIn })
        failed += counts.reduce(0) { $0 + $1.failed }
        rates["\(side) \(kind.rawValue)", default: []]
            .append(Rate(rate: count / seconds, microseconds: nodeSeconds * 1_000_000 / max(1, count)))
    }

    mutating func add(side: String, times: [Duration], viewerCount: Int, cast: FailoverCast) {
        note(side)
        var death = deaths[side] ?? Death()
        death.times += times.map(\.milliseconds)
        if let last = times.max() { death.lasts.append(last.milliseconds) }
        death.missing += viewerCount - times.count
        for entry in cast.viewers {
            death.lost += entry.viewer.lostCount
            death.doubled += entry.viewer.doubledCount
        }
        deaths[side] = death
    }

    private mutating func note(_ side: String) {
        if !sides.contains(side) { sides.append(side) }
    }

    // MARK: - Text

    private func median(_ side: String, _ kind: Kind, _ value: (Rate) -> Double) -> Double? {
        FailoverResult.quantile((rates["\(side) \(kind.rawValue)"] ?? []).map(value), 0.5)
    }

    var rateLine: String {
        let parts = sides.flatMap { side in
            Kind.allCases.map { kind in
                "\(side) \(kind.rawValue) \(Self.text(median(side, kind, \.rate)))/s "
                    + "\(Self.text(median(side, kind, \.microseconds))) µs"
            }
        }
        return parts.joined(separator: ", ")
    }

    func killLine(_ side: String) -> String {
        let death = deaths[side] ?? Death()
        return "back p50 \(Self.text(FailoverResult.quantile(death.times, 0.5))) "
            + "p99 \(Self.text(FailoverResult.quantile(death.times, 0.99))) "
            + "last \(Self.text(death.lasts.last)) ms, missing \(death.missing), lost \(death.lost), "
            + "doubled \(death.doubled)"
    }

    private static func text(_ value: Double?) -> String { value.map { String(format: "%.0f", $0) } ?? "-" }

    var table: String {
        var blocks: [String] = []
        if !rates.isEmpty {
            let rows = sides.flatMap { side in
                Kind.allCases.map { kind in
                    [
                        side, kind.says, "\(rates["\(side) \(kind.rawValue)"]?.count ?? 0)",
                        Self.text(median(side, kind, \.rate)), Self.text(median(side, kind, \.microseconds)),
                    ]
                }
            }
            blocks += TextTable.lines([["BUILD", "SIGN-IN", "ROUNDS", "A SECOND", "NODE CPU µs"]] + rows)
        }
        if !deaths.isEmpty {
            if !blocks.isEmpty { blocks.append("") }
            let rows = sides.compactMap { side -> [String]? in
                guard let death = deaths[side] else { return nil }
                return [
                    side, "\(death.lasts.count)", "\(death.times.count)", "\(death.missing)", "\(death.lost)",
                    "\(death.doubled)", Self.text(FailoverResult.quantile(death.times, 0.5)),
                    Self.text(FailoverResult.quantile(death.times, 0.99)),
                    Self.text(FailoverResult.quantile(death.lasts, 0.5)),
                    Self.text(FailoverResult.quantile(death.lasts, 1)),
                ]
            }
            let head = [
                "KILL -9", "ROUNDS", "VIEWERS", "MISSING", "LOST", "DOUBLED", "BACK P50", "P99", "LAST P50", "MAX ms",
            ]
            blocks += TextTable.lines([head] + rows)
        }
        return blocks.joined(separator: "\n")
    }

    func json() throws -> String {
        var object: [String: [String: Double]] = [:]
        for side in sides {
            var values: [String: Double] = [:]
            for kind in Kind.allCases {
                values["\(kind.rawValue)_per_second"] = median(side, kind, \.rate)
                values["\(kind.rawValue)_node_us"] = median(side, kind, \.microseconds)
            }
            if let death = deaths[side] {
                values["back_p50_ms"] = FailoverResult.quantile(death.times, 0.5)
                values["back_p99_ms"] = FailoverResult.quantile(death.times, 0.99)
                values["back_last_p50_ms"] = FailoverResult.quantile(death.lasts, 0.5)
                values["back_last_max_ms"] = FailoverResult.quantile(death.lasts, 1)
                values["missing"] = Double(death.missing)
                values["lost"] = Double(death.lost)
                values["doubled"] = Double(death.doubled)
            }
            object[side] = values
        }
        let data = try JSONSerialization.data(withJSONObject: object, options: [.sortedKeys])
        return String(decoding: data, as: UTF8.self)
    }
}

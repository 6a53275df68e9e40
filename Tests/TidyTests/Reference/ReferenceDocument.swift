import ApusCore
import ApusHTTP
import ApusNodeConfiguration
import Foundation

/// A document that is made from the code: docs/reference/NAME.md. `scripts/reference` writes them.
struct ReferenceDocument: Sendable, CustomStringConvertible {
    let name: String
    let make: @Sendable () throws -> String

    static let all = [
        Self(name: "metrics", make: metrics), Self(name: "errors", make: errors),
        Self(name: "configuration", make: { try ConfigurationReference().text() }),
        Self(name: "requirements", make: { Requirements.document() }),
        Self(name: "media-frames", make: { FrameReference.text() }),
    ]

    var path: String { "docs/reference/\(name).md" }
    var description: String { path }

    /// A cell of a table: a bar would end it.
    static func cell(_ text: String) -> String {
        text.split(separator: "|", omittingEmptySubsequences: false).joined(separator: "\\|")
    }

    static func table(_ head: [String], _ rows: [[String]]) -> String {
        let rule = "|" + String(repeating: "---|", count: head.count)
        let lines = rows.map { "| " + $0.map(cell).joined(separator: " | ") + " |" }
        return (["| " + head.joined(separator: " | ") + " |", rule] + lines).joined(separator: "\n") + "\n"
    }

    // MARK: Metrics

    private static func metrics() -> String {
        var text = """
            # Metrics

            `GET /metrics` of a node or a standalone relay returns these metrics in Prometheus' text format 0.0.4.
            `scripts/reference` makes this page from the catalogue in the code; do not edit it.
            [operating.md](../operating.md#watching-a-cluster) shows how to scrape a cluster, and which numbers to look
            at first.

            A histogram `NAME` has the series `NAME_bucket{le="…"}`, `NAME_sum` and `NAME_count`. Counters start at 0
            when the process starts. A series may be missing until its first event. A metric has at most
            \(PrometheusMetrics.seriesPerFamilyMax) series; further label values share the series `overflow="true"`.

            """
        for section in ProgramServices.metrics {
            text += "\n## \(section.title)\n\n"
            text += table(
                ["name", "type", "unit", "labels", "meaning"],
                section.metrics.map { metric in
                    [
                        "`\(metric.name)`", metric.kind.rawValue, metric.unit,
                        metric.labels.map { "`\($0.name)`: \($0.values)" }.joined(separator: "; "), metric.help,
                    ]
                })
        }
        return text
    }

    // MARK: Errors

    private static let families: [(title: String, range: ClosedRange<Int32>)] = [
        ("−2599 to −2500: calls", -2599 ... -2500),
        ("8000–8499: access server", 8000...8499), ("8500–8699: control server", 8500...8699),
        ("10000–10999: general", 10_000...10_999), ("12000–12999: user", 12_000...12_999),
        ("20000–20999: peer to peer", 20_000...20_999), ("21000–21999: SDK", 21_000...21_999),
    ]

    private static func errors() -> String {
        var text = """
            # Errors

            Every refusal has a number from this catalogue and a message for a person. Programs decide by the number: it
            never changes its meaning, and a retired number is not used again. `scripts/reference` makes this page from
            the catalogue in the code; do not edit it.

            Receivers: a `client` is a device or an app, `SDK` is an error that arises in the client itself, `node` is
            another node, `operator` is whoever runs nodes and commands. The column "ends" states what the error ends
            permanently: [operating.md](../operating.md#errors-that-end-a-client) gives the reasons. After any other
            error the SDK retries by itself.

            """
        for family in families {
            let rows = ErrorCode.explanations.filter { family.range.contains($0.code.number) }
            guard !rows.isEmpty else { continue }
            text += "\n## \(family.title)\n\n"
            text += table(
                ["number", "name", "meaning", "receivers", "ends", "what to do"],
                rows.map { row in
                    let ends = ErrorCode.endings.filter { $0.code == row.code }.map(\.ending.rawValue)
                    return [
                        "\(row.code.number)", "`\(row.name)`", row.code.summary,
                        row.receivers.map(\.rawValue).joined(separator: ", "), ends.joined(separator: "; "), row.action,
                    ]
                })
        }
        return text
    }
}

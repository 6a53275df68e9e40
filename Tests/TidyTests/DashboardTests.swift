import ApusCore
import ApusNodeConfiguration
import Foundation
import Testing

/// docs/grafana/apus.json against the catalogue of metrics. `scripts/try-dashboard` runs its queries on a cluster.
@Suite("Tidy: the dashboard")
struct DashboardTests {
    struct Target: Decodable {
        var expr: String
        var refId: String
    }

    struct Place: Decodable {
        var x: Int
        var y: Int
        var w: Int
        var h: Int
    }

    struct Panel: Decodable {
        var id: Int
        var type: String
        var title: String
        var description: String?
        var gridPos: Place
        var targets: [Target]?
    }

    struct Dashboard: Decodable {
        var schemaVersion: Int
        var uid: String
        var panels: [Panel]
    }

    private static func read() throws -> Dashboard {
        let file = try #require(SourceTree.files.first { $0.path == "docs/grafana/apus.json" })
        return try JSONDecoder().decode(Dashboard.self, from: Data(file.text.utf8))
    }

    /// Names of series in an expression, without Prometheus' own `up`.
    private static func series(_ expression: String) -> [String] {
        expression.matches(of: /\b(?:apus|process)_\w+/.wordBoundaryKind(.simple)).map { String($0.0) }
    }

    @Test("It has a row for each part of a cluster, and each panel has a title, a description and a query")
    func shape() throws {
        let dashboard = try Self.read()
        #expect(dashboard.schemaVersion >= 36, "Grafana 9 and newer")
        #expect(ShardID.count == 4096, "two of the queries have this number")
        #expect(
            dashboard.panels.filter { $0.type == "row" }.map(\.title) == [
                "Cluster", "Sessions", "Media", "Relay", "Entities and replication", "Records and storage", "HTTP",
                "API", "Process",
            ])
        #expect(Set(dashboard.panels.map(\.id)).count == dashboard.panels.count)
        for panel in dashboard.panels where panel.type != "row" {
            #expect(!panel.title.isEmpty && panel.description?.hasSuffix(".") == true, "\(panel.title)")
            let targets = panel.targets ?? []
            #expect(!targets.isEmpty && Set(targets.map(\.refId)).count == targets.count, "\(panel.title)")
        }
    }

    @Test("Panels lie side by side, none over another")
    func places() throws {
        var taken: [String: String] = [:]
        for panel in try Self.read().panels {
            let place = panel.gridPos
            #expect(place.x >= 0 && place.w > 0 && place.x + place.w <= 24 && place.h > 0, "\(panel.title)")
            for x in place.x..<(place.x + place.w) {
                for y in place.y..<(place.y + place.h) {
                    if let other = taken.updateValue(panel.title, forKey: "\(x) \(y)") {
                        Issue.record("\(panel.title) lies over \(other)")
                        return
                    }
                }
            }
        }
    }

    @Test("Every query uses metrics and labels that exist, counters by their growth")
    func queries() throws {
        for panel in try Self.read().panels {
            for expression in (panel.targets ?? []).map(\.expr) {
                let names = Self.series(expression)
                #expect(!names.isEmpty || expression.contains("up{"), "\(panel.title): \(expression)")
                var labels: Set = ["job", "instance", "le"]
                for name in names {
                    guard let metric = MetricNames.metric(of: name) else {
                        Issue.record("\(panel.title) uses \(name), which no metric has")
                        continue
                    }
                    labels.formUnion(metric.labels.map(\.name))
                    let grows = metric.kind != .gauge
                    let isGrowth = ["rate(", "increase("].contains { expression.contains("\($0)\(name)") }
                    #expect(grows == isGrowth, "\(panel.title): \(name) is a \(metric.kind)")
                }
                for label in Self.labels(expression) {
                    #expect(labels.contains(label), "\(panel.title): \(label) is no label of \(names)")
                }
            }
        }
    }

    /// Labels in the matchers and groupings of an expression.
    private static func labels(_ expression: String) -> [String] {
        let matched = expression.matches(of: /([a-z_]+)=~?"/).map { String($0.1) }
        let grouped = expression.matches(of: /by \(([a-z_, ]+)\)/).flatMap { match in
            match.1.split(separator: ", ").map { String($0) }
        }
        return matched + grouped
    }

    @Test("Every metric is shown")
    func everyMetric() throws {
        let expressions = try Self.read().panels.flatMap { $0.targets ?? [] }.map(\.expr)
        let shown = Set(expressions.flatMap(Self.series).compactMap { MetricNames.metric(of: $0)?.name })
        #expect(Set(ProgramServices.metricsByName.keys).subtracting(shown).sorted() == [])
    }
}

import ApusCore
import ApusNodeConfiguration
import Foundation
import Testing

/// Names of series.
enum MetricNames {
    /// The metric that a series belongs to; nil for a name that no metric has.
    static func metric(of series: String) -> MetricDescription? {
        if let metric = ProgramServices.metricsByName[series] { return metric.kind == .histogram ? nil : metric }
        for suffix in ["_bucket", "_sum", "_count"] where series.hasSuffix(suffix) {
            let metric = ProgramServices.metricsByName[String(series.dropLast(suffix.count))]
            if let metric, metric.kind == .histogram { return metric }
        }
        return nil
    }

    /// True for a metric, or one of a histogram's series.
    static func isSeries(_ name: String) -> Bool {
        ProgramServices.metricsByName[name] != nil || metric(of: name) != nil
    }
}

@Suite("Tidy: metrics")
struct MetricTests {
    /// An instrument as the sources make it.
    private struct Instrument {
        let place: String
        let name: String
        let kind: MetricDescription.Kind
        let labels: Set<String>
    }

    private static let kinds: [Substring: MetricDescription.Kind] = [
        "Counter": .counter, "FloatingPointCounter": .counter, "counter": .counter, "Gauge": .gauge, "Meter": .gauge,
        "Timer": .histogram, "Recorder": .histogram,
    ]

    /// Sources with instruments, without the descriptions of metrics, and without the backend that exports them.
    private static let sources = SourceTree.sources.filter {
        !$0.path.contains("/ApusCore/Metrics/") && !$0.path.contains("/ApusHTTP/Prometheus/")
            && !$0.path.hasSuffix("Service+Metrics.swift")
    }

    /// A call from its opening parenthesis to the one that closes it.
    private static func call(_ text: String, from start: String.Index) -> Substring {
        var depth = 0
        for index in text[start...].indices {
            if text[index] == "(" { depth += 1 }
            if text[index] == ")" {
                depth -= 1
                if depth == 0 { return text[start...index] }
            }
        }
        return text[start...]
    }

    // Also of a helper `counter(_ label:)`, which a test below allows.
    private static let instruments: [Instrument] = sources.filter { $0.text.contains("\"apus_") }.flatMap { file in
        let made = #/\b(\w*[cC]ounter|Gauge|Meter|Timer|Recorder)\(\s*(?:label:\s*)?"(\w*)"/#
        return file.text.matches(of: made.wordBoundaryKind(.simple)).compactMap { match -> Instrument? in
            guard let kind = kinds[match.1] else { return nil }
            let call = call(file.text, from: match.1.endIndex)
            let line = file.text[..<match.range.lowerBound].count { $0 == "\n" } + 1
            return Instrument(
                place: "\(file.path):\(line)", name: String(match.2), kind: kind,
                labels: Set(call.matches(of: #/[\[ ]\("([a-z_]+)", /#).map { String($0.1) }))
        }
    }

    /// Names of metrics without an instrument: what the operating system reports.
    private static let written = sources.filter { $0.text.contains("MetricCatalogue.text(") }.flatMap { file in
        file.text.matches(of: /MetricCatalogue\.text\(\s*"([^"]+)"/).map { String($0.1) }
    }

    @Test("Every instrument of the sources is in the catalogue, with its kind and labels")
    func instrumentsAreKnown() {
        #expect(Self.instruments.count > 90, "instruments are written in another way now")
        for instrument in Self.instruments {
            guard let metric = ProgramServices.metricsByName[instrument.name] else {
                Issue.record("\(instrument.place) has \(instrument.name), which is not in the catalogue")
                continue
            }
            #expect(metric.kind == instrument.kind, "\(instrument.place): \(instrument.name)")
            #expect(Set(metric.labels.map(\.name)) == instrument.labels, "\(instrument.place): \(instrument.name)")
        }
        for name in Self.written { #expect(ProgramServices.metricsByName[name] != nil, "\(name)") }
    }

    @Test("Every metric of the catalogue has an instrument in the sources")
    func catalogueIsUsed() {
        let used = Set(Self.instruments.map(\.name)).union(Self.written)
        #expect(Set(ProgramServices.metricsByName.keys).subtracting(used).sorted() == [])
    }

    @Test("The name of an instrument is a literal, so that the catalogue can be compared with it")
    func literalNames() {
        let made = /\b(?:Counter|Gauge|Meter|Timer|Recorder)\(label: ([^,)]+)/.wordBoundaryKind(.simple)
        for file in Self.sources where file.text.contains("label: ") || file.text.contains("# TYPE ") {
            for (index, line) in file.lines.enumerated() {
                let code = line.drop { $0 == " " }
                if code.contains("# TYPE "), !code.hasPrefix("//") {
                    Issue.record("\(file.path):\(index + 1) writes Prometheus text beside the catalogue")
                }
                guard code.contains("(label: "), let match = code.firstMatch(of: made) else { continue }
                let isHelper = index > 0 && file.lines[index - 1].contains("func counter(_ label: String")
                let isLiteral = match.1.hasPrefix("\"") && !match.1.contains("\\(")
                #expect(isLiteral || isHelper, "\(file.path):\(index + 1) assembles the name of a metric")
            }
        }
    }

    @Test("Names and units follow Prometheus' rules, and help is one sentence")
    func names() {
        let all = ProgramServices.metrics.flatMap(\.metrics)
        #expect(all.count == ProgramServices.metricsByName.count)
        for metric in all {
            #expect(metric.name.wholeMatch(of: /[a-z][a-z0-9_]*/) != nil, "\(metric.name)")
            #expect(metric.name.hasSuffix("_total") == (metric.kind == .counter), "\(metric.name)")
            for unit in ["seconds", "bytes"] {
                let isNamed = metric.name.split(separator: "_").contains(Substring(unit))
                #expect(isNamed == (metric.unit == unit), "\(metric.name) is in \(metric.unit)")
            }
            #expect(!metric.unit.isEmpty)
            #expect(metric.help.hasSuffix(".") && !metric.help.contains("\n"), "\(metric.name)")
            #expect(!metric.help.dropLast().contains(". "), "\(metric.name)")
            for label in metric.labels {
                #expect(label.name.wholeMatch(of: /[a-z][a-z_]*/) != nil && label.name != "le", "\(metric.name)")
                #expect(!label.values.isEmpty, "\(metric.name)")
            }
        }
    }
}

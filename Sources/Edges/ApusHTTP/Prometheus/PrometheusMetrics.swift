package import ApusCore
package import CoreMetrics
import Synchronization

/// A metrics backend that keeps every instrument in memory and writes them in Prometheus' text format.
///
/// A node bootstraps one of these as the process's metrics system and serves ``text()`` at `/metrics`. The same name
/// and labels always give the same series, so a short-lived instrument loses nothing.
///
/// Limits (D13): ``familiesMax`` names, and ``seriesPerFamilyMax`` label sets each. Label sets beyond the limit are
/// counted in the family's series `{overflow="true"}`. A name beyond the limit, or one that is already in use for
/// another kind of instrument, is accepted but not exported.
///
/// Concurrency: any thread. Creating an instrument and ``text()`` take a lock, counting does not (histograms have a
/// lock of their own).
package final class PrometheusMetrics: MetricsFactory {
    /// The most names.
    package static let familiesMax = 1024
    /// The most label sets of one name.
    package static let seriesPerFamilyMax = 256
    /// Upper bounds of a timer's buckets, in seconds.
    package static let timerBuckets: [Double] = [
        0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10,
    ]
    /// Upper bounds of a recorder's buckets, in the recorder's own unit: powers of four.
    package static let recorderBuckets: [Double] = (0...12).map { Double(UInt64(1) << (2 * $0)) }

    enum Kind: String {
        case counter, gauge, histogram
    }

    private struct Family {
        var kind: Kind
        var series: [String: any PrometheusSeries] = [:]
    }

    private let families = Mutex<[String: Family]>([:])

    private let catalogue: [String: MetricDescription]

    /// - Parameter catalogue: the help texts, by name. A metric that is not in it is written without one.
    package init(catalogue: [String: MetricDescription] = MetricCatalogue.byName) { self.catalogue = catalogue }

    /// All instruments in Prometheus' text exposition format 0.0.4, sorted by name and labels.
    package func text() -> String {
        let snapshot = families.withLock { $0 }
        var text = ""
        for (name, family) in snapshot.sorted(by: { $0.key < $1.key }) {
            text += PrometheusText.head(name, kind: family.kind.rawValue, help: catalogue[name]?.help)
            for (labels, series) in family.series.sorted(by: { $0.key < $1.key }) {
                series.write(name: name, labels: labels, into: &text)
            }
        }
        return text
    }

    package func makeCounter(label: String, dimensions: [(String, String)]) -> any CounterHandler {
        series(.counter, label, dimensions) { CounterSeries() }
    }

    package func makeMeter(label: String, dimensions: [(String, String)]) -> any MeterHandler {
        series(.gauge, label, dimensions) { GaugeSeries() }
    }

    package func makeRecorder(
        label: String, dimensions: [(String, String)], aggregate: Bool
    ) -> any RecorderHandler {
        guard aggregate else { return series(.gauge, label, dimensions) { GaugeSeries() } }
        return series(.histogram, label, dimensions) { HistogramSeries(bounds: Self.recorderBuckets) }
    }

    package func makeTimer(label: String, dimensions: [(String, String)]) -> any TimerHandler {
        series(.histogram, label, dimensions) { HistogramSeries(bounds: Self.timerBuckets) }
    }

    // A series outlives its instrument: Prometheus would interpret a counter that starts at zero as a restart.
    package func destroyCounter(_ handler: any CounterHandler) {}
    package func destroyMeter(_ handler: any MeterHandler) {}
    package func destroyRecorder(_ handler: any RecorderHandler) {}
    package func destroyTimer(_ handler: any TimerHandler) {}

    private func series<Series: PrometheusSeries>(
        _ kind: Kind, _ label: String, _ dimensions: [(String, String)], _ make: () -> Series
    ) -> Series {
        let name = PrometheusText.name(label)
        let labels = PrometheusText.labels(dimensions)
        return families.withLock { families in
            var family = families[name] ?? Family(kind: kind)
            guard family.kind == kind, families[name] != nil || families.count < Self.familiesMax else { return make() }
            let key =
                family.series[labels] != nil || family.series.count < Self.seriesPerFamilyMax
                ? labels : PrometheusText.labels([("overflow", "true")])
            if let known = family.series[key] { return (known as? Series) ?? make() }
            let made = make()
            family.series[key] = made
            families[name] = family
            return made
        }
    }
}

/// Names, help texts, labels and numbers in Prometheus' text format 0.0.4.
enum PrometheusText {
    /// The lines before a family's series: `# HELP`, where there is a help text, and `# TYPE`.
    static func head(_ name: String, kind: String, help: String?) -> String {
        let type = "# TYPE \(name) \(kind)\n"
        return help.map { "# HELP \(name) \(escaped($0, isQuoted: false))\n\(type)" } ?? type
    }

    /// The name with every byte outside `[a-zA-Z0-9_:]` as `_`, and not beginning with a digit.
    static func name(_ label: String) -> String {
        var name = String(label.unicodeScalars.map { isPlain($0) ? Character($0) : "_" })
        if let first = name.first, first.isNumber { name = "_" + name }
        return name.isEmpty ? "_" : name
    }

    /// `a="x",b="y"`, sorted by name; empty without labels.
    static func labels(_ dimensions: [(String, String)]) -> String {
        dimensions.sorted { $0.0 < $1.0 }
            .map { "\(name($0.0))=\"\(escaped($0.1))\"" }
            .joined(separator: ",")
    }

    /// A number without a trailing `.0`.
    static func number(_ value: Double) -> String {
        if let whole = Int64(exactly: value) { return "\(whole)" }
        if value.isNaN { return "NaN" }
        return value.isInfinite ? (value < 0 ? "-Inf" : "+Inf") : "\(value)"
    }

    private static func isPlain(_ scalar: Unicode.Scalar) -> Bool {
        switch scalar {
        case "a"..."z", "A"..."Z", "0"..."9", "_", ":": true
        default: false
        }
    }

    /// With `\` and line feed escaped, and `"` where the text is quoted: a label's value is, a help text is not.
    private static func escaped(_ value: String, isQuoted: Bool = true) -> String {
        var text = ""
        for scalar in value.unicodeScalars {
            switch scalar {
            case "\\": text += "\\\\"
            case "\"" where isQuoted: text += "\\\""
            case "\n": text += "\\n"
            default: text.unicodeScalars.append(scalar)
            }
        }
        return text
    }
}

extension MetricCatalogue {
    /// A family of one value without labels, with `# HELP` and `# TYPE`, in text format 0.0.4. A name that is not in
    /// the catalogue has neither.
    package static func text(_ name: String, _ value: Double) -> String {
        let head = byName[name].map { PrometheusText.head(name, kind: $0.kind.rawValue, help: $0.help) } ?? ""
        return "\(head)\(name) \(PrometheusText.number(value))\n"
    }
}

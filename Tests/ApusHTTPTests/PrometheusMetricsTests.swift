import ApusCore
import ApusHTTP
import CoreMetrics
import Testing

@Suite("Prometheus metrics (D13)")
struct PrometheusMetricsTests {
    private let metrics = PrometheusMetrics()

    @Test("A counter is written with its type, labels and value")
    func counter() {
        let counter = Counter(
            label: "apus_closed_total", dimensions: [("code", "10002"), ("at", "x")], factory: metrics)
        counter.increment()
        counter.increment(by: 4)
        #expect(metrics.text() == "# TYPE apus_closed_total counter\napus_closed_total{at=\"x\",code=\"10002\"} 5\n")
    }

    @Test("The same name and labels are the same series, so a short-lived instrument loses nothing")
    func sameSeries() {
        for _ in 0..<3 { Counter(label: "a_total", dimensions: [("k", "v")], factory: metrics).increment() }
        #expect(metrics.text().contains("a_total{k=\"v\"} 3\n"))
    }

    @Test("A meter goes up and down and can be set")
    func meter() {
        let meter = Meter(label: "open", factory: metrics)
        meter.set(5)
        meter.increment()
        meter.decrement(by: 2.5)
        #expect(metrics.text() == "# TYPE open gauge\nopen 3.5\n")
    }

    @Test("A timer is a histogram in seconds with cumulative buckets, a sum and a count")
    func timer() {
        let timer = CoreMetrics.Timer(label: "wait_seconds", factory: metrics)
        timer.recordNanoseconds(2_000_000)
        timer.recordNanoseconds(20_000_000_000)
        let text = metrics.text()
        #expect(text.contains("# TYPE wait_seconds histogram\n"))
        #expect(text.contains("wait_seconds_bucket{le=\"0.001\"} 0\n"))
        #expect(text.contains("wait_seconds_bucket{le=\"0.0025\"} 1\n"))
        #expect(text.contains("wait_seconds_bucket{le=\"10\"} 1\n"))
        #expect(text.contains("wait_seconds_bucket{le=\"+Inf\"} 2\n"))
        #expect(text.contains("wait_seconds_sum 20.002\n"))
        #expect(text.contains("wait_seconds_count 2\n"))
    }

    @Test("Labels beyond the bound are counted together instead of growing the map")
    func boundedLabels() {
        for index in 0..<(PrometheusMetrics.seriesPerFamilyMax + 10) {
            Counter(label: "wide_total", dimensions: [("id", "\(index)")], factory: metrics).increment()
        }
        let lines = metrics.text().split(separator: "\n").filter { $0.hasPrefix("wide_total{") }
        #expect(lines.count == PrometheusMetrics.seriesPerFamilyMax + 1)
        #expect(lines.contains("wide_total{overflow=\"true\"} 10"))
    }

    @Test("Names beyond the bound are taken but not shown")
    func boundedNames() {
        for index in 0..<(PrometheusMetrics.familiesMax + 10) {
            Counter(label: "n\(index)", factory: metrics).increment()
        }
        #expect(metrics.text().split(separator: "\n").filter { $0.hasPrefix("# TYPE") }.count == 1024)
    }

    @Test("One name cannot be two kinds of instrument: the second is taken but not shown")
    func oneKindPerName() {
        Counter(label: "both", factory: metrics).increment()
        Meter(label: "both", factory: metrics).set(9)
        #expect(metrics.text() == "# TYPE both counter\nboth 1\n")
    }

    @Test("A metric of the catalogue has its help before its type")
    func help() {
        Counter(label: "apus_gateway_accepted_total", factory: metrics).increment()
        #expect(
            metrics.text() == """
                # HELP apus_gateway_accepted_total Client connections that were accepted.
                # TYPE apus_gateway_accepted_total counter
                apus_gateway_accepted_total 1

                """)
    }

    @Test("A backslash and a line feed are escaped in help, a quotation mark is not")
    func helpEscaping() {
        let odd = MetricDescription(name: "odd", kind: .gauge, unit: "x", help: "a\\b \"c\"\r\nd")
        let metrics = PrometheusMetrics(catalogue: [odd.name: odd])
        Meter(label: "odd", factory: metrics).set(1)
        #expect(metrics.text() == "# HELP odd a\\\\b \"c\"\r\\nd\n# TYPE odd gauge\nodd 1\n")
    }

    @Test("A value without an instrument is written as a family of its own")
    func values() {
        #expect(
            MetricCatalogue.text("process_max_fds", 1024)
                == "# HELP process_max_fds Limit of open files of the process.\n# TYPE process_max_fds gauge\n"
                + "process_max_fds 1024\n")
        #expect(MetricCatalogue.text("unknown", 0.5) == "unknown 0.5\n")
    }

    @Test("A carriage return before a line feed does not hide it: the line of a series is one line")
    func returnAndFeed() {
        Counter(label: "a_total", dimensions: [("k", "x\r\ny")], factory: metrics).increment()
        #expect(metrics.text().hasSuffix("a_total{k=\"x\r\\ny\"} 1\n"))
    }

    @Test("Names are made plain and label values escaped")
    func escaping() {
        Counter(label: "9 odd.name", dimensions: [("a-b", "x\"y\\z\n")], factory: metrics).increment()
        #expect(metrics.text().contains("_9_odd_name{a_b=\"x\\\"y\\\\z\\n\"} 1\n"))
    }
}

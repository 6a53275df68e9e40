import ApusTestKit
import Foundation
import Testing

#if canImport(Glibc)
import Glibc
#endif

/// Nodes at their limit of open files: they refuse and go on, cost next to nothing, and say what is the matter.
@Suite(.serialized, .timeLimit(.minutes(5)))
struct LimitTests {
    @Test("With 256 open files, thousands of connections and allocations beyond harm neither streams nor operators")
    func bounds() async throws {
        let cluster = try Cluster(
            nodes: 1, basePort: 29_500, launcher: ["/bin/sh", "-c", "ulimit -n 256; exec \"$@\"", "sh"])
        defer { cluster.down() }
        let said = Cluster.text(cluster.file("n1/log"))
        #expect(said.contains("Limits were lowered to fit the limit of open files"))
        #expect(said.contains("gateway.connections_max 15000 to "), "\(said)")
        let viewer = try await watched(cluster)
        // Allocations until there are no more; each check has two.
        for _ in 0..<24 { try cluster.start("relay", "check", "--count", "1", "--hold", "20") }
        try await refusesAllocations(cluster)
        let before = lineCount(cluster)
        let storm = Storm()
        for port in [cluster.endpointPort(1), cluster.relayPort(1), cluster.relayPort(1) + 1] {
            storm.connect(port, count: 1_000)
        }
        try await expectQuiet(cluster)
        #expect(lineCount(cluster) - before < 60)
        #expect(try openCount(cluster) <= 256)
        storm.end()
        try await expectService(cluster, viewer)
    }

    @Test("A process that has no descriptor left at all refuses at once, answers operators, and works again with room")
    func exhaustion() async throws {
        let cluster = try Cluster(nodes: 1, basePort: 29_600)
        defer { cluster.down() }
        let viewer = try await watched(cluster)
        let before = lineCount(cluster)
        // Room for the holes in what is open, and for nothing above.
        let numbers = try FileManager.default.contentsOfDirectory(atPath: "/proc/\(try cluster.pid(1))/fd")
        // The listener for other nodes is far above.
        try limit(cluster, to: (numbers.compactMap { Int($0) }.filter { $0 < 10_000 }.max() ?? 0) + 1)
        let storm = Storm()
        for port in [cluster.endpointPort(1), cluster.relayPort(1), cluster.basePort] {
            storm.connect(port, count: 500)
        }
        // A client that comes now hears within a second that there is no room.
        for port in [cluster.relayPort(1), cluster.endpointPort(1)] {
            let begin = Date()
            #expect(storm.isClosed(port, within: 3), "\(port)")
            #expect(Date().timeIntervalSince(begin) < 1.5, "\(port)")
        }
        try await expectQuiet(cluster)
        #expect(try await health(cluster).body.contains("\"type\":\"descriptors\""))
        try await refusesAllocations(cluster)
        #expect(lineCount(cluster) - before < 60)
        let said = Cluster.text(cluster.file("n1/log"))
        #expect(said.contains("A listener refuses connections: the system gives no descriptor or memory for them"))
        #expect(said.contains("An allocation is refused: there is no descriptor or memory for its socket"))
        #expect(!said.contains("No port is free"))
        let metrics = try await fetch(cluster, "/metrics").body
        for listener in ["relay", "clients"] {
            #expect(metrics.contains("apus_listener_refused_total{listener=\"\(listener)\""), "\(listener)")
        }
        storm.end()
        try limit(cluster, to: 20_000)
        try await expectService(cluster, viewer)
        for _ in 0..<50 where try await health(cluster).body.contains("\"type\":\"descriptors\"") {
            try await Task.sleep(for: .milliseconds(100))
        }
        #expect(try await !health(cluster).body.contains("\"type\":\"descriptors\""))
    }

    @Test("A limit that is too low for a node stops its start with 10022 and the number that it needs")
    func tooLow() throws {
        let outcome = try Cluster.run(
            [
                "-c", "ulimit -n 64; exec \"$0\" \"$@\"", Cluster.apus, "relay", "serve", "--secret",
                "a long enough secret",
            ]
                + ["--listen", "127.0.0.1:29700", "--threads", "2"], binary: "/bin/sh")
        #expect(outcome.status != 0 && outcome.all.contains("10022"), "\(outcome.all)")
        #expect(outcome.all.contains("limit of open files is 64"), "\(outcome.all)")
    }

    // MARK: - What is expected

    /// A camera and a viewer that has seen a second of it.
    private func watched(_ cluster: Cluster) async throws -> Process {
        try cluster.start("device", "--id", "cam", "--test-pattern", "320x240@25")
        for _ in 0..<100 {
            let viewer = try cluster.start("watch", "cam", "--seconds", "240", "--log", cluster.file("w"))
            for _ in 0..<50 where viewer.isRunning && Frames(cluster.file("w")).lines.count < 25 {
                try await Task.sleep(for: .milliseconds(100))
            }
            if viewer.isRunning, Frames(cluster.file("w")).lines.count >= 25 { return viewer }
        }
        throw TestFailure("cam has no viewer")
    }

    /// The relay says 508, after the allocations that are on their way.
    private func refusesAllocations(_ cluster: Cluster) async throws {
        var last = ""
        for _ in 0..<60 {
            last = try cluster.run("relay", "check", "--count", "1").all
            if last.contains("refuses with 508") { return }
            try await Task.sleep(for: .milliseconds(200))
        }
        Issue.record("no 508: \(last)")
    }

    /// Over three seconds the node uses less than 30 % of a core, and answers operators within a second.
    private func expectQuiet(_ cluster: Cluster) async throws {
        let (used, begin) = (try cpuSeconds(cluster), Date())
        while Date().timeIntervalSince(begin) < 3 {
            let asked = Date()
            #expect(try await health(cluster).status == 200)
            #expect(Date().timeIntervalSince(asked) < 1)
            try await Task.sleep(for: .milliseconds(250))
        }
        let share = (try cpuSeconds(cluster) - used) / Date().timeIntervalSince(begin)
        #expect(share < 0.3, "the node uses \(share) of a core")
    }

    /// New clients are served at once, and the viewer of before has missed nothing.
    private func expectService(_ cluster: Cluster, _ viewer: Process) async throws {
        let late = try cluster.run("watch", "cam", "--seconds", "2", "--log", cluster.file("late"))
        #expect(late.status == 0, "\(late.all)")
        #expect(Frames(cluster.file("late")).lines.count > 25)
        try await cluster.awaitChecks()
        var check = try cluster.run("relay", "check", "--count", "3")
        for _ in 0..<20 where check.status != 0 {
            try await Task.sleep(for: .milliseconds(100))
            check = try cluster.run("relay", "check", "--count", "3")
        }
        #expect(check.status == 0, "\(check.all)")
        #expect(viewer.isRunning)
        viewer.terminate()
        viewer.waitUntilExit()
        let seen = Frames(cluster.file("w"))
        #expect(seen.lines.count > 100)
        #expect(seen.lostCount == 0 && seen.doubledCount == 0)
    }

    // MARK: - The process

    private func lineCount(_ cluster: Cluster) -> Int {
        Cluster.text(cluster.file("n1/log")).split(separator: "\n").count
    }

    private func openCount(_ cluster: Cluster) throws -> Int {
        try FileManager.default.contentsOfDirectory(atPath: "/proc/\(try cluster.pid(1))/fd").count
    }

    /// User and system time, the 14th and 15th field of `stat` (proc(5)), in ticks of 10 ms.
    private func cpuSeconds(_ cluster: Cluster) throws -> Double {
        let line = Cluster.text("/proc/\(try cluster.pid(1))/stat")
        let fields = line.split(separator: ")").last?.split(separator: " ") ?? []
        try #require(fields.count > 12)
        return (Double(fields[11]) ?? 0) / 100 + (Double(fields[12]) ?? 0) / 100
    }

    private func limit(_ cluster: Cluster, to count: Int) throws {
        let pid = "\(try cluster.pid(1))"
        let outcome = try Cluster.run(["--pid", pid, "--nofile=\(count):"], binary: "/usr/bin/prlimit")
        #expect(outcome.status == 0, "\(outcome.all)")
    }

    private func health(_ cluster: Cluster) async throws -> (status: Int, body: String) {
        try await fetch(cluster, "/healthz")
    }

    /// A connection of its own for each request, as an operator's tool has.
    private func fetch(_ cluster: Cluster, _ path: String) async throws -> (status: Int, body: String) {
        let outcome = try Cluster.run(
            ["-s", "-m", "5", "-w", "\n%{http_code}", "http://127.0.0.1:\(cluster.httpPort(1))\(path)"],
            binary: "/usr/bin/curl")
        let lines = outcome.output.split(separator: "\n", omittingEmptySubsequences: false)
        return (Int(lines.last ?? "") ?? 0, lines.dropLast().joined(separator: "\n"))
    }
}

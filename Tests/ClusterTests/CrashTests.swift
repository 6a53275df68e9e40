import Foundation
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Nodes that end or stop in other ways than SIGKILL. One after the other: the machine is small.
@Suite(.serialized, .timeLimit(.minutes(5)))
struct CrashTests {
    /// A crash is seen by a lost link and a refused connection, as SIGKILL is; a loaded test machine gets some more.
    private static let deathMax = Duration.milliseconds(500)

    @Test("A node that crashes is dead for its peers within 500 ms, its process is gone and its log says why (D4)")
    func crashes() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 27_110)
        defer { cluster.down() }
        let signals = [SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE, SIGKILL]
        for (number, signal) in signals.enumerated() {
            let node = 2 + number % 2
            let pid = try cluster.pid(node)
            let observer = NodeView(1, of: cluster)
            #expect(observer.status?.members.contains("n\(node)") == true)
            #expect(kill(pid, signal) == 0)
            let seen = await waited(.seconds(5)) { observer.status?.members.contains("n\(node)") == false }
            print("signal \(signal): dead after \(seen.map { "\($0)" } ?? "never")")
            #expect(seen ?? .seconds(9) <= Self.deathMax, "signal \(signal)")
            #expect(await waited(.seconds(3)) { Cluster.text("/proc/\(pid)/cmdline").isEmpty } != nil)
            let log = Cluster.text(cluster.file("n\(node)/log"))
            #expect(signal == SIGKILL || log.contains("the process crashed"), "\(log.suffix(500))")
            // Its other threads stopped before its sockets were shut: none of them noticed that.
            let after = log.range(of: "the process crashed", options: .backwards).map { log[$0.upperBound...] } ?? ""
            let isStill = !log.contains("finished unexpectedly") && !after.contains(" [Apus")
            #expect(signal == SIGKILL || isStill, "\(log.suffix(500))")
            let restart = try cluster.run("cluster", "restart", "\(node)")
            #expect(restart.status == 0, "\(restart.all)")
        }
    }

    @Test("A node that was declared dead starts anew in its process, 20 times, with clients connected to it (D4)")
    func fenced() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 27_150)
        defer { cluster.down() }
        try cluster.start("device", "--id", "cam", "--test-pattern", "320x240@25", "--node", "2")
        for node in 1...3 { try cluster.start("watch", "cam", "--node", "\(node)", "--seconds", "280") }
        let pid = try cluster.pid(2)
        let (observer, fenced) = (NodeView(1, of: cluster), NodeView(2, of: cluster))
        var incarnation = try #require(fenced.status?.incarnation)
        for round in 1...20 {
            // Connections at every listener, held over the restart.
            let held = [27_160, 27_161, 27_162].compactMap { NodeView.connect($0) }
            #expect(held.count == 3)
            kill(pid, SIGSTOP)
            #expect(await waited(.seconds(5)) { observer.status?.members.contains("n2") == false } != nil)
            kill(pid, SIGCONT)
            let next = incarnation + 1
            let isUp = await waited(.seconds(15)) {
                fenced.status.map { $0.incarnation == next && $0.state == "up" } == true
                    && observer.status?.members.contains("n2") == true
            }
            for socket in held { close(socket) }
            let tail = Cluster.text(cluster.file("n2/log")).suffix(2000)
            try #require(isUp != nil, "round \(round): \(String(describing: fenced.status)) \(tail)")
            #expect(try cluster.pid(2) == pid && kill(pid, 0) == 0)
            let status = try cluster.run("cluster", "status", "--json")
            #expect(status.output.components(separatedBy: "\"running\"").count == 4, "\(status.all)")
            incarnation = next
        }
    }

    @Test("`restart` returns when the node serves, whatever state it was in")
    func restarts() async throws {
        let cluster = try Cluster(nodes: 2, basePort: 27_190)
        defer { cluster.down() }
        for round in 0..<8 {
            if round % 4 == 1 { kill(try cluster.pid(2), SIGKILL) }
            if round % 4 == 3 { kill(try cluster.pid(2), SIGSTOP) }
            let restart = try cluster.run("cluster", "restart", "2")
            #expect(restart.status == 0, "round \(round): \(restart.all)")
            #expect(NodeView(2, of: cluster).status?.state == "up")
        }
    }
}

import Foundation
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// What a machine with far more to do than it can does to nodes that are well.
///
/// The kernel shares the CPU among sessions first (sched_autogroup), so that thirty busy sessions for each core leave a
/// node, which is a session of its own, a thirtieth of one: its threads run hundreds of milliseconds late.
@Suite("Busy machines (D4)", .serialized, .timeLimit(.minutes(4)))
struct BusyMachineTests {
    /// How the heartbeat threads are scheduled.
    enum Scheduling: CaseIterable {
        case realTime
        /// Where the nodes may not have it, as in most containers.
        case usual

        var launcher: [String] {
            let isRoot = geteuid() == 0
            return self == .usual && isRoot
                ? ["/usr/bin/setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice"] : []
        }
    }

    @Test("Nobody is taken for dead for 20 s beside thirty busy sessions for each core", arguments: Scheduling.allCases)
    func falseDeaths(scheduling: Scheduling) async throws {
        let cluster = try Cluster(
            nodes: 3, basePort: 29_700 + (scheduling == .usual ? 50 : 0), launcher: scheduling.launcher)
        defer { cluster.down() }
        let nodes = (1...3).map { NodeView($0, of: cluster) }
        let rank = try #require(nodes[0].metric("apus_heartbeat_scheduling"))
        if scheduling == .usual { #expect(rank < 2, "the nodes have real-time priority after all") }
        let waitedBefore = try Self.waited(cluster)
        let hogs = try (0..<30 * ProcessInfo.processInfo.activeProcessorCount).map { _ in
            let hog = Process()
            hog.executableURL = URL(fileURLWithPath: Cluster.apus)
            hog.arguments = ["bench", "hog", "--parent", "\(getpid())"]
            try hog.run()
            return hog
        }
        defer { for hog in hogs { kill(hog.processIdentifier, SIGKILL) } }
        try await Task.sleep(for: .seconds(20))
        let waited = try Self.waited(cluster) - waitedBefore
        for hog in hogs { kill(hog.processIdentifier, SIGKILL) }
        let logs = (1...3).map { Cluster.text(cluster.file("n\($0)/log")) }
        let verdicts = logs.joined().split(separator: "\n").filter {
            $0.contains("is dead as far as this node can tell")
        }
        #expect(verdicts.isEmpty, "\(verdicts.joined(separator: "\n"))")
        for node in nodes { #expect(node.status?.incarnation == 1) }
        // Without threads that waited for a CPU the machine was not busy, and the test showed nothing.
        #expect(waited > 1, "the nodes' threads waited for a CPU for \(waited) s")
    }

    /// For how long threads of the nodes have waited for a CPU until now, all together, in seconds.
    private static func waited(_ cluster: Cluster) throws -> Double {
        var nanoseconds = 0.0
        for node in 1...3 {
            let tasks = "/proc/\(try cluster.pid(node))/task"
            for task in (try? FileManager.default.contentsOfDirectory(atPath: tasks)) ?? [] {
                // Time on a CPU, time in a run queue, turns.
                let fields = Cluster.text("\(tasks)/\(task)/schedstat").split(separator: " ")
                nanoseconds += fields.count > 1 ? Double(fields[1]) ?? 0 : 0
            }
        }
        return nanoseconds / 1e9
    }
}

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

    /// Two clusters run beside the same busy sessions, one of each scheduling.
    @Test("Nobody is taken for dead for 20 s and more beside thirty busy sessions for each core")
    func falseDeaths() async throws {
        var clusters: [Scheduling: Cluster] = [:]
        defer { for cluster in clusters.values { cluster.down() } }
        for scheduling in Scheduling.allCases {
            clusters[scheduling] = try Cluster(
                nodes: 3, basePort: 29_700 + (scheduling == .usual ? 50 : 0), launcher: scheduling.launcher)
        }
        let usual = try #require(clusters[.usual])
        let rank = try #require(NodeView(1, of: usual).metric("apus_heartbeat_scheduling"))
        #expect(rank < 2, "the nodes have real-time priority after all")
        let hogs = try (0..<30 * ProcessInfo.processInfo.activeProcessorCount).map { _ in
            let hog = Process()
            hog.executableURL = URL(fileURLWithPath: Cluster.bench)
            hog.arguments = ["hog", "--parent", "\(getpid())"]
            try hog.run()
            return hog
        }
        defer { for hog in hogs { kill(hog.processIdentifier, SIGKILL) } }
        // A heartbeat thread that hardly waited for a processor shows nothing: the test runs until each thread without
        // real-time priority has waited.
        let threads = try (1...3).map { try Self.heartbeatThread(of: try usual.pid($0)) }
        let before = threads.map(Self.secondsWaited)
        let began = ContinuousClock.now
        var waited: [Double] = []
        repeat {
            try await Task.sleep(for: .milliseconds(500))
            waited = zip(threads, before).map { Self.secondsWaited($0) - $1 }
        } while began.duration(to: .now) < .seconds(waited.contains { $0 < Self.secondsWaitedMin } ? 60 : 20)
        for hog in hogs { kill(hog.processIdentifier, SIGKILL) }
        for (scheduling, cluster) in clusters {
            let logs = (1...3).map { Cluster.text(cluster.file("n\($0)/log")) }
            let verdicts = logs.joined().split(separator: "\n").filter {
                $0.contains("is dead as far as this node can tell")
            }
            #expect(verdicts.isEmpty, "\(scheduling): \(verdicts.joined(separator: "\n"))")
            for node in 1...3 { #expect(NodeView(node, of: cluster).status?.incarnation == 1, "\(scheduling)") }
        }
        #expect(waited.allSatisfy { $0 >= Self.secondsWaitedMin }, "the heartbeat threads waited \(waited) s")
    }

    /// A twentieth of 20 s. The threads run for a hundredth of it.
    private static let secondsWaitedMin = 1.0

    /// The folder of a node's heartbeat thread in proc(5).
    private static func heartbeatThread(of process: pid_t) throws -> String {
        let tasks = "/proc/\(process)/task"
        let names = try FileManager.default.contentsOfDirectory(atPath: tasks)
        return try #require(
            names.map { "\(tasks)/\($0)" }.first { Cluster.text("\($0)/comm").hasPrefix("apus-heartbeat") })
    }

    /// How long a thread was runnable and waited for a processor, over all its life: the second number of schedstat.
    private static func secondsWaited(_ thread: String) -> Double {
        let numbers = Cluster.text("\(thread)/schedstat").split(separator: " ")
        return numbers.count > 1 ? (Double(numbers[1]) ?? 0) / 1e9 : 0
    }
}

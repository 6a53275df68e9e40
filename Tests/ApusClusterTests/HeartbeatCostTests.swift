import ApusCluster
import ApusCore
import ApusTransport
import Foundation
import Logging
import Synchronization
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The cost of heartbeats on real sockets: all nodes in this process, each with its heartbeat thread.
///
/// `APUS_HEARTBEAT_COST=9,25,50` measures clusters of these sizes, with watchers and in full mesh. Bytes are those of
/// the loopback interface, headers included: run it in a network namespace of its own.
@Suite("Cost of heartbeats (D4)", .serialized)
struct HeartbeatCostTests {
    private static var sizes: [Int] {
        // SAFETY: the text is read before anything in this process changes its environment.
        guard let text = getenv("APUS_HEARTBEAT_COST") else { return [] }
        return String(cString: text).split(separator: ",").compactMap { Int($0) }
    }

    @Test("Real detectors in a ring of watchers keep each other alive")
    func ring() async throws {
        let cost = try await measure(count: 12, plan: { WatchPlan(members: $0, watcherCount: 8) }, seconds: 1)
        #expect(cost.deaths == 0)
        #expect(cost.leastHeard >= 10)
        #expect(cost.strangersHeard == 3)
    }

    @Test("Measurement", .enabled(if: !sizes.isEmpty), arguments: sizes)
    func measurement(count: Int) async throws {
        for (name, watcherCount) in [("8 watchers", 8), ("full mesh", 0)] {
            let cost = try await measure(
                count: count, plan: { WatchPlan(members: $0, watcherCount: watcherCount) }, seconds: 5)
            print(
                "\(count) nodes, \(name): per node and second \(Int(cost.datagrams)) datagrams, "
                    + "\(Int(cost.bytes)) bytes, \(String(format: "%.1f", cost.milliseconds)) ms CPU; "
                    + "\(cost.deaths) deaths")
        }
    }

    private struct Cost {
        /// Sent per node and second.
        var datagrams: Double
        var bytes: Double
        var milliseconds: Double
        var deaths: Int
        /// Of one node: the least number of datagrams of a watcher, and the other members whose answers arrived.
        var leastHeard: UInt64
        var strangersHeard: Int
    }

    private func measure(count: Int, plan: ([NodeID]) -> WatchPlan, seconds: Int) async throws -> Cost {
        let ids = nodes(count)
        let plan = plan(ids)
        let deaths = Mutex(0)
        var threads: [HeartbeatThread<MembershipDriver>] = []
        var peers: [Peer] = []
        for id in ids {
            let driver = MembershipDriver(machine: MembershipStateMachine(local: id)) { finding in
                if case .peer(.confirmedDead, _) = finding { deaths.withLock { $0 += 1 } }
            }
            let thread = try HeartbeatThread(
                configuration: HeartbeatConfiguration(bind: HostPort(host: "127.0.0.1", port: 0)), identity: id,
                cluster: ClusterID(unchecked: "test"), seal: try HeartbeatSeal(key: [UInt8](repeating: 7, count: 32)),
                driver: driver, logger: Logger(label: "test"))
            peers.append(Peer(id: id, address: try await thread.start()))
            threads.append(thread)
        }
        for thread in threads {
            thread.setPeers(peers)
            thread.perform { $0.handle(.membersChanged(ids, plan), now: $1) }
        }
        // The first promises have been exchanged after this.
        try await Task.sleep(for: .seconds(2))
        let (before, began) = (Self.counts(), MonotonicTime.now())
        try await Task.sleep(for: .seconds(seconds))
        let (after, span) = (Self.counts(), (MonotonicTime.now() - began).milliseconds / 1000)
        let heard = await threads[0].read { driver -> (UInt64, Int) in
            let watched = driver.machine.watchedPeers
            let counts = ids.map { id in
                (id, driver.machine.evidence(about: id, now: .now())?.datagramCount ?? 0)
            }
            let least = counts.filter { watched.contains($0.0) }.map(\.1).min() ?? 0
            return (least, counts.count { !watched.contains($0.0) && $0.1 > 0 })
        }
        for thread in threads { await thread.stop() }
        let share = 1 / (span * Double(count))
        return Cost(
            datagrams: (after.datagrams - before.datagrams) * share, bytes: (after.bytes - before.bytes) * share,
            milliseconds: (after.milliseconds - before.milliseconds) * share, deaths: deaths.withLock { $0 },
            leastHeard: heard?.0 ?? 0, strangersHeard: heard?.1 ?? 0)
    }

    /// Datagrams and bytes on the loopback interface, and the CPU time of this process.
    private static func counts() -> (datagrams: Double, bytes: Double, milliseconds: Double) {
        let text = FileManager.default.contents(atPath: "/proc/net/dev").map { String(decoding: $0, as: UTF8.self) }
        let line = text?.split(separator: "\n").first { $0.contains("lo:") } ?? ""
        let fields = line.split(separator: " ").dropFirst().compactMap { Double($0) }
        var usage = rusage()
        getrusage(CInt(RUSAGE_SELF.rawValue), &usage)
        let seconds = Double(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec)
        let microseconds = Double(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec)
        return (
            fields.count > 1 ? fields[1] : 0, fields.first ?? 0, seconds * 1000 + microseconds / 1000
        )
    }
}

import ApusCluster
import ApusCore
import ApusLocal
import ApusStorage
import Foundation
import Synchronization

/// Follows the cluster map and counts false deaths: members that were declared dead, or replaced by another
/// incarnation, although the benchmark did not end them.
final class MemberWatch: Sendable {
    private struct State {
        var alive: [NodeName: NodeID] = [:]
        var ended: Set<NodeID> = []
        var falseDeaths: [NodeID] = []
    }

    private let ownership: any OwnershipStore
    private let cluster: ClusterID
    private let state = Mutex(State())

    init(_ local: LocalCluster) async throws(ApusError) {
        cluster = local.cluster
        ownership = try await FailoverStage.ownership(of: local)
    }

    /// The members that were declared dead without a reason.
    var falseDeaths: [NodeID] { state.withLock { $0.falseDeaths } }

    /// Notes that the benchmark is about to end this node's incarnation.
    func willEnd(_ node: NodeName) async throws(ApusError) {
        let member = try await map().member(named: node)
        state.withLock { state in if let member { state.ended.insert(member.id) } }
    }

    /// Follows the map until the task is cancelled.
    func run() async {
        while !Task.isCancelled {
            if let map = try? await map() { seen(map.members) }
            try? await Task.sleep(for: .milliseconds(50))
        }
    }

    private func seen(_ members: [Member]) {
        state.withLock { state in
            for member in members {
                let name = member.id.name
                if let before = state.alive[name], before != member.id || !member.state.isAlive,
                    !state.ended.contains(before)
                {
                    state.falseDeaths.append(before)
                    BenchScope.say("\(cluster): a false death: \(before)")
                }
                state.alive[name] = member.state.isAlive ? member.id : nil
            }
        }
    }

    /// The time until the map shows that a node's incarnation is dead; nil after the time-out.
    func timeUntilDead(_ node: NodeID, since: MonotonicTime, timeout: Duration) async -> Duration? {
        while MonotonicTime.now() - since < timeout {
            if let map = try? await map() {
                let member = map.member(named: node.name)
                if member?.id != node || member?.state.isAlive == false { return MonotonicTime.now() - since }
            }
            try? await Task.sleep(for: .milliseconds(5))
        }
        return nil
    }

    func id(of node: NodeName) async -> NodeID? { try? await map().member(named: node)?.id }

    private func map() async throws(ApusError) -> ClusterMap {
        guard let value = try await ownership.read() else { throw ApusError(.storageFailed) }
        return try ClusterMap(decoding: value.bytes, revision: value.revision, cluster: cluster)
    }
}

/// The answer of a node's `/healthz`.
struct HealthAnswer: Sendable {
    var status: Int
    var conditions: Set<String>

    private struct Body: Decodable {
        struct Condition: Decodable { var type: String }
        var conditions: [Condition]?
    }

    /// Asks a node; nil if it does not answer.
    static func ask(_ node: StateDirectory.Node, timeout: Duration = .seconds(2)) async -> HealthAnswer? {
        guard let address = HostPort(node.http),
            let answer = try? await NodeHTTP.send("GET", "/healthz", to: address, timeout: timeout)
        else { return nil }
        let body = try? JSONDecoder().decode(Body.self, from: Data(answer.body))
        return HealthAnswer(status: answer.status, conditions: Set(body?.conditions?.map(\.type) ?? []))
    }

    /// The time until each of the nodes reports the condition in `/healthz`; nil for a node that did not within the
    /// time-out.
    static func timeUntil(
        _ nodes: [StateDirectory.Node], since: MonotonicTime, timeout: Duration,
        _ isSaid: @escaping @Sendable (HealthAnswer) -> Bool
    ) async -> [Duration?] {
        await withTaskGroup(of: Duration?.self) { group in
            for node in nodes {
                group.addTask {
                    while MonotonicTime.now() - since < timeout {
                        if let answer = await ask(node), isSaid(answer) { return MonotonicTime.now() - since }
                        try? await Task.sleep(for: .milliseconds(50))
                    }
                    return nil
                }
            }
            var times: [Duration?] = []
            for await time in group { times.append(time) }
            return times
        }
    }
}

/// Facts about a process from the kernel (proc(5)).
enum ProcessUse {
    /// The CPU time of a process so far; nil if there is none.
    static func cpu(_ pid: pid_t) -> Duration? {
        guard let data = FileManager.default.contents(atPath: "/proc/\(pid)/stat") else { return nil }
        let text = String(decoding: data, as: UTF8.self)
        guard let end = text.lastIndex(of: ")") else { return nil }
        // The fields after the name: state is the first, utime the 12th, stime the 13th, in ticks of 10 ms.
        let fields = text[text.index(after: end)...].split(separator: " ")
        guard fields.count > 12, let user = Int(fields[11]), let system = Int(fields[12]) else { return nil }
        return .milliseconds((user + system) * 10)
    }

    /// True if a process holds a write lock on one of these files (`/proc/locks`).
    static func holdsWriteLock(_ pid: pid_t, on inodes: Set<UInt64>) -> Bool {
        guard let data = FileManager.default.contents(atPath: "/proc/locks") else { return false }
        return String(decoding: data, as: UTF8.self).split(separator: "\n").contains { line in
            // 1: POSIX  ADVISORY  WRITE 1234 fd:00:5678 120 120
            let fields = line.split(separator: " ")
            guard fields.count >= 6, fields[3] == "WRITE", fields[4] == "\(pid)",
                let inode = fields[5].split(separator: ":").last.flatMap({ UInt64($0) })
            else { return false }
            return inodes.contains(inode)
        }
    }
}

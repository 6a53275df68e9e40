import ApusCore
import Foundation

/// Waits until every node serves and the shards are spread over all of them.
struct ClusterReadiness: Sendable {
    let cluster: LocalCluster
    /// Whether every shard of several nodes must have a standby too.
    var requiresStandbys = true

    /// - Throws: 10005 after the deadline, 10018 where a node's process ended; both with the end of the log.
    func wait(_ timeout: Duration) async throws {
        let deadline = ContinuousClock.now + timeout
        while true {
            let reports = await NodeReport.gather(cluster)
            guard let reason = Self.obstacle(reports, requiresStandbys: requiresStandbys) else { return }
            if let ended = reports.first(where: { $0.process == .stopped }) {
                throw ApusError(.internalFailure, failure("the node \(ended.status.name) ended", ended.status.name))
            }
            guard ContinuousClock.now < deadline else {
                let name = reports.first { !$0.answered || $0.status.state != "up" }?.status.name
                throw ApusError(.deadlineExceeded, failure("the cluster is not ready: \(reason)", name))
            }
            try await Task.sleep(for: .milliseconds(100))
        }
    }

    /// What is not well yet; nil where all is.
    static func obstacle(_ reports: [NodeReport], requiresStandbys: Bool) -> String? {
        // A node that was paused or drained on purpose is no reason to wait for ever; it is said as it is.
        for report in reports where report.status.state != "up" { return "\(report.status.name) is \(report.status.state)" }
        let owned = reports.map(\.status.shards.owned)
        guard owned.reduce(0, +) == ShardID.count else { return "not every shard has one owner yet" }
        let fair = ShardID.count / max(reports.count, 1)
        if let poor = reports.first(where: { $0.status.shards.owned < fair / 2 }) {
            return "\(poor.status.name) has \(poor.status.shards.owned) shards of about \(fair)"
        }
        let standbys = reports.map(\.status.shards.standby).reduce(0, +)
        if requiresStandbys, reports.count > 1, standbys != ShardID.count { return "not every shard has a standby yet" }
        return nil
    }

    private func failure(_ sentence: String, _ node: String?) -> String {
        guard let node else { return sentence }
        let process = NodeProcess(node, in: cluster.directory)
        let tail = process.logTail(lines: 15).map { "    \($0)" }.joined(separator: "\n")
        return tail.isEmpty
            ? "\(sentence); its log \(process.logFile) is empty" : "\(sentence); the end of its log \(process.logFile):\n\(tail)"
    }
}

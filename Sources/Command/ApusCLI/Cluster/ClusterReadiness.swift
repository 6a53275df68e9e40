import ApusContract
import ApusCore
import ApusLocal
import ApusNodeConfiguration
import Foundation

/// Waits until every node serves and the shards are balanced.
struct ClusterReadiness: Sendable {
    let cluster: LocalCluster

    /// The accepted relative deviation of a node's share. For few shards, the deviation of chance is accepted instead.
    static let unevennessMax = 0.2

    /// - Throws: 10005 after the deadline, 10018 if a node's process ended; both with the end of the log.
    func wait(_ timeout: Duration) async throws {
        let deadline = ContinuousClock.now + timeout
        let weights = try weights()
        while true {
            let reports = await NodeStanding.gather(cluster)
            guard let reason = Self.obstacle(reports, weights: weights) else { return }
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

    /// The configured weights of the nodes, in the mark's order.
    func weights() throws(ApusError) -> [Int] {
        var weights: [Int] = []
        for node in cluster.mark.nodes {
            weights.append(try NodeConfiguration(file: cluster.directory.configurationFile(node.name)).weight)
        }
        return weights
    }

    /// The reason why the cluster is not ready; nil if it is. While a node is cordoned, the nodes' shares of the shards
    /// do not matter.
    static func obstacle(_ reports: [NodeStanding], weights: [Int]) -> String? {
        for report in reports where report.status.state != "up" {
            return "\(report.status.name) is \(report.status.state)"
        }
        guard reports.map(\.status.shards.owned).reduce(0, +) == ShardID.count else {
            return "not every shard has one owner yet"
        }
        let acceptingCount = reports.count { $0.status.cordoned != true }
        let total = max(weights.reduce(0, +), 1)
        for (report, weight) in zip(reports, weights) where acceptingCount == reports.count {
            let fair = Double(ShardID.count * weight) / Double(total)
            let owned = Double(report.status.shards.owned)
            guard abs(owned - fair) <= max(fair * unevennessMax, 5 * fair.squareRoot()) else {
                return "\(report.status.name) owns \(Int(owned)) shards of about \(Int(fair))"
            }
        }
        let standbys = reports.map(\.status.shards.standby).reduce(0, +)
        return acceptingCount > 1 && standbys != ShardID.count ? "not every shard has a standby yet" : nil
    }

    private func failure(_ sentence: String, _ node: String?) -> String {
        guard let node else { return sentence }
        let process = NodeProcess(node, in: cluster.directory)
        let tail = process.logTail(lines: 15).map { "    \($0)" }.joined(separator: "\n")
        return tail.isEmpty
            ? "\(sentence); its log \(process.logFile) is empty"
            : "\(sentence); the end of its log \(process.logFile):\n\(tail)"
    }
}

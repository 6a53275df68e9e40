import ApusCore
import ApusLocal
import ArgumentParser
import Foundation

/// `apus cluster down`: stops every node, and removes the networks of an isolated cluster. Does nothing if the cluster
/// is stopped.
struct ClusterDown: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "down", abstract: "Stop all nodes of the local cluster.")
    @OptionGroup var directory: DirectoryOption
    @Flag(help: "Remove the state directory as well: keys, ownership, records, logs.")
    var purge = false
    @OptionGroup var output: OutputOptions

    private struct Report: Encodable {
        /// The cluster's name; nil if there is no cluster.
        var cluster: String?
        /// The state directory.
        var directory: String
        /// True if the state directory was removed.
        var purged: Bool
        /// The processes that did not end within the grace period, and were killed.
        var killed: [String] = []
    }

    func run() async throws {
        let state = StateDirectory(directory.path)
        guard try state.mark() != nil else {
            return try output.show(
                Report(cluster: nil, directory: state.path, purged: false),
                ["There is no local cluster in \(state.path)."])
        }
        let (mark, killed) = try await state.locked {
            let mark = try state.requireMark()
            // Checked before the nodes are stopped, so that the command ends all of it or nothing.
            if mark.network != nil { try IsolatedNetwork.requireTools() }
            var killed = try await Self.stop(mark.nodes.map { NodeProcess($0.name, in: state) })
            // After the nodes, which leave the map when they stop.
            killed += try await Self.stop((mark.stores ?? []).map { try EtcdMember.process($0, in: state, mark) })
            if mark.network != nil { try IsolatedNetwork(mark, in: state).remove() }
            if purge { try FileManager.default.removeItem(atPath: state.path) }
            return (mark, killed)
        }
        let seconds = NodeProcess.stopGrace.components.seconds
        try output.show(
            Report(cluster: mark.cluster, directory: state.path, purged: purge, killed: killed),
            killed.map { "\($0) did not end within \(seconds) s and was killed." }
                + ["The cluster \(mark.cluster) is down\(purge ? " and its state is removed" : "")."])
    }

    /// Stops all nodes at once: nodes that stop together need not hand over to each other.
    ///
    /// - Returns: the names of those that had to be killed.
    @discardableResult
    static func stop(_ processes: [NodeProcess]) async throws -> [String] {
        try await withThrowingTaskGroup(of: String?.self) { group in
            for process in processes {
                group.addTask {
                    let ended = try await process.stop()
                    try? FileManager.default.removeItem(atPath: process.pidFile)
                    return ended ? nil : process.name
                }
            }
            var killed: [String] = []
            for try await name in group { if let name { killed.append(name) } }
            return killed.sorted()
        }
    }
}

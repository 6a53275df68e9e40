import ApusContract
import ApusCore
import ApusLocal
import ApusSessions
import ArgumentParser
import SwiftProtobuf

/// `apus cluster drain N`: hands over a node's shards, then stops it.
struct ClusterDrain: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "drain", abstract: "Hand a node's shards, channels and clients over to the others, then stop it.")
    @OptionGroup var directory: DirectoryOption
    @OptionGroup var node: NodeArgument
    @Option(help: "Set the number of seconds to wait for the hand-over.")
    var timeout = 120
    @Flag(help: "Leave the drained node running.")
    var stay = false
    @OptionGroup var output: OutputOptions

    func run() async throws {
        let local = try directory.cluster()
        try await local.directory.locked { try await drain(local) }
    }

    private func drain(_ local: LocalCluster) async throws {
        let found = try StateDirectory.node(node.node, in: local.mark)
        let process = NodeProcess(found.name, in: local.directory)
        guard process.state == .running else {
            throw ApusError(.unavailable, "the node \(found.name) is not running")
        }
        try await local.beginDraining(found)
        let deadline = ContinuousClock.now + .seconds(timeout)
        while true {
            let report = await NodeStanding.gather(found, in: local.directory)
            if report.process == .stopped { break }
            if report.answered, report.status.shards.drained ?? (report.status.shards.owned == 0) { break }
            guard ContinuousClock.now < deadline else {
                throw ApusError(
                    .deadlineExceeded,
                    "\(found.name) still holds \(report.status.shards.owned) shards after \(timeout) s")
            }
            try await Task.sleep(for: .milliseconds(100))
        }
        if !stay { try await process.stop(grace: .seconds(20)) }
        try output.show(
            NodeOutcome(node: found.name, process: process.state, drained: true),
            [
                "The node \(found.name) is drained\(stay ? "" : " and has stopped"). "
                    + "`apus cluster \(stay ? "undrain" : "restart") \(found.name)` gives it shards again."
            ])
    }
}

extension LocalCluster {
    /// Asks a running node to hand its shards, channels and clients over. Returns when that has begun.
    ///
    /// - Throws: 21025 if the node has no address, and the errors of ``ClusterAPI/ask(_:)``.
    func beginDraining(_ node: StateDirectory.Node) async throws(ApusError) {
        guard let address = HostPort(node.http) else {
            throw ApusError(.unavailable, "the node \(node.name) has no address")
        }
        let token = try await mint(role: .admin, access: AccessID(unchecked: "operator"))
        let api = ClusterAPI(address: address, token: token, tls: nil)
        _ = try await api.ask(ClientDrainNodeRequest.with { $0.node = node.name })
    }
}

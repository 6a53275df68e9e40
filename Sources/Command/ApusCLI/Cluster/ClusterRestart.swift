import ApusContract
import ApusCore
import ApusLocal
import ArgumentParser

/// `apus cluster restart N`: stops a node, if it is running, and starts it again.
struct ClusterRestart: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "restart", abstract: "Stop a node, if it is running, and start it again.",
        discussion: "The node has the program of its last `apus cluster upgrade`, or that of this command.")
    @OptionGroup var directory: DirectoryOption
    @OptionGroup var node: NodeArgument
    @Option(help: "Set the number of seconds to wait until the node serves.")
    var timeout = 60
    @OptionGroup var output: OutputOptions

    func run() async throws {
        let local = try directory.cluster()
        try await local.directory.locked { try await restart(local) }
    }

    private func restart(_ local: LocalCluster) async throws {
        if let store = node.store(in: local) { return try await restart(store, local) }
        let found = try StateDirectory.node(node.node, in: local.mark)
        let process = NodeProcess(found.name, in: local.directory)
        let program = try found.startedProgram()
        let ended = try await process.stop(grace: Self.stopGrace)
        try await LocalPorts.requireFree(found, in: local.mark.network?.namespace(of: found.name))
        try process.start(program: program)
        let deadline = ContinuousClock.now + .seconds(timeout)
        while true {
            let report = await NodeStanding.gather(found, in: local.directory)
            if report.answered, report.status.state == "up",
                report.status.shards.owned > 0 || report.status.cordoned == true
            {
                break
            }
            guard report.process != .stopped, ContinuousClock.now < deadline else {
                let tail = process.logTail(lines: 15).joined(separator: "\n    ")
                throw ApusError(
                    .deadlineExceeded,
                    "\(found.name) did not come up (\(report.status.state)); the end of its log:\n    \(tail)")
            }
            try await Task.sleep(for: .milliseconds(100))
        }
        try output.show(
            NodeOutcome(node: found.name, process: process.state, killed: !ended),
            (ended ? [] : ["\(found.name) did not end within \(Self.stopGrace.components.seconds) s and was killed."])
                + ["The node \(found.name) was restarted."])
    }

    /// The time that a node has to hand over its shards and end by itself.
    private static let stopGrace = Duration.seconds(30)

    /// Restarts a member of etcd.
    private func restart(_ store: StateDirectory.Store, _ local: LocalCluster) async throws {
        let process = try EtcdMember.process(store, in: local.directory, local.mark)
        try await process.stop()
        try process.start()
        try await EtcdMember.waitUntilHealthy([store], in: local.directory, local.mark, timeout: .seconds(timeout))
        try output.show(NodeOutcome(node: store.name, process: process.state), ["\(store.name) was restarted."])
    }
}

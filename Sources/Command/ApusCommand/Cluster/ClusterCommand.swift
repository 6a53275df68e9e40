import ApusCore
import ApusLocal
import ArgumentParser

/// `apus cluster`: runs a cluster of several node processes on this machine.
struct ClusterCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "cluster", abstract: "Run a local cluster of several nodes on this machine.",
        subcommands: [
            ClusterUp.self, ClusterStatus.self, ClusterKill.self, ClusterPause.self, ClusterResume.self,
            ClusterDrain.self, ClusterRestart.self, ClusterLogs.self, ClusterDown.self,
        ])
}

/// The option `--dir` of the commands for a local cluster.
struct DirectoryOption: ParsableArguments {
    @Option(name: .customLong("dir"), help: "Use this state directory of the cluster.")
    var path = StateDirectory.defaultPath

    /// - Throws: 10020 if there is no local cluster.
    func cluster() throws(ApusError) -> LocalCluster { try LocalCluster(directory: path) }
}

/// The state of the cluster as `apus cluster up` and `apus cluster status` print it.
struct ClusterReport: Encodable {
    var cluster: String
    /// The state directory.
    var directory: String
    var nodes: [NodeReport]

    init(_ cluster: LocalCluster) async {
        self.cluster = cluster.mark.cluster
        directory = cluster.directory.path
        nodes = await NodeReport.gather(cluster)
    }
}

/// The result of a verb for one node.
struct NodeOutcome: Encodable {
    var node: String
    /// The state of the node's process after the verb.
    var process: NodeProcess.State
    /// True after a drain.
    var drained: Bool?
}

/// Selects the node of a command.
struct NodeArgument: ParsableArguments {
    @Argument(help: "Select the node by its number from 1, or by its name.")
    var node: String

    /// - Throws: 21031 if there is no such node.
    func process(in cluster: LocalCluster) throws(ApusError) -> NodeProcess {
        NodeProcess(try StateDirectory.node(node, in: cluster.mark).name, in: cluster.directory)
    }
}

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

/// Selects the node of a command.
struct NodeArgument: ParsableArguments {
    @Argument(help: "Select the node by its number from 1, or by its name.")
    var node: String

    /// - Throws: 21031 if there is no such node.
    func process(in cluster: LocalCluster) throws(ApusError) -> NodeProcess {
        NodeProcess(try StateDirectory.node(node, in: cluster.mark).name, in: cluster.directory)
    }
}

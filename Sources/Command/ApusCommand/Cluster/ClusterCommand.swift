import ApusCore
import ApusLocal
import ArgumentParser

/// `apus cluster`: a cluster of several node processes on this machine.
struct ClusterCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "cluster", abstract: "Run a local cluster of several nodes on this machine.",
        subcommands: [
            ClusterUp.self, ClusterStatus.self, ClusterKill.self, ClusterPause.self, ClusterResume.self,
            ClusterDrain.self, ClusterRestart.self, ClusterLogs.self, ClusterDown.self,
        ])
}

/// `--dir`, which every verb of a local cluster takes.
struct DirectoryOption: ParsableArguments {
    @Option(name: .customLong("dir"), help: "The cluster's state directory.")
    var path = StateDirectory.defaultPath

    /// - Throws: 10020 where there is no local cluster.
    func cluster() throws(ApusError) -> LocalCluster { try LocalCluster(directory: path) }
}

/// The node that a verb is for.
struct NodeArgument: ParsableArguments {
    @Argument(help: "The node: its number from 1, or its name.")
    var node: String

    /// - Throws: 21031 where there is no such node.
    func process(in cluster: LocalCluster) throws(ApusError) -> NodeProcess {
        NodeProcess(try StateDirectory.node(node, in: cluster.mark).name, in: cluster.directory)
    }
}

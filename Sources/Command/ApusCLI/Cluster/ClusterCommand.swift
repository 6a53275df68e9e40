import ApusCore
import ApusLocal
import ArgumentParser

/// `apus cluster`: runs a cluster of several node processes on this machine.
struct ClusterCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "cluster", abstract: "Run a local cluster of several nodes on this machine.",
        subcommands: [
            ClusterUp.self, ClusterStatus.self, ClusterKill.self, ClusterPause.self, ClusterResume.self,
            ClusterDrain.self, ClusterUndrain.self, ClusterRestart.self, ClusterLogs.self, ClusterDown.self,
            ClusterPartition.self, ClusterCut.self, ClusterLoss.self, ClusterDelay.self, ClusterCutStore.self,
            ClusterHeal.self,
            ClusterWhy.self, ClusterChanges.self, ClusterCordon.self, ClusterUncordon.self, ClusterWeight.self,
            ClusterUpgrade.self, ClusterClientNamespace.self, ClusterShim.self,
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
    var nodes: [NodeStanding]
    /// The members of etcd that hold the ownership store; nil for a store in a directory.
    var stores: [StoreReport]?
    /// The networks of an isolated cluster; otherwise nil.
    var network: NetworkPlan?
    /// The faults of the networks; nil if the cluster is not isolated.
    var faults: NetworkFaults?

    init(_ cluster: LocalCluster) async throws(ApusError) {
        self.cluster = cluster.mark.cluster
        directory = cluster.directory.path
        network = cluster.mark.network
        stores = cluster.mark.stores == nil ? nil : StoreReport.gather(cluster)
        faults = try network == nil ? nil : cluster.directory.faults()
        nodes = await NodeStanding.gather(cluster)
    }

    /// The tables of the nodes and channels, and those of the members of etcd and of the faults if there are any.
    var table: [String] {
        let more = [StoreReport.table(stores ?? []), TextTable.lines(faults?.rows ?? [])]
        return NodeStanding.table(nodes) + more.filter { !$0.isEmpty }.flatMap { [""] + $0 }
    }
}

/// The result of a verb for one node.
struct NodeOutcome: Encodable {
    var node: String
    /// The state of the node's process after the verb.
    var process: NodeProcess.State
    /// True after a drain.
    var drained: Bool?
    /// After a restart: true if the process did not end by itself within the grace period, and was killed.
    var killed: Bool?
}

/// Selects the node of a command.
struct NodeArgument: ParsableArguments {
    @Argument(help: "Select the node by its number from 1, or by its name.")
    var node: String

    /// The member of etcd that is selected instead of a node; nil for a node.
    func store(in cluster: LocalCluster) -> StateDirectory.Store? {
        (cluster.mark.stores ?? []).first { $0.name == node }
    }

    /// The process of the node or of the member of etcd.
    /// - Throws: 21031 if there is no such node.
    func process(in cluster: LocalCluster) throws(ApusError) -> NodeProcess {
        if let store = store(in: cluster) {
            return try EtcdMember.process(store, in: cluster.directory, cluster.mark)
        }
        return NodeProcess(try StateDirectory.node(node, in: cluster.mark).name, in: cluster.directory)
    }
}

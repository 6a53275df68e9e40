import ApusCore
import ApusLocal
import ArgumentParser

/// `apus cluster up`: creates missing state, starts the nodes that are not running, and waits until the cluster is
/// ready.
struct ClusterUp: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "up", abstract: "Start a local cluster, or those of its nodes that are not running.",
        discussion: """
            Nodes that `apus cluster upgrade` has given a program are started with it, and the others with the program
            of this command.

            With a larger --nodes than before, new nodes join the running cluster. Without --nodes, the command starts
            the nodes of the state directory, or three if the directory is new.

            With --isolated, a new cluster has networks: each node has a network namespace and an address of its own,
            and `partition`, `cut`, `loss`, `delay`, `cut-store` and `heal` make and end faults between them. This
            requires root, and the packages iproute2 and nftables. The cluster stays isolated when it is started again.

            With --etcd, a new cluster keeps its ownership in three members of etcd, named e1 to e3, which this command
            starts as well. This requires the package etcd-server. `kill`, `pause`, `resume` and `restart` act on a
            member by its name, and so do the verbs for faults of an isolated cluster.

            With --records-url, a new cluster keeps its records in a PostgreSQL database instead of a file of SQLite,
            such as postgresql://apus@127.0.0.1:5432/apus. The database must be there.
            """)

    @OptionGroup var directory: DirectoryOption
    @Option(help: "Set the number of nodes, 1 to 32.")
    var nodes: Int?
    @Option(help: "Set the first port. Each node uses ten ports; with --etcd, the six ports below it are used too.")
    var basePort = 7400
    @Option(help: "Use the node configurations of this folder instead of generated ones.")
    var configs: String?
    @Flag(help: "Give each node of a new cluster a network of its own, with faults on demand. Requires root.")
    var isolated = false
    @Flag(help: "Keep the ownership of a new cluster in etcd.")
    var etcd = false
    @Option(help: "Keep the records of a new cluster in this PostgreSQL database: a connection string of libpq.")
    var recordsURL: String?
    @Option(help: "Set the cluster's name in generated configurations.")
    var cluster = "local"
    @Option(help: "Set the number of seconds to wait until the cluster is ready.")
    var timeout = 60
    @OptionGroup var output: OutputOptions

    func validate() throws {
        let last = (nodes ?? 1) * NodeConfigurationFile.portsPerNode + basePort
        guard (1...NodeConfigurationFile.nodesMax).contains(nodes ?? 1) else {
            throw ValidationError("--nodes must be 1 to \(NodeConfigurationFile.nodesMax)")
        }
        guard basePort > (etcd ? EtcdMember.portCount : 0), last <= 65_536 else {
            throw ValidationError("--base-port leaves no room for the nodes' ports")
        }
        _ = try ClusterID.argument(cluster, "--cluster")
        guard nodes == nil || configs == nil else { throw ValidationError("use --nodes or --configs, not both") }
        guard !isolated || configs == nil else { throw ValidationError("use --isolated or --configs, not both") }
        guard !etcd || configs == nil else { throw ValidationError("use --etcd or --configs, not both") }
        guard let recordsURL else { return }
        guard configs == nil else { throw ValidationError("use --records-url or --configs, not both") }
        guard !isolated else { throw ValidationError("the nodes of an isolated cluster do not reach a --records-url") }
        guard recordsURL.utf8.allSatisfy({ $0 > 0x20 && $0 < 0x7f && !"\"\\".utf8.contains($0) }) else {
            throw ValidationError("--records-url must not contain blanks, quotes and backslashes")
        }
    }

    func run() async throws {
        var starter = ClusterStarter(state: StateDirectory(directory.path))
        starter.nodes = nodes
        starter.basePort = basePort
        starter.configs = configs
        starter.cluster = cluster
        starter.isIsolated = isolated
        starter.hasEtcd = etcd
        starter.recordsURL = recordsURL
        let report = try await ClusterReport(try await starter.start(timeout: .seconds(timeout)))
        let count = report.nodes.count
        // A cluster of an earlier release, or whose records fail, is up all the same.
        let api = try? await ServerOptions.local(directory.path)
        var link: SignInLink?
        if !output.json, let api {
            link = try? await SignInLink.make(api, role: "admin", account: LocalCluster.account.rawValue)
        }
        try output.show(
            report,
            ["The cluster \(report.cluster) is up: \(count) nodes, state in \(report.directory)."]
                + report.table + (link?.lines ?? []))
    }
}

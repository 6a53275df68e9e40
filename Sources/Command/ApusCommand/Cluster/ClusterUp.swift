import ApusCore
import ApusLocal
import ArgumentParser

/// `apus cluster up`: makes what is missing, starts what does not run, waits until all is well.
struct ClusterUp: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "up", abstract: "Start a local cluster, or the nodes of it that do not run.",
        discussion: """
            With a larger --nodes than before, the new nodes join the running cluster. Without --nodes, the nodes of
            the state directory are started, or three where it is new.
            """)

    @OptionGroup var directory: DirectoryOption
    @Option(help: "How many nodes, 1 to 32.")
    var nodes: Int?
    @Option(help: "The first port; each node has ten from here on.")
    var basePort = 7400
    @Option(help: "A folder of node configurations to run instead of generated ones.")
    var configs: String?
    @Option(help: "The cluster's name, for generated configurations.")
    var cluster = "local"
    @Option(help: "How many seconds the nodes may take until all is well.")
    var timeout = 60

    func validate() throws {
        let last = (nodes ?? 1) * NodeConfigurationFile.portsPerNode + basePort
        guard (1...NodeConfigurationFile.nodesMax).contains(nodes ?? 1) else {
            throw ValidationError("--nodes must be 1 to \(NodeConfigurationFile.nodesMax)")
        }
        guard basePort > 0, last <= 65_536 else {
            throw ValidationError("--base-port leaves no room for the nodes' ports")
        }
        _ = try ClusterID.argument(cluster, "--cluster")
        guard nodes == nil || configs == nil else { throw ValidationError("give --nodes or --configs, not both") }
    }

    func run() async throws {
        var starter = ClusterStarter(state: StateDirectory(directory.path))
        starter.nodes = nodes
        starter.basePort = basePort
        starter.configs = configs
        starter.cluster = cluster
        let local = try await starter.start(timeout: .seconds(timeout))
        let count = local.mark.nodes.count
        print("The cluster \(local.mark.cluster) is up: \(count) nodes, state in \(local.directory.path).")
        for line in NodeReport.table(await NodeReport.gather(local)) { print(line) }
    }
}

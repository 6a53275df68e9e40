import ApusCore
import ArgumentParser
import Foundation

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
        guard basePort > 0, last <= 65_536 else { throw ValidationError("--base-port leaves no room for the nodes' ports") }
        guard ClusterID(rawValue: cluster) != nil else {
            throw ValidationError("--cluster must be 1 to 63 letters, digits, '-', '_' or '.'")
        }
        guard nodes == nil || configs == nil else { throw ValidationError("give --nodes or --configs, not both") }
    }

    func run() async throws {
        let state = StateDirectory(directory.path)
        let plan = try plan(in: state)
        try prepare(plan, in: state)
        let local = try LocalCluster(directory: state.path)
        let processes = local.mark.nodes.map { NodeProcess($0.name, in: state) }
        let stopped = zip(local.mark.nodes, processes).filter { $0.1.state == .stopped }
        for (node, _) in stopped { try await LocalPorts.requireFree(node) }
        for (_, process) in stopped { try process.start() }
        try await ClusterReadiness(cluster: local).wait(.seconds(timeout))
        print("The cluster \(local.mark.cluster) is up: \(processes.count) nodes, state in \(state.path).")
        for line in NodeReport.table(await NodeReport.gather(local)) { print(line) }
    }

    private struct Plan {
        var mark: StateDirectory.Mark
        /// Texts of the configuration files, in the mark's order; nil keeps the file that is there.
        var files: [String?]
    }

    private func plan(in state: StateDirectory) throws(ApusError) -> Plan {
        let existing = try state.mark()
        if let configs {
            let read = try NodeConfigurationFile.read(folder: configs)
            try requireSame(existing, cluster: read.cluster, state)
            return Plan(
                mark: StateDirectory.Mark(cluster: read.cluster, nodes: read.nodes.map(\.node)), files: read.nodes.map(\.text))
        }
        try requireSame(existing, cluster: cluster, state)
        let known = existing?.nodes ?? []
        let count = nodes ?? (known.isEmpty ? 3 : known.count)
        guard count >= known.count else {
            throw ApusError(
                .badParameter,
                "the cluster in \(state.path) has \(known.count) nodes; stop some with `apus cluster drain N`, "
                    + "or begin anew after `apus cluster down --purge`")
        }
        let added = (known.count..<count).map { NodeConfigurationFile.node($0 + 1, basePort: basePort) }
        return Plan(
            mark: StateDirectory.Mark(cluster: cluster, nodes: known + added),
            files: known.map { _ in nil } + added.map { NodeConfigurationFile.text($0, cluster: cluster) })
    }

    private func requireSame(
        _ existing: StateDirectory.Mark?, cluster: String, _ state: StateDirectory
    ) throws(ApusError) {
        guard let existing, existing.cluster != cluster else { return }
        throw ApusError(
            .stateForeign, "\(state.path) is the state of cluster \(existing.cluster), not \(cluster); give another --dir")
    }

    private func prepare(_ plan: Plan, in state: StateDirectory) throws(ApusError) {
        try state.write(plan.mark)
        _ = try state.pki.make(
            cluster: ClusterID(unchecked: plan.mark.cluster),
            nodes: plan.mark.nodes.map { NodeName(unchecked: $0.name) }, hosts: [])
        do {
            try FileManager.default.createDirectory(atPath: "\(state.path)/shared", withIntermediateDirectories: true)
            for (node, text) in zip(plan.mark.nodes, plan.files) {
                guard let text else { continue }
                try Data(text.utf8).write(to: URL(fileURLWithPath: state.configurationFile(node.name)), options: .atomic)
            }
        } catch {
            throw ApusError(.storageFailed, "\(state.path) cannot be written: \(error.localizedDescription)")
        }
    }
}

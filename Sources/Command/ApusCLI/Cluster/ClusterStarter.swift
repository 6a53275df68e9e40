import ApusCore
import ApusLocal
import Foundation

/// Creates a local cluster's state if it is missing, and starts the nodes that are not running.
struct ClusterStarter: Sendable {
    let state: StateDirectory
    /// The number of nodes; if nil, that of the directory, or three.
    var nodes: Int?
    /// The first port of generated nodes.
    var basePort = 7400
    /// A folder of configurations that are used instead of generated ones.
    var configs: String?
    /// The cluster's name, for generated nodes.
    var cluster = "local"
    /// Gives each node of a new cluster a network namespace of its own. An isolated cluster stays isolated.
    var isIsolated = false
    /// Keeps the ownership of a new cluster in etcd. A cluster with etcd keeps it.
    var hasEtcd = false
    /// Keeps the records of a new cluster in this PostgreSQL database, as a connection string of libpq.
    var recordsURL: String?
    /// How long the members of etcd may take to elect a leader.
    private static let etcdTimeout = Duration.seconds(30)

    init(state: StateDirectory) { self.state = state }

    /// Starts the nodes, and waits until every node serves and the shards are balanced.
    /// - Throws: 10007 if another command is working on the directory, 10019 with a port in use, 10020 for a foreign
    ///   directory, 10005 after the deadline, 10018 if a node ended, 10022 if namespaces cannot be made.
    func start(timeout: Duration) async throws -> LocalCluster {
        try await state.locked { try await startLocked(timeout: timeout) }
    }

    private func startLocked(timeout: Duration) async throws -> LocalCluster {
        try prepare(try plan())
        let local = try LocalCluster(directory: state.path)
        let network = local.mark.network
        if network != nil { try await IsolatedNetwork(local.mark, in: state).make() }
        try await startStores(local)
        let pairs = local.mark.nodes.map { ($0, NodeProcess($0.name, in: state)) }.filter { $0.1.state == .stopped }
        for (node, _) in pairs { try await LocalPorts.requireFree(node, in: network?.namespace(of: node.name)) }
        for (node, process) in pairs { try process.start(program: node.startedProgram()) }
        try await ClusterReadiness(cluster: local).wait(timeout)
        return local
    }

    /// Starts the members of etcd that are not running, and waits for them: nodes start with their store only.
    private func startStores(_ local: LocalCluster) async throws {
        let stores = local.mark.stores ?? []
        for store in stores {
            let process = try EtcdMember.process(store, in: state, local.mark)
            if process.state == .stopped { try process.start() }
        }
        try await EtcdMember.waitUntilHealthy(stores, in: state, local.mark, timeout: Self.etcdTimeout)
    }

    private struct Plan {
        var mark: StateDirectory.Mark
        /// The texts of the configuration files, in the mark's order; nil keeps the existing file.
        var files: [String?]
    }

    private func plan() throws(ApusError) -> Plan {
        let existing = try state.mark()
        var network = try network(existing)
        let stores = try stores(existing, network)
        if let plan = network, let stores { network?.stores = stores.indices.map { plan.address(ofStore: $0) } }
        let recordsURL = try recordsURL(existing)
        if let configs {
            let read = try NodeConfigurationFile.read(folder: configs)
            try requireSame(existing, cluster: read.cluster)
            let nodes = read.nodes.map { read in
                var node = read.node
                node.program = existing?.nodes.first { $0.name == node.name }?.program
                return node
            }
            return Plan(
                mark: StateDirectory.Mark(cluster: read.cluster, nodes: nodes),
                files: read.nodes.map(\.text))
        }
        try requireSame(existing, cluster: cluster)
        let known = existing?.nodes ?? []
        let count = nodes ?? (known.isEmpty ? 3 : known.count)
        guard count >= known.count else {
            throw ApusError(
                .badParameter,
                "the cluster in \(state.path) has \(known.count) nodes; stop some with `apus cluster drain N`, "
                    + "or start again after `apus cluster down --purge`")
        }
        let added = (known.count..<count).map {
            NodeConfigurationFile.node($0 + 1, basePort: basePort, network: network)
        }
        let texts: [String?] = added.map {
            NodeConfigurationFile.text(
                $0, cluster: cluster, isIsolated: network != nil, stores: stores ?? [], recordsURL: recordsURL)
        }
        return Plan(
            mark: StateDirectory.Mark(
                cluster: cluster, nodes: known + added, network: network, stores: stores, recordsURL: recordsURL),
            files: known.map { _ in nil } + texts)
    }

    /// The network of the directory's cluster, or of a new one; nil if the cluster is not isolated.
    private func network(_ existing: StateDirectory.Mark?) throws(ApusError) -> NetworkPlan? {
        let known = existing?.network
        guard known != nil || isIsolated else { return nil }
        guard configs == nil else {
            throw ApusError(
                .stateForeign, "\(state.path) is the state of an isolated cluster; use another --dir with --configs")
        }
        guard known != nil || existing == nil else {
            throw ApusError(
                .stateForeign,
                "the cluster in \(state.path) was created without --isolated; use another --dir, or start again after "
                    + "`apus cluster down --purge`")
        }
        // Before anything is written.
        try IsolatedNetwork.requireTools()
        if let known { return known }
        return try IsolatedNetwork.choose(for: state)
    }

    /// The members of etcd of the directory's cluster, or of a new one; nil if the store is a directory.
    private func stores(
        _ existing: StateDirectory.Mark?, _ network: NetworkPlan?
    ) throws(ApusError) -> [StateDirectory.Store]? {
        let known = existing?.stores
        guard known != nil || hasEtcd else { return nil }
        guard configs == nil else {
            throw ApusError(
                .stateForeign, "\(state.path) is the state of a cluster with etcd; use another --dir with --configs")
        }
        guard known != nil || existing == nil else {
            throw ApusError(
                .stateForeign,
                "the cluster in \(state.path) was created without --etcd; use another --dir, or start again after "
                    + "`apus cluster down --purge`")
        }
        try EtcdMember.requireProgram()
        return known ?? EtcdMember.members(basePort: basePort, network: network)
    }

    /// The database of the directory's cluster, or of a new one; nil if the records are in a file.
    private func recordsURL(_ existing: StateDirectory.Mark?) throws(ApusError) -> String? {
        guard let recordsURL, let existing else { return recordsURL ?? existing?.recordsURL }
        guard existing.recordsURL == recordsURL else {
            throw ApusError(
                .stateForeign,
                "the cluster in \(state.path) has its records elsewhere; use another --dir, or start again after "
                    + "`apus cluster down --purge`")
        }
        return recordsURL
    }

    private func requireSame(_ existing: StateDirectory.Mark?, cluster: String) throws(ApusError) {
        guard let existing, existing.cluster != cluster else { return }
        throw ApusError(
            .stateForeign,
            "\(state.path) is the state of cluster \(existing.cluster), not \(cluster); use another --dir")
    }

    private func prepare(_ plan: Plan) throws(ApusError) {
        try state.write(plan.mark)
        _ = try state.pki.make(
            cluster: ClusterID(unchecked: plan.mark.cluster),
            nodes: plan.mark.nodes.map { NodeName(unchecked: $0.name) }, hosts: plan.mark.network?.nodeAddresses ?? [])
        do {
            try FileManager.default.createDirectory(atPath: "\(state.path)/shared", withIntermediateDirectories: true)
            for (node, text) in zip(plan.mark.nodes, plan.files) {
                guard let text else { continue }
                try Data(text.utf8).write(
                    to: URL(fileURLWithPath: state.configurationFile(node.name)), options: .atomic)
            }
        } catch {
            throw ApusError(.storageFailed, "\(state.path) cannot be written: \(error.localizedDescription)")
        }
    }
}

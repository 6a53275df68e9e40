package import ApusCore
import Foundation

/// The members of etcd that hold a local cluster's ownership store (`apus cluster up --etcd`).
///
/// They speak without TLS: only processes of this machine reach them. They write to the disk as any etcd does, so kills
/// and lost majorities have the effects that they have elsewhere.
package enum EtcdMember {
    /// The number of members: one may fail.
    package static let count = 3
    /// The ports below the first one of the nodes that the members use.
    package static let portCount = 2 * count
    /// The ports of a member with an address of its own: those of etcd's documentation.
    private static let (clientPort, peerPort) = (2379, 2380)
    /// Half of etcd's defaults: all members are on one machine, and a cluster without a leader decides nothing.
    private static let (heartbeatMilliseconds, electionMilliseconds) = (50, 500)
    /// A member keeps its log until so many changes, each with a whole map. With etcd's default of 100,000, the logs of
    /// three members had filled 4 GB after 95 faults.
    private static let snapshotCount = 1000

    /// The members of a new cluster.
    /// - Parameters:
    ///   - basePort: the first port of the nodes.
    ///   - network: the plan of an isolated cluster; otherwise the members are on the loopback.
    package static func members(basePort: Int, network: NetworkPlan?) -> [StateDirectory.Store] {
        (0..<count).map { index in
            let name = NetworkPlan.storeName(index)
            guard let network else {
                let first = basePort - portCount + 2 * index
                return StateDirectory.Store(
                    name: name, clients: "127.0.0.1:\(first)", peers: "127.0.0.1:\(first + 1)")
            }
            let host = network.address(ofStore: index)
            return StateDirectory.Store(name: name, clients: "\(host):\(clientPort)", peers: "\(host):\(peerPort)")
        }
    }

    /// Checks that etcd is installed.
    /// - Throws: 10022.
    package static func requireProgram() throws(ApusError) { _ = try program() }

    private static func program() throws(ApusError) -> String {
        guard let program = SystemTool.find("etcd") else {
            throw ApusError(.configurationInvalid, "etcd is missing: install the package etcd-server")
        }
        return program
    }

    /// The process of a member. In an isolated cluster, it starts in a network namespace of its own.
    /// - Throws: 10022 if etcd is not installed.
    package static func process(
        _ store: StateDirectory.Store, in directory: StateDirectory, _ mark: StateDirectory.Mark
    ) throws(ApusError) -> NodeProcess {
        let folder = directory.nodeFolder(store.name)
        let members = (mark.stores ?? []).map { "\($0.name)=http://\($0.peers)" }.joined(separator: ",")
        let arguments = [
            "--name", store.name, "--data-dir", "\(folder)/data", "--listen-client-urls", "http://\(store.clients)",
            "--advertise-client-urls", "http://\(store.clients)", "--listen-peer-urls", "http://\(store.peers)",
            "--initial-advertise-peer-urls", "http://\(store.peers)", "--initial-cluster", members,
            "--initial-cluster-token", "apus-\(mark.cluster)", "--heartbeat-interval", "\(heartbeatMilliseconds)",
            "--election-timeout", "\(electionMilliseconds)", "--auto-compaction-mode", "periodic",
            "--auto-compaction-retention", "5m", "--snapshot-count", "\(snapshotCount)", "--logger", "zap",
            "--log-level", "warn",
        ]
        return NodeProcess(
            name: store.name, arguments: arguments, logFile: directory.logFile(store.name),
            pidFile: directory.pidFile(store.name), home: directory, program: try program())
    }

    /// Waits until every one of the members has a leader.
    /// - Throws: 10005 after the deadline, 10018 if a member ended; both with the end of its log.
    package static func waitUntilHealthy(
        _ stores: [StateDirectory.Store], in directory: StateDirectory, _ mark: StateDirectory.Mark, timeout: Duration
    ) async throws {
        let deadline = ContinuousClock.now + timeout
        for store in stores {
            let process = try process(store, in: directory, mark)
            while await !isHealthy(store) {
                let isRunning = process.pid != nil
                guard isRunning, ContinuousClock.now < deadline else {
                    let tail = process.logTail(lines: 5).joined(separator: "\n    ")
                    throw ApusError(
                        isRunning ? .deadlineExceeded : .internalFailure,
                        "\(store.name), a member of etcd, \(isRunning ? "has no leader" : "ended"); the end of its log "
                            + "\(process.logFile):\n    \(tail)")
                }
                try await Task.sleep(for: .milliseconds(50))
            }
        }
    }

    private static func isHealthy(_ store: StateDirectory.Store) async -> Bool {
        guard let address = HostPort(store.clients) else { return false }
        let answer = try? await NodeHTTP.send("GET", "/health", to: address, timeout: .seconds(1))
        return answer?.status == 200
    }
}

/// One member of etcd in `apus cluster status`.
package struct StoreReport: Encodable, Sendable {
    /// `e1` to `e3`.
    package var name: String
    /// The state of its process according to the system.
    package var process: NodeProcess.State
    /// The process id; nil if there is none.
    package var pid: Int32?
    /// HOST:PORT for its clients.
    package var clients: String

    /// The members of a cluster; empty if its store is a directory, or etcd is not installed.
    package static func gather(_ cluster: LocalCluster) -> [StoreReport] {
        (cluster.mark.stores ?? []).compactMap { store in
            guard let process = try? EtcdMember.process(store, in: cluster.directory, cluster.mark) else { return nil }
            return StoreReport(name: store.name, process: process.state, pid: process.pid, clients: store.clients)
        }
    }

    /// The table of the members; empty if there are none.
    package static func table(_ reports: [StoreReport]) -> [String] {
        guard !reports.isEmpty else { return [] }
        return TextTable.lines(
            [["STORE", "STATE", "CLIENTS"]] + reports.map { [$0.name, $0.process.rawValue, $0.clients] })
    }
}

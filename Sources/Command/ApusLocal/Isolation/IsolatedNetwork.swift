package import ApusCore
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Makes and removes the network of an isolated cluster, and makes it fit the wanted faults. Every step can be
/// repeated: what exists is kept, and what is missing or incomplete is made.
///
/// Isolation: used by one command at a time, under the lock of the state directory. The calls block for milliseconds.
package struct IsolatedNetwork: Sendable {
    /// The state directory of the cluster.
    package let directory: StateDirectory
    /// The description of the network.
    package let plan: NetworkPlan
    /// The names of the nodes, in the order of their numbers.
    package let nodes: [String]
    /// How long a delay may take to begin or to end.
    private static let delayTimeout = Duration.seconds(5)

    /// The network of a cluster.
    /// - Throws: 10022 if the cluster is not isolated.
    package init(_ mark: StateDirectory.Mark, in directory: StateDirectory) throws(ApusError) {
        guard let plan = mark.network else {
            throw ApusError(
                .configurationInvalid,
                "the cluster in \(directory.path) was created without --isolated: its nodes have no networks of their "
                    + "own. Create another one with `apus cluster up --isolated --dir DIR`")
        }
        self.plan = plan
        self.directory = directory
        nodes = mark.nodes.map(\.name)
    }

    /// The nodes, the servers of the ownership store, and the clients.
    package var endpoints: [NetworkPlan.Endpoint] { plan.endpoints(nodes: nodes) }
    /// For arguments.
    package var names: EndpointNames { EndpointNames(nodes: nodes, clients: plan.clients, stores: plan.storeNames) }

    /// Checks that this process can make network namespaces, and that the tools for it are installed.
    /// - Throws: 10022 with what is missing.
    package static func requireTools() throws(ApusError) {
        guard geteuid() == 0 else {
            throw ApusError(
                .configurationInvalid,
                "an isolated cluster has network namespaces, which only root can make and change: run this as root")
        }
        for (tool, origin) in [("ip", "iproute2"), ("nft", "nftables")] where SystemTool.find(tool) == nil {
            throw ApusError(.configurationInvalid, "\(tool) is missing: install the package \(origin)")
        }
    }

    /// Chooses the names and addresses of a new network.
    /// - Throws: 10022 if all networks of 198.18.0.0/15 are in use.
    package static func choose(for directory: StateDirectory) throws(ApusError) -> NetworkPlan {
        let used =
            try SystemTool.run(["ip", "-o", "-4", "addr", "show"])
            + SystemTool.run(["ip", "-o", "-4", "route", "show"])
        guard let plan = NetworkPlan.choose(path: directory.path, isTaken: { used.contains($0) }) else {
            throw ApusError(.configurationInvalid, "no network of 198.18.0.0/15 is free on this machine")
        }
        return plan
    }

    /// Makes the namespaces, interfaces and addresses that are missing, and the wanted faults. Processes in existing
    /// namespaces keep running.
    /// - Throws: 10022 as ``requireTools()``, 10018 if the system refuses a step, 10005 if a delay does not begin.
    package func make() async throws {
        try Self.requireTools()
        var existing = Set(NetworkNamespace.names())
        if !existing.contains(plan.prefix) || !isBridgeComplete {
            // The bridge's end takes the interfaces of all endpoints with it.
            try removeBridge(existing)
            try SystemTool.run(["ip", "netns", "add", plan.prefix])
            for command in plan.bridgeCommands { try SystemTool.run(command) }
            existing.insert(plan.prefix)
        }
        for endpoint in endpoints {
            if !existing.contains(endpoint.namespace) {
                try SystemTool.run(["ip", "netns", "add", endpoint.namespace])
            } else if isComplete(endpoint) {
                continue
            }
            // Half of a pair may be left of a command that was killed. The other half ends with it.
            _ = try? SystemTool.run(["ip", "-n", plan.prefix, "link", "del", "dev", endpoint.port])
            for command in plan.commands(for: endpoint) { try SystemTool.run(command) }
        }
        try await apply(try directory.faults())
    }

    /// Removes the namespaces, and with them their interfaces, rules and addresses. The nodes have been stopped.
    /// Processes of others that run in a namespace keep it, without a network, until they end.
    /// - Throws: 10022 as ``requireTools()``, 10018 if the system refuses a step.
    package func remove() throws(ApusError) {
        try Self.requireTools()
        // The processes of delays end when there is no such file.
        for file in [directory.faultsFile, directory.rulesFile] { try? FileManager.default.removeItem(atPath: file) }
        let existing = Set(NetworkNamespace.names())
        try removeBridge(existing)
        for name in existing.sorted() where name != plan.prefix && plan.owns(namespace: name) {
            try SystemTool.run(["ip", "netns", "del", name])
        }
    }

    /// Makes the network fit the faults, and records them first, so that a command that is killed here leaves what the
    /// next one completes.
    /// - Throws: 10021 if they cannot be recorded, 10018 if the system refuses the rules, 10005 if a delay does not
    ///   begin or end.
    package func apply(_ faults: NetworkFaults) async throws {
        try directory.write(faults)
        let rules = NetworkRules.text(faults, endpoints: endpoints, plan: plan)
        do {
            try Data(rules.utf8).write(to: URL(fileURLWithPath: directory.rulesFile), options: .atomic)
        } catch {
            throw ApusError(
                .storageFailed, "\(directory.rulesFile) cannot be written: \(error.localizedDescription)")
        }
        try SystemTool.run(["ip", "netns", "exec", plan.prefix, "nft", "-f", directory.rulesFile])
        for endpoint in endpoints { try await applyDelay(of: endpoint, isWanted: faults.delays[endpoint.name] != nil) }
    }

    /// Starts the process that delays the packets of an endpoint, or waits until it has ended. It reads the length of
    /// the delay, and whether there is one, from the recorded faults.
    private func applyDelay(of endpoint: NetworkPlan.Endpoint, isWanted: Bool) async throws {
        let process = delayProcess(of: endpoint.name)
        let isRunning = process.pid != nil
        guard isWanted else {
            guard try await process.waitUntilGone(Self.delayTimeout) else {
                throw ApusError(.deadlineExceeded, "the delay of \(endpoint.name) does not end")
            }
            try? FileManager.default.removeItem(atPath: process.pidFile)
            return
        }
        // A running one reads a new length within its interval.
        guard !isRunning else { return try await Task.sleep(for: DelayShim.lookupInterval * 2) }
        try process.start()
        let deadline = ContinuousClock.now + Self.delayTimeout
        while !isDelayed(endpoint) {
            guard process.pid != nil, ContinuousClock.now < deadline else {
                throw ApusError(
                    .deadlineExceeded,
                    "the delay of \(endpoint.name) does not begin; the end of its log \(process.logFile):\n    "
                        + process.logTail(lines: 5).joined(separator: "\n    "))
            }
            try await Task.sleep(for: .milliseconds(20))
        }
    }

    private func delayProcess(of name: String) -> NodeProcess {
        NodeProcess(
            name: name, arguments: ["cluster", "shim", name, "--dir", directory.path],
            logFile: "\(directory.path)/delay-\(name).log", pidFile: "\(directory.path)/delay-\(name).pid",
            home: directory)
    }

    /// True once the last route leads to the delay.
    private func isDelayed(_ endpoint: NetworkPlan.Endpoint) -> Bool {
        let routes = try? SystemTool.run([
            "ip", "-n", endpoint.namespace, "-o", "-4", "route", "show", "dev", DelayShim.device,
        ])
        return routes?.contains("\(plan.subnet).128/25") == true
    }

    private func removeBridge(_ existing: Set<String>) throws(ApusError) {
        // Its interface is removed first, because a namespace ends some time after its name.
        let interface = plan.operatorInterface
        let exists = { (try? SystemTool.run(["ip", "link", "show", "dev", interface])) != nil }
        if exists() {
            do throws(ApusError) {
                try SystemTool.run(["ip", "link", "del", "dev", interface])
            } catch {
                // A namespace that was removed before may have ended in the meantime, and its interfaces with it.
                if exists() { throw error }
            }
        }
        if existing.contains(plan.prefix) { try SystemTool.run(["ip", "netns", "del", plan.prefix]) }
    }

    /// True if all of the bridge's commands were carried out: the last one was.
    private var isBridgeComplete: Bool {
        let operatorSide = try? SystemTool.run(["ip", "-o", "-4", "addr", "show", "up", "dev", plan.operatorInterface])
        let peer = try? SystemTool.run(["ip", "-n", plan.prefix, "-o", "link", "show", "dev", NetworkPlan.operatorPort])
        return operatorSide?.contains(" \(plan.operatorAddress)/") == true
            && peer?.contains(" master \(NetworkPlan.bridge) ") == true
    }

    private func isComplete(_ endpoint: NetworkPlan.Endpoint) -> Bool {
        let own = try? SystemTool.run([
            "ip", "-n", endpoint.namespace, "-o", "-4", "addr", "show", "up", "dev", NetworkPlan.interface,
        ])
        let port = try? SystemTool.run(["ip", "-n", plan.prefix, "-o", "link", "show", "dev", endpoint.port])
        return own?.contains(" \(endpoint.address)/") == true
            && port?.contains(" master \(NetworkPlan.bridge) ") == true
    }
}

/// The files of the faults.
extension StateDirectory {
    /// The wanted faults.
    package var faultsFile: String { "\(path)/faults.json" }
    /// The rules of nftables that were loaded last.
    var rulesFile: String { "\(path)/faults.nft" }

    /// The wanted faults; none if there is no file.
    /// - Throws: 10021 if the file is damaged.
    package func faults() throws(ApusError) -> NetworkFaults {
        guard let data = FileManager.default.contents(atPath: faultsFile) else { return NetworkFaults() }
        do {
            return try JSONDecoder().decode(NetworkFaults.self, from: data)
        } catch {
            throw ApusError(.storageFailed, "\(faultsFile) is damaged; remove it to end all faults")
        }
    }

    /// Records the wanted faults.
    /// - Throws: 10021.
    func write(_ faults: NetworkFaults) throws(ApusError) {
        let encoder = JSONEncoder()
        encoder.outputFormatting = [.prettyPrinted, .sortedKeys]
        do {
            try encoder.encode(faults).write(to: URL(fileURLWithPath: faultsFile), options: .atomic)
        } catch {
            throw ApusError(.storageFailed, "\(faultsFile) cannot be written: \(error.localizedDescription)")
        }
    }
}

import ApusCore
import ApusLocal
import ArgumentParser

/// `apus cluster client-namespace NAME`: makes a network namespace for clients of an isolated cluster.
struct ClusterClientNamespace: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "client-namespace", abstract: "Make a network namespace for clients of an isolated cluster.",
        discussion: """
            Clients in it are subject to faults under its name, as nodes are. Start them with
            `ip netns exec NAMESPACE COMMAND`. The namespace ends with `apus cluster down`; a new start of the cluster
            makes it again.
            """)
    @OptionGroup var directory: DirectoryOption
    @Argument(help: "Name it. If it exists, the command prints its address.")
    var name: String
    @OptionGroup var output: OutputOptions

    private struct Report: Encodable {
        var name: String
        /// For ip-netns(8).
        var namespace: String
        /// The address in it, IPv4.
        var address: String
    }

    func validate() throws {
        _ = try NodeName.argument(name, "the name")
        // Also not one of a node that is added later.
        guard Int(name) == nil, !("ne".contains(name.prefix(1)) && Int(name.dropFirst()) != nil) else {
            throw ValidationError(
                "the name must not be a number, or n or e and a number: these select nodes and members of etcd")
        }
    }

    func run() async throws {
        let state = try directory.cluster().directory
        let endpoint = try await state.locked { try await make(in: state) }
        try output.show(
            Report(name: name, namespace: endpoint.namespace, address: endpoint.address),
            ["Start clients with `ip netns exec \(endpoint.namespace) COMMAND`. Their address is \(endpoint.address)."])
    }

    /// Records the name before anything is made, so that `apus cluster down` finds it.
    private func make(in state: StateDirectory) async throws -> NetworkPlan.Endpoint {
        var mark = try state.requireMark()
        var network = try IsolatedNetwork(mark, in: state)
        guard !network.nodes.contains(name) else { throw ApusError(.badParameter, "\(name) is the name of a node") }
        if !network.plan.clients.contains(name) {
            guard network.plan.clients.count < NetworkPlan.clientsMax else {
                throw ApusError(
                    .overloaded, "an isolated cluster has at most \(NetworkPlan.clientsMax) namespaces for clients")
            }
            try IsolatedNetwork.requireTools()
            mark.network?.clients.append(name)
            try state.write(mark)
            network = try IsolatedNetwork(mark, in: state)
        }
        try await network.make()
        guard let endpoint = network.endpoints.first(where: { $0.name == name }) else {
            throw ApusError(.internalFailure, "the namespace of \(name) was not made")
        }
        return endpoint
    }
}

import ApusCore
import ApusLocal
import ArgumentParser

/// A verb that changes the faults of an isolated cluster's network.
protocol FaultVerb {
    var directory: DirectoryOption { get }
    var output: OutputOptions { get }

    /// Changes the wanted faults.
    func change(_ faults: inout NetworkFaults, of network: IsolatedNetwork) throws(ApusError)
}

extension FaultVerb {
    /// Changes the faults, waits until the network fits them, and prints all of them.
    /// - Throws: 10022 if the cluster is not isolated or this is not root, 10007 if another command is changing it.
    func changeFaults() async throws {
        let state = try directory.cluster().directory
        let faults = try await state.locked {
            let network = try IsolatedNetwork(try state.requireMark(), in: state)
            try IsolatedNetwork.requireTools()
            var faults = try state.faults()
            try change(&faults, of: network)
            try await network.apply(faults)
            return faults
        }
        try output.show(
            FaultReport(faults: faults), faults.isEmpty ? ["There are no faults."] : TextTable.lines(faults.rows))
    }
}

/// The result of a verb for faults: all faults after it.
private struct FaultReport: Encodable {
    var faults: NetworkFaults
}

/// `apus cluster partition A B`: cuts every node of one side from every node of the other.
struct ClusterPartition: AsyncParsableCommand, FaultVerb {
    static let configuration = CommandConfiguration(
        commandName: "partition", abstract: "Drop all packets between two sides of an isolated cluster.",
        discussion: """
            A side is a list such as 2,3. Clients in namespaces of their own may be on a side too; otherwise they reach
            both. The operator, in the namespace of this command, reaches all nodes.
            """)
    @OptionGroup var directory: DirectoryOption
    @Argument(help: "Select the first side, such as 1 or 1,2.")
    var side: String
    @Argument(help: "Select the other side. Default: all other nodes.")
    var otherSide: String?
    @Flag(help: "Drop only the packets from the first side to the other.")
    var oneWay = false
    @OptionGroup var output: OutputOptions

    func run() async throws { try await changeFaults() }

    func change(_ faults: inout NetworkFaults, of network: IsolatedNetwork) throws(ApusError) {
        let first = try network.names.list(side)
        var second = network.nodes.filter { !first.contains($0) }
        if let otherSide { second = try network.names.list(otherSide) }
        try faults.cut(first, second, isOneWay: oneWay)
    }
}

/// `apus cluster cut 1-2`: cuts two nodes from each other.
struct ClusterCut: AsyncParsableCommand, FaultVerb {
    static let configuration = CommandConfiguration(
        commandName: "cut", abstract: "Drop all packets between two nodes of an isolated cluster.")
    @OptionGroup var directory: DirectoryOption
    @Argument(help: "Select the two nodes, such as 1-2.")
    var pair: String
    @Flag(help: "Drop only the packets from the first node to the second.")
    var oneWay = false
    @OptionGroup var output: OutputOptions

    func run() async throws { try await changeFaults() }

    func change(_ faults: inout NetworkFaults, of network: IsolatedNetwork) throws(ApusError) {
        let (one, other) = try network.names.pair(pair)
        try faults.cut([one], [other], isOneWay: oneWay)
    }
}

/// `apus cluster loss N PERCENT`: loses a share of a node's packets.
struct ClusterLoss: AsyncParsableCommand, FaultVerb {
    static let configuration = CommandConfiguration(
        commandName: "loss", abstract: "Drop a share of the packets to and from a node of an isolated cluster.")
    @OptionGroup var directory: DirectoryOption
    @OptionGroup var node: NodeArgument
    @Argument(help: "Set the share of lost packets of each direction, 0 to 100. 0 ends the loss.")
    var percent: Int
    @OptionGroup var output: OutputOptions

    func run() async throws { try await changeFaults() }

    func change(_ faults: inout NetworkFaults, of network: IsolatedNetwork) throws(ApusError) {
        try faults.setLoss(percent, of: try network.names.endpoint(node.node))
    }
}

/// `apus cluster delay N MS`: delays the packets that a node sends.
struct ClusterDelay: AsyncParsableCommand, FaultVerb {
    static let configuration = CommandConfiguration(
        commandName: "delay", abstract: "Delay all packets that a node of an isolated cluster sends.",
        discussion: """
            Round trips between the node and each other one become longer by the delay. A process in the node's
            namespace holds the packets, because the kernel may have no netem.
            """)
    @OptionGroup var directory: DirectoryOption
    @OptionGroup var node: NodeArgument
    @Argument(help: "Set the delay in milliseconds, 0 to 5000. 0 ends the delay.")
    var milliseconds: Int
    @OptionGroup var output: OutputOptions

    func run() async throws { try await changeFaults() }

    func change(_ faults: inout NetworkFaults, of network: IsolatedNetwork) throws(ApusError) {
        try faults.setDelay(milliseconds, of: try network.names.endpoint(node.node))
    }
}

/// `apus cluster cut-store N`: cuts a node from the ownership store alone.
struct ClusterCutStore: AsyncParsableCommand, FaultVerb {
    static let configuration = CommandConfiguration(
        commandName: "cut-store", abstract: "Drop all packets between a node and the servers of the ownership store.")
    @OptionGroup var directory: DirectoryOption
    @OptionGroup var node: NodeArgument
    @OptionGroup var output: OutputOptions

    func run() async throws { try await changeFaults() }

    func change(_ faults: inout NetworkFaults, of network: IsolatedNetwork) throws(ApusError) {
        guard !network.plan.stores.isEmpty else {
            throw ApusError(
                .configurationInvalid,
                "the ownership store of this cluster is a directory, to which no network leads; cut-store works in a "
                    + "cluster that was made with `apus cluster up --isolated --etcd`")
        }
        faults.cutStore(of: try network.names.endpoint(node.node))
    }
}

/// `apus cluster heal`: ends faults.
struct ClusterHeal: AsyncParsableCommand, FaultVerb {
    static let configuration = CommandConfiguration(
        commandName: "heal", abstract: "End faults of an isolated cluster's network.")
    @OptionGroup var directory: DirectoryOption
    @Argument(
        help: """
            Select a node, such as 3, for all of its faults, or two nodes, such as 1-2, for the cuts between them. \
            Default: all faults.
            """)
    var targets: [String] = []
    @OptionGroup var output: OutputOptions

    func run() async throws { try await changeFaults() }

    func change(_ faults: inout NetworkFaults, of network: IsolatedNetwork) throws(ApusError) {
        guard !targets.isEmpty else { return faults.heal() }
        for target in targets { faults.heal(try network.names.target(target)) }
    }
}

import ApusContract
import ApusCore
import ApusLocal
import ArgumentParser
import SwiftProtobuf

// The verbs of Remote/MapCommands.swift for a local cluster, where a node has a number too.

/// What these verbs take.
struct LocalMapOptions: ParsableArguments {
    @OptionGroup var directory: DirectoryOption
    @OptionGroup var output: OutputOptions

    /// - Throws: 10020 if there is no local cluster, 21022 if no node of it runs.
    func api() async throws(ApusError) -> ClusterAPI { try await ServerOptions.local(directory.path) }

    /// The name of a node by its number or name.
    func name(_ node: NodeArgument) throws(ApusError) -> String {
        try StateDirectory.node(node.node, in: try directory.cluster().mark).name
    }
}

/// `apus cluster why SHARD|DEVICE`
struct ClusterWhy: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "why", abstract: WhyCommand.configuration.abstract)
    @OptionGroup var options: LocalMapOptions
    @OptionGroup var target: WhyArgument

    func run() async throws { try await target.show(try await options.api(), options.output) }
}

/// `apus cluster changes`
struct ClusterChanges: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "changes", abstract: ChangesCommand.configuration.abstract)
    @OptionGroup var options: LocalMapOptions

    func run() async throws {
        let answer = try await options.api().ask(ClientListMapChangesRequest())
        try options.output.show(answer, TextTable.lines(MapChanges.table(answer)))
    }
}

/// `apus cluster cordon N`
struct ClusterCordon: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "cordon", abstract: CordonCommand.configuration.abstract)
    @OptionGroup var options: LocalMapOptions
    @OptionGroup var node: NodeArgument

    func run() async throws {
        let name = try options.name(node)
        let answer = try await options.api().ask(ClientCordonNodeRequest.with { $0.node = name })
        try options.output.show(answer, ["The node \(name) is cordoned. `apus cluster uncordon \(name)` ends that."])
    }
}

/// `apus cluster uncordon N`
struct ClusterUncordon: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "uncordon", abstract: UncordonCommand.configuration.abstract)
    @OptionGroup var options: LocalMapOptions
    @OptionGroup var node: NodeArgument

    func run() async throws {
        let name = try options.name(node)
        let answer = try await options.api().ask(ClientUncordonNodeRequest.with { $0.node = name })
        try options.output.show(answer, ["The node \(name) is not cordoned any more, and gets shards."])
    }
}

/// `apus cluster undrain N`
struct ClusterUndrain: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "undrain", abstract: "End `apus cluster drain --stay`: give a node shards again.")
    @OptionGroup var options: LocalMapOptions
    @OptionGroup var node: NodeArgument

    func run() async throws {
        let name = try options.name(node)
        let answer = try await options.api().ask(ClientUndrainNodeRequest.with { $0.node = name })
        try options.output.show(answer, ["The node \(name) is not draining any more, and gets shards."])
    }
}

/// `apus cluster weight N WEIGHT`
struct ClusterWeight: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "weight", abstract: WeightCommand.configuration.abstract)
    @OptionGroup var options: LocalMapOptions
    @OptionGroup var node: NodeArgument
    @Argument(help: "The weight, 1 to 10000, relative to the other nodes'.")
    var weight: UInt32

    func run() async throws {
        let name = try options.name(node)
        let request = ClientSetNodeWeightRequest.with { ($0.node, $0.weight) = (name, weight) }
        let answer = try await options.api().ask(request)
        try options.output.show(answer, ["The node \(name) has the weight \(weight)."])
    }
}

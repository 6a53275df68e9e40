import ApusContract
import ApusCore
import ApusLocal
import ArgumentParser
import Foundation
import SwiftProtobuf

// Verbs about the placement of shards: why one is where it is, and which nodes get new ones.

/// The target of `why`.
struct WhyArgument: ParsableArguments {
    @Argument(help: "A shard's number, 0 to 4095, or a device.")
    var target: String
    @Flag(help: "Take the target for a device, even if it is a number.")
    var device = false

    /// Asks the cluster and prints the answer.
    func show(_ api: ClusterAPI, _ output: OutputOptions) async throws {
        let isShard = !device && UInt16(target) != nil
        let request = ClientExplainShardRequest.with {
            if isShard { $0.shard = target } else { $0.device = target }
        }
        let answer = try await api.ask(request)
        try output.show(answer, Self.lines(answer))
    }

    /// The answer for people. Pure.
    static func lines(_ answer: ClientExplainShardResponse) -> [String] {
        let shard = answer.shard
        let places = [
            ("owner", shard.owner, answer.hasOwnerChange ? answer.ownerChange : nil, answer.ownerReason),
            ("standby", shard.standby, answer.hasStandbyChange ? answer.standbyChange : nil, answer.standbyReason),
        ]
        let rows = places.map { place, node, change, reason in
            [
                place, node.isEmpty ? "-" : node, change.map { MapChanges.time($0) } ?? "-",
                change.map { MapChanges.revisions($0) } ?? "-", reason,
            ]
        }
        let second = shard.secondStandby.isEmpty ? [] : [["second standby", shard.secondStandby, "-", "-", ""]]
        return ["shard \(shard.shard), term \(shard.term), in revision \(answer.revision) of the map"]
            + TextTable.lines([["PLACE", "NODE", "SINCE", "REVISION", "WHY"]] + rows + second)
    }
}

/// The recorded changes of the map, as text.
enum MapChanges {
    /// The time of a change, or from its first to its last move.
    static func time(_ change: ClientMapChange) -> String {
        let first = text(change.firstMs)
        let last = text(change.lastMs)
        return first == last ? first : "\(first) to \(last.suffix(9))"
    }

    static func revisions(_ change: ClientMapChange) -> String {
        change.firstRevision == change.lastRevision
            ? "\(change.firstRevision)" : "\(change.firstRevision)-\(change.lastRevision)"
    }

    private static func text(_ milliseconds: Int64) -> String {
        TimeText.of(milliseconds: milliseconds)
    }

    static func table(_ answer: ClientListMapChangesResponse) -> [[String]] {
        [["TIME", "REVISION", "CHANGE", "NODES", "BY", "SHARDS", "REASON"]]
            + answer.changes.map { change in
                [
                    time(change), revisions(change), change.kind,
                    change.nodes.isEmpty ? "-" : change.nodes.joined(separator: ","),
                    change.maker.isEmpty ? "an operator" : change.maker, "\(change.shards)",
                    change.reason.isEmpty ? "-" : change.reason,
                ]
            }
    }
}

/// `apus why SHARD|DEVICE`
struct WhyCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "why", abstract: "Say who has a shard or a device's shard, since when, and what moved it.")
    @OptionGroup var options: OperatorOptions
    @OptionGroup var target: WhyArgument

    func run() async throws { try await target.show(try await options.api(), options.output) }
}

/// `apus changes`
struct ChangesCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "changes", abstract: "List the recorded changes of the cluster map, the newest first.")
    @OptionGroup var options: OperatorOptions

    func run() async throws { try await options.show(ClientListMapChangesRequest(), MapChanges.table) }
}

/// `apus cordon NODE`
struct CordonCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "cordon", abstract: "Give a node no new shards. It keeps those that it has.",
        discussion: """
            It lasts until `apus uncordon`, whichever nodes restart. If no other node is left for a shard, a cordoned \
            node becomes its owner.
            """)
    @OptionGroup var options: OperatorOptions
    @Argument(help: "The node's name.")
    var node: String

    func run() async throws {
        try await options.show(ClientCordonNodeRequest.with { $0.node = node }) { _ in
            [["The node \(node) is cordoned. `apus uncordon \(node)` ends that."]]
        }
    }
}

/// `apus uncordon NODE`
struct UncordonCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "uncordon", abstract: "End `apus cordon`: give a node shards again.",
        discussion: "A drain ends with `apus undrain`, or when the node is started again, and not by this.")
    @OptionGroup var options: OperatorOptions
    @Argument(help: "The node's name.")
    var node: String

    func run() async throws {
        try await options.show(ClientUncordonNodeRequest.with { $0.node = node }) { _ in
            [["The node \(node) is not cordoned any more, and gets shards."]]
        }
    }
}

/// `apus weight NODE WEIGHT`
struct WeightCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "weight", abstract: "Change a node's share of the shards, until it starts again.",
        discussion: "Set `weight` in the node's configuration as well to keep it.")
    @OptionGroup var options: OperatorOptions
    @Argument(help: "The node's name.")
    var node: String
    @Argument(help: "The weight, 1 to 10000, relative to the other nodes'.")
    var weight: UInt32

    func run() async throws {
        let request = ClientSetNodeWeightRequest.with { ($0.node, $0.weight) = (node, weight) }
        try await options.show(request) { _ in [["The node \(node) has the weight \(weight)."]] }
    }
}

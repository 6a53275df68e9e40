import ApusContract
import ApusCore
import ApusLocal
import ArgumentParser
import Foundation
import SwiftProtobuf

// What an operator asks of any cluster, near or far: each verb is one request of the API (docs/api.md).

/// What all these verbs take.
struct OperatorOptions: ParsableArguments {
    @OptionGroup var server: ServerOptions
    @OptionGroup var directory: DirectoryOption
    @OptionGroup var output: OutputOptions

    /// Throws as ``ServerOptions/api(directory:)``.
    func api() async throws(ApusError) -> ClusterAPI { try await server.api(directory: directory.path) }

    /// Sends the request and prints its answer: as a table, or as JSON.
    func show<M: ClientRequestMessage>(_ message: M, _ table: (M.Reply) -> [[String]]) async throws {
        let answer = try await api().ask(message)
        try output.show(answer, TextTable.lines(table(answer)))
    }
}

/// `apus status`
struct StatusCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "status", abstract: "Show the nodes of a cluster, with their shards and addresses.")
    @OptionGroup var options: OperatorOptions

    func run() async throws {
        try await options.show(ClientListNodesRequest()) { answer in
            [["NODE", "STATE", "SHARDS", "STANDBY", "WEIGHT", "WIRE", "CLIENTS", "HTTP"]]
                + answer.nodes.sorted { $0.name < $1.name }.map {
                    [
                        "\($0.name)#\($0.incarnation)",
                        $0.state + ($0.drained ? ", drained" : "") + ($0.cordoned ? ", cordoned" : ""),
                        "\($0.ownedShards)", "\($0.standbyShards)", "\($0.weight)",
                        $0.wireVersion == 0 ? "-" : "\($0.wireVersion)", $0.clients, $0.http,
                    ]
                }
        }
    }
}

/// `apus drain NODE`
struct DrainCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "drain", abstract: "Move a node's shards, channels and clients to the other nodes.",
        discussion: """
            The node runs on afterwards, and gets no shards until `apus undrain`, or until it is started again on its \
            own machine. To keep shards away from a node without moving those that it has, use `apus cordon`.
            """)
    @OptionGroup var options: OperatorOptions
    @Argument(help: "The node's name.")
    var node: String
    @Option(help: "Wait for at most this many seconds.")
    var timeout = 120

    private struct Report: Encodable {
        var node: String
        var drained: Bool
    }

    func run() async throws {
        let api = try await options.api()
        _ = try await api.ask(ClientDrainNodeRequest.with { $0.node = node })
        let deadline = ContinuousClock.now + .seconds(timeout)
        while true {
            let nodes = try await api.ask(ClientListNodesRequest())
            guard let found = nodes.nodes.first(where: { $0.name == node }) else { break }
            if found.drained || !["up", "draining"].contains(found.state) { break }
            guard ContinuousClock.now < deadline else {
                throw ApusError(.deadlineExceeded, "\(node) still has \(found.ownedShards) shards")
            }
            try await Task.sleep(for: .milliseconds(300))
        }
        try options.output.show(
            Report(node: node, drained: true),
            [
                "The node \(node) is drained. `apus undrain \(node)` gives it shards again, or its next start."
            ])
    }
}

/// `apus undrain NODE`
struct UndrainCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "undrain", abstract: "End `apus drain`: give a node shards again.",
        discussion: """
            It also stops a drain that is in progress. Clients that were sent away stay at the other nodes. A node \
            that stops refuses it with 21025.
            """)
    @OptionGroup var options: OperatorOptions
    @Argument(help: "The node's name.")
    var node: String

    func run() async throws {
        try await options.show(ClientUndrainNodeRequest.with { $0.node = node }) { _ in
            [["The node \(node) is not draining any more, and gets shards."]]
        }
    }
}

/// `apus sessions`
struct SessionsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "sessions", abstract: "List the sessions of clients.", subcommands: [EndSessionCommand.self])
    @OptionGroup var options: OperatorOptions
    @Option(help: "List only those of this node.")
    var node = ""
    @Option(help: "List only those of this account.")
    var account = ""
    @Option(help: "List at most this many of each node.")
    var limit: UInt32 = 100

    func run() async throws {
        let request = ClientListSessionsRequest.with {
            ($0.node, $0.account, $0.pageSize) = (node, account, limit)
        }
        try await options.show(request) { answer in
            [["SESSION", "NODE", "ROLE", "ACCESS", "ACCOUNT", "DEVICE"]]
                + answer.sessions.map { [$0.session, $0.node, $0.role, $0.access, $0.account, $0.device] }
                + (answer.hasMore_p ? [["There are more; raise --limit."]] : [])
        }
    }
}

/// `apus sessions end SESSION`
struct EndSessionCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "end", abstract: "End a session with 12003. Its client may sign in again.")
    /// It parses the options that both have.
    @ParentCommand var sessions: SessionsCommand
    @Argument(help: "The session's id, as `apus sessions` lists it.")
    var session: String

    func run() async throws {
        try await sessions.options.show(ClientEndSessionRequest.with { $0.session = session }) { _ in
            [["The session has ended."]]
        }
    }
}

/// `apus channels`
struct ChannelsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "channels", abstract: "List the media channels, with their viewers.")
    @OptionGroup var options: OperatorOptions
    @Option(help: "List only those of this node.")
    var node = ""

    func run() async throws {
        try await options.show(ClientListChannelsRequest.with { $0.node = node }) { answer in
            [["CHANNEL", "NODE", "ROLE", "PRIMARY", "STANDBY", "EPOCH", "SEQUENCE", "VIEWERS"]]
                + answer.channels.map {
                    [
                        $0.channel, $0.node, $0.role, $0.primary, $0.protected ? $0.standby : "-", "\($0.epoch)",
                        "\($0.sequence)", "\($0.viewers)",
                    ]
                }
        }
    }
}

/// `apus devices`
struct DevicesCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "devices", abstract: "List the devices of an account, and disable devices.",
        subcommands: [DisableDeviceCommand.self, EnableDeviceCommand.self])
    @OptionGroup var options: OperatorOptions
    @Option(help: "The account.")
    var account = LocalCluster.account.rawValue
    @Option(help: "List those after this one.")
    var after = ""

    func run() async throws {
        let request = ClientListDevicesRequest.with { ($0.account, $0.pageToken) = (account, after) }
        try await options.show(request) { answer in
            [["DEVICE", "ACCOUNT", "BOUND AT", "LAST SEEN", "STATE"]]
                + answer.devices.map {
                    [
                        $0.device, $0.account, TimeText.of(seconds: $0.boundAt),
                        TimeText.of(seconds: $0.lastSeen),
                        $0.disabled ? "disabled" : "enabled",
                    ]
                }
        }
    }
}

/// `apus devices disable DEVICE`, also with the key of the device's customer.
struct DisableDeviceCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "disable", abstract: "Disable a device, within a second: it can neither sign in nor be used.",
        discussion: "Clients that use it receive 20011. Its accounts and its token stay as they are.")
    /// It parses the options that both have.
    @ParentCommand var devices: DevicesCommand
    @Argument(help: "The device's id.") var device: String

    func run() async throws {
        let request = ClientDisableDeviceRequest.with { ($0.device, $0.disabled) = (device, true) }
        try await devices.options.show(request) { _ in [["\(device) is disabled."]] }
    }
}

/// `apus devices enable DEVICE`, also with the key of the device's customer.
struct EnableDeviceCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "enable", abstract: "Enable a device that was disabled. It signs in again by itself.")
    /// It parses the options that both have.
    @ParentCommand var devices: DevicesCommand
    @Argument(help: "The device's id.") var device: String

    func run() async throws {
        let request = ClientDisableDeviceRequest.with { ($0.device, $0.disabled) = (device, false) }
        try await devices.options.show(request) { _ in [["\(device) is enabled."]] }
    }
}

/// `apus revoke`
struct RevokeCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "revoke", abstract: "Revoke a token, an identity's tokens, or those of a whole account.")
    @OptionGroup var options: OperatorOptions
    @Option(help: "Revoke the token with this id, its claim jti.")
    var tokenID: String?
    @Option(help: "Revoke the tokens of this identity: an access id, or a device's id.")
    var identity: String?
    @Flag(help: "Revoke all tokens of the account.")
    var all = false
    @Option(help: "The account of --identity and --all.")
    var account = LocalCluster.account.rawValue

    func validate() throws {
        guard (tokenID == nil ? 0 : 1) + (identity == nil ? 0 : 1) + (all ? 1 : 0) == 1 else {
            throw ValidationError("give one of --token-id, --identity and --all")
        }
    }

    func run() async throws {
        let request = ClientRevokeTokensRequest.with {
            if let tokenID {
                $0.tokenID = tokenID
            } else if let identity {
                $0.identity = identity
            } else {
                $0.all = all
            }
            if tokenID == nil { $0.account = account }
        }
        try await options.show(request) { _ in
            [["Revoked. Every node that runs acts on it within a second."]]
        }
    }
}

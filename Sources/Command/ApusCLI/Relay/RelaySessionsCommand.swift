import ApusContract
import ApusCore
import ApusLocal
import ApusTraversal
import ArgumentParser
import Foundation

/// `apus relay sessions`: lists the allocations.
struct RelaySessionsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "sessions", abstract: "Print the allocations and their traffic.")

    @OptionGroup var relays: RelayOperatorOptions

    @Option(help: "Print only the allocations of this user.")
    var user: String?

    @OptionGroup var output: OutputOptions

    private struct Report: Encodable {
        struct Node: Encodable {
            var name: String
            var relay: RelaySessions
        }
        var nodes: [Node]
    }

    func run() async throws {
        var nodes: [Report.Node] = []
        for relay in try await relays.relays() {
            let query = RelayOperator.query(user: user, id: nil)
            let found = try await relay.ask("GET", "/v1/admin/relay/sessions\(query)", as: RelaySessions.self)
            nodes.append(.init(name: relay.name, relay: found))
        }
        try output.show(Report(nodes: nodes), Self.table(nodes))
    }

    private static func table(_ nodes: [Report.Node]) -> [String] {
        let head = [
            "NODE", "ID", "USER", "CLIENT", "VIA", "RELAYED", "AGE", "ENDS IN", "PERMISSIONS", "CHANNELS", "BYTES UP",
            "DOWN",
        ]
        let rows = nodes.flatMap { node in
            node.relay.sessions.map { session in
                [
                    node.name, "\(session.id)", visible(session.user), session.client, session.transport,
                    session.relayed.joined(separator: " "), "\(Int(session.age_s))s", "\(Int(session.expires_in_s))s",
                    "\(session.permissions)", "\(session.channels)", "\(session.bytes_up)", "\(session.bytes_down)",
                ]
            }
        }
        let left = nodes.filter { $0.relay.count > $0.relay.sessions.count }.map {
            "\($0.name) has \($0.relay.count) in total."
        }
        return TextTable.lines([head] + rows) + left
    }

    /// A user name is a client's own text: control characters, which a terminal would obey, are replaced.
    private static func visible(_ name: String) -> String {
        String(
            String.UnicodeScalarView(name.unicodeScalars.map { $0.properties.generalCategory == .control ? "?" : $0 }))
    }
}

/// `apus relay end`: ends allocations.
struct RelayEndCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "end", abstract: "End an allocation, or all allocations of a user.",
        discussion: """
            A client can allocate again while its credentials are valid: remove a static user and reload first.
            """)

    @OptionGroup var relays: RelayOperatorOptions

    @Argument(help: "End the allocation with this number, as `apus relay sessions` prints it.")
    var id: UInt32?

    @Option(help: "End every allocation of this user.")
    var user: String?

    @OptionGroup var output: OutputOptions

    private struct Ended: Codable {
        var ended: Int
    }

    func validate() throws {
        guard (id == nil) != (user == nil) else { throw ValidationError("use an ID or --user") }
    }

    func run() async throws {
        let found = try await relays.relays()
        guard id == nil || found.count == 1 else {
            throw ValidationError("an ID belongs to one node: select the node with --server")
        }
        var count = 0
        for relay in found {
            let query = RelayOperator.query(user: user, id: id)
            count += try await relay.ask("POST", "/v1/admin/relay/end\(query)", as: Ended.self).ended
        }
        guard count > 0 else { throw ApusError(.unavailable, "there is no such allocation") }
        try output.show(Ended(ended: count), ["\(count) ended"])
    }
}

/// `apus relay drain`: drains a standalone relay.
struct RelayDrainCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "drain", abstract: "Refuse new allocations at a standalone relay, and wait for the others to end.",
        discussion: """
            The relay refuses new allocations with 508. Others end after relay.drain_lifetime at the latest. The \
            exit code is 0 if none is left; then stop the relay. For a cluster's node, use `apus cluster drain`.
            """)

    @Option(help: "Read the configuration of `apus relay serve`.")
    var config: String

    @Option(help: "Wait at most this number of seconds for the allocations, 0 to 86400.")
    var wait = 600

    @OptionGroup var output: OutputOptions

    private struct Report: Encodable {
        /// True: no allocation is left, and the relay refuses new ones.
        var drained: Bool
    }

    private struct Taken: Decodable {
        var state: String
    }

    func validate() throws {
        guard (0...86_400).contains(wait) else { throw ValidationError("--wait must be 0 to 86400") }
    }

    func run() async throws {
        let relay = try RelayOperator(configuration: config)
        _ = try await relay.ask("POST", "/v1/admin/drain", as: Taken.self)
        let deadline = ContinuousClock.now + .seconds(wait)
        while true {
            // Only the count: a list of thousands, several times a second, would take the control thread's time from
            // its clients.
            let left = try await relay.ask("GET", "/v1/status", as: NodeStatus.self).relay?.allocations
            guard let left else { throw ApusError(.unavailable, "the relay does not answer") }
            guard left > 0 else { break }
            guard ContinuousClock.now < deadline else {
                throw ApusError(.deadlineExceeded, "\(left) allocations are left after \(wait) s")
            }
            try await Task.sleep(for: .milliseconds(200))
        }
        try output.show(Report(drained: true), ["The relay has no allocations and refuses new ones."])
    }
}

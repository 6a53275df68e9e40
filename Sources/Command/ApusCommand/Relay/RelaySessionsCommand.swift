import ApusCore
import ApusLocal
import ArgumentParser
import Foundation
import NIOHTTP1

/// `apus relay sessions`: the allocations that live.
struct RelaySessionsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "sessions", abstract: "Print the allocations that live, with what they carry.")

    @OptionGroup var relays: RelayOperatorOptions

    @Option(help: "Those of one user alone.")
    var user: String?

    @Flag(help: "Print one JSON object.")
    var json = false

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
            let found = try await relay.ask(.GET, "/v1/admin/relay/sessions\(query)", as: RelaySessions.self)
            nodes.append(.init(name: relay.name, relay: found))
        }
        guard json else {
            for line in Self.table(nodes) { Console.say(line) }
            return
        }
        let encoder = JSONEncoder()
        encoder.outputFormatting = [.sortedKeys, .withoutEscapingSlashes]
        Console.say(String(decoding: try encoder.encode(Report(nodes: nodes)), as: UTF8.self))
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
            "\($0.name) has \($0.relay.count) in all."
        }
        return TextTable.lines([head] + rows) + left
    }

    /// A user's name is a client's own text: what a terminal would obey is not printed.
    private static func visible(_ name: String) -> String {
        String(
            String.UnicodeScalarView(name.unicodeScalars.map { $0.properties.generalCategory == .control ? "?" : $0 }))
    }
}

/// `apus relay end`: ends allocations.
struct RelayEndCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "end", abstract: "End an allocation, or all of a user.",
        discussion: """
            A client may allocate anew while its credentials are good: remove a static user and reload first.
            """)

    @OptionGroup var relays: RelayOperatorOptions

    @Argument(help: "The number of the allocation, as `apus relay sessions` prints it.")
    var id: UInt32?

    @Option(help: "Every allocation of this user.")
    var user: String?

    private struct Ended: Decodable {
        var ended: Int
    }

    func validate() throws {
        guard (id == nil) != (user == nil) else { throw ValidationError("give an ID or --user") }
    }

    func run() async throws {
        let found = try await relays.relays()
        guard id == nil || found.count == 1 else {
            throw ValidationError("an ID is of one node: name that with --server")
        }
        var count = 0
        for relay in found {
            let query = RelayOperator.query(user: user, id: id)
            count += try await relay.ask(.POST, "/v1/admin/relay/end\(query)", as: Ended.self).ended
        }
        guard count > 0 else { throw ApusError(.unavailable, "there is no such allocation") }
        Console.say("\(count) ended")
    }
}

/// `apus relay drain`: lets a relay that runs alone go.
struct RelayDrainCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "drain", abstract: "Refuse new allocations at a relay that runs alone, and wait for the others.",
        discussion: """
            New allocations are refused with 508; those that live end after relay.drain_lifetime at the latest. Exit \
            code 0 where none is left, so that the relay can be stopped. `apus cluster drain` is for a cluster's node.
            """)

    @Option(help: "The configuration of `apus relay serve`.")
    var config: String

    @Option(help: "Seconds to wait for the allocations that live, 0 to 86400.")
    var wait = 600

    private struct Taken: Decodable {
        var state: String
    }

    func validate() throws {
        guard (0...86_400).contains(wait) else { throw ValidationError("--wait must be 0 to 86400") }
    }

    func run() async throws {
        let relay = try RelayOperator(configuration: config)
        _ = try await relay.ask(.POST, "/v1/admin/drain", as: Taken.self)
        let deadline = ContinuousClock.now + .seconds(wait)
        while true {
            // Its count alone: a list of thousands, many times a second, would keep control from its clients.
            let left = try await relay.ask(.GET, "/v1/status", as: NodeStatus.self).relay?.allocations
            guard let left else { throw ApusError(.unavailable, "the relay does not answer") }
            guard left > 0 else { break }
            guard ContinuousClock.now < deadline else {
                throw ApusError(.deadlineExceeded, "\(left) allocations are left after \(wait) s")
            }
            try await Task.sleep(for: .milliseconds(200))
        }
        Console.say("The relay has no allocation any more and takes none.")
    }
}

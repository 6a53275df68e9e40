import ApusContract
import ApusCore
import ApusLocal
import ArgumentParser
import Foundation

/// `apus relay status`: shows the traffic of a cluster's relays or of a standalone one, by user.
struct RelayStatusCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "status", abstract: "Show the traffic of each node's relay, and that of its users.")

    @Option(name: .customLong("dir"), help: "Use a local cluster's state directory.")
    var directory: String?

    @Option(help: "Connect to the HTTP listener of a node or a standalone relay at HOST:PORT; repeatable.")
    var server: [String] = []

    @OptionGroup var output: OutputOptions

    private static let timeout = Duration.seconds(2)
    /// The maximum number of users in the table.
    private static let usersMax = 20

    private struct Report: Encodable {
        struct Node: Encodable {
            var name: String
            var state: String
            var relay: NodeStatus.Relay?
        }
        var nodes: [Node]
    }

    func validate() throws {
        guard directory == nil || server.isEmpty else { throw ValidationError("use --dir or --server, not both") }
    }

    func run() async throws {
        let nodes = try await gather()
        let report = Report(nodes: nodes.map { .init(name: $0.name, state: $0.state, relay: $0.relay) })
        try output.show(report, Self.table(nodes))
    }

    private func gather() async throws -> [NodeStatus] {
        guard !server.isEmpty else {
            return await NodeStanding.gather(try LocalCluster(directory: directory ?? StateDirectory.defaultPath))
                .map(\.status)
        }
        var found: [NodeStatus] = []
        for text in server {
            guard let address = HostPort(text) else { throw ValidationError("\(text) is not HOST:PORT") }
            let answer = try await NodeHTTP.send("GET", "/v1/status", to: address, timeout: Self.timeout)
            guard answer.status == 200 else {
                throw ApusError(.unavailable, "\(address) answers with \(answer.status)")
            }
            guard let status = try? JSONDecoder().decode(NodeStatus.self, from: Data(answer.body)) else {
                throw ApusError(.malformed, "\(address) did not answer with a node's status")
            }
            found.append(status)
        }
        return found
    }

    private static func table(_ nodes: [NodeStatus]) -> [String] {
        var rows = [
            [
                "NODE", "STATE", "ALLOCATIONS", "USERS", "MIRRORS", "STANDBY", "PACKETS UP", "DOWN", "BYTES UP", "DOWN",
                "DROPPED",
            ]
        ]
        var users: [String: (allocations: Int, traffic: NodeStatus.RelayTraffic)] = [:]
        for node in nodes {
            guard let relay = node.relay else {
                rows.append([node.name, node.state, "-"])
                continue
            }
            rows.append(
                [
                    node.name, relay.draining ? "draining" : node.state, "\(relay.allocations)", "\(relay.user_count)",
                    "\(relay.mirrors)", relay.standby ?? "-",
                ] + cells(relay.traffic))
            for user in relay.users {
                var sum =
                    users[user.user] ?? (
                        0, .init(packets_up: 0, bytes_up: 0, packets_down: 0, bytes_down: 0, dropped: 0)
                    )
                sum.allocations += user.allocations
                sum.traffic = sum.traffic.adding(user.traffic)
                users[user.user] = sum
            }
        }
        let sorted = users.sorted { left, right in
            let (more, less) = (left.value.traffic, right.value.traffic)
            return (more.bytes_up &+ more.bytes_down, right.key) > (less.bytes_up &+ less.bytes_down, left.key)
        }
        guard !sorted.isEmpty else { return TextTable.lines(rows) }
        let head = ["USER", "ALLOCATIONS", "PACKETS UP", "DOWN", "BYTES UP", "DOWN", "DROPPED"]
        let userRows = sorted.prefix(usersMax).map { [$0.key, "\($0.value.allocations)"] + cells($0.value.traffic) }
        return TextTable.lines(rows) + [""] + TextTable.lines([head] + userRows)
    }

    private static func cells(_ traffic: NodeStatus.RelayTraffic) -> [String] {
        [
            "\(traffic.packets_up)", "\(traffic.packets_down)", "\(traffic.bytes_up)", "\(traffic.bytes_down)",
            "\(traffic.dropped)",
        ]
    }
}

extension NodeStatus.RelayTraffic {
    fileprivate func adding(_ other: Self) -> Self {
        Self(
            packets_up: packets_up &+ other.packets_up, bytes_up: bytes_up &+ other.bytes_up,
            packets_down: packets_down &+ other.packets_down, bytes_down: bytes_down &+ other.bytes_down,
            dropped: dropped &+ other.dropped)
    }
}

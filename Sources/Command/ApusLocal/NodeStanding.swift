package import ApusContract
import ApusCore
import Foundation

/// One node in `apus cluster status`: its own status, and the state of its process.
package struct NodeStanding: Encodable, Sendable {
    /// The state of the node's process according to the system.
    package var process: NodeProcess.State
    /// The process id; nil if there is none.
    package var pid: Int32?
    /// The node's own status.
    package var status: NodeStatus

    /// True if the node answered. Otherwise `status` holds only its name, its addresses and a state.
    package var answered: Bool { status.incarnation > 0 }

    private enum Key: String, CodingKey {
        case process, pid
    }

    /// Encodes the node's own status with `process` and `pid` added.
    package func encode(to encoder: any Encoder) throws {
        try status.encode(to: encoder)
        var container = encoder.container(keyedBy: Key.self)
        try container.encode(process, forKey: .process)
        try container.encodeIfPresent(pid, forKey: .pid)
    }

    /// Asks one node. A paused or stopped node is not asked.
    package static func gather(
        _ node: StateDirectory.Node, in directory: StateDirectory, timeout: Duration = .seconds(2)
    ) async -> NodeStanding {
        let process = NodeProcess(node.name, in: directory)
        let state = process.state
        var report = NodeStanding(
            process: state, pid: process.pid,
            status: unreachable(node, state: state == .running ? "unreachable" : state.rawValue))
        guard state == .running, let address = HostPort(node.http),
            let answer = try? await NodeHTTP.send("GET", "/v1/status", to: address, timeout: timeout),
            answer.status == 200,
            let status = try? JSONDecoder().decode(NodeStatus.self, from: Data(answer.body))
        else { return report }
        report.status = status
        return report
    }

    /// Asks all nodes concurrently. The result has the mark's order.
    package static func gather(_ cluster: LocalCluster) async -> [NodeStanding] {
        await withTaskGroup(of: (Int, NodeStanding).self) { group in
            for (index, node) in cluster.mark.nodes.enumerated() {
                group.addTask { (index, await gather(node, in: cluster.directory)) }
            }
            var reports: [(Int, NodeStanding)] = []
            for await report in group { reports.append(report) }
            return reports.sorted { $0.0 < $1.0 }.map(\.1)
        }
    }

    private static func unreachable(_ node: StateDirectory.Node, state: String) -> NodeStatus {
        NodeStatus(
            name: node.name, incarnation: 0, state: state,
            addresses: NodeStatus.Addresses(
                transport: node.transport, clients: node.clients, http: node.http, relay: node.relay),
            shards: NodeStatus.Shards(owned: 0, standby: 0), sessions: NodeStatus.Sessions(devices: 0, apps: 0),
            viewers: 0, channels: [], revision: 0, members: [], uptime_s: 0)
    }
}

/// Formats rows as text, with columns padded to the widest cell.
package enum TextTable {
    /// One line per row. Cells are escaped, because they may contain foreign text, such as relay users' names.
    package static func lines(_ rows: [[String]]) -> [String] {
        let rows = rows.map { $0.map(UntrustedText.escaped) }
        let columnCount = rows.map(\.count).max() ?? 0
        let widths = (0..<columnCount).map { column in
            rows.map { $0.indices.contains(column) ? $0[column].count : 0 }.max() ?? 0
        }
        return rows.map { row in
            var line = ""
            for (column, cell) in row.enumerated() {
                line +=
                    column == row.count - 1
                    ? cell : cell.padding(toLength: widths[column] + 2, withPad: " ", startingAt: 0)
            }
            return line
        }
    }
}

extension NodeStanding {
    /// The table of the nodes, and that of the channels if there are any.
    package static func table(_ reports: [NodeStanding]) -> [String] {
        var nodes = [
            [
                "NODE", "STATE", "SHARDS", "STANDBY", "DEVICES", "APPS", "VIEWERS", "NODE LINKS", "CLIENTS", "RELAY",
                "HTTP", "BUILD", "WIRE",
            ]
        ]
        var channels: [[String]] = []
        for report in reports {
            let status = report.status
            nodes.append([
                status.incarnation > 0 ? "\(status.name)#\(status.incarnation)" : status.name,
                status.cordoned == true ? "\(status.state), cordoned" : status.state,
                "\(status.shards.owned)", "\(status.shards.standby)", "\(status.sessions.devices)",
                "\(status.sessions.apps)", "\(status.viewers)", status.addresses.transport, status.addresses.clients,
                status.addresses.relay ?? "-", status.addresses.http, status.program?.build ?? "-",
                status.program.map { "\($0.wire)" } ?? "-",
            ])
            for channel in status.channels {
                channels.append([
                    channel.channel, status.name, channel.role, channel.primary ?? "-", channel.standby ?? "-",
                    "\(channel.term)", channel.seq.map { "\($0)" } ?? "-", channel.protected ? "yes" : "-",
                    "\(channel.viewers)",
                ])
            }
        }
        var lines = TextTable.lines(nodes)
        if !channels.isEmpty {
            channels.sort { ($0[0], $0[1]) < ($1[0], $1[1]) }
            let head = ["CHANNEL", "AT", "ROLE", "PRIMARY", "STANDBY", "TERM", "FRAME", "PROTECTED", "VIEWERS"]
            lines += [""] + TextTable.lines([head] + channels)
        }
        let conditions = reports.flatMap { report in
            (report.status.conditions ?? []).map { [report.status.name, $0.type, $0.message] }
        }
        if !conditions.isEmpty { lines += [""] + TextTable.lines([["NODE", "CONDITION", "MESSAGE"]] + conditions) }
        return lines
    }
}

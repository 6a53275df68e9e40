import ApusClient
import ApusContract
import ApusCore
import ApusLocal
import ApusSessions
import Foundation
import Logging
import NIOCore
import NIOPosix
import SwiftProtobuf
import Synchronization

/// A local cluster with devices whose owners are not the node that clients ask.
///
/// Isolation: used by the bench's one task; clients live on their own event loops.
final class APIStage {
    /// A client of an account of its own, with the device that it asks about.
    struct Client: Sendable {
        let device: DeviceID
        let account: AccountID
        let token: String
    }

    let local: LocalCluster
    let group = MultiThreadedEventLoopGroup(numberOfThreads: 2)
    private let executable: String
    private(set) var clients: [Client] = []
    private var devices: [ClientSession] = []
    private let log: Logger

    init(executable: String, directory: String, basePort: Int, clients count: Int) async throws {
        self.executable = executable
        var log = Logger(label: "bench") { StreamLogHandler.standardError(label: $0) }
        log.logLevel = .error
        self.log = log
        try FailoverStage.run(
            executable, ["cluster", "up", "--nodes", "3", "--dir", directory, "--base-port", "\(basePort)"])
        local = try LocalCluster(directory: directory)
        do {
            try await enter(count)
        } catch {
            down()
            throw error
        }
    }

    func down() {
        for device in devices { device.close() }
        try? FailoverStage.run(executable, ["cluster", "down", "--dir", local.directory.path])
        try? FileManager.default.removeItem(atPath: local.directory.path)
    }

    /// The HTTP listener of a node, by its index.
    func http(_ node: Int) throws -> HostPort {
        guard let address = HostPort(local.mark.nodes[node].http) else { throw ApusError(.stateForeign) }
        return address
    }

    /// Devices of shards that the first node does not own, each signed in, and an app of the same account for each.
    private func enter(_ count: Int) async throws {
        let owned = try await ownedShards(of: local.mark.nodes[0].name)
        var number = 0
        while clients.count < count {
            let device = DeviceID(unchecked: "bench-\(number)")
            number += 1
            guard !owned.contains(ShardID(of: device)) else { continue }
            let account = AccountID(unchecked: "bench-\(clients.count)")
            let token = try await local.mint(
                role: .app, access: AccessID(unchecked: "app-\(clients.count)"), account: account,
                lifetime: .seconds(12 * 3600))
            clients.append(Client(device: device, account: account, token: token))
            devices.append(
                try await session(
                    try await local.mint(
                        role: .device, access: AccessID(unchecked: device.rawValue), account: account, device: device,
                        lifetime: .seconds(12 * 3600)), .device, at: local.mark.nodes[1].name))
        }
    }

    private func ownedShards(of node: String) async throws -> Set<ShardID> {
        let token = try await local.mint(role: .admin, access: AccessID(unchecked: "bench"))
        let answer = try await NodeHTTP.send(
            "GET", "/v1/shards?owner=\(node)&pageSize=4096", to: try http(0), token: token, timeout: .seconds(10))
        let page = try ClientListShardsResponse(jsonUTF8Bytes: answer.body)
        return Set(page.shards.map { ShardID(UInt16($0.shard)) })
    }

    /// A session that is connected.
    func session(_ token: String, _ role: ClientRole, at node: String) async throws -> ClientSession {
        let (states, feed) = AsyncStream.makeStream(of: LinkState.self)
        let endpoint = try local.endpoint(of: node)
        let session = try ClientSession(
            configuration: ClientConfiguration(
                endpoints: [endpoint] + local.endpoints.filter { $0 != endpoint }, authorityFile: local.authorityFile,
                token: token,
                role: role),
            eventLoop: group.next(), log: log, onLinkState: { state, _ in feed.yield(state) })
        session.start()
        for await state in states where state == .online { break }
        return session
    }
}

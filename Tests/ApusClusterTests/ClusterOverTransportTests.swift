import ApusCluster
import ApusCore
import ApusStorage
import ApusTestKit
import ApusTransport
import ApusWire
import Foundation
import Logging
import NIOCore
import NIOPosix
import Testing

private let cluster = ClusterID(unchecked: "test")

/// Gives the cluster's requests to the service, which is made first.
private struct Router: ControlHandler {
    let service: ClusterService
    func received(_ request: InboundRequest) { service.received(request) }
}

/// A node with a real transport and the local store, as a process has them.
private struct WholeNode {
    let service: ClusterService
    let transport: Transport
    let running: Task<Void, any Error>

    init(_ name: String, path: String, authority: ClusterPKI.Issued, group: any EventLoopGroup) async throws {
        let name = NodeName(unchecked: name)
        let store = try await LocalOwnershipStore(path: path, cluster: cluster)
        let configuration = ClusterConfiguration(
            cluster: cluster, node: name, key: [UInt8](repeating: 5, count: 32))
        let logger = Logger(label: "test") { _ in SwiftLogNoOpLogHandler() }
        let service = try await ClusterService.open(
            configuration, store: store, hooks: ClusterHooks(), logger: logger)
        let issued = try ClusterPKI.issueNode(name, authority: authority)
        let tls = TransportTLS(
            authority: .bytes(Array(authority.certificatePEM.utf8)),
            certificateChain: .bytes(Array(issued.certificatePEM.utf8)),
            privateKey: .bytes(Array(issued.privateKeyPEM.utf8)))
        transport = Transport(
            configuration: TransportConfiguration(bind: HostPort(host: "127.0.0.1", port: 0), tls: tls),
            identity: service.identity, cluster: cluster, group: group, control: Router(service: service),
            media: IdleMediaLanes(), onEvent: { service.received($0) }, logger: logger)
        let address = try await transport.start()
        let closed = HostPort(host: "127.0.0.1", port: 1)
        try await service.join(
            over: transport, addresses: NodeAddresses(transport: address, clients: closed, http: closed))
        self.service = service
        running = Task { try await service.run() }
    }

    /// Everything of the node ends at once, without a word to the others.
    func crash() async {
        running.cancel()
        _ = await running.result
        await transport.stop()
    }
}

@Suite("The cluster over real links (D3, D4, D5)", .serialized)
struct ClusterOverTransportTests {
    @Test(
        "Three nodes share the shards; the closed endpoint of one is its death, and its next life gets its share back")
    func joinAndDeath() async throws {
        let directory = NSTemporaryDirectory() + "apus-cluster-\(UUID().uuidString)"
        try FileManager.default.createDirectory(atPath: directory, withIntermediateDirectories: true)
        defer { try? FileManager.default.removeItem(atPath: directory) }
        let authority = try ClusterPKI.makeAuthority(cluster: cluster)
        let group = MultiThreadedEventLoopGroup(numberOfThreads: 2)
        func start(_ name: String) async throws -> WholeNode {
            try await WholeNode(name, path: directory + "/ownership", authority: authority, group: group)
        }
        let a = try await start("a")
        let b = try await start("b")
        var c = try await start("c")
        try await c.service.waitUntilStable(timeout: .seconds(60))
        let before = c.service.view.map
        #expect(before.ownedCount("c") > ShardID.count / 4)

        // The states of a hand-over, as a node of wire version 1 would send them. None does, and none are taken.
        let states: [UInt8] = [
            0x08, 0x11, 0x10, 0x04, 0x1a, 0x13, 0x08, 0x01, 0x12, 0x0a, 0x66, 0x72, 0x6f, 0x6e, 0x74, 0x2d, 0x64, 0x6f,
            0x6f, 0x72, 0x1a, 0x03, 0x01, 0x02, 0x03, 0x20, 0x01, 0x28, 0x01,
        ]
        let refusal = await code {
            _ = try await a.transport.ask(
                b.service.identity.name, method: 2, payload: ByteBuffer(bytes: states), timeout: .seconds(5))
        }
        #expect(refusal == .methodUnknown)

        // The transport alone ends: its links break and its endpoint refuses, while its heartbeats go on.
        let victim = c.service.identity
        let began = MonotonicTime.now()
        await c.transport.stop()
        while a.service.view.map.isAlive(victim), MonotonicTime.now() - began < .seconds(5) {
            try await Task.sleep(for: .milliseconds(1))
        }
        #expect(!a.service.view.map.isAlive(victim))
        #expect(MonotonicTime.now() - began < .milliseconds(500))
        #expect(a.service.view.map.shards.allSatisfy { $0.standby != .none })
        await c.crash()

        c = try await start("c")
        #expect(c.service.identity == node("c", 2))
        try await c.service.waitUntilStable(timeout: .seconds(60))
        #expect(c.service.view.map.shards.map(\.owner) == before.shards.map(\.owner))
        for node in [a, b, c] { await node.crash() }
        try await group.shutdownGracefully()
    }
}

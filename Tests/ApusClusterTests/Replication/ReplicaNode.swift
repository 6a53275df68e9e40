import ApusCluster
import ApusCore
import ApusTransport
import ApusWire
import Logging
import NIOCore
import NIOPosix
import Synchronization
import Testing

/// A transport and the replication over it: what a node has of this layer.
final class ReplicaNode: Sendable {
    /// The service is made after the transport's handler.
    private struct Router: ControlHandler {
        let service: ReplicaService
        func received(_ request: InboundRequest) { service.received(request) }
    }

    let id: NodeID
    let view: ClusterView
    let service: ReplicaService
    let transport: Transport

    init(
        _ id: NodeID, authority: ClusterPKI.Issued, map: ClusterMap,
        configuration: ReplicaConfiguration = ReplicaConfiguration()
    ) throws {
        self.id = id
        let issued = try ClusterPKI.issueNode(id.name, authority: authority)
        let tls = TransportTLS(
            authority: .bytes(Array(authority.certificatePEM.utf8)),
            certificateChain: .bytes(Array(issued.certificatePEM.utf8)),
            privateKey: .bytes(Array(issued.privateKeyPEM.utf8)))
        let logger = Logger(label: "test") { _ in SwiftLogNoOpLogHandler() }
        let group = MultiThreadedEventLoopGroup.singleton
        view = ClusterView(local: id, map: map)
        let service = ReplicaService(configuration: configuration, view: view, loop: group.next(), logger: logger)
        self.service = service
        transport = Transport(
            configuration: TransportConfiguration(bind: HostPort(host: "127.0.0.1", port: 0), tls: tls), identity: id,
            cluster: ClusterID(unchecked: "test"), group: group, control: Router(service: service),
            media: IdleMediaLanes(),
            onEvent: { service.received($0) }, logger: logger)
        service.connect(transport)
    }

    func stop() async {
        service.stop()
        await transport.stop()
    }

    func open(_ shard: ShardID, epoch: Epoch) throws -> ReplicaService.Promotion {
        try #require(service.promote(shard, epoch: epoch))
    }

    func change(_ shard: ShardID, epoch: Epoch, _ name: String, _ text: String?) throws -> ReplicaPosition {
        try service.change(shard, epoch: epoch, key(name), text.map(state))
    }

    /// An entity's state at the shard's owner; nil also where the shard is not open under the epoch.
    func text(_ name: String, epoch: Epoch) -> String? {
        guard let found = try? service.load(key(name), of: shard, epoch: epoch) else { return nil }
        return String(buffer: found.state)
    }

    /// Every state of a shard, read in pages.
    func states(of shard: ShardID, epoch: Epoch) throws -> [String: String] {
        var states: [String: String] = [:]
        var cursor: Int? = 0
        while let from = cursor {
            let page = try service.page(of: shard, epoch: epoch, from: from, countMax: 7)
            for record in page.records {
                let text = String(buffer: record.state ?? ByteBuffer())
                #expect(states.updateValue(text, forKey: record.key.key) == nil, "\(record.key.key) is in two pages")
            }
            cursor = page.next
        }
        return states
    }
}

/// Runs a test with an authority, and ends the nodes that it started.
func withReplicas(_ body: (ReplicaCluster) async throws -> Void) async throws {
    let cluster = ReplicaCluster(authority: try ClusterPKI.makeAuthority(cluster: ClusterID(unchecked: "test")))
    let result: Result<Void, any Error>
    do {
        result = .success(try await body(cluster))
    } catch {
        result = .failure(error)
    }
    for node in cluster.nodes.withLock({ $0 }) { await node.stop() }
    try result.get()
}

/// Nodes with links between all of them.
final class ReplicaCluster: Sendable {
    let authority: ClusterPKI.Issued
    let nodes = Mutex<[ReplicaNode]>([])

    init(authority: ClusterPKI.Issued) { self.authority = authority }

    /// Starts a node, and links it with those that run, both ways.
    func start(
        _ id: NodeID, map: ClusterMap, configuration: ReplicaConfiguration = ReplicaConfiguration()
    ) async throws -> ReplicaNode {
        let node = try ReplicaNode(id, authority: authority, map: map, configuration: configuration)
        addresses.withLock { $0[id.name] = nil }
        let address = try await node.transport.start()
        nodes.withLock { $0.append(node) }
        addresses.withLock { $0[id.name] = Peer(id: id, address: address) }
        link()
        return node
    }

    func stop(_ node: ReplicaNode) async {
        nodes.withLock { $0.removeAll { $0 === node } }
        await node.stop()
    }

    private let addresses = Mutex<[NodeName: Peer]>([:])

    private func link() {
        let peers = addresses.withLock { Array($0.values) }
        for node in nodes.withLock({ $0 }) {
            node.transport.setPeers(peers.filter { $0.id.name != node.id.name })
        }
    }
}

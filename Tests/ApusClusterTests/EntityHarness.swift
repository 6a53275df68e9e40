import ApusCluster
import ApusCore
import ApusTestKit
import ApusTracing
import ApusTransport
import ApusWire
import Logging
import NIOCore
import NIOPosix
import SwiftProtobuf
import Synchronization

/// A transport, a view of the map and a registry of entities: what a node has of this layer.
final class EntityNode: Sendable {
    let id: NodeID
    let view: ClusterView
    let transport: Transport
    let registry: EntityRegistry
    let moves = Mutex<[Epoch]>([])
    private let running = Mutex<Task<Void, Never>?>(nil)

    init(
        _ name: String, authority: ClusterPKI.Issued, configuration: EntityRegistry.Configuration = .init(),
        tracer: SpanTracer? = nil, register: (EntityRegistry) -> Void
    ) throws {
        id = node(name)
        let issued = try ClusterPKI.issueNode(id.name, authority: authority)
        let tls = TransportTLS(
            authority: .bytes(Array(authority.certificatePEM.utf8)),
            certificateChain: .bytes(Array(issued.certificatePEM.utf8)),
            privateKey: .bytes(Array(issued.privateKeyPEM.utf8)))
        let dispatcher = NodeDispatcher()
        let logger = Logger(label: "test", factory: { _ in SwiftLogNoOpLogHandler() })
        transport = Transport(
            configuration: TransportConfiguration(bind: HostPort(host: "127.0.0.1", port: 0), tls: tls), identity: id,
            cluster: ClusterID(unchecked: "test"), group: MultiThreadedEventLoopGroup.singleton, control: dispatcher,
            media: IdleMediaLanes(), onEvent: { _ in }, logger: logger, tracer: tracer)
        view = ClusterView(local: id, map: ClusterMap(cluster: ClusterID(unchecked: "test")))
        let moves = Mover()
        registry = EntityRegistry(
            configuration: configuration, view: view, transport: transport, logger: logger,
            onMoved: { _, epoch in moves.node?.moves.withLock { $0.append(epoch) } })
        register(registry)
        dispatcher.connect(registry)
        moves.node = self
        let registry = registry
        running.withLock { $0 = Task { await registry.run() } }
    }

    func stop() async {
        running.withLock { $0 }?.cancel()
        await transport.stop()
    }

    private final class Mover: @unchecked Sendable {  // SAFETY: the node's initialiser sets it, before anyone has it.
        weak var node: EntityNode?
    }
}

/// Nodes a and b, linked both ways, with maps that a test makes.
struct EntityPair {
    let a: EntityNode
    let b: EntityNode

    static func with(
        configuration: EntityRegistry.Configuration = .init(), tracer: SpanTracer? = nil,
        register: (EntityRegistry) -> Void = { ProbeEntity.register(in: $0) },
        _ body: (EntityPair) async throws -> Void
    ) async throws {
        let authority = try ClusterPKI.makeAuthority(cluster: ClusterID(unchecked: "test"))
        func makeNode(_ name: String) throws -> EntityNode {
            try EntityNode(
                name, authority: authority, configuration: configuration, tracer: tracer, register: register)
        }
        let (a, b) = (try makeNode("a"), try makeNode("b"))
        let addressOfA = try await a.transport.start()
        let addressOfB = try await b.transport.start()
        a.transport.setPeers([Peer(id: b.id, address: addressOfB)])
        b.transport.setPeers([Peer(id: a.id, address: addressOfA)])
        let pair = EntityPair(a: a, b: b)
        do {
            for (from, to) in [(a, b), (b, a)] {
                try await eventually("the nodes are linked") { from.transport.isLinked(to: to.id.name) }
            }
            try await body(pair)
        } catch {
            await a.stop()
            await b.stop()
            throw error
        }
        await a.stop()
        await b.stop()
    }

    /// A map in which one node owns every shard.
    func map(revision: UInt64, owner: EntityNode, epoch: Epoch) -> ClusterMap {
        var map = ClusterMap(cluster: ClusterID(unchecked: "test"))
        map.revision = revision
        map.members = [a, b].map { Member(id: $0.id, state: .up, addresses: addresses($0.id.name.rawValue)) }
        let slot = MemberSlot(rawValue: owner.id == a.id ? 0 : 1)
        map.shards = Array(repeating: ShardAssignment(owner: slot, epoch: epoch), count: ShardID.count)
        return map
    }

    func adopt(_ map: ClusterMap) {
        a.view.update(map)
        b.view.update(map)
    }

    static let probe = EntityAddress(kind: .probe, key: "probe-1")
}

/// An entity that can be made to wait.
actor SlowEntity {
    struct Facts: Sendable {
        var waiting = 0
        var cancelled = 0
        var deactivated = 0
        var made: [EntityContext] = []
    }

    var number: UInt64 = 0

    func set(_ number: UInt64) { self.number = number }

    /// Registers: echo waits until cancelled where its number is 1, and otherwise answers with the
    /// number that was counted last.
    static func register(
        in registry: EntityRegistry, facts: Shared, mailboxCountMax: Int = 4096, passivateAfter: Duration? = nil
    ) {
        var options = EntityOptions<SlowEntity>(make: { context in
            facts.value.withLock { $0.made.append(context) }
            return SlowEntity()
        })
        options.mailboxCountMax = mailboxCountMax
        options.passivateAfter = passivateAfter
        options.deactivated = { _ in facts.value.withLock { $0.deactivated += 1 } }
        registry.register(.probe, options: options) { handlers in
            handlers.on(ProbeEcho.self) { entity, message async throws(ApusError) in
                if message.number == 1 {
                    facts.value.withLock { $0.waiting += 1 }
                    try? await Task.sleep(for: .seconds(60))
                    facts.value.withLock { $0.cancelled += 1 }
                    throw ApusError(.cancelled)
                }
                var reply = ProbeEcho()
                reply.number = await entity.number
                return reply
            }
            handlers.on(ProbeCount.self) { entity, message async throws(ApusError) in
                await entity.set(message.number)
                return ProbeReport()
            }
        }
    }

    final class Shared: Sendable {
        let value = Mutex(Facts())
        func read<Value>(_ path: KeyPath<Facts, Value>) -> Value {
            let facts = value.withLock { $0 }
            return facts[keyPath: path]
        }
    }
}

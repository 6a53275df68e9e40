import ApusChannels
import ApusCluster
import ApusCore
import ApusGateway
import ApusHTTP
import ApusSessions
import ApusStorage
import ApusTLS
import ApusTransport
import ApusWire
import Foundation
import Logging
import NIOCore
import NIOPosix
import ServiceLifecycle

/// A node's parts, made in the order that they need each other.
///
/// Isolation: immutable; the parts guard themselves.
final class NodeParts: Sendable {
    let configuration: NodeConfiguration
    let cluster: ClusterService
    let transport: Transport
    let replicas: ReplicaService
    let entities: EntityRegistry
    /// Where services register their kinds of entities.
    let runtime: EntityRuntime
    let channels: ChannelService
    let sessions: SessionService
    let gateway: Gateway
    let http: HTTPDoor
    /// What keeps this node from its full service; its parts raise and clear it.
    let conditions: NodeConditions
    /// For messages that foreign traffic can cause.
    private let limited: LogLimiter
    /// Nil where the node relays nothing.
    let relay: RelayService?
    private let relayMesh: RelayMesh?
    private let group: MultiThreadedEventLoopGroup
    /// The operators' door has a loop of its own: a scrape never delays a frame.
    private let httpGroup: MultiThreadedEventLoopGroup
    /// What all services keep.
    private let records: any RecordStore
    private let recordLockWatch: RecordLockWatch
    /// What this node keeps of the ownership store in its own directory.
    private let memory: OwnershipMemory
    private let store: StoreID
    private let log: Logger
    /// Services beside the node's own.
    private let carried: [any NodeService]

    init(
        _ configuration: NodeConfiguration, carrying carried: [any NodeService], metrics: PrometheusMetrics,
        log: Logger, fenced: @escaping @Sendable () -> Void
    ) async throws(ApusError) {
        (self.configuration, self.carried, self.log) = (configuration, carried, log)
        conditions = NodeConditions(log: log)
        let key = try Self.clusterKey(configuration.clusterKeyFile)
        let verifier = try TokenVerifier(
            publicKeyPEM: try Self.text(configuration.tokenPublicKeyFile), cluster: configuration.cluster)
        let (ownership, held) = try await Self.ownership(configuration)
        memory = Self.memory(configuration, log: log)
        let late = LateHooks()
        cluster = try await ClusterService.open(
            configuration.clusterService(key: key), store: ownership,
            hooks: Self.hooks(late, conditions, fenced: fenced), logger: log)
        records = try await NodeRecords.open(configuration, carrying: carried, for: cluster.identity)
        let revocations = RevocationWatch(records: records, log: log)
        store = ownership.identity
        try Self.remember(cluster.view, held: held, in: memory, store: store)

        let threadCount = configuration.threadCount == 0 ? System.coreCount : configuration.threadCount
        group = MultiThreadedEventLoopGroup(numberOfThreads: threadCount)
        httpGroup = MultiThreadedEventLoopGroup(numberOfThreads: 1)
        var nodeLog = log
        nodeLog[metadataKey: LogKey.node] = "\(cluster.identity)"
        limited = LogLimiter(nodeLog)
        recordLockWatch = RecordLockWatch(records: records, view: cluster.view, log: nodeLog)

        channels = try ChannelService(
            configuration: configuration.channels, view: cluster.view, group: group, log: nodeLog)
        let dispatcher = NodeDispatcher()
        let clusterService = cluster
        replicas = Self.replicas(configuration, of: cluster, loop: group.next(), log: nodeLog)
        transport = Transport(
            configuration: configuration.transport, identity: cluster.identity, cluster: configuration.cluster,
            group: group, control: ControlRouter(cluster: cluster, replicas: replicas, dispatcher: dispatcher),
            media: channels, onEvent: Self.events(to: cluster, replicas), logger: nodeLog, limited: limited)
        replicas.connect(transport)
        entities = EntityRegistry(
            view: cluster.view, transport: transport, logger: nodeLog,
            onMoved: { shard, epoch in clusterService.moved(shard, epoch) })
        runtime = EntityRuntime(registry: entities, replicas: replicas, records: records, logger: nodeLog)
        for service in carried { service.register(with: runtime) }
        dispatcher.connect(entities)
        relay = try RelayService.make(
            configuration, clusterKey: key, node: cluster.identity, conditions: conditions, log: nodeLog)
        relayMesh = relay.map { [cluster, transport] in
            RelayMesh(
                relay: $0, advertised: configuration.advertisedRelay, view: cluster.view, transport: transport,
                dispatcher: dispatcher, log: nodeLog)
        }
        sessions = SessionService(
            configuration: configuration.sessions, view: cluster.view, entities: entities, transport: transport,
            verifier: verifier, sealer: TicketSealer(clusterKey: key), revocations: revocations,
            relayIssuer: relayMesh, log: nodeLog)
        // Before the first client comes: a node that starts knows what is revoked.
        try await revocations.load(wallSeconds: cluster.view.clock.wallSeconds())
        sessions.register(with: dispatcher, records: records)
        gateway = Gateway(
            configuration: configuration.gateway, sessions: sessions, channels: channels, view: cluster.view,
            group: group, ticketKeys: Self.ticketKeys(configuration.gateway, key), log: nodeLog, limited: limited)
        let sources = NodeReport(
            configuration: configuration, relayAddress: configuration.relayAddress(), relay: relay,
            relayMesh: relayMesh, cluster: cluster, drain: NodeDrain(cluster, gateway, log: nodeLog),
            channels: channels, gateway: gateway, sessions: sessions, verifier: verifier, conditions: conditions)
        http = HTTPDoor(
            configuration: configuration.httpDoor, sources: sources.sources(metrics: metrics),
            group: httpGroup, logger: nodeLog, limited: limited)
        late.set(channels: channels, runtime: runtime)
    }

    private static func hooks(
        _ late: LateHooks, _ conditions: NodeConditions, fenced: @escaping @Sendable () -> Void
    ) -> ClusterHooks {
        var hooks = late.hooks
        (hooks.fenced, hooks.condition) = (fenced, conditions.set)
        hooks.storeChanged = { conditions.show($0) }
        return hooks
    }

    private static func replicas(
        _ configuration: NodeConfiguration, of cluster: ClusterService, loop: any EventLoop, log: Logger
    ) -> ReplicaService {
        ReplicaService(
            configuration: configuration.replication, view: cluster.view, loop: loop, logger: log,
            onMoved: { shard, epoch in cluster.moved(shard, epoch) })
    }

    private static func events(
        to cluster: ClusterService, _ replicas: ReplicaService
    ) -> @Sendable (TransportEvent) -> Void {
        { event in
            cluster.received(event)
            replicas.received(event)
        }
    }

    /// Started in this order, stopped in the reverse: the shards go before the clients, and these before
    /// the sessions.
    var services: [any Service] {
        let relays: [any Service] = (relayMesh.map { [$0] } ?? []) + (relay.map { [$0] } ?? [])
        let watch = DescriptorWatch(conditions: conditions, limited: limited)
        let own: [any Service] = [EntityService(entities: entities, runtime: runtime), sessions]
        let context = NodeContext(entities: entities, records: records, configuration: configuration, log: log)
        let others = carried.flatMap { $0.work(of: context) }
        return [http, watch, recordLockWatch] + own + relays + others + [gateway, cluster]
    }

    /// Opens the doors and makes the node a member.
    func open() async throws(ApusError) {
        _ = try await transport.start()
        _ = try await gateway.start()
        try relay?.start()
        try await cluster.join(
            over: transport,
            addresses: NodeAddresses(
                transport: configuration.advertisedTransport, clients: configuration.advertisedClients,
                http: configuration.advertisedHTTP), bind: configuration.transport.bind)
    }

    func close() async {
        gateway.stop()
        relay?.stop()
        replicas.stop()
        await transport.stop()
        await memory.flush(store: store)
        await records.close()
        for group in [group, httpGroup] {
            do {
                try await group.shutdownGracefully()
            } catch {
                log.warning("The event loops did not stop cleanly.", metadata: Logger.facts(of: error))
            }
        }
    }

    /// Nil where TLS sessions are not to be resumed.
    private static func ticketKeys(_ configuration: GatewayConfiguration, _ clusterKey: [UInt8]) -> TLSTicketKeys? {
        guard configuration.tlsTicketLifetime > .zero else { return nil }
        return TLSTicketKeys(clusterKey: clusterKey, lifetime: configuration.tlsTicketLifetime)
    }

    private static func text(_ path: String) throws(ApusError) -> String {
        do {
            return try String(contentsOfFile: path, encoding: .utf8)
        } catch {
            throw ApusError(.configurationInvalid, "\(path) cannot be read: \(error.localizedDescription)")
        }
    }

    /// The key that all nodes of a cluster share. Throws 10022 where the file does not hold 32 bytes.
    static func clusterKey(_ path: String) throws(ApusError) -> [UInt8] {
        let bytes = [UInt8](FileManager.default.contents(atPath: path) ?? Data())
        guard bytes.count == 32 else {
            throw ApusError(
                .configurationInvalid, "the cluster key \(path) must hold 32 bytes; `apus admin pki` makes one")
        }
        return bytes
    }
}

/// The work of the registry and of the runtime as a service.
private struct EntityService: Service {
    let entities: EntityRegistry
    let runtime: EntityRuntime

    func run() async throws {
        await cancelWhenGracefulShutdown {
            await withDiscardingTaskGroup { group in
                group.addTask { await entities.run() }
                group.addTask { await runtime.run() }
            }
        }
    }
}

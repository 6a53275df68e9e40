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
    let entities: EntityRegistry
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
    /// What this node keeps of the ownership store in its own directory.
    private let memory: OwnershipMemory
    private let store: StoreID
    private let log: Logger

    init(
        _ configuration: NodeConfiguration, metrics: PrometheusMetrics, log: Logger,
        fenced: @escaping @Sendable () -> Void
    ) async throws(ApusError) {
        self.configuration = configuration
        self.log = log
        conditions = NodeConditions(log: log)
        let key = try Self.clusterKey(configuration.clusterKeyFile)
        let verifier = try TokenVerifier(
            publicKeyPEM: try Self.text(configuration.tokenPublicKeyFile), cluster: configuration.cluster)
        let (ownership, held) = try await Self.ownership(configuration)
        memory = Self.memory(configuration, log: log)
        let records = try await SQLiteRecordStore(path: configuration.recordsFile, cluster: configuration.cluster)
        let revocations = RevocationWatch(records: records, log: log)
        let late = LateHooks()
        var hooks = late.hooks
        (hooks.fenced, hooks.condition) = (fenced, conditions.set)
        hooks.storeChanged = { [conditions] in conditions.show($0) }
        cluster = try await ClusterService.open(
            configuration.clusterService(key: key), store: ownership, hooks: hooks, logger: log)
        store = ownership.identity
        try Self.remember(cluster.view, held: held, in: memory, store: store)

        let threadCount = configuration.threadCount == 0 ? System.coreCount : configuration.threadCount
        group = MultiThreadedEventLoopGroup(numberOfThreads: threadCount)
        httpGroup = MultiThreadedEventLoopGroup(numberOfThreads: 1)
        var nodeLog = log
        nodeLog[metadataKey: LogKey.node] = "\(cluster.identity)"
        limited = LogLimiter(nodeLog)

        channels = try ChannelService(
            configuration: configuration.channels, view: cluster.view, group: group, log: nodeLog)
        let dispatcher = NodeDispatcher()
        let clusterService = cluster
        transport = Transport(
            configuration: configuration.transport, identity: cluster.identity, cluster: configuration.cluster,
            group: group, control: ControlRouter(cluster: cluster, dispatcher: dispatcher), media: channels,
            onEvent: { event in clusterService.received(event) }, logger: nodeLog, limited: limited)
        entities = EntityRegistry(
            view: cluster.view, transport: transport, logger: nodeLog,
            onMoved: { shard, epoch in clusterService.moved(shard, epoch) })
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
            relayMesh: relayMesh, cluster: cluster, channels: channels, gateway: gateway, sessions: sessions,
            verifier: verifier, conditions: conditions)
        http = HTTPDoor(
            configuration: configuration.httpDoor, sources: sources.sources(metrics: metrics),
            group: httpGroup, logger: nodeLog, limited: limited)
        late.set(channels: channels, entities: entities)
    }

    /// Started in this order, stopped in the reverse: the shards go before the clients, and these before
    /// the sessions.
    var services: [any Service] {
        let relays: [any Service] = (relayMesh.map { [$0] } ?? []) + (relay.map { [$0] } ?? [])
        let watch = DescriptorWatch(conditions: conditions, limited: limited)
        return [http, watch, EntityService(entities: entities), sessions] + relays + [gateway, cluster]
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
        await transport.stop()
        await memory.flush(store: store)
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

/// The registry's own work as a service.
private struct EntityService: Service {
    let entities: EntityRegistry
    func run() async throws {
        await cancelWhenGracefulShutdown { await entities.run() }
    }
}

import ApusChannels
import ApusClientAPI
import ApusCluster
import ApusContract
import ApusCore
import ApusDeviceAuthorization
import ApusGateway
import ApusHTTP
import ApusListener
import ApusMediaAccess
import ApusNodeConfiguration
import ApusOperators
import ApusRelayService
import ApusSessions
import ApusSignIn
import ApusStorage
import ApusTLS
import ApusTracing
import ApusTransport
import ApusTraversal
import ApusWire
import Foundation
import Logging
import NIOCore
import NIOPosix
import ServiceLifecycle

/// The parts of a node, created in the order of their dependencies.
/// Isolation: immutable; each part guards its own state.
final class NodeParts: Sendable {
    let configuration: NodeConfiguration
    let cluster: ClusterService
    let transport: Transport
    let replicas: ReplicaService
    let entities: EntityRegistry
    /// Services register their kinds of entities here.
    let runtime: EntityRuntime
    let channels: ChannelService
    let sessions: SessionService
    let gateway: Gateway
    let http: HTTPListener
    /// The key with which this node signs tokens.
    private let signing: TokenSigning
    /// Reports certificates that expire.
    private let expiry: CertificateWatch
    /// The topics to which clients subscribe.
    let topics: TopicService
    private let nodeServices: NodeServices
    /// The conditions that keep this node from full service. Its parts raise and clear them.
    let conditions: NodeConditions
    /// For messages that unauthenticated traffic can cause.
    private let limited: LogLimiter
    /// Nil if the node has no relay.
    let relay: RelayService?
    private let relayMesh: RelayMesh?
    /// Nil if the node does not trace.
    private let exporter: SpanExporter?
    private let group: MultiThreadedEventLoopGroup
    /// The operators' listener has its own event loop, so a scrape never delays a frame.
    private let httpGroup: MultiThreadedEventLoopGroup
    /// The record store of all services.
    private let records: WatchedRecordStore
    private let recordLockWatch: RecordLockWatch
    /// This node's memory of the ownership store, in its own directory.
    private let memory: OwnershipMemory
    private let store: any OwnershipStore
    private let log: Logger

    init(
        _ configuration: NodeConfiguration, metrics: PrometheusMetrics, log: Logger,
        fenced: @escaping @Sendable () -> Void
    ) async throws(ApusError) {
        (self.configuration, self.log) = (configuration, log)
        (conditions, signing) = (NodeConditions(log: log), TokenSigning(try configuration.tokenSigner()))
        let (keys, late) = (try configuration.clusterKeys(), LateHooks())
        let (ownership, held) = try await Self.ownership(configuration, log: log)
        (memory, store) = (Self.memory(configuration, log: log), ownership)
        cluster = try await ClusterService.open(
            configuration.clusterService(keys: keys), store: ownership,
            hooks: Self.hooks(late, conditions, configuration, log: log, fenced: fenced), logger: log)
        records = WatchedRecordStore(
            try await NodeRecords.open(configuration, for: cluster.identity), of: configuration.node, conditions)
        let revocations = RevocationWatch(records: records, log: log)
        try Self.remember(cluster.view, held: held, in: memory, store: store.identity)
        (group, httpGroup) = (.init(numberOfThreads: configuration.loopCount), .init(numberOfThreads: 1))
        let (view, nodeLog) = (cluster.view, log.of(cluster.identity))
        (limited, recordLockWatch) = (LogLimiter(nodeLog), .init(records: records, view: view, log: nodeLog))
        exporter = configuration.exporter(of: cluster.identity, on: httpGroup.next(), limited: limited)
        channels = try ChannelService(configuration: configuration.channels, view: view, group: group, log: nodeLog)
        let (tracer, dispatcher, drain) = (exporter?.makeTracer(), NodeDispatcher(), NodeDrain(cluster, log: nodeLog))
        replicas = Self.replicas(configuration, of: cluster, loop: group.next(), log: nodeLog)
        transport = Transport(
            configuration: try configuration.links(keys: keys), identity: view.local, cluster: configuration.cluster,
            group: group, control: ControlRouter(cluster: cluster, replicas: replicas, dispatcher: dispatcher),
            media: channels, onEvent: Self.events(to: cluster, replicas, RevokedNotice(conditions)), logger: nodeLog,
            limited: limited, tracer: tracer)
        replicas.connect(transport)
        entities = .init(view: view, transport: transport, logger: nodeLog) { [cluster] in cluster.moved($0, $1) }
        runtime = EntityRuntime(registry: entities, replicas: replicas, records: records, logger: nodeLog)
        topics = TopicService(configuration: configuration.api, view: view, entities: entities)
        topics.register(with: runtime, dispatcher)
        dispatcher.connect(entities)
        relay = try Self.relay(configuration, keys, cluster.identity, conditions, log: nodeLog)
        relayMesh = Self.mesh(relay, configuration, cluster.view, transport, dispatcher, log: nodeLog)
        sessions = SessionService(
            configuration: configuration.sessions, view: view, entities: entities, transport: transport,
            verifier: try configuration.tokenVerifier(), sealer: TicketSealer(keys: keys), revocations: revocations,
            relayIssuer: relayMesh, log: nodeLog)
        try await revocations.load(wallSeconds: cluster.view.clock.wallSeconds())
        sessions.register(with: dispatcher, records: records, runtime: runtime)
        let media = MediaAccess(sessions: sessions, channels: channels)
        let ports = Self.ports(signing, keys, configuration)
        let context = NodeContext(
            view: view, entities: entities, runtime: runtime, dispatcher: dispatcher, records: records,
            sessions: sessions, topics: topics, ports: ports, group: group, conditions: conditions, log: nodeLog,
            limited: limited)
        nodeServices = try NodeServices(configuration.services, of: context, channels, media)
        let requests = OperatorRequests(
            cluster: cluster, sessions: sessions, channels: channels, name: configuration.cluster,
            drain: drain.begin, undrain: drain.end,
            forwarding: ClientForwarding(view: view, transport: transport, dispatcher: dispatcher))
        let clients = Self.clients(requests, nodeServices, topics, records, configuration, signing, tracer, nodeLog)
        gateway = Gateway(
            configuration: configuration.gateway, media: media, clients: clients, view: view, group: group,
            ticketKeys: configuration.ticketKeys(keys), log: nodeLog, limited: limited)
        let report = NodeReport(
            configuration: configuration, relayAddress: configuration.relayAddress(), relay: relay,
            relayMesh: relayMesh, cluster: cluster, replicas: replicas, drain: drain, channels: channels,
            gateway: gateway, media: configuration.httpMedia(media, on: group), sessions: sessions, clients: clients,
            authorization: try ports.one(DeviceAuthorizationService.self), signIn: try ports.one(SignInService.self),
            downloads: ports.all((any MediaDownloads).self).first, conditions: conditions)
        http = try HTTPListener(
            configuration: configuration.httpListener, sources: report.sources(metrics: metrics), group: httpGroup,
            logger: nodeLog, limited: limited)
        drain.connect(gateway, http)
        expiry = try CertificateWatch(configuration, conditions, log: nodeLog)
        late.set(channels: channels, runtime: runtime, gateway: gateway)
    }

    /// The ports that the node itself provides to its services.
    private static func ports(
        _ signing: TokenSigning, _ keys: ClusterKeys, _ configuration: NodeConfiguration
    ) -> ServicePorts {
        let ports = ServicePorts()
        ports.provide(keys)
        ports.provide(TokenIssuer(signing: signing, cluster: configuration.cluster))
        return ports
    }

    /// The requests and events of clients: the node's own, and those of its services.
    private static func clients(
        _ requests: OperatorRequests, _ services: NodeServices, _ topics: TopicService, _ records: any RecordStore,
        _ configuration: NodeConfiguration, _ signing: TokenSigning, _ tracer: SpanTracer?, _ log: Logger
    ) -> ClientServices {
        var api = ClientAPI()
        for schemas in [clientSchemas, serviceSchemas, callSchemas] { api.addSchemas(schemas) }
        api.addTopicRequests(topics)
        api.addSessionRequests(requests.sessions, records: records)
        api.addShareRequests(requests.sessions, records: records)
        let clock = requests.cluster.view.clock
        api.addTokenRequests(
            records: records, signing: signing,
            cluster: configuration.cluster, wallSeconds: { clock.wallSeconds() })
        api.addAccountRequests(
            requests.sessions, records: records, signing: signing, cluster: configuration.cluster,
            configuration: configuration.accounts, wallSeconds: { clock.wallSeconds() })
        requests.add(to: &api)
        services.add(to: &api)
        return ClientServices(
            api, topics: topics, configuration: configuration.api, audit: AuditLog(log), tracer: tracer)
    }

    private static func hooks(
        _ late: LateHooks, _ conditions: NodeConditions, _ configuration: NodeConfiguration, log: Logger,
        fenced: @escaping @Sendable () -> Void
    ) -> ClusterHooks {
        var hooks = late.hooks
        let record = ProcessRecord(directory: configuration.dataDirectory)
        hooks.joining = { number in
            do {
                try record.add(number)
            } catch {
                log.warning(
                    "This process cannot be recorded, so the next one may wait until the others declare it dead",
                    metadata: Logger.facts(of: error))
            }
        }
        (hooks.fenced, hooks.condition) = (fenced, conditions.set)
        hooks.storeChanged = { conditions.show($0) }
        return hooks
    }

    /// The relay of this node; nil if it has none. Throws 10022 if a secret cannot be read.
    private static func relay(
        _ configuration: NodeConfiguration, _ clusterKeys: ClusterKeys, _ node: NodeID, _ conditions: NodeConditions,
        log: Logger
    ) throws(ApusError) -> RelayService? {
        guard configuration.relay.isEnabled else { return nil }
        let name = configuration.advertisedRelay?.host ?? ""
        let keys = try configuration.relayKeys(clusterKeys)
        return RelayService(
            configuration: configuration.relay, keys: keys, node: RelayMesh.tag(of: node),
            domain: TransportAddress(name, port: 0) == nil ? name : "", conditions: conditions, log: log)
    }

    private static func mesh(
        _ relay: RelayService?, _ configuration: NodeConfiguration, _ view: ClusterView, _ transport: Transport,
        _ dispatcher: NodeDispatcher, log: Logger
    ) -> RelayMesh? {
        relay.map {
            RelayMesh(
                relay: $0, advertised: configuration.advertisedRelay, view: view, transport: transport,
                dispatcher: dispatcher, log: log)
        }
    }

    private static func replicas(
        _ configuration: NodeConfiguration, of cluster: ClusterService, loop: any EventLoop, log: Logger
    ) -> ReplicaService {
        ReplicaService(
            configuration: configuration.replication, view: cluster.view, loop: loop, logger: log,
            onMoved: { shard, epoch in cluster.moved(shard, epoch) })
    }

    private static func events(
        to cluster: ClusterService, _ replicas: ReplicaService, _ notice: RevokedNotice
    ) -> @Sendable (TransportEvent) -> Void {
        { event in
            cluster.received(event)
            replicas.received(event)
            notice.received(event)
        }
    }

    /// What runs from the start, before the node is a member. Started in this order and stopped in the reverse: spans
    /// are sent last.
    var services: [any Service] {
        let tracing: [any Service] = exporter.map { [$0] } ?? []
        return tracing + [http, DescriptorWatch(conditions: conditions, limited: limited), expiry, records]
    }

    /// What runs while the node is a member. Started in this order and stopped in the reverse: shards are handed over
    /// before clients are closed, and clients before the sessions.
    var memberServices: [any Service] {
        let relays: [any Service] = (relayMesh.map { [$0] } ?? []) + (relay.map { [$0] } ?? [])
        let entityService = EntityService(entities: entities, runtime: runtime)
        let own: [any Service] = [recordLockWatch, entityService, sessions, topics]
        return own + nodeServices.work + relays + [gateway, cluster]
    }

    /// Opens the listeners and joins the cluster.
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
        await memory.flush(store: store.identity)
        await store.close()
        await records.close()
        for group in [group, httpGroup] {
            do {
                try await group.shutdownGracefully()
            } catch {
                log.warning("The event loops did not stop cleanly", metadata: Logger.facts(of: error))
            }
        }
    }

    /// Uses the keys and certificates of a configuration that was read again, and the files of services. Connections
    /// and sessions continue.
    ///
    /// - Throws: 10022 with the reason, or 10007 if the relay is overloaded. Nothing has changed then.
    func reload(_ new: NodeConfiguration) async throws(ApusError) {
        let secrets = try NodeSecrets(new, startedAs: configuration)
        let useServices = try await nodeServices.prepareReload()
        // The relay checks its own part, and is the last one that can refuse.
        if let relay, let keys = secrets.relay { try relay.reload(new.relay, keys) }
        sessions.use(secrets.sessions)
        signing.use(secrets.signer)
        cluster.use(secrets.heartbeats)
        gateway.use(secrets.clients)
        if let certificate = secrets.http { http.use(certificate) }
        transport.use(secrets.links)
        expiry.use(secrets.expiries)
        useServices()
    }
}

extension Logger {
    /// This logger with the node in its metadata.
    fileprivate func of(_ node: NodeID) -> Logger {
        var log = self
        log[metadataKey: LogKey.node] = "\(node)"
        return log
    }
}

extension NodeConfiguration {
    /// The number of event loops for links, clients and media.
    fileprivate var loopCount: Int { threadCount == 0 ? System.coreCount : threadCount }

    /// The media of WebSockets, with the limits of the native protocol.
    fileprivate func httpMedia(_ access: MediaAccess, on group: any EventLoopGroup) -> HTTPMedia {
        var media = HTTPMedia(access: access, group: group)
        media.streamsMax = gateway.streamsPerConnectionMax
        media.messageByteCountMax = gateway.deviceFrameByteCountMax
        (media.streamKeepalive, media.leaveTimeout) = (gateway.streamKeepalive, gateway.leaveTimeout)
        media.isSecure = httpListener.tls != nil
        return media
    }

    /// Nil if the node does not trace.
    fileprivate func exporter(of node: NodeID, on loop: any EventLoop, limited: LogLimiter) -> SpanExporter? {
        SpanExporter(tracing, cluster: cluster, node: node, on: loop, limited: limited)
    }
}

/// Runs the registry and the entity runtime as a service.
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

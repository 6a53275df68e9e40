package import ApusChannels
package import ApusClientAPI
package import ApusCluster
package import ApusConfiguration
public import ApusCore
package import ApusGateway
package import ApusHTTP
import ApusMedia
package import ApusRelayService
package import ApusSessions
package import ApusStorage
package import ApusTracing
package import ApusTransport
public import Foundation

/// Reads a node's configuration again. Throws 10022.
package typealias NodeConfigurationSource = @Sendable () throws(ApusError) -> NodeConfiguration

/// The configuration of a node, from one YAML file and the environment.
/// The files of `cluster-configs/` are the reference of the keys. Relative paths start at the folder of the file. Each
/// section is the configuration of one part of the node, and its defaults are those of that part's properties.
public struct NodeConfiguration: Sendable {
    public var cluster: ClusterID
    public var node: NodeName
    /// The directory of the node's own state; created if it is missing.
    public var dataDirectory: String
    public var logLevel: String
    /// The number of event loops; 0 means one per core.
    public var threadCount: Int
    /// The node's share of shards, relative to the other nodes.
    public var weight: Int
    /// The ownership store in etcd; if nil, it is ``ownershipDirectory``.
    package var etcd: EtcdConfiguration?
    /// The ownership store of one machine: a directory that all its nodes share. Empty if the store is in etcd.
    public var ownershipDirectory = ""
    /// The SQLite file of earlier releases, whose map is imported if the directory is empty.
    public var earlierOwnershipFile = ""
    /// The number of map revisions that the ownership store keeps.
    public var ownershipRevisionsKept = LocalOwnershipLimits().revisionsKept
    /// The interval at which the ownership store of one machine is polled for its revision.
    public var ownershipPoll: Duration = .milliseconds(250)
    /// The minimum interval between writes of the map to the node's own directory.
    public var ownershipMemoryInterval: Duration = .milliseconds(500)
    /// The libpq connection string of PostgreSQL for records; if empty, records are in ``recordsFile``.
    package var recordsURL = ""
    /// The SQLite file for records, which all nodes of this machine share.
    public var recordsFile = ""
    package var records = RecordStoreLimits()
    package var recordsFiles = SQLiteLimits()
    package var recordsConnections = PostgresLimits()
    /// A file with 32 random bytes that all nodes share, or with two such keys while the key is changed.
    public var clusterKeyFile: String
    /// A PEM file with the public key that verifies tokens, or with two while the key is changed.
    public var tokenPublicKeyFile: String
    /// A file with the serial numbers of revoked certificates of nodes; if empty, there are none.
    public var revokedCertificatesFile: String
    /// The remaining validity of a certificate from which on the node warns.
    public var expiryWarning: Duration
    public var http: HostPort
    package var httpListener: HTTPConfiguration
    /// The file with the key that signs tokens, for `POST /v1/tokens`; if empty, this node issues none.
    public var tokenPrivateKeyFile: String
    /// The addresses that this node advertises to other nodes and to clients.
    public var advertisedTransport: HostPort
    public var advertisedClients: HostPort
    public var advertisedHTTP: HostPort
    /// The relay's address that this node advertises to clients; if nil, its first endpoint.
    public var advertisedRelay: HostPort?

    package var transport: TransportConfiguration
    package var membership: MembershipConfiguration
    package var handover = HandoverStateMachine.Configuration()
    package var gateway: GatewayConfiguration
    package var replication = ReplicaConfiguration()
    package var channels: ChannelConfiguration
    package var sessions: SessionConfiguration
    package var accounts = AccountConfiguration()
    package var relay: RelayConfiguration
    package var api = ClientAPIConfiguration()
    /// What each service reads.
    package private(set) var services = ServiceConfigurations()
    package var tracing = TracingConfiguration()

    /// Keys of the release before this one. They are taken for one release, so that its files can be used.
    private static let formerKeys = [
        "blobs.directory", "blobs.blob_bytes_max", "blobs.total_bytes_max", "blobs.waiting_max",
    ]

    /// All keys, in the order of the reference.
    package private(set) var keys: [ConfigurationKey] = []
    /// Keys of earlier releases that the file or the environment has, and that mean nothing any more.
    package private(set) var ignoredKeys: [String] = []

    /// Reads a file. Throws 10022 with the file, the line and the key.
    public init(file: String, environment: [String: String] = ProcessInfo.processInfo.environment) throws(ApusError) {
        let yaml: String
        do {
            yaml = try String(contentsOfFile: file, encoding: .utf8)
        } catch {
            throw ApusError(
                .configurationInvalid, "the configuration \(file) cannot be read: \(error.localizedDescription)")
        }
        let folder = URL(fileURLWithPath: file).deletingLastPathComponent().path
        try self.init(yaml: yaml, source: file, folder: folder, environment: environment)
    }

    /// Reads a text. Relative paths start at `folder`.
    public init(yaml: String, source: String, folder: String, environment: [String: String]) throws(ApusError) {
        var reader = try ConfigurationReader(yaml: yaml, source: source, folder: folder, environment: environment)

        cluster = try reader.identifier("cluster", as: ClusterID.self)
        node = try reader.identifier("node", as: NodeName.self)
        dataDirectory = try reader.path("data_directory")
        logLevel = try reader.choice(
            "log_level", of: ["trace", "debug", "info", "notice", "warning", "error"], default: "info")
        threadCount = try reader.int("threads", default: 0, in: 0...256)
        weight = try reader.int("weight", default: 100, in: 1...10_000)

        let listenTransport = try reader.hostPort("listen.transport", default: HostPort(host: "0.0.0.0", port: 7400))
        let listenClients = try reader.hostPort("listen.clients", default: HostPort(host: "0.0.0.0", port: 7443))
        http = try reader.hostPort("listen.http", default: HostPort(host: "127.0.0.1", port: 8080))
        httpListener = HTTPConfiguration(bind: http)
        advertisedTransport = try reader.hostPort("advertise.transport", default: listenTransport)
        advertisedClients = try reader.hostPort("advertise.clients", default: listenClients)
        advertisedHTTP = try reader.hostPort("advertise.http", default: http)

        let relayName = try reader.string("advertise.relay", default: "")
        advertisedRelay = HostPort(relayName)
        guard relayName.isEmpty || advertisedRelay != nil else {
            throw reader.invalid("advertise.relay", "HOST:PORT is expected, not '\(relayName)'")
        }

        clusterKeyFile = try reader.path("keys.cluster")
        tokenPublicKeyFile = try reader.path("keys.token_public")
        tokenPrivateKeyFile = try reader.path("keys.token_private", default: "")
        revokedCertificatesFile = try reader.path("tls.revoked", default: "")
        expiryWarning = try reader.duration("tls.expiry_warning", default: .seconds(30 * 86_400))
        transport = TransportConfiguration(
            bind: listenTransport,
            tls: TransportTLS(
                authority: .file(try reader.path("tls.authority")),
                certificateChain: .file(try reader.path("tls.certificate")),
                privateKey: .file(try reader.path("tls.key"))))
        gateway = GatewayConfiguration(
            bind: listenClients, advertised: advertisedClients,
            certificateFile: try reader.path("tls.client_certificate"),
            keyFile: try reader.path("tls.client_key"))
        (membership, channels, sessions) = (MembershipConfiguration(), ChannelConfiguration(), SessionConfiguration())
        relay = try RelayConfiguration(&reader)
        if relay.certificateFile.isEmpty {
            (relay.certificateFile, relay.keyFile) = (gateway.certificateFile, gateway.keyFile)
        }

        try readOwnership(&reader)
        try readRecords(&reader)
        try readTransport(&reader)
        try readMembership(&reader)
        try readHandover(&reader)
        try replication.read(&reader, laneCount: transport.controlLaneCount)
        try readGateway(&reader)
        try httpListener.read(
            &reader, clients: .init(certificate: gateway.certificateFile, key: gateway.keyFile))
        try api.read(&reader)
        try services.read(&reader, of: ProgramServices.all)
        try tracing.read(&reader)
        try readChannels(&reader)
        try readSessions(&reader)
        reader.ignore(Self.formerKeys)
        try reader.finish()
        (keys, ignoredKeys) = (reader.knownKeys, reader.ignoredKeys)
    }

    /// The relay's address that this node advertises to clients; nil if it has no relay.
    package func relayAddress() -> HostPort? {
        guard relay.isEnabled else { return nil }
        return advertisedRelay ?? relay.firstEndpoint()
    }

    /// The TCP addresses at which this node listens: for other nodes, for clients and for operators.
    public var listenAddresses: [HostPort] { [transport.bind, gateway.bind, http] }

    private mutating func readRecords(_ reader: inout ConfigurationReader) throws(ApusError) {
        recordsURL = try reader.string("records.url", default: "")
        recordsFile = try reader.path("records.file", default: recordsURL.isEmpty ? nil : "records.sqlite")
        let (d, f) = (records, recordsFiles)
        records.bodyByteCountMax = try reader.bytes("records.body_bytes_max", default: d.bodyByteCountMax)
        records.waitingStepCountMax = try reader.int(
            "records.waiting_steps_max", default: d.waitingStepCountMax, in: 256...1_048_576)
        records.waitingByteCountMax = try reader.bytes("records.waiting_bytes_max", default: d.waitingByteCountMax)
        records.batchStepCountMax = try reader.int(
            "records.commit_steps_max", default: d.batchStepCountMax, in: 1...65_536)
        recordsFiles.lockTimeout = try reader.duration("records.lock_timeout", default: f.lockTimeout)
        recordsFiles.fileByteCountMax = try reader.bytes("records.file_bytes_max", default: f.fileByteCountMax)
        recordsFiles.reservePercent = try reader.int(
            "records.file_reserve_percent", default: f.reservePercent, in: 0...50)
        recordsFiles.checkpointPageCount = try reader.int(
            "records.checkpoint_pages", default: f.checkpointPageCount, in: 1...1_048_576)
        recordsConnections.timeout = try reader.duration(
            "records.connection_timeout", default: recordsConnections.timeout)
        recordsConnections.readerCountMax = try reader.int(
            "records.connections_max", default: recordsConnections.readerCountMax, in: 1...64)
        recordsFiles.logByteCountKept = try reader.bytes("records.log_bytes_kept", default: f.logByteCountKept)
    }

    private mutating func readTransport(_ reader: inout ConfigurationReader) throws(ApusError) {
        let d = transport
        transport.frameByteCountMax = try reader.bytes("transport.frame_bytes_max", default: d.frameByteCountMax)
        transport.controlLaneCount = try reader.int("transport.control_lanes", default: d.controlLaneCount, in: 1...16)
        transport.inFlightMax = try reader.int("transport.in_flight_max", default: d.inFlightMax, in: 1...65_536)
        transport.controlOutboundByteCountMax = try reader.bytes(
            "transport.control_outbound_bytes_max", default: d.controlOutboundByteCountMax)
        transport.mediaOutboundByteCountMax = try reader.bytes(
            "transport.media_outbound_bytes_max", default: d.mediaOutboundByteCountMax)
        transport.compressionThreshold = try reader.bytes(
            "transport.compression_threshold", default: d.compressionThreshold)
        transport.connectTimeout = try reader.duration("transport.connect_timeout", default: d.connectTimeout)
        transport.handshakeTimeout = try reader.duration("transport.handshake_timeout", default: d.handshakeTimeout)
        transport.reconnectBackoffMin = try reader.duration("transport.reconnect_min", default: d.reconnectBackoffMin)
        transport.reconnectBackoffMax = try reader.duration("transport.reconnect_max", default: d.reconnectBackoffMax)
        transport.pingInterval = try reader.duration("transport.ping_interval", default: d.pingInterval)
        transport.handshakingMax = try reader.int(
            "transport.handshaking_max", default: d.handshakingMax, in: 1...65_536)
        transport.forwardedMax = try reader.int(
            "transport.forwarded_connections_max", default: d.forwardedMax, in: 0...65_536)
    }

    private mutating func readHandover(_ reader: inout ConfigurationReader) throws(ApusError) {
        let d = handover
        handover.movingCountMax = try reader.int("handover.moving_max", default: d.movingCountMax, in: 1...4096)
        handover.latenessMax = try reader.duration("handover.lateness_max", default: d.latenessMax)
        handover.pauseMax = try reader.duration("handover.pause_max", default: d.pauseMax)
        handover.pausesMax = try reader.duration("handover.pauses_max", default: d.pausesMax)
    }

    private mutating func readMembership(_ reader: inout ConfigurationReader) throws(ApusError) {
        let d = membership
        membership.heartbeatInterval = try reader.duration("membership.heartbeat", default: d.heartbeatInterval)
        membership.silenceMax = try reader.duration("membership.silence", default: d.silenceMax)
        membership.firstContactTimeout = try reader.duration("membership.first_contact", default: d.firstContactTimeout)
        membership.burstDuration = try reader.duration("membership.burst", default: d.burstDuration)
        membership.probeCount = try reader.int("membership.probes", default: d.probeCount, in: 1...16)
        membership.helperCountMax = try reader.int("membership.helpers_max", default: d.helperCountMax, in: 0...16)
        membership.latenessMax = try reader.duration("membership.lateness_max", default: d.latenessMax)
        membership.extensionMax = try reader.duration("membership.extension_max", default: d.extensionMax)
        membership.starvationMax = try reader.duration("membership.starvation_max", default: d.starvationMax)
        membership.promiseExtensionMax = try reader.duration(
            "membership.promise_extension_max", default: d.promiseExtensionMax)
        membership.refusalDelay = try reader.duration("membership.refusal_delay", default: d.refusalDelay)
        membership.pathCheckInterval = try reader.duration("membership.path_check", default: d.pathCheckInterval)
        membership.pathRestoreCount = try reader.int(
            "membership.path_restore_checks", default: d.pathRestoreCount, in: 1...100)
        membership.fullMeshMax = try reader.int("membership.full_mesh_max", default: d.fullMeshMax, in: 3...64)
        membership.watcherCount = try reader.int("membership.watchers", default: d.watcherCount, in: 2...32)
        guard membership.watcherCount.isMultiple(of: 2), membership.watcherCount < membership.fullMeshMax else {
            throw reader.invalid("membership.watchers", "an even number below membership.full_mesh_max is expected")
        }
        membership.pathCheckCountMax = try reader.int(
            "membership.path_checks_max", default: d.pathCheckCountMax, in: 1...256)
        membership.clockDifferenceMax = try reader.duration(
            "membership.clock_difference_max", default: d.clockDifferenceMax)
    }

    private mutating func readGateway(_ reader: inout ConfigurationReader) throws(ApusError) {
        let d = gateway
        gateway.connectionsMax = try reader.int("gateway.connections_max", default: d.connectionsMax, in: 1...1_000_000)
        gateway.refusalsMax = try reader.int("gateway.refusals_max", default: d.refusalsMax, in: 1...65_536)
        gateway.placement.stepCount = try reader.int(
            "gateway.loop_step", default: d.placement.stepCount, in: 1...1_000_000)
        gateway.unauthenticatedMax = try reader.int(
            "gateway.unauthenticated_max", default: d.unauthenticatedMax, in: 1...1_000_000)
        gateway.reconnectRate = try reader.int("gateway.reconnect_rate", default: d.reconnectRate, in: 0...1_000_000)
        gateway.reconnectSpreadMax = try reader.duration(
            "gateway.reconnect_spread_max", default: d.reconnectSpreadMax)
        guard gateway.reconnectSpreadMax <= .seconds(60) else {
            throw reader.invalid("gateway.reconnect_spread_max", "at most 60s is expected")
        }
        gateway.tlsTicketLifetime = try reader.duration("gateway.tls_ticket_lifetime", default: d.tlsTicketLifetime)
        guard gateway.tlsTicketLifetime <= GatewayConfiguration.tlsTicketLifetimeMax else {
            throw reader.invalid("gateway.tls_ticket_lifetime", "at most 12h is expected")
        }
        gateway.handshakeTimeout = try reader.duration("gateway.handshake_timeout", default: d.handshakeTimeout)
        gateway.helloByteCountMax = try reader.bytes("gateway.hello_bytes_max", default: d.helloByteCountMax)
        gateway.appFrameByteCountMax = try reader.bytes("gateway.app_frame_bytes_max", default: d.appFrameByteCountMax)
        gateway.deviceFrameByteCountMax = try reader.bytes(
            "gateway.device_frame_bytes_max", default: d.deviceFrameByteCountMax)
        gateway.streamsPerConnectionMax = try reader.int(
            "gateway.streams_per_connection_max", default: d.streamsPerConnectionMax, in: 1...4096)
        gateway.outboundByteCountMax = try reader.bytes("gateway.outbound_bytes_max", default: d.outboundByteCountMax)
        gateway.slowReaderTimeout = try reader.duration("gateway.slow_reader_timeout", default: d.slowReaderTimeout)
        gateway.keepalive = try reader.duration("gateway.keepalive", default: d.keepalive)
        gateway.streamKeepalive = try reader.duration("gateway.stream_keepalive", default: d.streamKeepalive)
        gateway.leaveTimeout = try reader.duration("gateway.leave_timeout", default: d.leaveTimeout)
        gateway.idleTimeout = try reader.duration("gateway.idle_timeout", default: d.idleTimeout)
    }

    private mutating func readChannels(_ reader: inout ConfigurationReader) throws(ApusError) {
        let d = channels
        channels.machine.ring = FrameRingLimits(
            byteCountMax: try reader.bytes("channels.ring_bytes_max", default: d.machine.ring.byteCountMax),
            duration: try reader.duration("channels.ring_duration", default: d.machine.ring.duration),
            frameCountMax: try reader.int(
                "channels.ring_frames_max", default: d.machine.ring.frameCountMax, in: 16...1_000_000))
        channels.machine.protectionTimeout = try reader.duration(
            "channels.protection_timeout", default: d.machine.protectionTimeout)
        channels.machine.retryDelay = try reader.duration("channels.retry_min", default: d.machine.retryDelay)
        channels.machine.retryDelayMax = try reader.duration("channels.retry_max", default: d.machine.retryDelayMax)
        channels.machine.epochAheadMax = try reader.duration(
            "channels.epoch_ahead_max", default: d.machine.epochAheadMax)
        channels.batchByteCountMax = try reader.bytes("channels.batch_bytes_max", default: d.batchByteCountMax)
        channels.lagByteCountMax = try reader.bytes("channels.lag_bytes_max", default: d.lagByteCountMax)
        channels.audioHold = try reader.duration("channels.audio_hold", default: d.audioHold)
        channels.tick = try reader.duration("channels.tick", default: d.tick)
        channels.idleTick = try reader.duration("channels.idle_tick", default: d.idleTick)
        channels.idleTimeout = try reader.duration("channels.idle_timeout", default: d.idleTimeout)
        channels.channelsMax = try reader.int("channels.channels_max", default: d.channelsMax, in: 1...1_000_000)
        channels.watchedMax = try reader.int("channels.watched_max", default: d.watchedMax, in: 1...1_000_000)
        channels.sourcesMax = try reader.int("channels.sources_max", default: d.sourcesMax, in: 1...65_536)
        channels.ringByteCountTotalMax = try reader.bytes(
            "channels.ring_bytes_total_max", default: d.ringByteCountTotalMax)
        channels.linkWaitingByteCountMax = try reader.bytes(
            "channels.link_waiting_bytes_max", default: d.linkWaitingByteCountMax)
        channels.linkWindowByteCount = try reader.bytes("channels.link_window", default: d.linkWindowByteCount)
        channels.publishTimeout = try reader.duration("channels.publish_timeout", default: d.publishTimeout)
        channels.answerTimeout = try reader.duration("channels.answer_timeout", default: d.answerTimeout)
    }

    private mutating func readSessions(_ reader: inout ConfigurationReader) throws(ApusError) {
        let d = sessions
        sessions.ticketLifetime = try reader.duration("sessions.ticket_lifetime", default: d.ticketLifetime)
        sessions.grantLifetime = try reader.duration("sessions.grant_lifetime", default: d.grantLifetime)
        sessions.askTimeout = try reader.duration("sessions.ask_timeout", default: d.askTimeout)
        sessions.relayLifetime = try reader.duration("sessions.relay_lifetime", default: d.relayLifetime)
        guard sessions.relayLifetime >= .seconds(60), sessions.relayLifetime <= .seconds(7 * 86_400) else {
            throw reader.invalid("sessions.relay_lifetime", "1m to 168h are expected")
        }
        sessions.relayCredentialsPerMinute = try reader.int(
            "sessions.relay_credentials_per_minute", default: d.relayCredentialsPerMinute, in: 1...6_000)
        sessions.connectionsMax = try reader.int(
            "sessions.connections_max", default: d.connectionsMax, in: 2...1_000)
        // Every connection may be a session, and as many ended sessions may be unacknowledged by their owners.
        sessions.sessionsMax = try reader.int(
            "sessions.sessions_max", default: max(d.sessionsMax, 2 * gateway.connectionsMax), in: 1...10_000_000)
        sessions.subscriptionsMax = try reader.int(
            "sessions.subscriptions_max", default: d.subscriptionsMax, in: 1...1_000_000)
        sessions.unwrittenMax = try reader.int(
            "sessions.unwritten_max", default: d.unwrittenMax, in: 1...10_000_000)
        sessions.revocationInterval = try reader.duration(
            "sessions.revocation_interval", default: d.revocationInterval)
        accounts.usersMax = try reader.int("accounts.users_max", default: accounts.usersMax, in: 1...100_000_000)
        accounts.tokenLifetimeMax = try reader.duration(
            "accounts.token_lifetime_max", default: accounts.tokenLifetimeMax)
        accounts.revocationsMax = try reader.int(
            "accounts.revocations_max", default: accounts.revocationsMax, in: 1...50_000)
        guard sessions.revocationInterval >= .milliseconds(20), sessions.revocationInterval <= .seconds(60) else {
            throw reader.invalid("sessions.revocation_interval", "20ms to 60s are expected")
        }
        sessions.presence.grace = try reader.duration("sessions.grace", default: d.presence.grace)
        sessions.presence.subscribersMax = try reader.int(
            "sessions.subscribers_max", default: d.presence.subscribersMax, in: 1...1_000_000)
    }
}

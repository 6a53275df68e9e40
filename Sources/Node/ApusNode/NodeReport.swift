import ApusChannels
import ApusClientAPI
import ApusCluster
import ApusContract
import ApusCore
import ApusDeviceAuthorization
import ApusGateway
import ApusHTTP
import ApusMedia
import ApusNodeConfiguration
import ApusRelay
import ApusRelayService
import ApusSessions
import ApusSignIn
import ApusWire
import Foundation
import SwiftProtobuf

/// The status and health of a node for operators, collected from its parts.
struct NodeReport: Sendable {
    let configuration: NodeConfiguration
    /// The relay's address that the node advertises to clients; nil if it has no relay.
    let relayAddress: HostPort?
    let relay: RelayService?
    let relayMesh: RelayMesh?
    let cluster: ClusterService
    let replicas: ReplicaService
    let drain: NodeDrain
    let channels: ChannelService
    let gateway: Gateway
    let media: HTTPMedia
    let sessions: SessionService
    let clients: ClientServices
    let authorization: DeviceAuthorizationService
    let signIn: SignInService
    let downloads: (any MediaDownloads)?
    let conditions: NodeConditions
    let started = MonotonicTime.now()

    /// The sources of the HTTP listener's answers.
    func sources(metrics: PrometheusMetrics) -> HTTPSources {
        var sources = HTTPSources(
            health: { await health() }, status: { await status() }, metrics: { metrics.text() },
            authorizeAdmin: { token throws(ApusError) in try authorize(token) },
            drain: { () throws(ApusError) in try await drain.begin() }, clients: httpClients)
        if let relay {
            sources.relaySessions = { selection throws(ApusError) in try await relay.sessions(selection) }
            sources.endRelaySessions = { selection throws(ApusError) in try await relay.end(selection) }
        }
        return sources
    }

    private var httpClients: HTTPClients {
        let cache = BearerCache(
            verify: { [sessions] token throws(ApusError) in try sessions.bearer(of: token) },
            isValid: { [sessions] session throws(ApusError) in try sessions.checkBearer(session) },
            generation: { [sessions] in sessions.keyGeneration })
        return HTTPClients(
            services: clients, sessions: sessions, authorization: authorization, signIn: signIn,
            media: media, downloads: downloads,
            session: { token throws(ApusError) in try cache.session(token) },
            welcome: { [cluster, media, configuration] opened in
                ClientWelcome.with {
                    ($0.version, $0.session, $0.node) = (1, opened.session.id, cluster.identity.name.rawValue)
                    ($0.ticket, $0.ticketSeconds) = (Data(opened.ticket), opened.ticketSeconds)
                    $0.endpoints = media.endpoints()
                    $0.keepaliveMs = UInt32(min(configuration.httpListener.webSocketPing.milliseconds, 3_600_000))
                    $0.streamKeepaliveMs = UInt32(media.streamKeepalive.milliseconds)
                    ($0.access, $0.account) = (opened.session.access.rawValue, opened.session.account.rawValue)
                }
            })
    }

    private var state: String {
        let member = cluster.view.map.member(named: cluster.identity.name)
        guard let member, member.id == cluster.identity else { return "joining" }
        return switch member.state {
        case .up: "up"
        case .draining: "draining"
        case .dead: "fenced"
        case .left: "stopped"
        }
    }

    private func health() async -> NodeHealth {
        let state = state
        if state == "up" || state == "draining" {
            let conditions = conditions.all
            let reason = conditions.first(where: \.unhealthy)?.message
            return NodeHealth(healthy: reason == nil, state: state, reason: reason, conditions: conditions)
        }
        return NodeHealth(
            healthy: false, state: state, reason: "the node is not a member of its cluster", conditions: conditions.all)
    }

    private func status() async -> NodeStatus {
        let map = cluster.view.map
        // Another process may be the member of this name.
        let slot = map.aliveSlot(of: cluster.identity)
        let member = map.member(named: cluster.identity.name)
        let counts = await gateway.counts()
        let held = await channels.status()
        var status = NodeStatus(
            name: cluster.identity.name.rawValue, incarnation: cluster.identity.incarnation, state: state,
            addresses: .init(
                transport: configuration.advertisedTransport.description,
                clients: configuration.advertisedClients.description, http: configuration.advertisedHTTP.description,
                relay: relayAddress?.description),
            shards: .init(
                owned: map.shards.count { $0.owner == slot }, standby: map.shards.count { $0.standby == slot },
                drained: map.isDrained(cluster.identity) && !drain.isRunning,
                misplaced: await cluster.status().misplacedCount, alone: replicas.aloneCount),
            sessions: .init(devices: counts.devices, apps: counts.apps), viewers: counts.viewers,
            channels: held.map(Self.channel), revision: map.revision,
            members: map.members.filter(\.state.isAlive).map(\.id.name.rawValue),
            uptime_s: (MonotonicTime.now() - started).milliseconds / 1000,
            relay: await relay?.standing().map { NodeStatus.Relay($0, standby: relayMesh?.standby) },
            conditions: conditions.all)
        status.program = .init(
            build: ProgramBuild.own, wire: WireVersion.current, wire_oldest: WireVersion.oldest)
        (status.cordoned, status.weight) = (member?.isCordoned ?? false, member?.weight ?? 0)
        return status
    }

    private static func channel(_ status: ChannelStatus) -> NodeStatus.Channel {
        .init(
            channel: status.channel.description, role: status.role.rawValue, primary: status.primary?.name.rawValue,
            standby: status.standby?.name.rawValue, term: status.term, epoch: status.last?.epoch,
            seq: status.last?.sequence, protected: status.isProtected, fed: status.isFed, viewers: status.viewers)
    }

    private func authorize(_ token: String) throws(ApusError) -> AuditActor {
        let session = try sessions.bearer(of: token)
        guard session.role == .admin, session.allowedDevices == nil else {
            throw ApusError(.notAllowed, "the token is not an operator's")
        }
        try sessions.checkBearer(session)
        return AuditActor(session)
    }
}

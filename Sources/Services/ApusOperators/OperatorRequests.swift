package import ApusChannels
package import ApusClientAPI
package import ApusCluster
import ApusContract
package import ApusCore
import ApusMedia
package import ApusSessions
import ApusWire
import SwiftProtobuf

// Operators' requests about nodes, shards, sessions and channels. A request that concerns another node is forwarded to
// it (``ClientForwarding``).

/// The parts of a node that operators' requests concern.
package struct OperatorRequests: Sendable {
    /// The maximum number of sessions of one node in one answer.
    private static let sessionsMax = 1000
    /// The maximum number of shards in one answer.
    private static let shardsMax = 4096

    package let cluster: ClusterService
    package let sessions: SessionService
    let channels: ChannelService
    let name: ClusterID
    let drain: @Sendable () async throws(ApusError) -> Void
    let undrain: @Sendable () async throws(ApusError) -> Void
    let forwarding: ClientForwarding

    /// - Parameters:
    ///   - name: the cluster's name.
    ///   - drain: begins the drain of this node; throws as the request that asks for it.
    ///   - undrain: ends it; throws likewise.
    package init(
        cluster: ClusterService, sessions: SessionService, channels: ChannelService, name: ClusterID,
        drain: @escaping @Sendable () async throws(ApusError) -> Void,
        undrain: @escaping @Sendable () async throws(ApusError) -> Void, forwarding: ClientForwarding
    ) {
        (self.cluster, self.sessions, self.channels) = (cluster, sessions, channels)
        (self.name, self.drain, self.undrain, self.forwarding) = (name, drain, undrain, forwarding)
    }

    /// Registers the requests.
    package func add(to api: inout ClientAPI) {
        addNodes(to: &api)
        addMap(to: &api)
        addSessions(to: &api)
        for number in [ClientDrainNodeRequest.info, ClientListSessionsRequest.info, ClientEndSessionRequest.info]
            + [ClientListChannelsRequest.info, ClientUndrainNodeRequest.info]
        {
            if let operation = try? api.operation(number: number.number) { forwarding.allow(operation) }
        }
    }

    private var here: String { cluster.identity.name.rawValue }

    // MARK: - Nodes and shards

    private func addNodes(to api: inout ClientAPI) {
        api.on(ClientListNodesRequest.self) { [self] _, _ throws(ApusError) in
            let map = cluster.view.map
            var answer = ClientListNodesResponse.with { ($0.cluster, $0.revision) = (name.rawValue, map.revision) }
            for member in map.members {
                var node = Self.node(member, map)
                if member.state.isAlive { node.wireVersion = await cluster.wireVersion(of: member.id) ?? 0 }
                answer.nodes.append(node)
            }
            return answer
        }
        api.on(ClientDrainNodeRequest.self) { [self] request, call throws(ApusError) in
            guard forwarding.isHere(request.node) else { return try await forwarding.ask(request.node, request, call) }
            try await drain()
            return ClientDrainNodeResponse()
        }
        api.on(ClientUndrainNodeRequest.self) { [self] request, call throws(ApusError) in
            guard forwarding.isHere(request.node) else { return try await forwarding.ask(request.node, request, call) }
            try await undrain()
            return ClientUndrainNodeResponse()
        }
        api.on(ClientListShardsRequest.self) { [self] request, _ throws(ApusError) in
            let map = cluster.view.map
            guard request.owner.isEmpty || NodeName(rawValue: request.owner).flatMap({ map.member(named: $0) }) != nil
            else { throw ApusError(.targetUnknown, "there is no node of this name") }
            guard let first = request.pageToken.isEmpty ? 0 : Int(request.pageToken), first >= 0 else {
                throw ApusError(.badParameter, "the page token is not valid")
            }
            let limit = request.pageSize == 0 ? 100 : min(Int(request.pageSize), Self.shardsMax)
            var answer = ClientListShardsResponse()
            for number in min(first, ShardID.count)..<ShardID.count {
                let shard = ShardID(UInt16(number))
                let owner = map.owner(of: shard)?.id.name.rawValue ?? ""
                guard request.owner.isEmpty || request.owner == owner else { continue }
                guard answer.shards.count < limit else {
                    answer.nextPageToken = "\(number)"
                    break
                }
                answer.shards.append(Self.shard(shard, map))
            }
            return answer
        }
    }

    static func shard(_ shard: ShardID, _ map: ClusterMap) -> ClientShard {
        .with {
            ($0.shard, $0.term) = (UInt32(shard.rawValue), UInt64(map[shard].epoch))
            $0.owner = map.owner(of: shard)?.id.name.rawValue ?? ""
            $0.standby = map.standby(of: shard)?.id.name.rawValue ?? ""
            $0.secondStandby = map.secondStandby(of: shard)?.id.name.rawValue ?? ""
        }
    }

    private static func node(_ member: Member, _ map: ClusterMap) -> ClientNode {
        let slot = map.slot(of: member.id.name)
        return .with {
            ($0.name, $0.incarnation, $0.state) =
                (member.id.name.rawValue, member.id.incarnation, "\(member.state)")
            $0.transport = member.addresses.transport.description
            $0.clients = member.addresses.clients.description
            $0.http = member.addresses.http.description
            $0.ownedShards = UInt32(map.shards.count { $0.owner == slot })
            $0.standbyShards = UInt32(map.shards.count { $0.standby == slot })
            $0.drained = map.isDrained(member.id)
            ($0.weight, $0.cordoned) = (member.weight, member.isCordoned)
        }
    }

    // MARK: - Sessions and channels

    private func addSessions(to api: inout ClientAPI) {
        api.on(ClientListSessionsRequest.self) { [self] request, call throws(ApusError) in
            if !request.account.isEmpty { _ = try AccountID(checking: request.account, "the account") }
            guard request.node.isEmpty else {
                guard forwarding.isHere(request.node) else {
                    return try await forwarding.ask(request.node, request, call)
                }
                return try sessionsHere(request)
            }
            var answer = try sessionsHere(request)
            for node in forwarding.others {
                var part = request
                part.node = node
                let found = try await forwarding.ask(node, part, call)
                answer.sessions += found.sessions
                answer.hasMore_p = answer.hasMore_p || found.hasMore_p
            }
            return answer
        }
        api.on(ClientEndSessionRequest.self) { [self] request, call throws(ApusError) in
            if forwarding.isHere(request.node) || request.node.isEmpty,
                sessions.held(request.session)
            {
                sessions.kicked(request.session)
                return ClientEndSessionResponse()
            }
            let nodes = request.node.isEmpty ? forwarding.others : [request.node].filter { !forwarding.isHere($0) }
            for node in nodes {
                do throws(ApusError) {
                    var part = request
                    part.node = node
                    return try await forwarding.ask(node, part, call)
                } catch {
                    guard error.code == .targetUnknown else { throw error }
                }
            }
            throw ApusError(.targetUnknown, "there is no such session")
        }
        api.on(ClientListChannelsRequest.self) { [self] request, call throws(ApusError) in
            guard request.node.isEmpty else {
                guard forwarding.isHere(request.node) else {
                    return try await forwarding.ask(request.node, request, call)
                }
                return await channelsHere()
            }
            var answer = await channelsHere()
            for node in forwarding.others {
                let part = ClientListChannelsRequest.with { $0.node = node }
                answer.channels += try await forwarding.ask(node, part, call).channels
            }
            return answer
        }
    }

    private func sessionsHere(_ request: ClientListSessionsRequest) throws(ApusError) -> ClientListSessionsResponse {
        let limit = request.pageSize == 0 ? 100 : min(Int(request.pageSize), Self.sessionsMax)
        let (found, hasMore) = sessions.list(account: request.account, limit: limit)
        return .with {
            $0.sessions = found.map { session in
                .with {
                    ($0.session, $0.node, $0.role) = (session.id, here, session.role.rawValue)
                    ($0.access, $0.account) = (session.access.rawValue, session.account.rawValue)
                    ($0.device, $0.sinceMs) = (session.device?.rawValue ?? "", session.sinceMilliseconds)
                }
            }
            $0.hasMore_p = hasMore
        }
    }

    private func channelsHere() async -> ClientListChannelsResponse {
        let held = await channels.status()
        return .with {
            $0.channels = held.map { status in
                .with {
                    ($0.channel, $0.node, $0.role) = (status.channel.description, here, status.role.rawValue)
                    $0.primary = status.primary?.name.rawValue ?? ""
                    $0.standby = status.standby?.name.rawValue ?? ""
                    ($0.term, $0.epoch) = (UInt64(status.term), status.last.map { UInt32($0.epoch) } ?? 0)
                    ($0.sequence, $0.protected) = (status.last?.sequence ?? 0, status.isProtected)
                    $0.viewers = UInt32(clamping: status.viewers)
                }
            }
        }
    }
}

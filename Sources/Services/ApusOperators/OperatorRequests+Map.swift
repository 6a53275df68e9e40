import ApusClientAPI
package import ApusCluster
package import ApusContract
package import ApusCore
import SwiftProtobuf

// Requests that change how shards are placed, and that explain where they are. Any node carries them out.
extension OperatorRequests {
    func addMap(to api: inout ClientAPI) {
        api.on(ClientCordonNodeRequest.self) { [cluster] request, _ throws(ApusError) in
            try await cluster.cordon(try Self.name(request.node), true)
            return ClientCordonNodeResponse()
        }
        api.on(ClientUncordonNodeRequest.self) { [cluster] request, _ throws(ApusError) in
            try await cluster.cordon(try Self.name(request.node), false)
            return ClientUncordonNodeResponse()
        }
        api.on(ClientSetNodeWeightRequest.self) { [cluster] request, _ throws(ApusError) in
            try await cluster.weigh(try Self.name(request.node), request.weight)
            return ClientSetNodeWeightResponse()
        }
        api.on(ClientExplainShardRequest.self) { [cluster] request, _ throws(ApusError) in
            let shard = try Self.shard(of: request)
            return Self.explanation(of: shard, in: cluster.view.map)
        }
        api.on(ClientListMapChangesRequest.self) { [cluster] _, _ throws(ApusError) in
            let map = cluster.view.map
            return .with {
                $0.revision = map.revision
                $0.changes = map.history.changes.map(Self.change)
            }
        }
    }

    private static func name(_ text: String) throws(ApusError) -> NodeName {
        guard let name = NodeName(rawValue: text) else {
            throw ApusError(.badParameter, "the node's name is not valid")
        }
        return name
    }

    private static func shard(of request: ClientExplainShardRequest) throws(ApusError) -> ShardID {
        let device = try request.device.isEmpty ? nil : DeviceID(checking: request.device, "the device")
        guard !request.shard.isEmpty else {
            guard let device else { throw ApusError(.badParameter, "a shard or a device is expected") }
            return ShardID(of: device)
        }
        guard let number = UInt16(request.shard), number < ShardID.count else {
            throw ApusError(.badParameter, "a shard is a number from 0 to \(ShardID.count - 1)")
        }
        return ShardID(number)
    }

    // MARK: - Explanations

    /// The answer for one shard of a map. Pure.
    package static func explanation(of shard: ShardID, in map: ClusterMap) -> ClientExplainShardResponse {
        let owner = map.history.ownerChange(of: shard)
        let standby = map.history.standbyChange(of: shard)
        return .with {
            $0.shard = Self.shard(shard, map)
            $0.revision = map.revision
            if let owner { $0.ownerChange = change(owner) }
            if let standby { $0.standbyChange = change(standby) }
            $0.ownerReason = reason(owner, whyHas: map.owner(of: shard)?.id, asOwner: true)
            $0.standbyReason = reason(standby, whyHas: map.standby(of: shard)?.id, asOwner: false)
        }
    }

    static func change(_ change: MapChange) -> ClientMapChange {
        .with {
            ($0.kind, $0.reason) = ("\(change.kind)", "\(change.reason)")
            $0.maker = change.maker.map { "\($0)" } ?? ""
            $0.nodes = change.nodes.map { "\($0)" }
            ($0.firstRevision, $0.lastRevision) = (change.revisions.lowerBound, change.revisions.upperBound)
            $0.firstMs = Int64(clamping: change.milliseconds.lowerBound)
            $0.lastMs = Int64(clamping: change.milliseconds.upperBound)
            $0.shards = UInt32(clamping: change.shardCount)
        }
    }

    /// One sentence that says why a node has the place.
    private static func reason(_ change: MapChange?, whyHas node: NodeID?, asOwner: Bool) -> String {
        guard let node else { return "No node has this place." }
        guard let change else {
            return "\(node) has it from before the map's record, or a node of an earlier version gave it."
        }
        let maker = change.maker.map { "\($0)" } ?? "an operator"
        let subjects = change.nodes.map { "\($0)" }.joined(separator: ", ")
        switch change.kind {
        case .joined:
            return change.nodes.contains(node)
                ? "\(node) joined, and the shard had no \(asOwner ? "owner" : "standby")."
                : "\(subjects) started, and the process before it, which counted as alive, lost its shards."
        case .dead:
            return "\(maker) declared \(subjects) dead: \(death(change.reason)). "
                + (asOwner ? "The shard went to its standby." : "The shard needed another standby.")
        case .left: return "\(subjects) stopped and left the cluster with the shard."
        case .rebalanced: return "\(maker) moved it towards its place, as a planned move."
        case .drained: return "\(maker) was drained, and moved it."
        case .restored: return "An operator restored the map."
        default: return "\(maker) decided it (\(change.kind))."
        }
    }

    private static func death(_ reason: MapChange.Reason) -> String {
        switch reason {
        case .processEnded: "its process had ended"
        case .unheardByMajority: "most nodes did not hear it"
        case .leaseExpired: "half of the nodes did not hear it, and its lease in the store had run out"
        default: "for several reasons"
        }
    }
}

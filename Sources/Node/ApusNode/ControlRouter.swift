import ApusChannels
import ApusCluster
import ApusCore
import ApusGateway
import ApusTransport
import ApusWire
import NIOCore
import Synchronization

/// Routes each request of the control lane to its part, by its method's number.
struct ControlRouter: ControlHandler {
    let cluster: ClusterService
    let replicas: ReplicaService
    let dispatcher: NodeDispatcher

    func received(_ request: InboundRequest) {
        if ClusterMethod.replication.contains(request.method) {
            replicas.received(request)
        } else if ClusterMethod.all.contains(request.method) {
            cluster.received(request)
        } else {
            dispatcher.received(request)
        }
    }
}

/// Hooks of the cluster into parts that are created after it.
final class LateHooks: Sendable {
    private struct State {
        var channels: ChannelService?
        var entities: EntityRegistry?
        var replicated: ReplicatedShards?
        var gateway: Gateway?
    }
    private let state = Mutex(State())

    var channels: ChannelService? { state.withLock { $0.channels } }
    var entities: EntityRegistry? { state.withLock { $0.entities } }
    var replicated: ReplicatedShards? { state.withLock { $0.replicated } }

    func set(channels: ChannelService, runtime: EntityRuntime, gateway: Gateway) {
        state.withLock {
            $0 = State(
                channels: channels, entities: runtime.registry, replicated: runtime.replicated, gateway: gateway)
        }
    }

    /// The cluster's hooks. Before the parts are set they answer as a node without state.
    var hooks: ClusterHooks {
        var hooks = ClusterHooks()
        hooks.feedReplica = { shard, node in
            self.channels?.setCandidate(shard, node)
            self.replicated?.setCandidate(shard, node)
        }
        hooks.replicaCaughtUp = { shard, node in
            guard self.replicated?.isCaughtUp(shard, node) ?? true else { return false }
            return await self.channels?.isCopied(shard, to: node) ?? true
        }
        hooks.holdEntities = { shard throws(ApusError) in try await self.entities?.holdUntilQuiet(shard) }
        hooks.releaseEntities = { shard in self.entities?.release(shard) }
        hooks.isInUse = { self.entities.map { $0.entityCount > 0 } ?? false }
        // Frames of channels on the other side do not come any more, and clients may reach that side.
        hooks.lostMajority = { unheard in
            self.state.withLock { $0.gateway }?.askClientsToLeave(for: unheard.map(\.name))
        }
        return hooks
    }
}

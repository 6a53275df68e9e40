package import ApusCore
import Synchronization

/// This node's newest copy of the cluster map. Any thread can read it without waiting.
///
/// Concurrency model: the map is guarded by a `Mutex` and replaced as a whole. Observers are called one after the
/// other, in the order of the revisions, on the thread that delivered the map. They must only pass the map on (to an
/// event loop or an actor) and return.
package final class ClusterView: Sendable {
    package typealias Observer = @Sendable (_ old: ClusterMap, _ new: ClusterMap) -> Void

    private struct State {
        var map: ClusterMap
        var observers: [Observer] = []
    }

    /// This incarnation of this node.
    package let local: NodeID
    /// The clock by which tokens and tickets are validated.
    package let clock = ClusterClock()
    /// Whether this node may answer for entities with kept state. Always, until the node joins.
    package let permission = AnswerPermission()
    private let state: Mutex<State>
    /// Held while observers run, so that they see maps in order.
    private let delivery = Mutex(())

    package init(local: NodeID, map: ClusterMap) {
        self.local = local
        state = Mutex(State(map: map))
    }

    package var map: ClusterMap { state.withLock { $0.map } }

    /// The assignment of a shard with its owner's and standby's names resolved.
    package func lookUp(_ shard: ShardID) -> ShardView {
        state.withLock { state in
            ShardView(
                epoch: state.map[shard].epoch, owner: state.map.owner(of: shard), standby: state.map.standby(of: shard))
        }
    }

    /// True if this incarnation of this node owns the shard in its newest map.
    package func isLocal(_ shard: ShardID) -> Bool { lookUp(shard).owner?.id == local }

    /// Adds an observer. It is called for every later map.
    package func observe(_ observer: @escaping Observer) {
        state.withLock { $0.observers.append(observer) }
    }

    /// Applies a map from the store. A map older than the current one is ignored.
    package func update(_ map: ClusterMap) {
        delivery.withLock { _ in
            let change: (old: ClusterMap, observers: [Observer])? = state.withLock { state in
                guard map.revision > state.map.revision else { return nil }
                let old = state.map
                state.map = map
                return (old, state.observers)
            }
            guard let change else { return }
            for observer in change.observers { observer(change.old, map) }
        }
    }
}

/// A shard in this node's newest map.
package struct ShardView: Sendable {
    package var epoch: Epoch
    package var owner: Member?
    package var standby: Member?
}

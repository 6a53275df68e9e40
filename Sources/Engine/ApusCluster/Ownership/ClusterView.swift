package import ApusCore
import Synchronization

/// This node's newest copy of the cluster map, readable from any thread without waiting.
///
/// Concurrency model: the map sits behind a `Mutex` and is replaced whole; observers are called one
/// after the other, in the order of the revisions, on the thread that brought the map. They must
/// only hand the news on (to an event loop, to an actor) and return.
package final class ClusterView: Sendable {
    package typealias Observer = @Sendable (_ old: ClusterMap, _ new: ClusterMap) -> Void

    private struct State {
        var map: ClusterMap
        var observers: [Observer] = []
    }

    /// This life of this node.
    package let local: NodeID
    /// The time that tokens and tickets are judged by.
    package let clock = ClusterClock()
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

    /// True if this node, in this life, owns the shard as far as it knows.
    package func isLocal(_ shard: ShardID) -> Bool { lookUp(shard).owner?.id == local }

    /// Adds an observer; it is called for every later map.
    package func observe(_ observer: @escaping Observer) {
        state.withLock { $0.observers.append(observer) }
    }

    /// Takes a map that the store gave out; older ones than the one held are ignored.
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

/// A shard as this node knows it.
package struct ShardView: Sendable {
    package var epoch: Epoch
    package var owner: Member?
    package var standby: Member?
}

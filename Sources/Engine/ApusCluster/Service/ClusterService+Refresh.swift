package import ApusCore
import ApusTransport
import NIOCore

extension ClusterService {
    /// Another node knows a newer epoch of a shard. Reads the store at once. Call from any thread.
    package func moved(_ shard: ShardID, _ epoch: Epoch) {
        guard epoch > view.lookUp(shard).epoch else { return }
        thread.loop.execute { self.handle(ownership: .refresh) }
    }
}

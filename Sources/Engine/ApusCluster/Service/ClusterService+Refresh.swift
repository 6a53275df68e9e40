package import ApusCore
import ApusStorage
import ApusTransport
import NIOCore

extension ClusterService {
    /// Another node knows a newer epoch of a shard. Reads the store at once. Call from any thread.
    package func moved(_ shard: ShardID, _ epoch: Epoch) {
        guard epoch > view.lookUp(shard).epoch else { return }
        thread.loop.execute { self.handle(ownership: .refresh) }
    }

    /// Reads the store when it reports a change, until the task is cancelled. Returns at once if the store can only be
    /// polled.
    func watchStore() async {
        await store.watch { revision in
            // The node's own swaps are reported as well.
            self.thread.loop.execute { self.handle(ownership: .reported(revision)) }
        }
    }
}

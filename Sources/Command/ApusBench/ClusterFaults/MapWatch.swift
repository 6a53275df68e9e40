import ApusCluster
import ApusCore
import ApusLocal
import ApusStorage
import Foundation
import Synchronization

/// Follows the map in etcd by its watch, with the times at which changes were reported.
///
/// Concurrency model: ``run()`` is called by one task; the rest from any.
final class MapWatch: Sendable {
    private struct Entry {
        var at: MonotonicTime
        var alive: Set<NodeID>
    }

    private let store: any OwnershipStore
    private let cluster: ClusterID
    private let entries = Mutex<[Entry]>([])

    init(_ local: LocalCluster) async throws(ApusError) {
        store = try await FailoverStage.ownership(of: local)
        cluster = local.cluster
    }

    /// Follows the map until the task is cancelled.
    func run() async {
        let (reports, feed) = AsyncStream.makeStream(of: MonotonicTime.self)
        await withTaskGroup(of: Void.self) { group in
            group.addTask { [store] in
                await store.watch { _ in feed.yield(.now()) }
                feed.finish()
            }
            for await time in reports {
                guard let value = try? await store.read(),
                    let map = try? ClusterMap(decoding: value.bytes, revision: value.revision, cluster: cluster)
                else { continue }
                let alive = Set(map.members.lazy.filter(\.state.isAlive).map(\.id))
                entries.withLock { $0.append(Entry(at: time, alive: alive)) }
            }
            group.cancelAll()
        }
        await store.close()
    }

    /// The first report, from a time on, of a map in which none of the nodes is alive; nil if there is none.
    func death(of nodes: [NodeID], since: MonotonicTime) -> MonotonicTime? {
        entries.withLock { entries in
            entries.first { $0.at >= since && !nodes.contains(where: $0.alive.contains) }?.at
        }
    }
}

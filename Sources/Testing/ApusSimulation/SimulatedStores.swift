import ApusCluster
import ApusCore

/// A request of a process to the ownership store.
enum StoreRequest {
    case read
    case compareAndSwap(expected: UInt64, ClusterMap)
    case revision
    case renewLease
    case leases
}

/// What the ownership store's client reports.
enum StoreAnswer {
    case read(ClusterMap)
    case swapWon(revision: UInt64)
    case swapLost
    case revision(UInt64)
    case leases(Set<NodeID>)
    case failed(isPoll: Bool)
    /// Another store is at the place of the one that the process opened.
    case foreign(isPoll: Bool)
}

/// The ownership store: one value, all its earlier values, and who owned which shard under which epoch.
struct SimulatedOwnershipStore {
    /// The kind of damage.
    enum Damage {
        /// An older copy has replaced it.
        case rolledBack
        /// Another, empty store has replaced it.
        case replaced
    }

    private(set) var map: ClusterMap
    /// By revision, from 0.
    private(set) var history: [ClusterMap]
    private(set) var damage: Damage?
    /// By shard, in the order of epochs.
    private var owners: [[(epoch: Epoch, owner: NodeID?)]]

    init(map: ClusterMap) {
        self.map = map
        history = [map]
        owners = Array(repeating: [], count: map.shards.count)
    }

    /// Makes the swap if the revision is the expected one. Returns the new revision.
    mutating func compareAndSwap(expected: UInt64, _ next: ClusterMap, compares: Bool) -> UInt64? {
        guard map.revision == expected || !compares else { return nil }
        var next = next
        next.revision = map.revision + 1
        for index in next.shards.indices where next.shards[index].epoch != map.shards[index].epoch {
            owners[index].append((next.shards[index].epoch, next.member(at: next.shards[index].owner)?.id))
        }
        map = next
        history.append(next)
        return next.revision
    }

    /// The newest value is lost: the store shows an older one, or none.
    mutating func damage(_ damage: Damage, revision: UInt64) {
        self.damage = damage
        map = history[Int(revision)]
    }

    /// Restores a map of the processes, above all earlier revisions.
    mutating func restore(_ held: ClusterMap) {
        damage = nil
        map = held
        map.revision = UInt64(history.count)
        history.append(map)
    }

    /// The incarnation that some map named as owner under the epoch; nil if no map did.
    func owner(of shard: Int, under epoch: Epoch) -> NodeID? {
        owners[shard].last { $0.epoch == epoch }?.owner
    }
}

/// A row that an owner of a shard wrote, with its fencing token.
struct FencedWrite {
    var shard: Int
    var epoch: Epoch
    var writer: NodeID
    /// The process; distinguishes two with the same incarnation.
    var process: Int
    /// When the writer decided on it. It may arrive much later.
    var issuedAt: MonotonicTime
}

/// A planned move of a held shard, whose calls have ended.
struct HeldMove {
    var epoch: Epoch
    var target: NodeID
    /// When its owner had no call in progress.
    var at: MonotonicTime
    /// The map made the target the owner.
    var isHandedOver = false
}

/// A store that accepts a write only under the newest epoch that it has seen of the shard (D4).
struct SimulatedFencedStore {
    struct Row {
        var epoch: Epoch = 0
        var process = -1
    }

    private(set) var rows: [Row]
    private let checksEpochs: Bool

    init(shardCount: Int, checksEpochs: Bool) {
        rows = Array(repeating: Row(), count: shardCount)
        self.checksEpochs = checksEpochs
    }

    /// Accepts the write, or refuses it as stale.
    mutating func accept(_ write: FencedWrite) -> Bool {
        guard write.epoch >= rows[write.shard].epoch || !checksEpochs else { return false }
        rows[write.shard] = Row(epoch: write.epoch, process: write.process)
        return true
    }
}

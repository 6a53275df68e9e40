import ApusCluster
import ApusCore
import NIOCore

let shard = ShardID(7)

func key(_ name: String) -> ReplicaKey { ReplicaKey(kind: EntityKind(rawValue: 3), key: name) }

func state(_ text: String) -> ByteBuffer { ByteBuffer(string: text) }

/// An entity's new state; nil: its removal.
func record(_ name: String, _ text: String?) -> ReplicaRecord { ReplicaRecord(key(name), text.map(state)) }

func table(_ records: ReplicaRecord...) -> ReplicaTable {
    var table = ReplicaTable()
    for record in records { table.apply(record) }
    return table
}

extension ReplicaTable {
    /// As `key=state`, sorted.
    var text: [String] { records.map { "\($0.key.key)=\(String(buffer: $0.state ?? ByteBuffer()))" }.sorted() }
}

extension ReplicaBatch {
    /// The records as `key=state` and `-key`, in order.
    var text: [String] {
        records.map { record in
            record.state.map { "\(record.key.key)=\(String(buffer: $0))" } ?? "-\(record.key.key)"
        }
    }

    func answer(_ verdict: ReplicaAnswer.Verdict) -> ReplicaAnswer {
        ReplicaAnswer(shard: shard, term: term, sequence: sequence, verdict: verdict)
    }

    /// It was taken, with all before it.
    var taken: ReplicaAnswer { answer(.next(sequence + 1)) }
}

extension ReplicaShardStateMachine {
    /// The map names this standby, by a planned move.
    mutating func setStandby(_ node: NodeID?, namedIn: UInt64 = 0) -> Effects {
        setStandbys(node, nil, of: ShardAssignment(standbyNamedIn: namedIn))
    }

    /// Sends and confirms all that there is for a target.
    mutating func confirmAll(_ target: NodeID) {
        while let batch = nextBatch(for: target, byteCountMax: 1000) { _ = answered(batch.taken, by: target) }
    }
}

extension ReplicaCopyStateMachine {
    /// This node becomes the owner after it was named standby by a planned move.
    func promoted(to epoch: Epoch) -> (table: ReplicaTable, isComplete: Bool) { promoted(to: epoch, namedIn: 0) }
}

/// Nodes a, b, c and d, with one shard that is somebody's; every other one is nobody's.
///
/// - Parameters:
///   - standbyNamedIn: the revision in which the standby was named for want of another.
///   - ownerNamedIn: as before, when the owner was the standby.
func replicaMap(
    revision: UInt64, owner: String, standby: String?, epoch: Epoch, dead: [String] = [], shards: [ShardID] = [shard],
    standbyNamedIn: UInt64 = 0, ownerNamedIn: UInt64 = 0
) -> ClusterMap {
    let names = ["a", "b", "c", "d"]
    var map = ClusterMap(cluster: ClusterID(unchecked: "test"))
    map.revision = revision
    map.members = names.map {
        Member(id: node($0), state: dead.contains($0) ? .dead : .up, addresses: addresses($0))
    }
    func slot(_ name: String) -> MemberSlot { map.slot(of: NodeName(unchecked: name)) ?? .none }
    for shard in shards {
        map[shard] = ShardAssignment(
            owner: slot(owner), standby: standby.map(slot) ?? .none, epoch: epoch, standbyNamedIn: standbyNamedIn,
            ownerNamedIn: ownerNamedIn)
    }
    return map
}

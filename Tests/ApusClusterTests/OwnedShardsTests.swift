import ApusCluster
import ApusCore
import ApusTestKit
import Testing

@Suite("Shards that a node owns by a map (D2)")
struct OwnedShardsTests {
    private let first = ShardID(3)
    private let second = ShardID(4)

    private func map(_ owners: (String, String), epochs: (Epoch, Epoch), dead: [String] = []) -> ClusterMap {
        var map = ClusterMap(cluster: ClusterID(unchecked: "test"))
        map.revision = 1
        map.members = ["a", "b"].map { name in
            let id = NodeID(name: NodeName(unchecked: name), incarnation: 1)
            return Member(id: id, state: dead.contains(name) ? .dead : .up, addresses: addresses(name))
        }
        for (shard, owner, epoch) in [(first, owners.0, epochs.0), (second, owners.1, epochs.1)] {
            let slot = MemberSlot(rawValue: owner == "a" ? 0 : 1)
            map[shard] = ShardAssignment(owner: slot, standby: .none, epoch: epoch)
        }
        return map
    }

    private func owned(by name: String, incarnation: UInt64 = 1, _ map: ClusterMap) -> OwnedShards {
        OwnedShards(of: node(name, incarnation), in: map)
    }

    @Test("Each is known with its epoch; a node that is dead, or another life of it, owns none")
    func epochs() {
        let map = map(("a", "b"), epochs: (5, 6))
        #expect(owned(by: "a", map)[first] == 5 && owned(by: "a", map)[second] == nil)
        #expect(owned(by: "a", incarnation: 2, map) == OwnedShards())
        #expect(owned(by: "a", self.map(("a", "a"), epochs: (5, 6), dead: ["a"])) == OwnedShards())
    }

    @Test("Shards that came, left, or have another epoch differ, in order")
    func differences() {
        let older = owned(by: "a", map(("a", "b"), epochs: (5, 6)))
        let newer = owned(by: "a", map(("b", "a"), epochs: (6, 7)))
        let differences = newer.differences(from: older)
        #expect(differences.map(\.shard) == [first, second])
        #expect(differences.map(\.old) == [5, nil] && differences.map(\.new) == [nil, 7])
        let later = owned(by: "a", map(("a", "b"), epochs: (7, 6)))
        #expect(later.differences(from: older).map(\.new) == [7])
        #expect(later.differences(from: later).isEmpty)
    }
}

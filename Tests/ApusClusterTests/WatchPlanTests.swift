import ApusCluster
import ApusCore
import Testing

private let rule = WatchRule(watcherCount: 8, fullMeshMax: 9)

/// The ids of nodes n0, n1, and so on.
func nodes(_ count: Int) -> [NodeID] { (0..<count).map { node("n\($0)") } }

@Suite("Who watches whom (D4)")
struct WatchPlanTests {
    /// A map of members with these rules.
    private func map(_ rules: [WatchRule?]) throws -> ClusterMap {
        var map = ClusterMap(cluster: ClusterID(unchecked: "test"))
        for (index, rule) in rules.enumerated() {
            map = try map.after(
                .join(node("n\(index)"), addresses: addresses("n\(index)"), weight: 100, watchRule: rule))
        }
        return map
    }

    @Test("Each member has as many watchers as the rule says, and two watch each other or do not", arguments: [10, 50])
    func ring(count: Int) throws {
        let plan = WatchPlan(members: nodes(count), watcherCount: 8)
        for member in nodes(count) {
            let watchers = try #require(plan.watchers(of: member))
            #expect(Set(watchers).count == 8 && !watchers.contains(member))
            for watcher in watchers { #expect(plan.watchers(of: watcher)?.contains(member) == true) }
        }
        // The order of the members, and their incarnations, do not matter.
        let reborn = nodes(count).map { NodeID(name: $0.name, incarnation: 7) }
        let other = WatchPlan(members: reborn.reversed(), watcherCount: 8)
        for (member, again) in zip(nodes(count), reborn) {
            #expect(plan.watchers(of: member)?.map(\.name) == other.watchers(of: again)?.map(\.name))
        }
    }

    @Test("A join or a death replaces at most one watcher of a member, and concerns eight members")
    func change() throws {
        let before = WatchPlan(members: nodes(30), watcherCount: 8)
        let after = WatchPlan(members: nodes(31), watcherCount: 8)
        var changedCount = 0
        for member in nodes(30) {
            let old = Set(try #require(before.watchers(of: member)))
            let new = Set(try #require(after.watchers(of: member)))
            #expect(old.subtracting(new).count <= 1)
            if old != new { changedCount += 1 }
        }
        #expect(changedCount == 8)
    }

    @Test("Up to nine members watch each other, and ten form a ring")
    func size() throws {
        #expect(try map(Array(repeating: rule, count: 9)).watchPlan.isFullMesh)
        #expect(try !map(Array(repeating: rule, count: 10)).watchPlan.isFullMesh)
    }

    @Test("A member of an earlier version, or with another rule, makes a full mesh until it is gone")
    func rules() throws {
        let other = WatchRule(watcherCount: 6, fullMeshMax: 9)
        for odd in [nil, other] as [WatchRule?] {
            var map = try map(Array(repeating: rule, count: 11) + [odd])
            #expect(map.watchPlan.isFullMesh)
            map = try map.after(.declareDead([node("n11")]))
            #expect(!map.watchPlan.isFullMesh)
        }
    }

    @Test("A rule that was lost with a map of an earlier version is written again")
    func lostRule() throws {
        var map = try map(Array(repeating: rule, count: 11))
        map.members[3].watchRule = nil
        #expect(map.watchPlan.isFullMesh)
        let repaired = try map.after(.setWatchRule(node("n3"), rule))
        #expect(!repaired.watchPlan.isFullMesh)
        #expect(try repaired.applying(.setWatchRule(node("n3"), rule)) == nil)
        #expect(throws: ApusError.self) { try map.applying(.setWatchRule(node("n3", 2), rule)) }
    }

    @Test("The rules are stored with the map, and a map without them counts as the same map")
    func encoding() throws {
        let map = try map([rule, nil, WatchRule(watcherCount: 2, fullMeshMax: 64)])
        let read = try ClusterMap(decoding: map.encoded(), revision: map.revision, cluster: map.cluster)
        #expect(read == map)
        var earlier = map
        for index in earlier.members.indices { earlier.members[index].watchRule = nil }
        #expect(earlier != map && earlier.isSuccessor(of: map) && map.isSuccessor(of: earlier))
        // Together with the other fields that earlier versions leave out.
        var cordoned = try #require(
            try map.applying(
                .cordon(NodeName(unchecked: "n0"), true), origin: ChangeOrigin(maker: nil, milliseconds: 1)))
        cordoned.revision = map.revision + 1
        #expect(
            try ClusterMap(decoding: cordoned.encoded(), revision: cordoned.revision, cluster: map.cluster) == cordoned)
        earlier.revision = cordoned.revision
        for index in earlier.shards.indices {
            (earlier.shards[index].standbyNamedIn, earlier.shards[index].ownerNamedIn) = (0, 0)
        }
        #expect(earlier.isSuccessor(of: cordoned) && cordoned.isSuccessor(of: earlier))
        earlier.shards[0].epoch += 1
        #expect(!earlier.isSuccessor(of: cordoned))
    }

    @Test("A member that joins again keeps its cordon and brings its own rule, which is no change to record")
    func cordonedMember() throws {
        var map = try map(Array(repeating: rule, count: 11))
        map = try map.after(.cordon(NodeName(unchecked: "n3"), true))
        let other = WatchRule(watcherCount: 6, fullMeshMax: 9)
        map = try map.after(.join(node("n3", 2), addresses: addresses("n3"), weight: 100, watchRule: other))
        let member = try #require(map.member(named: NodeName(unchecked: "n3")))
        #expect(member.isCordoned && member.watchRule == other)
        let origin = ChangeOrigin(maker: node("n3", 2), milliseconds: 1)
        let repaired = try #require(try map.applying(.setWatchRule(node("n3", 2), rule), origin: origin))
        #expect(repaired.history == map.history && !repaired.watchPlan.isFullMesh)
    }

    @Test("A rule that no node would write is no ring", arguments: [0, 1, 1000, .max] as [UInt32])
    func strangeRule(watcherCount: UInt32) throws {
        let strange = WatchRule(watcherCount: watcherCount, fullMeshMax: 0)
        #expect(try map(Array(repeating: strange, count: 12)).watchPlan.isFullMesh)
    }
}

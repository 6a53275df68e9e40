import ApusCluster
import ApusCore
import Testing

@Suite("The record of what changed the map")
struct MapHistoryTests {
    private func origin(
        _ maker: String, _ milliseconds: UInt64, _ reason: MapChange.Reason = .none
    ) -> ChangeOrigin {
        ChangeOrigin(maker: node(maker), milliseconds: milliseconds, reason: reason)
    }

    private func after(
        _ map: ClusterMap, _ decision: OwnershipDecision, _ origin: ChangeOrigin
    ) throws -> ClusterMap {
        var next = try #require(try map.applying(decision, origin: origin))
        next.revision = map.revision + 1
        return next
    }

    private func joined(_ names: [String]) throws -> ClusterMap {
        var map = ClusterMap(cluster: ClusterID(unchecked: "test"))
        for (index, name) in names.enumerated() {
            map = try after(map, join(name), origin(name, UInt64(1000 + index)))
        }
        return map
    }

    @Test("The first node owns all shards because it joined, and the second stands by because it joined")
    func joins() throws {
        let map = try joined(["a", "b"])
        let shard = ShardID(17)
        let owner = try #require(map.history.ownerChange(of: shard))
        #expect(owner.kind == .joined && owner.nodes == [node("a")] && owner.maker == node("a"))
        #expect(owner.revisions == 1...1 && owner.milliseconds == 1000...1000)
        #expect(owner.shardCount == ShardID.count)
        let standby = try #require(map.history.standbyChange(of: shard))
        #expect(standby.kind == .joined && standby.nodes == [node("b")] && standby.revisions == 2...2)
    }

    @Test("After a death, shards name the death, its maker and its reason; those of others keep their record")
    func death() throws {
        let before = try joined(["a", "b", "c"]).atRest()
        let map = try after(
            before, .declareDead([node("b")]), origin("c", 5000, .unheardByMajority))
        for index in map.shards.indices {
            let shard = ShardID(UInt16(index))
            let isTaken = before.owner(of: shard)?.id == node("b")
            let owner = map.history.ownerChange(of: shard)
            #expect((owner?.kind == .dead) == isTaken)
            guard isTaken else { continue }
            #expect(owner?.nodes == [node("b")] && owner?.maker == node("c") && owner?.reason == .unheardByMajority)
            #expect(owner?.milliseconds == 5000...5000)
        }
        let newest = try #require(map.history.changes.first)
        let changed = zip(before.shards, map.shards).reduce(0) { sum, pair in
            sum + (pair.0.owner == pair.1.owner ? 0 : 1) + (pair.0.standby == pair.1.standby ? 0 : 1)
        }
        #expect(newest.kind == .dead && newest.shardCount == changed)
    }

    private func move(_ map: ClusterMap, _ index: Int, to target: String) -> OwnershipDecision {
        let shard = ShardID(UInt16(index))
        return .handOver([
            ShardMove(
                shard: shard, epoch: map[shard].epoch, owner: map.owner(of: shard)?.id ?? node("?"),
                target: node(target))
        ])
    }

    @Test("Planned moves of one node within a minute are one change; after a pause, or by another node, another one")
    func series() throws {
        var map = try joined(["a", "b"])
        map = try after(map, move(map, 1, to: "b"), origin("a", 10_000))
        map = try after(map, move(map, 2, to: "b"), origin("a", 60_000))
        #expect(map.history.changes.count == 3)
        let series = try #require(map.history.ownerChange(of: ShardID(1)))
        #expect(series.kind == .rebalanced && series.maker == node("a"))
        #expect(series.revisions == 3...4 && series.milliseconds == 10_000...60_000)
        #expect(map.history.ownerChange(of: ShardID(2)) == series)
        map = try after(map, move(map, 3, to: "b"), origin("a", 120_001))
        #expect(map.history.changes.count == 4)
        map = try after(map, move(map, 1, to: "a"), origin("b", 120_002))
        #expect(map.history.changes.count == 5)
        #expect(map.history.ownerChange(of: ShardID(1))?.maker == node("b"))
    }

    @Test("A clock that went back begins no negative time")
    func clockWentBack() throws {
        var map = try joined(["a", "b"])
        map = try after(map, move(map, 1, to: "b"), origin("a", 60_000))
        map = try after(map, move(map, 2, to: "b"), origin("a", 30_000))
        #expect(map.history.ownerChange(of: ShardID(2))?.milliseconds == 60_000...60_000)
        map = try after(map, move(map, 3, to: "b"), origin("a", 0))
        #expect(map.history.ownerChange(of: ShardID(3))?.milliseconds == 60_000...60_000)
    }

    @Test("A draining node's moves are recorded as the drain's")
    func drained() throws {
        var map = try joined(["a", "b"])
        map = try after(map, .drain(node("a")), origin("a", 10_000))
        map = try after(map, move(map, 1, to: "b"), origin("a", 10_001))
        #expect(map.history.ownerChange(of: ShardID(1))?.kind == .drained)
        #expect(map.history.changes.map(\.kind).prefix(2) == [.drained, .draining])
        map = try after(map, .undrain(node("a")), origin("a", 10_002))
        #expect(map.history.changes.first?.kind == .undrained && "\(MapChange.Kind.undrained)" == "undrained")
        #expect(map.history.changes.first?.nodes == [node("a")])
    }

    @Test(
        "At most 128 changes are kept: first those without shards are dropped, then the oldest, whose shards forget it")
    func bound() throws {
        var map = try joined(["a", "b"])
        for number in 0..<200 {
            map = try after(map, .cordon(node("b").name, number.isMultiple(of: 2)), origin("a", UInt64(number)))
        }
        #expect(map.history.changes.count == MapHistory.changeCountMax)
        #expect(map.history.ownerChange(of: ShardID(17))?.kind == .joined)
        // Every shard is moved once by a change of its own.
        for index in 0..<200 {
            map = try after(map, move(map, index, to: "b"), origin("a", UInt64(index + 1) * 100_000))
        }
        #expect(map.history.changes.count == MapHistory.changeCountMax)
        #expect(map.history.ownerChange(of: ShardID(0)) == nil)
        #expect(map.history.ownerChange(of: ShardID(199))?.milliseconds == 20_000_000...20_000_000)
        #expect(map.history.ownerChange(of: ShardID(4000)) == nil, "its join was the oldest")
        let read = try ClusterMap(decoding: try map.encoded(), revision: map.revision, cluster: map.cluster)
        #expect(read == map)
        #expect(try map.encoded().count < 80 << 10)
    }

    @Test("The history survives its encoding, with kinds of later versions")
    func encoding() throws {
        var map = try joined(["a", "b", "c"]).atRest()
        map = try after(map, .declareDead([node("b")]), origin("c", 5000, .leaseExpired))
        let later = MapChange(
            kind: .init(rawValue: 77), reason: .init(rawValue: 9), maker: nil, nodes: [], revision: 9, milliseconds: 8)
        map.history.record(later, before: map.shards, after: map.shards)
        let read = try ClusterMap(decoding: try map.encoded(), revision: map.revision, cluster: map.cluster)
        #expect(read == map)
        #expect(read.history.changes.first?.kind.rawValue == 77)
        #expect(read.history.changes.first.map { "\($0.kind) \($0.reason)" } == "unknown unknown")
    }

    @Test("A history out of bounds is refused, and a number without a change is no record")
    func refused() {
        let change = MapChange(kind: .joined, maker: nil, nodes: [], revision: 1, milliseconds: 1)
        let one = MapHistory.Numbered(number: 1, change: change)
        #expect(MapHistory([one, one], ownerNumbers: [], standbyNumbers: []) == nil)
        #expect(MapHistory([one], ownerNumbers: [1, 1], standbyNumbers: []) == nil)
        #expect(
            MapHistory(
                (0...128).map { .init(number: UInt8($0 + 1), change: change) }, ownerNumbers: [], standbyNumbers: [])
                == nil)
        let numbers = Array(repeating: UInt8(2), count: ShardID.count)
        let history = MapHistory([one], ownerNumbers: numbers, standbyNumbers: numbers)
        #expect(history != nil && history?.ownerChange(of: ShardID(5)) == nil)
    }

    @Test("Two copies of one revision are the same map if only one of them has the history or the cordon")
    func otherVersion() throws {
        var map = try joined(["a", "b"])
        map = try after(map, .cordon(node("b").name, true), origin("a", 5))
        var old = map
        old.history = MapHistory()
        old.members[1].isCordoned = false
        #expect(map.isSuccessor(of: old) && old.isSuccessor(of: map))
        old.shards[3].epoch += 1
        #expect(!map.isSuccessor(of: old) && !old.isSuccessor(of: map))
    }

    @Test("The machine records the reason for which a death was certain")
    func machineReasons() throws {
        var map = try joined(["a", "b", "c"])
        map.revision = 3
        var machine = OwnershipStateMachine(map: ClusterMap(cluster: map.cluster))
        _ = machine.handle(.refresh, now: at(0))
        _ = machine.handle(.read(map), now: at(1))
        _ = machine.handle(.propose(1, join("a")), now: at(2))
        machine.wallMilliseconds = 777
        var actions = machine.handle(.confirmedDead(node("c"), isCertain: true), now: at(100))
        for time in stride(from: 110, to: 400, by: 10) where actions.isEmpty {
            actions = machine.handle(.tick, now: at(time))
        }
        let swapped = actions.compactMap { action -> ClusterMap? in
            if case .compareAndSwap(_, let map) = action { map } else { nil }
        }
        let change = try #require(swapped.first?.history.changes.first)
        #expect(change.kind == .dead && change.reason == .processEnded && change.maker == node("a"))
        #expect(change.milliseconds == 777...777 && change.nodes == [node("c")])
    }
}

import ApusCluster
import ApusCore
import Testing

@Suite("Ownership decisions (D4, D5)")
struct OwnershipDecisionTests {
    @Test("The first node owns every shard under epoch 1, with nobody to stand by")
    func first() throws {
        let map = try map(join("a"))
        #expect(map.ownedCount("a") == ShardID.count)
        #expect(map.shards.allSatisfy { $0.epoch == 1 && $0.standby == .none })
    }

    @Test("The second node stands by for every shard at once, and no shard changes hands")
    func second() throws {
        let map = try map(join("a"), join("b"))
        #expect(map.ownedCount("a") == ShardID.count)
        #expect(map.stoodByCount("b") == ShardID.count)
        #expect(map.shards.allSatisfy { $0.epoch == 1 })
    }

    @Test("A name that comes back gets the next incarnation; the older one is dead by it")
    func rejoin() throws {
        let before = try map(join("a"), join("b"))
        let after = try before.after(join("a", 2))
        #expect(after.member(named: NodeName(unchecked: "a"))?.id == node("a", 2))
        #expect(after.members.count == 2)
        #expect(!after.isAlive(node("a", 1)))
        #expect(after.ownedCount("b") == ShardID.count)
        #expect(after.stoodByCount("a") == ShardID.count)
        #expect(after.shards.allSatisfy { $0.epoch == 2 })
    }

    @Test("A join that was made already changes nothing, and a life that another process took is fenced (10025)")
    func joinTwice() throws {
        let map = try map(join("a"), join("b", 4))
        #expect(try map.applying(join("b", 4)) == nil)
        #expect(throws: ApusError(.fenced)) { try map.applying(join("b", 3)) }
        let gone = try map.after(.declareDead([node("b", 4)]))
        #expect(throws: ApusError(.fenced)) { try gone.applying(join("b", 4)) }
        #expect(gone.nextIncarnation(of: NodeName(unchecked: "b")) == node("b", 5))
    }

    @Test("Of two processes that join as one incarnation the second is fenced (10025), whatever the map has lost")
    func joinAsTwin() throws {
        func twin(_ process: UInt64) -> OwnershipDecision {
            .join(node("b", 4), addresses: addresses("b"), weight: 100, process: process)
        }
        let map = try map(join("a"), twin(7))
        #expect(try map.applying(twin(7)) == nil)
        #expect(throws: ApusError(.fenced)) { try map.applying(twin(8)) }
        // A node of an earlier version wrote the map: the process starts again, whichever of the two it is.
        var rewritten = map
        rewritten.members[1].process = 0
        for process in [7, 8] as [UInt64] {
            #expect(throws: ApusError(.fenced)) { try rewritten.applying(twin(process)) }
        }
        #expect(map.isAlive(node("b", 4), process: 7) && !map.isAlive(node("b", 4), process: 8))
        #expect(rewritten.isAlive(node("b", 4), process: 7))
        #expect(rewritten.isSuccessor(of: map) && map.isSuccessor(of: rewritten))
        let decoded = try ClusterMap(decoding: map.encoded(), revision: map.revision, cluster: map.cluster)
        #expect(decoded.members[1].process == 7)
    }

    @Test("A single node that starts again owns everything under a later epoch")
    func rejoinAlone() throws {
        let map = try map(join("a"), join("a", 2))
        #expect(map.ownedCount("a") == ShardID.count)
        #expect(map.shards.allSatisfy { $0.epoch > 1 && $0.standby == .none })
    }

    @Test("After a death the standby owns the shard under the next epoch; where the standby died only it is replaced")
    func death() throws {
        let before = try map(join("a"), join("b"), join("c")).atRest()
        let after = try before.after(.declareDead([node("b")]))
        for shard in before.shards.indices {
            let (old, new) = (before.shards[shard], after.shards[shard])
            if before.member(at: old.owner)?.id == node("b") {
                #expect(new.owner == old.standby && new.epoch == old.epoch + 1)
            } else {
                #expect(new.owner == old.owner && new.epoch == old.epoch)
            }
            #expect(new.standby != .none && new.standby != new.owner)
        }
        #expect(after.ownedCount("b") == 0 && after.stoodByCount("b") == 0)
    }

    @Test("A death that is in the map already, and one of an older incarnation, change nothing")
    func deathTwice() throws {
        let map = try map(join("a"), join("b"), join("b", 2))
        #expect(try map.applying(.declareDead([node("b", 1)])) == nil)
        let after = try map.after(.declareDead([node("b", 2)]))
        #expect(try after.applying(.declareDead([node("b", 2)])) == nil)
    }

    @Test("Owner and standby dying in one step leave the shard to the third")
    func doubleDeath() throws {
        let before = try map(join("a"), join("b"), join("c")).atRest()
        let after = try before.after(.declareDead([node("a"), node("b")]))
        #expect(after.ownedCount("c") == ShardID.count)
        #expect(after.shards.allSatisfy { $0.standby == .none })
    }

    @Test("Two of three nodes leave, and the third owns everything")
    func leaves() throws {
        let map = try map(join("a"), join("b"), join("c")).atRest()
            .after(.drain(node("a"))).after(.leave(node("a"))).after(.leave(node("b")))
        #expect(map.ownedCount("c") == ShardID.count)
        #expect(map.member(named: NodeName(unchecked: "a"))?.state == .left)
    }

    @Test("When the last node leaves, shards wait without an owner for the next that joins")
    func lastLeaves() throws {
        let empty = try map(join("a"), .leave(node("a")))
        #expect(empty.shards.allSatisfy { $0.owner == .none && $0.standby == .none })
        let again = try empty.after(join("b"))
        #expect(again.ownedCount("b") == ShardID.count)
        #expect(again.shards.allSatisfy { $0.epoch == 3 })
    }

    @Test("A node that drains is emptied by hand-over and gets nothing new")
    func drain() throws {
        let before = try map(join("a"), join("b"), join("c")).atRest().after(.drain(node("b")))
        #expect(!before.isDrained(node("b")))
        let after = try before.atRest()
        #expect(after.isDrained(node("b")))
        #expect(after.ownedCount("a") + after.ownedCount("c") == ShardID.count)
    }

    @Test("A drain that is ended gives the node shards again, and its standbys at once")
    func undrain() throws {
        let drained = try map(join("a"), join("b"), join("c")).atRest().after(.drain(node("b"))).atRest()
        #expect(drained.ownedCount("b") == 0)
        let up = try drained.after(.undrain(node("b")))
        #expect(up.member(named: node("b").name)?.state == .up && up.member(named: node("b").name)?.id == node("b"))
        #expect(!ShardPlacement(of: up).isSettled(up))
        #expect(try up.atRest().ownedCount("b") > ShardID.count / 4)
        // Again, it changes nothing.
        #expect(try up.applying(.undrain(node("b"))) == nil)
        let alone = try drained.after(.leave(node("c")))
        #expect(alone.shards.contains { $0.standby == .none })
        #expect(try alone.after(.undrain(node("b"))).shards.allSatisfy { $0.standby != .none })
    }

    @Test("A drain that is ended while shards move leaves what has moved, and its node takes no more away")
    func undrainHalfway() throws {
        let draining = try map(join("a"), join("b"), join("c")).atRest().after(.drain(node("b")))
        let up = try draining.after(.undrain(node("b")))
        #expect(up.shards == draining.shards)
        var machine = HandoverStateMachine(local: node("b"))
        _ = machine.handle(.mapChanged(up), now: at(0))
        #expect(machine.movingCount == 0)
    }

    @Test("A dead life decides nothing: it is told that it is fenced (10025)")
    func fenced() throws {
        let map = try map(join("a"), join("b"), .declareDead([node("b")]))
        #expect(throws: ApusError(.fenced)) { try map.applying(.drain(node("b"))) }
        #expect(throws: ApusError(.fenced)) { try map.applying(.undrain(node("b"))) }
        #expect(throws: ApusError(.fenced)) { try map.applying(.leave(node("b"))) }
    }

    @Test("A hand-over needs the same owner, the same epoch, and a target that stands by")
    func handOver() throws {
        let map = try map(join("a"), join("b"), join("c"))
        let shard = ShardID(5)
        let move = ShardMove(shard: shard, epoch: 1, owner: node("a"), target: node("b"))
        let done = try map.after(.setStandby([move])).after(.handOver([move]))
        #expect(done.owner(of: shard)?.id == node("b"))
        #expect(done.standby(of: shard)?.id == node("a"))
        #expect(done[shard].epoch == 2)
        #expect(try done.applying(.handOver([move])) == nil)
        let other = ShardMove(shard: shard, epoch: 1, owner: node("a"), target: node("c"))
        #expect(try map.applying(.handOver([other])) == nil)
        let stale = ShardMove(shard: shard, epoch: 0, owner: node("a"), target: node("b"))
        #expect(try map.applying(.handOver([stale])) == nil)
    }

    @Test("The map survives its way through the store's bytes")
    func encoding() throws {
        var map = try map(join("a"), join("b", weight: 250), join("c")).atRest().after(.declareDead([node("c")]))
        map.revision = 17
        let copy = try ClusterMap(decoding: map.encoded(), revision: 17, cluster: map.cluster)
        #expect(copy == map)
    }

    @Test("The map of another cluster, a cut one and garbage are refused with their numbers")
    func badBytes() throws {
        let bytes = try map(join("a")).encoded()
        let cluster = ClusterID(unchecked: "test")
        #expect(throws: ApusError(.wrongCluster)) {
            try ClusterMap(decoding: bytes, revision: 1, cluster: ClusterID(unchecked: "other"))
        }
        for length in [0, 1, 40, bytes.count / 2, bytes.count - 1] {
            #expect(throws: ApusError.self) {
                try ClusterMap(decoding: Array(bytes.prefix(length)), revision: 1, cluster: cluster)
            }
        }
        #expect(throws: ApusError(.malformed)) {
            try ClusterMap(decoding: Array(repeating: 0xff, count: 500), revision: 1, cluster: cluster)
        }
    }

    /// 1,000 sequences of 12 decisions each on small maps; every step keeps the invariants of D5.
    @Test(
        "Over 1,000 random sequences no epoch goes back, no standby is the owner, and no dead node holds a shard"
    )
    func random() throws {
        for seed in 0..<1000 as Range<UInt64> {
            var random = SeededRandom(seed: seed)
            var map = ClusterMap(cluster: ClusterID(unchecked: "test"))
            map.shards = Array(repeating: ShardAssignment(), count: 64)
            for _ in 0..<12 {
                let decision = randomDecision(for: map, using: &random)
                let next = try map.after(decision)
                #expect(violation(from: map, to: next) == nil, "seed \(seed), \(decision)")
                map = next
            }
        }
    }

    private func randomDecision(for map: ClusterMap, using random: inout SeededRandom) -> OwnershipDecision {
        let alive = map.members.filter(\.state.isAlive).map(\.id)
        let names = ["a", "b", "c", "d", "e"]
        guard let some = alive.randomElement(using: &random) else {
            return randomJoin(names, to: map, using: &random)
        }
        switch Int.random(in: 0..<7, using: &random) {
        case 0, 1: return randomJoin(names, to: map, using: &random)
        case 2: return .declareDead(alive.filter { $0 == some || random.nextUnit() < 0.2 })
        case 3: return .drain(some)
        case 4: return .leave(some)
        default:
            let moves = map.shards.indices.compactMap { index -> ShardMove? in
                guard let owner = map.owner(of: ShardID(UInt16(index))),
                    let target = alive.randomElement(using: &random)
                else { return nil }
                return ShardMove(
                    shard: ShardID(UInt16(index)), epoch: map.shards[index].epoch, owner: owner.id, target: target)
            }
            return random.nextUnit() < 0.5 ? .setStandby(moves) : .handOver(moves)
        }
    }

    private func randomJoin(_ names: [String], to map: ClusterMap, using random: inout SeededRandom)
        -> OwnershipDecision
    {
        let name = names[Int.random(in: 0..<names.count, using: &random)]
        return join(name, map.nextIncarnation(of: NodeName(unchecked: name)).incarnation)
    }

    private func violation(from old: ClusterMap, to new: ClusterMap) -> String? {
        let isAnyoneAlive = new.members.contains { $0.state.isAlive }
        for index in new.shards.indices {
            let (before, after) = (old.shards[index], new.shards[index])
            if after.epoch < before.epoch { return "epoch of shard \(index) went back" }
            let sameIncarnation =
                after.owner == before.owner && new.member(at: after.owner)?.id == old.member(at: before.owner)?.id
            if !sameIncarnation, after.epoch == before.epoch {
                return "shard \(index) has a new owner under its old epoch"
            }
            if after.owner != .none, after.owner == after.standby { return "shard \(index) stands by for itself" }
            if isAnyoneAlive, after.owner == .none { return "shard \(index) has no owner" }
            for slot in [after.owner, after.standby] where slot != .none {
                guard new.member(at: slot)?.state.isAlive == true else {
                    return "shard \(index) is held by a dead node"
                }
            }
            let others = new.members.indices.contains {
                new.members[$0].state == .up && MemberSlot(rawValue: UInt16($0)) != after.owner
            }
            if others, after.standby == .none { return "shard \(index) has no standby" }
        }
        for member in old.members where new.member(named: member.id.name)?.id.incarnation ?? 0 < member.id.incarnation {
            return "an incarnation went back"
        }
        return nil
    }
}

@Suite("Shard placement (D5)")
struct ShardPlacementTests {
    private let names = ["a", "b", "c", "d", "e", "f", "g", "h"]

    @Test("Each member owns and stands by for at most 1.05 of its fair share", arguments: 1...8)
    func balance(count: Int) throws {
        var map = ClusterMap(cluster: ClusterID(unchecked: "test"))
        for name in names.prefix(count) { map = try map.after(join(name)) }
        let rest = try map.atRest()
        let bound = Int((Double(ShardID.count) / Double(count) * 1.05).rounded(.up))
        for name in names.prefix(count) {
            #expect(rest.ownedCount(name) <= bound)
            #expect(rest.stoodByCount(name) <= bound + 16)
        }
        #expect(rest.shards.allSatisfy { $0.owner != $0.standby })
    }

    @Test("Weights share in proportion")
    func weights() throws {
        let map = try map(join("a", weight: 100), join("b", weight: 200), join("c", weight: 100)).atRest()
        #expect(abs(map.ownedCount("b") - ShardID.count / 2) < ShardID.count / 20)
    }

    @Test("A join moves little more than the newcomer's share, and all of it to the newcomer or past a full member")
    func joinMoves() throws {
        let before = try map(join("a"), join("b"), join("c"), join("d")).atRest()
        let after = try before.after(join("e")).atRest()
        let moved = before.shards.indices.count { before.shards[$0].owner != after.shards[$0].owner }
        #expect(Double(moved) < 1.25 * Double(ShardID.count) / 5)
    }

    @Test("A node that comes back gets the shards that it had")
    func comesBack() throws {
        let before = try map(join("a"), join("b"), join("c")).atRest()
        let after = try before.after(.declareDead([node("b")])).after(join("b", 2)).atRest()
        #expect(before.shards.map(\.owner) == after.shards.map(\.owner))
    }
}

import ApusCluster
import ApusCore
import ApusTestKit
import ApusWire
import Foundation
import SwiftProtobuf
import Testing

/// The third copy of a shard, in clusters of four or more nodes (D5, D18).
@Suite("Second standbys (D5, D18)")
struct SecondStandbyTests {
    private static let cluster = ClusterID(unchecked: "test")

    private static func five() throws -> ClusterMap {
        try map(join("a"), join("b"), join("c"), join("d"), join("e")).atRest()
    }

    private static func shard(in map: ClusterMap, owner: String, standby: String) throws -> ShardID {
        let index = map.shards.indices.first {
            let shard = ShardID(UInt16($0))
            return map.owner(of: shard)?.id == node(owner) && map.standby(of: shard)?.id == node(standby)
        }
        return ShardID(UInt16(try #require(index)))
    }

    private static func check(_ map: ClusterMap, secondsOf count: Int) {
        for shard in map.shards where shard.secondStandby != .none {
            #expect(shard.secondStandby != shard.owner && shard.secondStandby != shard.standby)
            #expect(map.member(at: shard.secondStandby)?.state == .up)
        }
        #expect(map.shards.count { $0.secondStandby != .none } == count)
    }

    @Test("Three nodes have none, with four every shard has one, and each node its share of them")
    func named() throws {
        let three = try map(join("a"), join("b"), join("c"))
        Self.check(three, secondsOf: 0)
        let four = try three.after(join("d"))
        Self.check(four, secondsOf: ShardID.count)
        #expect(four.shards.allSatisfy { $0.secondStandbyNamedIn == four.revision })
        let five = try four.after(join("e"))
        #expect(five.shards == four.shards)
        let rest = try Self.five()
        Self.check(rest, secondsOf: ShardID.count)
        #expect(ShardPlacement(of: rest).isSettled(rest))
        let share = ShardID.count / 5
        for slot in rest.members.indices {
            let count = rest.shards.count { Int($0.secondStandby.rawValue) == slot }
            #expect(count > share * 9 / 10 && count < share * 11 / 10)
        }
        // Planned moves alone brought them there.
        #expect(rest.shards.allSatisfy { $0.secondStandbyNamedIn <= four.revision })
    }

    @Test("The owner and the standby die at once: the second standby is the owner, named when it became that")
    func bothDie() throws {
        let before = try Self.five()
        let shard = try Self.shard(in: before, owner: "a", standby: "b")
        let second = before[shard].secondStandby
        let after = try before.after(.declareDead([node("a"), node("b")]))
        #expect(after[shard].owner == second && after[shard].epoch == before[shard].epoch + 1)
        #expect(after[shard].ownerNamedIn == before[shard].secondStandbyNamedIn)
        #expect(after[shard].standby != .none && after[shard].standbyNamedIn == after.revision)
        // Three are left, too few for third copies. Those that are there are kept.
        for index in after.shards.indices where after.shards[index].secondStandby != .none {
            #expect(after.shards[index].secondStandby == before.shards[index].secondStandby)
        }
    }

    @Test("The standby dies: the second standby takes its place, and another becomes that")
    func standbyDies() throws {
        let before = try Self.five()
        let shard = try Self.shard(in: before, owner: "a", standby: "b")
        let after = try before.after(.declareDead([node("b")]))
        #expect(after[shard].owner == before[shard].owner && after[shard].epoch == before[shard].epoch)
        #expect(after[shard].standby == before[shard].secondStandby)
        #expect(after[shard].standbyNamedIn == before[shard].secondStandbyNamedIn)
        #expect(after[shard].secondStandbyNamedIn == after.revision)
        Self.check(after, secondsOf: ShardID.count)
    }

    @Test("The owner dies: the standby owns the shard, and the second standby stands by")
    func ownerDies() throws {
        let before = try Self.five()
        let shard = try Self.shard(in: before, owner: "a", standby: "b")
        let after = try before.after(.declareDead([node("a")]))
        #expect(after[shard].owner == before[shard].standby && after[shard].standby == before[shard].secondStandby)
        Self.check(after, secondsOf: ShardID.count)
    }

    @Test("A planned move to the second standby lets the two change places; after another the former standby is second")
    func moves() throws {
        let before = try Self.five()
        let shard = try Self.shard(in: before, owner: "a", standby: "b")
        let second = try #require(before.secondStandby(of: shard)?.id)
        let move = ShardMove(shard: shard, epoch: before[shard].epoch, owner: node("a"), target: second)
        let swapped = try before.after(.setStandby([move]))
        #expect(swapped.standby(of: shard)?.id == second && swapped.secondStandby(of: shard)?.id == node("b"))
        #expect(swapped[shard].standbyNamedIn == 0)
        #expect(swapped[shard].secondStandbyNamedIn == before[shard].standbyNamedIn)
        let other = try #require(
            ["c", "d", "e"].map { node($0) }.first { $0 != second })
        let moved = try before.after(
            .setStandby([ShardMove(shard: shard, epoch: before[shard].epoch, owner: node("a"), target: other)]))
        #expect(moved.standby(of: shard)?.id == other && moved.secondStandby(of: shard)?.id == node("b"))
        #expect(moved[shard].secondStandbyNamedIn == before[shard].standbyNamedIn)
        let third = try before.after(
            .setSecondStandby([ShardMove(shard: shard, epoch: before[shard].epoch, owner: node("a"), target: other)]))
        #expect(third.standby(of: shard)?.id == node("b") && third.secondStandby(of: shard)?.id == other)
        #expect(third[shard].secondStandbyNamedIn == 0)
        let held = ShardMove(shard: shard, epoch: before[shard].epoch, owner: node("a"), target: node("b"))
        #expect(try before.applying(.setSecondStandby([held])) == nil)
        let handedOver = try swapped.after(.handOver([move]))
        #expect(handedOver.owner(of: shard)?.id == second && handedOver.standby(of: shard)?.id == node("a"))
        #expect(handedOver.secondStandby(of: shard)?.id == node("b"))
    }

    @Test("With three nodes, the former standby becomes no second standby")
    func threeNodes() throws {
        let before = try map(join("a"), join("b"), join("c"))
        let move = ShardMove(shard: ShardID(7), epoch: 1, owner: node("a"), target: node("c"))
        let after = try before.after(.setStandby([move]))
        #expect(after.standby(of: ShardID(7))?.id == node("c"))
        Self.check(after, secondsOf: 0)
    }

    @Test("A node that drains is nobody's second standby, and a cordoned one stays what it was")
    func drainAndCordon() throws {
        let before = try Self.five()
        let slot = try #require(before.slot(of: NodeName(unchecked: "c")))
        let draining = try before.after(.drain(node("c")))
        #expect(!draining.shards.contains { $0.secondStandby == slot })
        Self.check(draining, secondsOf: ShardID.count)
        let cordoned = try before.after(.cordon(NodeName(unchecked: "c"), true))
        #expect(cordoned.shards == before.shards)
        let after = try cordoned.after(.declareDead([node("d")]))
        for index in after.shards.indices where after.shards[index].secondStandby == slot {
            #expect(before.shards[index].secondStandby == slot)
        }
    }

    @Test("They survive their way through the store's bytes; a map of an earlier version without them is the same map")
    func encoding() throws {
        let before = try Self.five()
        let copy = try ClusterMap(decoding: before.encoded(), revision: before.revision, cluster: Self.cluster)
        #expect(copy == before)
        var value = try ClusterMapValue(serializedBytes: before.encoded())
        (value.secondStandbys, value.secondStandbyNamedIn) = (Data(), [])
        let bytes: [UInt8] = try value.serializedBytes()
        let earlier = try ClusterMap(decoding: bytes, revision: before.revision, cluster: Self.cluster)
        Self.check(earlier, secondsOf: 0)
        #expect(earlier.isSuccessor(of: before) && before.isSuccessor(of: earlier))
        // The next death names them again.
        Self.check(try earlier.after(.declareDead([node("a")])), secondsOf: ShardID.count)
        value.secondStandbys = Data([1, 2])
        let damaged: [UInt8] = try value.serializedBytes()
        #expect(throws: ApusError.self) { try ClusterMap(decoding: damaged, revision: 1, cluster: Self.cluster) }
    }
}

/// The owner's side of the third copy (D18).
@Suite("Changes and the second standby (D18)")
struct SecondStandbyReplicationTests {
    private typealias Machine = ReplicaShardStateMachine
    private static let assignment = ShardAssignment(standbyNamedIn: 3, secondStandbyNamedIn: 4)

    private func machine(inherited: NodeID? = nil) -> Machine {
        Machine(
            shard: shard, epoch: 5, table: ReplicaTable(), inherited: inherited, configuration: ReplicaConfiguration())
    }

    /// A shard with the standby b and the second standby c, both of which have everything.
    private func caughtUp() -> Machine {
        var machine = machine()
        _ = machine.setStandbys(node("b"), node("c"), of: Self.assignment)
        machine.confirmAll(node("b"))
        machine.confirmAll(node("c"))
        return machine
    }

    @Test("It must have a change from the moment its copy is complete")
    func required() throws {
        var machine = machine()
        #expect(machine.setStandbys(node("b"), node("c"), of: Self.assignment).targets == [node("b"), node("c")])
        machine.confirmAll(node("b"))
        _ = try machine.change(record("x", "1"))
        machine.confirmAll(node("b"))
        #expect(machine.acknowledged == 1 && !machine.isCaughtUp(node("c")), "its copy is not complete")
        machine.confirmAll(node("c"))
        #expect(machine.isCaughtUp(node("c")))
        _ = try machine.change(record("x", "2"))
        machine.confirmAll(node("b"))
        #expect(machine.acknowledged == 1, "the second standby lacks it")
        machine.confirmAll(node("c"))
        #expect(machine.acknowledged == 2)
    }

    @Test("After a hand-over nothing is acknowledged without the second standby of the epoch before")
    func inherited() throws {
        var machine = machine(inherited: node("c"))
        _ = machine.setStandbys(node("b"), node("c"), of: ShardAssignment(secondStandbyNamedIn: 7))
        _ = try machine.change(record("x", "1"))
        machine.confirmAll(node("b"))
        #expect(machine.acknowledged == 0)
        // As little after the standby has changed.
        _ = machine.setStandbys(
            node("d"), node("c"), of: ShardAssignment(standbyNamedIn: 10, secondStandbyNamedIn: 7))
        machine.confirmAll(node("d"))
        #expect(machine.acknowledged == 0)
        machine.confirmAll(node("c"))
        #expect(machine.acknowledged == 1)
        // If it is named again after it was none, it holds up no change.
        var again = self.machine(inherited: node("c"))
        _ = again.setStandbys(node("b"), node("c"), of: ShardAssignment(secondStandbyNamedIn: 7))
        _ = again.setStandbys(node("b"), nil, of: ShardAssignment())
        _ = again.setStandbys(node("b"), node("c"), of: ShardAssignment(secondStandbyNamedIn: 11))
        _ = try again.change(record("x", "1"))
        again.confirmAll(node("b"))
        #expect(again.acknowledged == 1)
    }

    @Test("A shard that is opened waits for a second standby of an earlier map, and for no new one", arguments: [8, 9])
    func opened(namedIn: UInt64) throws {
        var map = replicaMap(revision: 9, owner: "a", standby: "b", epoch: 5)
        map[shard].name(try #require(map.slot(of: NodeName(unchecked: "c"))), as: .secondStandby, in: namedIn)
        var machine = ReplicaOwnerStateMachine(local: node("a"), map: map)
        _ = machine.open(shard, epoch: 5, table: table(record("x", "1")))
        for (target, message) in machine.nextMessages(now: at(0)) where target == node("b") {
            let answers = ReplicaAnswers(number: message.number, answers: message.batches.map(\.taken))
            _ = machine.answered(answers, by: target, now: at(0))
        }
        #expect(machine.acknowledged(of: shard) == (namedIn < 9 ? 0 : 1))
    }

    @Test("The survey counts the shards whose third copy is not complete")
    func survey() throws {
        var map = replicaMap(revision: 1, owner: "a", standby: "b", epoch: 5)
        map[shard].name(try #require(map.slot(of: NodeName(unchecked: "c"))), as: .secondStandby, in: 1)
        var machine = ReplicaOwnerStateMachine(local: node("a"), map: map)
        _ = machine.open(shard, epoch: 5, table: ReplicaTable())
        #expect(machine.survey().behindCount == 1)
        for _ in 0..<2 {
            for (target, message) in machine.nextMessages(now: at(0)) {
                let answers = message.batches.map {
                    ReplicaAnswer(
                        shard: $0.shard, term: $0.term, sequence: $0.sequence, verdict: .next($0.sequence + 1))
                }
                _ = machine.answered(
                    ReplicaAnswers(number: message.number, answers: answers), by: target, now: at(0))
            }
        }
        #expect(machine.survey().behindCount == 0)
    }

    @Test("It takes the standby's place without a new stream, and nothing waits for a copy")
    func takesPlace() throws {
        var machine = caughtUp()
        _ = try machine.change(record("x", "1"))
        machine.confirmAll(node("c"))
        #expect(machine.acknowledged == 0, "the standby does not answer")
        let after = ShardAssignment(standbyNamedIn: 4, secondStandbyNamedIn: 9)
        let effects = machine.setStandbys(node("c"), node("d"), of: after)
        #expect(effects.ended.map(\.target) == [node("b")])
        #expect(machine.acknowledged == 1 && machine.isCaughtUp(node("c")) && !machine.isCaughtUp(node("d")))
    }

    @Test("One that was named again is notified again, and one that changes places with the standby is not")
    func namedAgain() throws {
        var machine = caughtUp()
        let swapped = ShardAssignment(standbyNamedIn: 0, secondStandbyNamedIn: 3)
        _ = machine.setStandbys(node("c"), node("b"), of: swapped)
        #expect(machine.isCaughtUp(node("b")) && machine.isCaughtUp(node("c")))
        _ = machine.setStandbys(node("c"), node("b"), of: ShardAssignment(standbyNamedIn: 0, secondStandbyNamedIn: 9))
        #expect(!machine.isCaughtUp(node("b")) && machine.isCaughtUp(node("c")))
        machine.confirmAll(node("b"))
        #expect(machine.isCaughtUp(node("b")))
    }

    @Test("A standby that had caught up with nothing holds up no change as the second standby")
    func released() throws {
        var machine = machine()
        _ = machine.setStandbys(node("b"), nil, of: Self.assignment)
        _ = try machine.change(record("x", "1"))
        #expect(machine.acknowledged == 0)
        _ = machine.setStandbys(node("c"), node("b"), of: ShardAssignment(standbyNamedIn: 7, secondStandbyNamedIn: 3))
        machine.confirmAll(node("c"))
        #expect(machine.acknowledged == 1)
    }

    @Test("Its copy is kept through the epochs in which it has its role, and promoted as complete")
    func promoted() throws {
        var map = replicaMap(revision: 1, owner: "a", standby: "b", epoch: 5)
        map[shard].name(try #require(map.slot(of: NodeName(unchecked: "c"))), as: .secondStandby, in: 1)
        var machine = ReplicaStandbyStateMachine(local: node("c"), map: map)
        var batch = ReplicaBatch(shard: shard, term: ReplicaTerm(epoch: 5, stream: 1), sequence: 1, position: 1)
        (batch.completes, batch.isBinding, batch.records) = (true, true, [record("x", "1")])
        let message = ReplicaMessage(targetIncarnation: 1, number: 1, revision: 1, ends: [], batches: [batch])
        #expect(machine.received(message, from: node("a"))?.answers.first?.verdict == .next(2))
        var next = map
        next.revision = 2
        next[shard].loseStandby()
        next[shard].loseOwner()
        machine.mapChanged(next)
        let promotionMaybe = machine.promote(shard, epoch: 6)
        let promotion = try #require(promotionMaybe)
        #expect(promotion.table.text == ["x=1"] && promotion.isComplete)
    }
}

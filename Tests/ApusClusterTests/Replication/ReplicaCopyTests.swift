import ApusCluster
import ApusCore
import Testing

@Suite("A copy of a shard (D18)")
struct ReplicaCopyTests {
    private typealias Copy = ReplicaCopyStateMachine

    private func batch(
        _ stream: UInt64 = 1, _ sequence: UInt64, _ records: ReplicaRecord..., epoch: Epoch = 5,
        completes: Bool = false, isBinding: Bool = false, keepsEarlier: Bool = false
    ) -> ReplicaBatch {
        var batch = ReplicaBatch(
            shard: shard, term: ReplicaTerm(epoch: epoch, stream: stream), sequence: sequence, position: sequence)
        batch.records = records
        batch.completes = completes
        batch.isBinding = isBinding
        batch.keepsEarlier = keepsEarlier
        return batch
    }

    /// A copy that is complete and binds its owner, of the stream 1 of epoch 5.
    private func complete() -> Copy {
        var copy = Copy()
        let snapshot = batch(1, 1, record("x", "1"), record("y", "1"), completes: true, isBinding: true)
        #expect(copy.received(snapshot, revision: 1) == .next(2))
        return copy
    }

    @Test("Batches are taken in order; the copy is the owner's table")
    func order() {
        var copy = complete()
        #expect(copy.received(batch(1, 3, record("x", "3")), revision: 1) == .next(2), "one is missing")
        #expect(copy.received(batch(1, 2, record("x", "2"), record("y", nil)), revision: 1) == .next(3))
        #expect(copy.received(batch(1, 3, record("z", "3")), revision: 1) == .next(4))
        let promoted = copy.promoted(to: 6)
        #expect(promoted.table.text == ["x=2", "z=3"] && promoted.isComplete)
    }

    @Test("A batch that comes again is confirmed again and changes nothing")
    func duplicate() {
        var copy = complete()
        _ = copy.received(batch(1, 2, record("x", "2")), revision: 1)
        #expect(copy.received(batch(1, 1, record("x", "1")), revision: 1) == .next(3))
        #expect(copy.promoted(to: 6).table.text == ["x=2", "y=1"])
    }

    @Test("An older term is refused with the newest; a stream whose begin was missed is to begin anew")
    func terms() {
        var copy = complete()
        #expect(copy.received(batch(3, 2), revision: 1) == .restart)
        #expect(copy.received(batch(2, 1), revision: 1) == .next(2))
        #expect(copy.received(batch(1, 2), revision: 1) == .older(ReplicaTerm(epoch: 5, stream: 2)))
        #expect(copy.received(batch(1, 1, epoch: 4), revision: 1) == .older(ReplicaTerm(epoch: 5, stream: 2)))
    }

    @Test("A new stream replaces the copy when it is complete, and not before")
    func replacement() {
        var copy = complete()
        _ = copy.received(batch(2, 1, record("x", "2"), keepsEarlier: true), revision: 1)
        #expect(copy.promoted(to: 6).table.text == ["x=1", "y=1"] && copy.promoted(to: 6).isComplete)
        #expect(copy.size.count == 3)
        _ = copy.received(batch(2, 2, record("z", "2"), completes: true, isBinding: true), revision: 1)
        #expect(copy.promoted(to: 6).table.text == ["x=2", "z=2"] && copy.promoted(to: 6).isComplete)
        #expect(copy.size.count == 2)
    }

    @Test("Without a complete copy there is what came, and that it is not all")
    func incomplete() {
        var copy = Copy()
        _ = copy.received(batch(1, 1, record("x", "1")), revision: 1)
        #expect(!copy.isComplete && copy.promoted(to: 6).table.text == ["x=1"] && !copy.promoted(to: 6).isComplete)
    }

    @Test("A copy is certain only from a binding batch on, and only for the epoch after its own")
    func certainty() {
        var copy = Copy()
        _ = copy.received(batch(1, 1, completes: true), revision: 1)
        #expect(!copy.promoted(to: 6).isComplete)
        _ = copy.received(batch(1, 2, isBinding: true), revision: 1)
        #expect(copy.promoted(to: 6).isComplete && !copy.promoted(to: 7).isComplete)
    }

    @Test("A new stream that was not bound all the while makes the copy of its epoch uncertain")
    func broken() {
        var copy = complete()
        _ = copy.received(batch(2, 1, record("x", "2")), revision: 1)
        #expect(copy.promoted(to: 6).table.text == ["x=1", "y=1"] && !copy.promoted(to: 6).isComplete)
    }

    @Test("The former owner's states stay certain for the epoch in which it stands by, until that has a complete copy")
    func formerOwner() {
        var copy = Copy()
        copy.keep(table(record("x", "1")), standbyUnder: 6)
        _ = copy.received(batch(1, 1, record("y", "1"), epoch: 6), revision: 1)
        #expect(copy.promoted(to: 7).table.text == ["x=1"] && copy.promoted(to: 7).isComplete)
        _ = copy.received(batch(1, 2, epoch: 6, completes: true, isBinding: true), revision: 1)
        #expect(copy.promoted(to: 7).table.text == ["y=1"])
        copy.keep(table(record("z", "1")), standbyUnder: 6)
        #expect(copy.promoted(to: 7).table.text == ["y=1"], "a newer copy is there already")
    }

    @Test("Where this node was named for want of another, its copy counts if the owner, which knew that, said so since")
    func named() {
        var copy = complete()
        #expect(copy.promoted(to: 6, namedIn: 1).isComplete && !copy.promoted(to: 6, namedIn: 3).isComplete)
        _ = copy.received(batch(1, 2, isBinding: true), revision: 2)
        #expect(!copy.promoted(to: 6, namedIn: 3).isComplete, "the owner did not know it")
        _ = copy.received(batch(1, 3), revision: 3)
        #expect(!copy.promoted(to: 6, namedIn: 3).isComplete, "the owner did not say that it is bound")
        _ = copy.received(batch(1, 4, isBinding: true), revision: 3)
        _ = copy.received(batch(1, 5, isBinding: true), revision: 2)
        #expect(copy.promoted(to: 6, namedIn: 3).isComplete)
        #expect(!copy.promoted(to: 6, namedIn: 4).isComplete && !copy.promoted(to: 7, namedIn: 3).isComplete)
    }

    @Test("A former owner that was released and is named again for want of another has less than everything")
    func formerOwnerNamed() {
        var copy = Copy()
        copy.keep(table(record("x", "1")), standbyUnder: 6)
        #expect(copy.promoted(to: 7, namedIn: 0).isComplete && !copy.promoted(to: 7, namedIn: 1).isComplete)
    }

    @Test("The end of a stream drops the copy; its batches do not bring it back")
    func ended() {
        var copy = complete()
        copy.ended(ReplicaTerm(epoch: 4, stream: 9))
        #expect(copy.isComplete)
        copy.ended(ReplicaTerm(epoch: 5, stream: 1))
        #expect(copy.isEmpty && copy.size.byteCount == 0)
        #expect(copy.received(batch(1, 1, completes: true), revision: 1) == .restart)
    }
}

@Suite("A node's copies of shards (D18)")
struct ReplicaStandbyTests {
    private typealias Machine = ReplicaStandbyStateMachine

    /// Node b, which stands by for the shard of node a.
    private func machine(_ configuration: ReplicaConfiguration = ReplicaConfiguration()) -> Machine {
        Machine(
            local: node("b"), map: replicaMap(revision: 1, owner: "a", standby: "b", epoch: 5),
            configuration: configuration)
    }

    private func message(
        _ records: ReplicaRecord..., epoch: Epoch = 5, stream: UInt64 = 1, revision: UInt64 = 1,
        incarnation: UInt64 = 1, ends: [ReplicaEnd] = []
    ) -> ReplicaMessage {
        var batch = ReplicaBatch(
            shard: shard, term: ReplicaTerm(epoch: epoch, stream: stream), sequence: 1, position: 1)
        batch.records = records
        (batch.completes, batch.isBinding) = (true, true)
        return ReplicaMessage(
            targetIncarnation: incarnation, number: 3, revision: revision, ends: ends,
            batches: ends.isEmpty ? [batch] : [])
    }

    private func verdict(
        _ machine: inout Machine, _ message: ReplicaMessage, from name: String
    ) -> ReplicaAnswer.Verdict? {
        machine.received(message, from: node(name))?.answers.first?.verdict
    }

    @Test("The death of the owner promotes the copy, once")
    func promotion() throws {
        var machine = machine()
        #expect(verdict(&machine, message(record("x", "1")), from: "a") == .next(2))
        #expect(machine.hasCopy(of: shard) && machine.entityCount == 1 && machine.byteCount > 0)
        #expect(machine.hasStates(of: shard))
        var early = machine
        #expect(early.promote(shard, epoch: 6)?.table.count == nil, "the map says otherwise")
        machine.mapChanged(replicaMap(revision: 2, owner: "b", standby: "c", epoch: 6, dead: ["a"]))
        let promotionMaybe = machine.promote(shard, epoch: 6)
        let promotion = try #require(promotionMaybe)
        #expect(promotion.table.text == ["x=1"] && promotion.isComplete)
        #expect(machine.promote(shard, epoch: 6)?.table.count == nil)
        #expect(machine.entityCount == 0 && machine.byteCount == 0)
    }

    @Test("A shard that nobody owned before lacks nothing; one whose copy is missing may")
    func withoutCopy() throws {
        var machine = Machine(local: node("b"), map: replicaMap(revision: 1, owner: "b", standby: nil, epoch: 1))
        #expect(machine.promote(shard, epoch: 1)?.isComplete == true)
        machine.mapChanged(replicaMap(revision: 2, owner: "b", standby: nil, epoch: 3))
        #expect(machine.promote(shard, epoch: 3)?.isComplete == false)
    }

    @Test("The owner of before is refused with the epoch that the map has, before and after the promotion")
    func staleOwner() {
        var machine = machine()
        machine.mapChanged(replicaMap(revision: 2, owner: "b", standby: "c", epoch: 6, dead: ["a"]))
        let refusal = ReplicaAnswer.Verdict.older(ReplicaTerm(epoch: 6, stream: 0))
        #expect(verdict(&machine, message(record("x", "1")), from: "a") == refusal)
        _ = machine.promote(shard, epoch: 6)
        #expect(verdict(&machine, message(record("x", "1")), from: "a") == refusal)
    }

    @Test("Nobody but the owner speaks for a shard, under the map's epoch; a later epoch waits for the map")
    func sender() {
        var machine = machine()
        #expect(verdict(&machine, message(record("x", "1")), from: "c") == .overloaded)
        #expect(machine.received(message(incarnation: 2), from: node("a")) == nil, "another incarnation is meant")
        #expect(machine.takeAhead()?.epoch == nil)
        #expect(verdict(&machine, message(record("x", "1"), epoch: 6), from: "c") == .overloaded)
        #expect(machine.takeAhead()?.epoch == 6 && machine.takeAhead()?.epoch == nil)
        #expect(machine.strayCount == 2 && machine.overloadedCount == 0)
        machine.mapChanged(replicaMap(revision: 2, owner: "c", standby: "b", epoch: 6, dead: ["a"]))
        #expect(verdict(&machine, message(record("x", "1"), epoch: 6), from: "c") == .next(2))
    }

    @Test("What a node says under an epoch that no map has changes nothing: the owner goes on")
    func extremeEpoch() {
        var machine = machine()
        #expect(verdict(&machine, message(record("x", "1")), from: "a") == .next(2))
        let epoch = WireNumber.termMax
        let end = ReplicaEnd(shard: shard, term: ReplicaTerm(epoch: epoch, stream: WireNumber.sequenceMax))
        for sender in ["a", "c"] {
            #expect(verdict(&machine, message(record("x", "2"), epoch: epoch), from: sender) == .overloaded)
            _ = machine.received(message(ends: [end]), from: node(sender))
        }
        #expect(machine.hasCopy(of: shard))
        #expect(verdict(&machine, message(record("x", "3"), stream: 2), from: "a") == .next(2))
    }

    @Test("A copy goes when the map gives the shard to other nodes under a later epoch, or the owner ends it")
    func dropped() {
        var machine = machine()
        _ = verdict(&machine, message(record("x", "1")), from: "a")
        machine.mapChanged(replicaMap(revision: 2, owner: "c", standby: "d", epoch: 6))
        #expect(machine.copyCount == 0 && machine.byteCount == 0)
        machine = self.machine()
        _ = verdict(&machine, message(record("x", "1")), from: "a")
        machine.mapChanged(replicaMap(revision: 2, owner: "a", standby: "c", epoch: 5))
        #expect(machine.hasCopy(of: shard), "the owner may pass over this map")
        let end = ReplicaEnd(shard: shard, term: ReplicaTerm(epoch: 5, stream: 1))
        _ = machine.received(message(ends: [end]), from: node("a"))
        #expect(machine.copyCount == 0 && machine.byteCount == 0)
    }

    @Test("A candidate's copy stays while the map gives the standby to others, until the owner ends it")
    func candidate() {
        var machine = Machine(local: node("d"), map: replicaMap(revision: 1, owner: "a", standby: "b", epoch: 5))
        _ = verdict(&machine, message(record("x", "1")), from: "a")
        machine.mapChanged(replicaMap(revision: 2, owner: "a", standby: "c", epoch: 5, dead: ["b"]))
        #expect(machine.hasCopy(of: shard))
        let end = ReplicaEnd(shard: shard, term: ReplicaTerm(epoch: 5, stream: 1))
        #expect(machine.received(message(ends: [end]), from: node("c")) != nil && machine.hasCopy(of: shard))
        _ = machine.received(message(ends: [end]), from: node("a"))
        #expect(!machine.hasCopy(of: shard) && machine.byteCount == 0)
    }

    @Test(
        "A candidate that its owner's move names stays certain; one that a death names waits for the owner's word",
        arguments: [false, true])
    func namedCandidate(isSkipped: Bool) {
        for namedIn in [0, 2] as [UInt64] {
            var machine = Machine(local: node("c"), map: replicaMap(revision: 1, owner: "a", standby: "b", epoch: 5))
            _ = verdict(&machine, message(record("x", "1")), from: "a")
            let named = replicaMap(
                revision: 2, owner: "a", standby: "c", epoch: 5, dead: ["b"], standbyNamedIn: namedIn)
            if !isSkipped { machine.mapChanged(named) }
            machine.mapChanged(
                replicaMap(
                    revision: 3, owner: "c", standby: nil, epoch: 6, dead: ["a", "b"], ownerNamedIn: namedIn))
            #expect(machine.promote(shard, epoch: 6)?.isComplete == (namedIn == 0))
        }
    }

    @Test("A node that stood by, was replaced and is named again lacks something, though it saw none of these maps")
    func namedAgain() throws {
        var machine = machine()
        _ = verdict(&machine, message(record("x", "1")), from: "a")
        // In 2 the standby was c, by a move; in 3 c was dead and b named again.
        machine.mapChanged(
            replicaMap(revision: 4, owner: "b", standby: "d", epoch: 6, dead: ["a", "c"], ownerNamedIn: 3))
        let promotionMaybe = machine.promote(shard, epoch: 6)
        let promotion = try #require(promotionMaybe)
        #expect(promotion.table.text == ["x=1"] && !promotion.isComplete)
    }

    @Test("It lacks nothing where the owner, which knew that it was named again, said so")
    func namedAgainAndBound() {
        var machine = machine()
        _ = verdict(&machine, message(record("x", "1")), from: "a")
        #expect(verdict(&machine, message(record("x", "2"), stream: 2, revision: 3), from: "a") == .next(2))
        machine.mapChanged(
            replicaMap(revision: 4, owner: "b", standby: "d", epoch: 6, dead: ["a", "c"], ownerNamedIn: 3))
        let promotion = machine.promote(shard, epoch: 6)
        #expect(promotion?.table.text == ["x=2"] && promotion?.isComplete == true)
    }

    @Test("The death of the new owner right after a hand-over promotes the old one with all that it had")
    func afterHandover() throws {
        var machine = Machine(local: node("a"), map: replicaMap(revision: 1, owner: "a", standby: "b", epoch: 5))
        machine.mapChanged(replicaMap(revision: 2, owner: "b", standby: "a", epoch: 6))
        machine.keep(shard, table: table(record("x", "1")), ownedUnder: 5)
        machine.mapChanged(replicaMap(revision: 3, owner: "a", standby: "c", epoch: 7, dead: ["b"]))
        let promotionMaybe = machine.promote(shard, epoch: 7)
        let promotion = try #require(promotionMaybe)
        #expect(promotion.table.text == ["x=1"] && promotion.isComplete)
    }

    @Test(
        "An owner that handed over and owns the shard again, and saw no map between, has all that it had",
        arguments: [(0, true), (4, false)] as [(UInt64, Bool)])
    func ownerAgain(namedIn: UInt64, isComplete: Bool) throws {
        var machine = Machine(local: node("a"), map: replicaMap(revision: 1, owner: "a", standby: "b", epoch: 5))
        // In 2 it handed over to b; in 4 it may have been named again, after a move had released it.
        machine.mapChanged(
            replicaMap(revision: 5, owner: "a", standby: "c", epoch: 7, dead: ["b"], ownerNamedIn: namedIn))
        machine.keep(shard, table: table(record("x", "1")), ownedUnder: 5)
        let promotionMaybe = machine.promote(shard, epoch: 7)
        let promotion = try #require(promotionMaybe)
        #expect(promotion.table.text == ["x=1"] && promotion.isComplete == isComplete)
    }

    @Test("A former owner keeps nothing where the map gives it no part")
    func notKept() {
        var machine = Machine(local: node("a"), map: replicaMap(revision: 1, owner: "a", standby: "b", epoch: 5))
        machine.mapChanged(replicaMap(revision: 2, owner: "b", standby: "c", epoch: 6))
        machine.keep(shard, table: table(record("x", "1")), ownedUnder: 5)
        #expect(machine.copyCount == 0)
    }

    @Test("What has no room is not taken, and is counted")
    func bounds() {
        var configuration = ReplicaConfiguration()
        configuration.entityCountMax = 1
        var machine = machine(configuration)
        let three = message(record("x", "1"), record("y", "1"), record("z", "1"))
        #expect(verdict(&machine, three, from: "a") == .overloaded)
        #expect(machine.overloadedCount == 1 && machine.entityCount == 0)
        #expect(verdict(&machine, message(record("x", "1")), from: "a") == .next(2))
    }

    @Test("A full node takes changes of what it holds, and one shard does not take all of its room")
    func roomOfOneShard() {
        var configuration = ReplicaConfiguration()
        configuration.entityCountMax = 1
        var machine = machine(configuration)
        func batch(_ sequence: UInt64, _ records: ReplicaRecord...) -> ReplicaMessage {
            var batch = ReplicaBatch(
                shard: shard, term: ReplicaTerm(epoch: 5, stream: 1), sequence: sequence, position: sequence)
            batch.completes = sequence == 1
            batch.records = records
            return ReplicaMessage(targetIncarnation: 1, number: sequence, revision: 1, ends: [], batches: [batch])
        }
        #expect(verdict(&machine, batch(1, record("x", "1"), record("y", "1")), from: "a") == .next(2))
        #expect(verdict(&machine, batch(2, record("x", "2"), record("y", nil)), from: "a") == .next(3))
        #expect(verdict(&machine, batch(3, record("x", "3"), record("y", "3")), from: "a") == .next(4))
        #expect(verdict(&machine, batch(4, record("z", "4")), from: "a") == .overloaded)
        configuration = ReplicaConfiguration()
        configuration.shardEntityCountMax = 1
        machine = self.machine(configuration)
        let three = batch(1, record("x", "1"), record("y", "1"), record("z", "1"))
        #expect(verdict(&machine, three, from: "a") == .overloaded && machine.overloadedCount == 1)
    }
}

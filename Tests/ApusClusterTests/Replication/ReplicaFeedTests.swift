import ApusCluster
import ApusCore
import Testing

@Suite("The stream of a shard to one target (D18)")
struct ReplicaFeedTests {
    private typealias Feed = ReplicaFeedStateMachine

    private func feed() -> Feed { Feed(shard: shard, epoch: 5, target: node("b"), stream: 1) }

    /// The next batch of a machine, as its owner asks for it.
    private func next(
        _ feed: inout Feed, _ table: ReplicaTable, at position: UInt64 = 0, acknowledged: UInt64 = 0, max: Int = 1000
    ) -> ReplicaBatch? {
        feed.nextBatch(of: table, at: position, acknowledged: acknowledged, byteCountMax: max)
    }

    @Test("A stream begins with the owner's table, also where that is empty, and then has nothing to say")
    func snapshot() throws {
        var feed = feed()
        #expect(feed.hasNews)
        let batch = try #require(next(&feed, table(record("x", "1"), record("y", "2")), at: 4))
        #expect(batch.text == ["x=1", "y=2"] && batch.completes && batch.sequence == 1 && batch.position == 4)
        #expect(batch.term == ReplicaTerm(epoch: 5, stream: 1))
        #expect(!feed.hasNews)
        #expect(next(&feed, ReplicaTable()) == nil)
        var empty = self.feed()
        let only = try #require(next(&empty, ReplicaTable()))
        #expect(only.records.isEmpty && only.completes)
    }

    @Test("The copy is complete, and changes are confirmed, with the confirmation of the last part of the table")
    func parts() throws {
        var feed = feed()
        let table = table(record("x", "1"), record("y", "2"), record("z", "3"))
        let parts = try (0..<3).map { _ in try #require(next(&feed, table, at: 9, max: 40)) }
        #expect(parts.map(\.text) == [["x=1"], ["y=2"], ["z=3"]])
        #expect(parts.map(\.completes) == [false, false, true] && parts.map(\.sequence) == [1, 2, 3])
        #expect(feed.answered(parts[1].taken, nextStream: 2) == .confirmed && feed.confirmed == nil)
        #expect(feed.answered(parts[2].taken, nextStream: 2) == .confirmed && feed.confirmed == 9)
    }

    @Test("A change of an entity that the walk has not reached is not sent apart; one that it passed goes first")
    func changesDuringWalk() throws {
        var feed = feed()
        var table = table(record("x", "1"), record("y", "2"), record("z", "3"))
        #expect(next(&feed, table, max: 40)?.text == ["x=1"])
        for (position, change) in [record("z", "3b"), record("x", nil), record("y", "2b")].enumerated() {
            let slotMaybe = table.apply(change)
            let slot = try #require(slotMaybe)
            feed.changed(change, slot: slot, position: UInt64(position + 1))
        }
        let rest = try #require(next(&feed, table, at: 3))
        #expect(rest.text == ["-x", "y=2b", "z=3b"] && rest.completes && rest.position == 3)
    }

    @Test("Changes go in their order, as many as a batch takes, and one at least")
    func batches() throws {
        var feed = feed()
        _ = next(&feed, ReplicaTable())
        for number in 1...4 { feed.changed(record("x", "\(number)"), slot: 0, position: UInt64(number)) }
        let size = record("x", "1").byteCount
        let two = try #require(next(&feed, ReplicaTable(), at: 4, max: 35 + 2 * size))
        #expect(two.text == ["x=1", "x=2"] && two.position == 2 && feed.queuedCount == 2)
        #expect(next(&feed, ReplicaTable(), at: 4, max: 1)?.text == ["x=3"])
        #expect(next(&feed, ReplicaTable(), at: 4)?.position == 4)
        #expect(feed.queuedByteCount == 0 && !feed.hasNews)
    }

    @Test("What was lost is sent again as it was, with what followed it")
    func lost() throws {
        var feed = feed()
        var sent = [try #require(next(&feed, ReplicaTable()))]
        for number in 1...3 {
            feed.changed(record("x", "\(number)"), slot: 0, position: UInt64(number))
            sent.append(try #require(next(&feed, ReplicaTable(), at: UInt64(number))))
        }
        #expect(feed.answered(sent[0].taken, nextStream: 2) == .confirmed)
        feed.lost(stream: 1, sequence: 3)
        feed.lost(stream: 9, sequence: 2)
        #expect(feed.hasNews)
        #expect(next(&feed, ReplicaTable(), at: 3) == sent[2])
        #expect(next(&feed, ReplicaTable(), at: 3) == sent[3])
        #expect(!feed.hasNews)
        // A target that lacks one says which, whatever it was sent.
        #expect(feed.answered(sent[3].answer(.next(2)), nextStream: 2) == .resend(isOverloaded: false))
        #expect(next(&feed, ReplicaTable(), at: 3) == sent[1])
    }

    @Test("A batch that came before the one it follows goes again, also where that one was confirmed meanwhile")
    func overtaken() throws {
        var feed = feed()
        let first = try #require(next(&feed, ReplicaTable(), at: 1))
        feed.changed(record("x", "2"), slot: 0, position: 2)
        let second = try #require(next(&feed, ReplicaTable(), at: 2))
        #expect(feed.answered(first.taken, nextStream: 2) == .confirmed)
        // The answer to the second was given before the first arrived.
        #expect(feed.answered(second.answer(.next(1)), nextStream: 2) == .resend(isOverloaded: false))
        #expect(next(&feed, ReplicaTable(), at: 2) == second)
        #expect(feed.answered(second.taken, nextStream: 2) == .confirmed && feed.confirmed == 2)
        #expect(feed.answered(second.answer(.next(1)), nextStream: 2) == .confirmed, "it is too late")
    }

    @Test("A target that cannot follow gets the next stream; answers to the one before are ignored")
    func restart() throws {
        var feed = feed()
        let first = try #require(next(&feed, table(record("x", "1"))))
        #expect(feed.answered(first.answer(.restart), nextStream: 2) == .restarted(isRepeated: true))
        #expect(feed.answered(first.taken, nextStream: 3) == .ignored && feed.confirmed == nil)
        let second = try #require(next(&feed, table(record("x", "1"))))
        #expect(second.term.stream == 2 && second.sequence == 1 && second.text == ["x=1"] && !second.keepsEarlier)
        #expect(feed.answered(second.answer(.next(7)), nextStream: 3) == .ignored, "it says more than was sent")
        let newer = second.answer(.older(ReplicaTerm(epoch: 6, stream: 1)))
        #expect(feed.answered(newer, nextStream: 3) == .superseded(6))
    }

    @Test("A batch that overtook the first goes again behind it, in the same stream")
    func overtakenFirst() throws {
        var feed = feed()
        var parts: [ReplicaBatch] = []
        for _ in 0..<2 {
            parts.append(try #require(next(&feed, table(record("x", "1"), record("y", "2")), at: 2, max: 40)))
        }
        #expect(feed.answered(parts[1].answer(.restart), nextStream: 2) == .resend(isOverloaded: false))
        #expect(next(&feed, ReplicaTable()) == parts[0] && next(&feed, ReplicaTable()) == parts[1])
        #expect(feed.answered(parts[0].taken, nextStream: 2) == .confirmed)
        // The target had the first one, and dropped it.
        #expect(feed.answered(parts[1].answer(.restart), nextStream: 2) == .restarted(isRepeated: false))
    }

    @Test("A required target is told so once it has what was acknowledged before, with or without a change")
    func binding() throws {
        var feed = feed()
        let first = try #require(next(&feed, ReplicaTable(), at: 3, acknowledged: 3))
        #expect(!first.isBinding)
        #expect(feed.answered(first.taken, nextStream: 2) == .confirmed)
        feed.changed(record("x", "4"), slot: 0, position: 4)
        feed.changed(record("x", "5"), slot: 0, position: 5)
        feed.require()
        let early = try #require(next(&feed, ReplicaTable(), at: 5, acknowledged: 5, max: 1))
        #expect(early.position == 4 && !early.isBinding)
        let bound = try #require(next(&feed, ReplicaTable(), at: 5, acknowledged: 5, max: 1))
        #expect(bound.isBinding && !feed.isBound && !feed.hasNews)
        #expect(feed.answered(bound.taken, nextStream: 2) == .confirmed && feed.isBound)
        feed.restart(as: 2)
        #expect(!feed.isBound)
        #expect(next(&feed, ReplicaTable())?.keepsEarlier == true)
    }

    @Test("A target whose part changed is bound anew when it has confirmed that, and lacks nothing meanwhile")
    func rebinding() throws {
        var feed = feed()
        feed.require()
        let first = try #require(next(&feed, ReplicaTable()))
        #expect(feed.answered(first.taken, nextStream: 2) == .confirmed && feed.isBound)
        feed.changed(record("x", "1"), slot: 0, position: 1)
        let before = try #require(next(&feed, ReplicaTable(), at: 1))
        feed.named(in: 7)
        #expect(before.isBinding && !feed.isBound && feed.hasNews && feed.confirmed == 0)
        let again = try #require(next(&feed, ReplicaTable(), at: 1))
        #expect(again.isBinding)
        #expect(feed.answered(before.taken, nextStream: 2) == .confirmed)
        #expect(!feed.isBound && feed.confirmed == 1, "it was sent before")
        #expect(feed.answered(again.answer(.restart), nextStream: 2) == .restarted(isRepeated: false))
        #expect(next(&feed, ReplicaTable())?.keepsEarlier == true)
    }

    @Test("A target without room is sent the same later")
    func overloaded() throws {
        var feed = feed()
        let first = try #require(next(&feed, ReplicaTable()))
        #expect(feed.answered(first.answer(.overloaded), nextStream: 2) == .resend(isOverloaded: true))
        #expect(next(&feed, ReplicaTable()) == first)
    }
}

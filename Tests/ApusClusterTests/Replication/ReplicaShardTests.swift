import ApusCluster
import ApusCore
import Testing

@Suite("Who must have a change before it is acknowledged (D18)")
struct ReplicaShardTests {
    private typealias Machine = ReplicaShardStateMachine

    private func machine(_ configure: (inout ReplicaConfiguration) -> Void = { _ in }) -> Machine {
        var configuration = ReplicaConfiguration()
        configure(&configuration)
        return Machine(shard: shard, epoch: 5, table: ReplicaTable(), configuration: configuration)
    }

    @Test("Without a standby a change is acknowledged at once")
    func alone() throws {
        var machine = machine()
        #expect(try machine.change(record("x", "1")) == 1)
        #expect(machine.acknowledged == 1 && machine.isAlone && machine.waitingCount == 0)
    }

    @Test("With a standby a change is acknowledged when that has a complete copy with it")
    func standby() throws {
        var machine = machine()
        _ = try machine.change(record("x", "1"))
        #expect(machine.setStandby(node("b")).targets == [node("b")])
        #expect(try machine.change(record("x", "2")) == 2)
        #expect(machine.acknowledged == 1 && machine.waitingCount == 1 && !machine.isCaughtUp(node("b")))
        let snapshotMaybe = machine.nextBatch(for: node("b"), byteCountMax: 1000)
        let snapshot = try #require(snapshotMaybe)
        #expect(snapshot.text == ["x=2"] && snapshot.isBinding)
        _ = machine.answered(snapshot.taken, by: node("c"))
        #expect(machine.acknowledged == 1, "another node answered")
        _ = machine.answered(snapshot.taken, by: node("b"))
        #expect(machine.acknowledged == 2 && machine.isCaughtUp(node("b")) && machine.waitingByteCount == 0)
    }

    @Test("The states of the epoch before are acknowledged when another node has them, or at once without another")
    func inherited() throws {
        let states = table(record("x", "1"), record("y", "1"))
        var machine = Machine(shard: shard, epoch: 5, table: states, configuration: ReplicaConfiguration())
        _ = machine.setStandbys(node("b"), nil, of: ShardAssignment())
        #expect(machine.position == 1 && machine.acknowledged == 0 && machine.waitingCount == 1)
        machine.confirmAll(node("b"))
        #expect(machine.acknowledged == 1 && machine.waitingCount == 0 && machine.isCaughtUp(node("b")))
        #expect(try machine.change(record("x", "2")) == 2)

        var alone = Machine(shard: shard, epoch: 5, table: states, configuration: ReplicaConfiguration())
        _ = alone.setStandbys(nil, nil, of: ShardAssignment())
        #expect(alone.position == 1 && alone.acknowledged == 1 && alone.waitingCount == 0)
    }

    @Test("Once a candidate's copy is complete, nothing is acknowledged that one of the two has not")
    func candidate() throws {
        var machine = machine()
        _ = machine.setStandby(node("b"))
        machine.confirmAll(node("b"))
        _ = machine.setCandidate(node("c"))
        let snapshotMaybe = machine.nextBatch(for: node("c"), byteCountMax: 1000)
        let snapshot = try #require(snapshotMaybe)
        // The standby alone is asked until the candidate's copy is complete.
        _ = try machine.change(record("x", "1"))
        machine.confirmAll(node("b"))
        #expect(machine.acknowledged == 1)
        _ = try machine.change(record("x", "2"))
        _ = machine.answered(snapshot.taken, by: node("c"))
        #expect(!machine.isCaughtUp(node("c")), "it lacks what was acknowledged")
        machine.confirmAll(node("b"))
        #expect(machine.acknowledged == 1)
        machine.confirmAll(node("c"))
        #expect(machine.acknowledged == 2 && machine.isCaughtUp(node("c")))
        #expect(machine.isConfirmed(2, by: node("c")) && !machine.isConfirmed(3, by: node("c")))
    }

    @Test("A candidate that the map names goes on as the standby; the earlier one's stream is over")
    func candidateBecomesStandby() throws {
        var machine = machine()
        _ = machine.setStandby(node("b"))
        _ = machine.setCandidate(node("c"))
        machine.confirmAll(node("b"))
        machine.confirmAll(node("c"))
        let effects = machine.setStandby(node("c"))
        #expect(effects.ended.map(\.target) == [node("b")] && machine.isCaughtUp(node("c")))
        _ = try machine.change(record("x", "1"))
        #expect(machine.nextBatch(for: node("c"), byteCountMax: 1000)?.text == ["x=1"])
        #expect(machine.nextBatch(for: node("b"), byteCountMax: 1000) == nil)
    }

    @Test("Who is named for want of another is told that it binds the owner, candidate or standby, each time anew")
    func namedForWant() throws {
        var machine = machine()
        _ = machine.setStandby(node("b"))
        _ = machine.setCandidate(node("c"))
        machine.confirmAll(node("b"))
        machine.confirmAll(node("c"))
        for namedIn in [3, 5] as [UInt64] {
            let effects = machine.setStandby(node("c"), namedIn: namedIn)
            #expect(effects.targets == [node("c")] && effects.ended.map(\.target) == (namedIn == 3 ? [node("b")] : []))
            #expect(!machine.isCaughtUp(node("c")))
            let again = machine.setStandby(node("c"), namedIn: namedIn)
            #expect(again.targets.isEmpty && again.ended.isEmpty, "it is the same naming")
            let bindingMaybe = machine.nextBatch(for: node("c"), byteCountMax: 1000)
            let binding = try #require(bindingMaybe)
            #expect(binding.isBinding && binding.term.stream == 2)
            _ = machine.answered(binding.taken, by: node("c"))
            #expect(machine.isCaughtUp(node("c")))
        }
    }

    @Test("A candidate that is given up holds nothing back any more")
    func candidateIsGivenUp() throws {
        var machine = machine()
        _ = machine.setStandby(node("b"))
        _ = machine.setCandidate(node("c"))
        machine.confirmAll(node("c"))
        machine.confirmAll(node("b"))
        _ = try machine.change(record("x", "1"))
        machine.confirmAll(node("b"))
        #expect(machine.acknowledged == 0)
        #expect(machine.setCandidate(nil).ended.map(\.target) == [node("c")])
        #expect(machine.acknowledged == 1)
    }

    @Test("A standby that is gone releases what waits: to the next one, or to none")
    func standbyIsGone() throws {
        var machine = machine()
        _ = machine.setStandby(node("b"))
        _ = try machine.change(record("x", "1"))
        _ = machine.setStandby(node("c"))
        #expect(machine.acknowledged == 0)
        machine.confirmAll(node("c"))
        #expect(machine.acknowledged == 1)
        _ = try machine.change(record("x", "2"))
        _ = machine.setStandby(nil)
        #expect(machine.acknowledged == 2 && machine.isAlone)
    }

    @Test("A stream that begins anew acknowledges nothing until the copy is complete again")
    func restart() throws {
        var machine = machine()
        _ = machine.setStandby(node("b"))
        machine.confirmAll(node("b"))
        _ = try machine.change(record("x", "1"))
        let batchMaybe = machine.nextBatch(for: node("b"), byteCountMax: 1000)
        let batch = try #require(batchMaybe)
        #expect(machine.answered(batch.answer(.restart), by: node("b")).restartedCount == 1)
        #expect(machine.acknowledged == 0 && !machine.isCaughtUp(node("b")))
        machine.confirmAll(node("b"))
        #expect(machine.acknowledged == 1 && machine.isCaughtUp(node("b")))
    }

    @Test("A later epoch at a target ends everything: no change is made or acknowledged any more")
    func superseded() throws {
        var machine = machine()
        _ = machine.setStandby(node("b"))
        _ = try machine.change(record("x", "1"))
        let batchMaybe = machine.nextBatch(for: node("b"), byteCountMax: 1000)
        let batch = try #require(batchMaybe)
        let answer = batch.answer(.older(ReplicaTerm(epoch: 6, stream: 0)))
        #expect(machine.answered(answer, by: node("b")).supersededBy == 6)
        #expect(throws: ApusError(.staleEpoch)) { try machine.change(record("x", "2")) }
        #expect(!machine.hasNews(for: node("b")))
        _ = machine.setStandby(nil)
        #expect(machine.acknowledged == 0)
    }

    @Test("Who claims a later epoch stops the shard while it is a target; another standby says what is so")
    func falseClaim() throws {
        var machine = machine()
        _ = machine.setStandby(node("b"))
        _ = try machine.change(record("x", "1"))
        let batchMaybe = machine.nextBatch(for: node("b"), byteCountMax: 1000)
        let batch = try #require(batchMaybe)
        let claim = batch.answer(.older(ReplicaTerm(epoch: WireNumber.termMax, stream: 0)))
        #expect(machine.answered(claim, by: node("b")).supersededBy == WireNumber.termMax)
        _ = machine.setCandidate(node("c"))
        #expect(machine.supersededBy != nil && !machine.hasNews(for: node("c")))
        _ = machine.setStandby(node("d"))
        #expect(machine.supersededBy == nil && machine.acknowledged == 0)
        _ = try machine.change(record("x", "2"))
        machine.confirmAll(node("d"))
        #expect(machine.acknowledged == 2)
    }

    @Test("No number that a target says is taken for a stream's")
    func extremeStreams() throws {
        var machine = machine()
        _ = machine.setStandby(node("b"))
        for stream in [UInt64(2), WireNumber.sequenceMax, WireNumber.nextMax] {
            let batchMaybe = machine.nextBatch(for: node("b"), byteCountMax: 1000)
            let batch = try #require(batchMaybe)
            let effects = machine.answered(
                batch.answer(.older(ReplicaTerm(epoch: 5, stream: stream))), by: node("b"))
            #expect(effects.restartedCount == 1 && effects.isDelayed, "it took nothing, so it is asked again later")
        }
        #expect(machine.nextBatch(for: node("b"), byteCountMax: 1000)?.term.stream == 4)
    }

    @Test("A silent standby makes changes wait up to a bound, and then refuses them")
    func waitingBound() throws {
        var machine = machine { $0.waitingCountMax = 2 }
        _ = machine.setStandby(node("b"))
        for number in 1...2 { _ = try machine.change(record("x", "\(number)")) }
        #expect(throws: ApusError(.overloaded)) { try machine.change(record("x", "3")) }
        #expect(machine.position == 2)
        var bytes = self.machine { $0.waitingByteCountMax = 2 * record("x", "1").byteCount }
        _ = bytes.setStandby(node("b"))
        for number in 1...2 { _ = try bytes.change(record("x", "\(number)")) }
        #expect(throws: ApusError(.overloaded)) { try bytes.change(record("x", "3")) }
        bytes.confirmAll(node("b"))
        #expect(try bytes.change(record("x", "3")) == 3)
    }

    @Test("A candidate that does not keep up never refuses a change: its stream begins anew")
    func slowCandidate() throws {
        var machine = machine { $0.waitingCountMax = 2 }
        _ = machine.setStandby(node("b"))
        machine.confirmAll(node("b"))
        _ = machine.setCandidate(node("c"))
        let firstMaybe = machine.nextBatch(for: node("c"), byteCountMax: 1000)
        let first = try #require(firstMaybe)
        for number in 1...5 {
            _ = try machine.change(record("x", "\(number)"))
            machine.confirmAll(node("b"))
        }
        #expect(machine.acknowledged == 5)
        let againMaybe = machine.nextBatch(for: node("c"), byteCountMax: 1000)
        let again = try #require(againMaybe)
        #expect(again.term > first.term && again.text.last == "x=5")
    }

    @Test("States, entities and bytes of a shard are bounded; a removal always has room")
    func bounds() throws {
        var machine = machine {
            $0.stateByteCountMax = 4
            $0.shardEntityCountMax = 2
        }
        #expect(throws: ApusError(.frameTooLarge)) { try machine.change(record("x", "12345")) }
        _ = try machine.change(record("x", "1"))
        _ = try machine.change(record("y", "1"))
        #expect(throws: ApusError(.overloaded)) { try machine.change(record("z", "1")) }
        _ = try machine.change(record("y", "2"))
        _ = try machine.change(record("x", nil))
        _ = try machine.change(record("z", "1"))
        #expect(machine.table.text == ["y=2", "z=1"])
        var bytes = self.machine { $0.shardByteCountMax = 250 }
        _ = try bytes.change(record("x", "1"))
        #expect(throws: ApusError(.overloaded)) { try bytes.change(record("y", String(repeating: "1", count: 80))) }
    }

    @Test("A shard that is too full for another entity still takes changes of those it has")
    func roomForChanges() throws {
        var one = self.machine()
        _ = try one.change(record("10", ""))
        let size = one.tableSize.byteCount
        var machine = self.machine { $0.shardByteCountMax = 16 * size }
        for number in 10..<24 { _ = try machine.change(record("\(number)", "")) }
        #expect(throws: ApusError(.overloaded)) { try machine.change(record("another", "")) }
        for number in 10..<20 { _ = try machine.change(record("\(number)", "12345")) }
        #expect(throws: ApusError(.overloaded)) {
            try machine.change(record("10", String(repeating: "1", count: 3 * size)))
        }
        // What takes no more room is taken, however full the shard is.
        _ = try machine.change(record("10", "54321"))
        _ = try machine.change(record("11", "1"))
    }
}

import ApusCluster
import ApusCore
import ApusTestKit
import NIOCore
import Testing

@Suite("What an owner sends to other nodes (D18)")
struct ReplicaOwnerTests {
    private typealias Machine = ReplicaOwnerStateMachine
    private let shards = [ShardID(7), ShardID(8), ShardID(9)]

    /// Node a, which owns three shards that node b stands by for.
    private func machine(_ configure: (inout ReplicaConfiguration) -> Void = { _ in }) -> Machine {
        var configuration = ReplicaConfiguration()
        configure(&configuration)
        var machine = Machine(local: node("a"), map: map(1, owner: "a", standby: "b"), configuration: configuration)
        for shard in shards { _ = machine.open(shard, epoch: 5, table: ReplicaTable()) }
        return machine
    }

    private func map(
        _ revision: UInt64, owner: String, standby: String?, epoch: Epoch = 5, dead: [String] = []
    ) -> ClusterMap {
        replicaMap(revision: revision, owner: owner, standby: standby, epoch: epoch, dead: dead, shards: shards)
    }

    private func change(_ machine: inout Machine, _ shard: ShardID, _ text: String?) throws(ApusError) {
        var effects = Machine.Effects()
        _ = try machine.change(shard, epoch: 5, record("x", text), &effects)
    }

    private func answers(_ message: ReplicaMessage) -> ReplicaAnswers {
        ReplicaAnswers(number: message.number, answers: message.batches.map(\.taken))
    }

    /// Sends and confirms all that there is.
    private func settle(_ machine: inout Machine, now: MonotonicTime = at(0)) {
        var messages = machine.nextMessages(now: now)
        while !messages.isEmpty {
            for (target, message) in messages { _ = machine.answered(answers(message), by: target, now: now) }
            messages = machine.nextMessages(now: now)
        }
    }

    @Test("A shard that is taken over has no confirmed state before its standby has a copy of it (D15, D18)")
    func takenOver() throws {
        let map = replicaMap(revision: 2, owner: "a", standby: "b", epoch: 6)
        var machine = ReplicaOwnerStateMachine(local: node("a"), map: map)
        _ = machine.open(shard, epoch: 6, table: table(record("x", "1")))
        #expect(machine.waitingCount == 1 && machine.waitingByteCount == 0)
        #expect(try machine.load(key("x"), of: shard, epoch: 6)?.isConfirmed == false)
        for (target, message) in machine.nextMessages(now: at(0)) {
            let answers = ReplicaAnswers(number: message.number, answers: message.batches.map(\.taken))
            _ = machine.answered(answers, by: target, now: at(0))
        }
        #expect(try machine.load(key("x"), of: shard, epoch: 6)?.isConfirmed == true && machine.waitingCount == 0)
    }

    @Test("One message carries the batches of every shard that has something for its target")
    func oneMessage() throws {
        var machine = machine()
        let messages = machine.nextMessages(now: at(0))
        let message = try #require(messages.first).message
        #expect(messages.count == 1 && messages[0].target == node("b"))
        #expect(message.batches.map(\.shard) == shards && message.batches.allSatisfy(\.completes))
        #expect(message.revision == 1 && message.targetIncarnation == 1)
        let effects = machine.answered(answers(message), by: node("b"), now: at(1))
        #expect(effects.acknowledged.isEmpty && shards.allSatisfy { machine.isCaughtUp($0, node("b")) })
        #expect(machine.nextMessages(now: at(1)).isEmpty && !machine.isWaitingForTime)
    }

    @Test("While as many messages as may be are under way, changes gather for the next")
    func gathering() throws {
        var machine = machine { $0.messageCountMax = 2 }
        settle(&machine)
        var sent: [ReplicaMessage] = []
        for number in 0..<6 {
            try change(&machine, shards[number % 3], "\(number)")
            sent += machine.nextMessages(now: at(0)).map { $0.message }
        }
        #expect(sent.map { $0.batches.count } == [1, 1] && machine.waitingCount == 6)
        let effects = machine.answered(answers(sent[0]), by: node("b"), now: at(1))
        #expect(effects.acknowledged == [shards[0]])
        let next = try #require(machine.nextMessages(now: at(1)).first).message
        #expect(next.batches.map(\.shard) == [shards[2], shards[0], shards[1]])
        #expect(next.batches.map { $0.records.count } == [2, 1, 1])
    }

    @Test("Each lane to a node has messages of its own, whose numbers say the lane, and a shard keeps to one")
    func lanes() throws {
        var machine = machine {
            $0.laneCount = 2
            $0.messageCountMax = 1
        }
        let first = machine.nextMessages(now: at(0)).map { $0.message }
        #expect(first.map { $0.batches.map(\.shard) } == [[shards[0], shards[2]], [shards[1]]])
        #expect(first.map { $0.number % 2 } == [1, 0] && Set(first.map(\.number)).count == 2)
        // A lane that is not answered holds up its own shards only.
        _ = machine.answered(answers(first[1]), by: node("b"), now: at(1))
        for shard in shards { try change(&machine, shard, "1") }
        let second = machine.nextMessages(now: at(1)).map { $0.message }
        #expect(second.map { $0.batches.map(\.shard) } == [[shards[1]]] && second[0].number % 2 == 0)
        // One of the two links fails: what was on it comes again, on the same lane.
        machine.failed(first[0].number, to: node("b"), now: at(2))
        let again = machine.nextMessages(now: at(30)).map { $0.message }
        #expect(again.map { $0.batches.map(\.shard) } == [[shards[0], shards[2]]] && again[0].number % 2 == 1)
        _ = machine.answered(answers(again[0]), by: node("b"), now: at(31))
        _ = machine.answered(answers(second[0]), by: node("b"), now: at(31))
        settle(&machine, now: at(32))
        #expect(shards.allSatisfy { machine.isCaughtUp($0, node("b")) } && machine.waitingCount == 0)
        #expect(!machine.isWaitingForTime)
        // A node that died is forgotten on every lane.
        for shard in shards { try change(&machine, shard, "2") }
        _ = machine.mapChanged(map(2, owner: "a", standby: nil, dead: ["b"]))
        #expect(machine.nextMessages(now: at(40)).isEmpty && !machine.isWaitingForTime)
    }

    @Test("A message is bounded; shards take turns")
    func turns() throws {
        var machine = machine { $0.messageByteCountMax = 90 }
        settle(&machine)
        for number in 0..<6 { try change(&machine, shards[number % 2], String(repeating: "\(number)", count: 50)) }
        let messages = machine.nextMessages(now: at(0)).map { $0.message }
        #expect(messages.map { $0.batches.map(\.shard) } == [[shards[0]], [shards[1]], [shards[0]], [shards[1]]])
        #expect(messages.allSatisfy { $0.batches.allSatisfy { $0.records.count == 1 } })
    }

    @Test("No message begins beyond the window of bytes")
    func window() throws {
        var machine = machine {
            $0.messageByteCountMax = 90
            $0.windowByteCount = 150
        }
        settle(&machine)
        for number in 0..<6 { try change(&machine, shards[0], String(repeating: "\(number)", count: 50)) }
        #expect(machine.nextMessages(now: at(0)).count == 2)
    }

    @Test("What is not answered in time is sent again, and a late answer counts")
    func timeout() throws {
        var machine = machine()
        let first = try #require(machine.nextMessages(now: at(0)).first).message
        machine.tick(now: at(249))
        #expect(machine.nextMessages(now: at(249)).isEmpty && machine.isWaitingForTime)
        machine.tick(now: at(250))
        let again = try #require(machine.nextMessages(now: at(250)).first).message
        #expect(again.batches == first.batches && again.number > first.number && machine.counts.lost == 1)
        _ = machine.answered(answers(first), by: node("b"), now: at(251))
        #expect(machine.isCaughtUp(shards[0], node("b")))
    }

    @Test("What cannot be sent is tried again after a wait, or when the link is up")
    func noLink() throws {
        var machine = machine()
        let first = try #require(machine.nextMessages(now: at(0)).first).message
        machine.failed(first.number, to: node("b"), now: at(0))
        #expect(machine.nextMessages(now: at(19)).isEmpty && machine.isWaitingForTime)
        let again = try #require(machine.nextMessages(now: at(20)).first).message
        #expect(again.batches == first.batches)
        machine.failed(again.number, to: node("b"), now: at(20))
        machine.linkChanged(to: node("b"))
        #expect(machine.nextMessages(now: at(21)).first?.message.batches == first.batches)
        machine.linkChanged(to: node("b"))
        #expect(machine.nextMessages(now: at(22)).first?.message.batches == first.batches)
    }

    @Test("A batch without an answer, and one that had no room, are sent again after a wait")
    func unanswered() throws {
        var machine = machine()
        let first = try #require(machine.nextMessages(now: at(0)).first).message
        let some = [first.batches[0].taken, first.batches[1].answer(.overloaded)]
        _ = machine.answered(ReplicaAnswers(number: first.number, answers: some), by: node("b"), now: at(0))
        #expect(machine.nextMessages(now: at(19)).isEmpty)
        let again = try #require(machine.nextMessages(now: at(20)).first).message
        #expect(again.batches == [first.batches[1], first.batches[2]])
    }

    @Test("A shard that its target can do nothing with yet holds back no other")
    func delayed() throws {
        var machine = machine()
        settle(&machine)
        for shard in shards { try change(&machine, shard, "1") }
        let first = try #require(machine.nextMessages(now: at(0)).first).message
        let some = [first.batches[0].answer(.overloaded), first.batches[1].taken, first.batches[2].taken]
        _ = machine.answered(ReplicaAnswers(number: first.number, answers: some), by: node("b"), now: at(0))
        try change(&machine, shards[0], "2")
        try change(&machine, shards[1], "2")
        let others = try #require(machine.nextMessages(now: at(1)).first).message
        #expect(others.batches.map(\.shard) == [shards[1]] && machine.isWaitingForTime)
        #expect(machine.nextMessages(now: at(19)).isEmpty)
        let again = machine.nextMessages(now: at(20)).flatMap { $0.message.batches }
        #expect(again.first == first.batches[0] && again.map(\.shard) == [shards[0], shards[0]])
    }

    @Test("A node that does not answer gets one message at a time, ever more seldom, until it does")
    func silent() throws {
        var machine = machine { $0.messageByteCountMax = 90 }
        settle(&machine)
        for number in 0..<6 { try change(&machine, shards[number % 2], String(repeating: "\(number)", count: 50)) }
        #expect(machine.nextMessages(now: at(0)).count == 4)
        var sent: [ReplicaMessage] = []
        for time in stride(from: 10, through: 12_000, by: 10) {
            machine.tick(now: at(time))
            sent += machine.nextMessages(now: at(time)).map { $0.message }
        }
        // After 250, 500, 1,000, 2,000 and 4,000 ms, then 5,000.
        #expect(sent.count == 5 && machine.survey().silentPeerCount == 1)
        let last = try #require(sent.last)
        _ = machine.answered(answers(last), by: node("b"), now: at(12_001))
        #expect(machine.nextMessages(now: at(12_001)).count == 4 && machine.survey().silentPeerCount == 0)
    }

    @Test("An answer to another message of that number confirms nothing, and what was sent goes again")
    func strangeAnswers() throws {
        var machine = machine()
        settle(&machine)
        try change(&machine, shards[0], "1")
        let message = try #require(machine.nextMessages(now: at(0)).first).message
        let earlier = ReplicaAnswer(
            shard: shards[0], term: ReplicaTerm(epoch: 3, stream: 1), sequence: 2, verdict: .next(3))
        let effects = machine.answered(
            ReplicaAnswers(number: message.number, answers: [earlier]), by: node("b"), now: at(1))
        #expect(effects.acknowledged.isEmpty && machine.waitingCount == 1)
        #expect(machine.nextMessages(now: at(21)).first?.message.batches == message.batches)
        _ = machine.answered(answers(message), by: node("c"), now: at(22))
        #expect(machine.waitingCount == 1, "it was not asked")
    }

    @Test("The bytes that wait for standbys are bounded over all shards, and come back with the answers")
    func waitingBytes() throws {
        let one = record("x", "1").byteCount
        var machine = machine { $0.nodeWaitingByteCountMax = 2 * one }
        settle(&machine)
        try change(&machine, shards[0], "1")
        try change(&machine, shards[1], "1")
        #expect(machine.waitingByteCount == 2 * one)
        #expect(throws: ApusError(.overloaded)) { try change(&machine, shards[2], "1") }
        settle(&machine)
        #expect(machine.waitingByteCount == 0)
        try change(&machine, shards[2], "1")
        _ = machine.mapChanged(map(2, owner: "b", standby: "a", epoch: 6))
        #expect(machine.waitingByteCount == 0)
    }

    @Test("A survey counts shards without a standby, and finds the largest shard")
    func survey() throws {
        var machine = machine()
        settle(&machine)
        try change(&machine, shards[1], "1")
        let size = try #require(machine.size(of: shards[1]))
        var survey = machine.survey()
        #expect(survey.openCount == 3 && survey.aloneCount == 0)
        #expect(survey.shardEntityCountMax == 1 && survey.shardByteCountMax == size.byteCount)
        _ = machine.mapChanged(map(2, owner: "a", standby: nil, dead: ["b", "c", "d"]))
        survey = machine.survey()
        #expect(survey.aloneCount == 3 && machine.isAlone(shards[0]) && !machine.isAlone(ShardID(100)))
    }

    @Test("A shard that another node owns is closed with its table, and what waited is no more")
    func closed() throws {
        var machine = machine()
        settle(&machine)
        try change(&machine, shards[0], "1")
        let effects = machine.mapChanged(map(2, owner: "b", standby: "a", epoch: 6))
        #expect(effects.closed.map(\.shard) == shards && effects.closed[0].table.text == ["x=1"])
        #expect(machine.waitingCount == 0 && machine.entityCount == 0 && machine.byteCount == 0)
        #expect(throws: ApusError(.staleEpoch)) { try change(&machine, shards[0], "2") }
        #expect(!machine.canOpen(shards[0], epoch: 6))
    }

    @Test("A standby's death goes to the next one; without any, what waits is acknowledged alone and counted")
    func standbyDies() throws {
        var machine = machine()
        settle(&machine)
        try change(&machine, shards[0], "1")
        let effects = machine.mapChanged(map(2, owner: "a", standby: nil, dead: ["b", "c", "d"]))
        #expect(effects.acknowledged == [shards[0]] && machine.counts.alone == 1)
        _ = machine.mapChanged(map(3, owner: "a", standby: "c", dead: ["b", "d"]))
        let message = try #require(machine.nextMessages(now: at(0)).first)
        #expect(message.target == node("c") && message.message.batches[0].text == ["x=1"])
    }

    @Test("A standby that came back is another node, though the map's assignment is the same")
    func standbyReturns() throws {
        var machine = machine()
        settle(&machine)
        var newer = map(2, owner: "a", standby: "b")
        newer.members[1].id.incarnation = 2
        _ = machine.mapChanged(newer)
        #expect(!machine.isCaughtUp(shards[0], node("b")))
        let message = try #require(machine.nextMessages(now: at(0)).first)
        #expect(message.target == node("b", 2) && message.message.targetIncarnation == 2)
        #expect(message.message.batches.count == 3)
    }

    @Test("A standby that was replaced and named again in maps that the owner passed over is told that it binds it")
    func standbyNamedAgain() throws {
        var machine = machine()
        settle(&machine)
        let newer = replicaMap(
            revision: 4, owner: "a", standby: "b", epoch: 5, dead: ["c"], shards: shards, standbyNamedIn: 4)
        _ = machine.mapChanged(newer)
        #expect(!machine.isCaughtUp(shards[0], node("b")))
        let message = try #require(machine.nextMessages(now: at(0)).first).message
        #expect(message.revision == 4 && message.batches.map(\.isBinding) == [true, true, true])
        _ = machine.answered(answers(message), by: node("b"), now: at(0))
        #expect(machine.isCaughtUp(shards[0], node("b")) && machine.counts.restarted == 0)
    }

    @Test("A candidate that is given up is told so until it has heard it; one that died is none")
    func candidate() throws {
        var machine = machine()
        settle(&machine)
        _ = machine.setCandidate(shards[0], node("c"))
        settle(&machine)
        #expect(machine.isCaughtUp(shards[0], node("c")))
        _ = machine.setCandidate(shards[0], nil)
        let first = try #require(machine.nextMessages(now: at(0)).first)
        #expect(first.target == node("c") && first.message.ends.map(\.shard) == [shards[0]])
        machine.failed(first.message.number, to: node("c"), now: at(0))
        #expect(machine.nextMessages(now: at(20)).first?.message.ends == first.message.ends)
        _ = machine.setCandidate(shards[1], node("d"))
        _ = machine.mapChanged(map(2, owner: "a", standby: "b", dead: ["d"]))
        try change(&machine, shards[1], "1")
        settle(&machine, now: at(50))
        #expect(machine.acknowledged(of: shards[1]) == 1 && machine.waitingCount == 0)
    }

    @Test(
        "A candidate that a move names before the shard is open is fed once it is, unless it was given up or died",
        arguments: [false, true], [false, true])
    func earlyCandidate(isGivenUp: Bool, isDead: Bool) {
        var machine = Machine(local: node("a"), map: map(1, owner: "a", standby: "b"))
        _ = machine.setCandidate(shards[0], node("c"))
        if isGivenUp { _ = machine.setCandidate(shards[0], nil) }
        if isDead { _ = machine.mapChanged(map(2, owner: "a", standby: "b", dead: ["c"])) }
        _ = machine.open(shards[0], epoch: 5, table: ReplicaTable())
        settle(&machine)
        #expect(machine.isCaughtUp(shards[0], node("b")))
        #expect(machine.isCaughtUp(shards[0], node("c")) == !(isGivenUp || isDead))
    }

    @Test("A candidate that was named under an earlier epoch is none")
    func earlyCandidateOfEarlierEpoch() {
        var machine = Machine(local: node("a"), map: map(1, owner: "a", standby: "b"))
        _ = machine.setCandidate(shards[0], node("c"))
        _ = machine.mapChanged(map(2, owner: "a", standby: "b", epoch: 7))
        _ = machine.open(shards[0], epoch: 7, table: ReplicaTable())
        settle(&machine)
        #expect(machine.isCaughtUp(shards[0], node("b")) && !machine.isCaughtUp(shards[0], node("c")))
    }

    @Test("A later epoch elsewhere is reported, and the shard's changes end")
    func superseded() throws {
        var machine = machine()
        let first = try #require(machine.nextMessages(now: at(0)).first).message
        let answer = first.batches[0].answer(.older(ReplicaTerm(epoch: 9, stream: 0)))
        let effects = machine.answered(
            ReplicaAnswers(number: first.number, answers: [answer]), by: node("b"), now: at(0))
        #expect(effects.superseded.map { $0.epoch } == [9] && machine.isSuperseded(shards[0]))
        #expect(throws: ApusError(.staleEpoch)) { try change(&machine, shards[0], "1") }
    }

    @Test("Entities and bytes of a node are bounded; a change of what is there, and a removal, have room")
    func bounds() throws {
        var machine = machine { $0.entityCountMax = 2 }
        try change(&machine, shards[0], "1")
        try change(&machine, shards[1], "1")
        #expect(throws: ApusError(.overloaded)) { try change(&machine, shards[2], "1") }
        try change(&machine, shards[0], "2")
        try change(&machine, shards[1], nil)
        try change(&machine, shards[2], "1")
        #expect(machine.entityCount == 2 && machine.counts.refused == 1 && machine.counts.changes == 5)
        var bytes = self.machine { $0.byteCountMax = 250 }
        try change(&bytes, shards[0], "1")
        try change(&bytes, shards[1], "1")
        #expect(throws: ApusError(.overloaded)) { try change(&bytes, shards[2], "1") }
        try change(&bytes, shards[0], "2")
        #expect(bytes.byteCount == 2 * 98)
    }
}

@Suite("A shard's states (D18)")
struct ReplicaTableTests {
    @Test("Pages hold every entity that exists all the while exactly once, whatever changes between them")
    func pages() {
        var table = ReplicaTable()
        for number in 0..<10 { table.apply(record("e\(number)", "1")) }
        var (names, cursor): ([String], Int?) = ([], 0)
        while let from = cursor {
            let page = table.page(from: from, countMax: 3)
            #expect(page.records.count <= 3)
            names += page.records.map(\.key.key)
            cursor = page.next
            if from == 0 {
                table.apply(record("e1", nil))
                table.apply(record("e8", nil))
                table.apply(record("f1", "1"))
                table.apply(record("f2", "1"))
                table.apply(record("e5", "2"))
            }
        }
        #expect(Set(names).count == names.count)
        #expect(Set(names).isSuperset(of: [0, 1, 2, 3, 4, 5, 6, 7, 9].map { "e\($0)" }) && !names.contains("e8"))
        #expect(
            table.page(from: 100, countMax: 3).records.isEmpty && ReplicaTable().page(from: 0, countMax: 1).next == nil)
    }
}

@Suite("Who waits for changes (D18)")
struct ReplicaWaitersTests {
    @Test("Each is given back once: when its change is acknowledged, when its time is over, or at the end")
    func once() {
        var waiters = ReplicaWaiters<String>()
        waiters.add("b", for: 2, until: at(10))
        waiters.add("a", for: 1, until: at(10))
        waiters.add("d", for: 4, until: at(30))
        waiters.add("c", for: 3, until: at(20))
        #expect(waiters.take(upTo: 0) == [])
        #expect(waiters.take(upTo: 1) == ["a"])
        #expect(waiters.takeExpired(at: at(9)) == [])
        #expect(waiters.takeExpired(at: at(20)) == ["b", "c"])
        #expect(waiters.takeAll() == ["d"])
        #expect(waiters.isEmpty)
    }
}

@Suite("The messages of replication (D2, D18)")
struct ReplicaMessageTests {
    @Test("Messages and answers are read as written, and never from other bytes with another error than 10001")
    func codec() throws {
        var batch = ReplicaBatch(
            shard: ShardID(4095), term: ReplicaTerm(epoch: 7, stream: 8), sequence: 9, position: 10)
        (batch.completes, batch.isBinding, batch.keepsEarlier) = (true, true, true)
        batch.records = [record("x", "state"), record("y", nil), record("z", "")]
        let empty = ReplicaBatch(shard: shard, term: ReplicaTerm(epoch: 1, stream: 1), sequence: 1, position: 0)
        let message = ReplicaMessage(
            targetIncarnation: 3, number: 4, revision: 5, ends: [ReplicaEnd(shard: shard, term: batch.term)],
            batches: [batch, empty])
        try DecoderVerifier.verifyMessage((message.encoded(), message)) { try ReplicaMessage(decoding: $0) }
        let verdicts: [ReplicaAnswer.Verdict] = [
            .next(11), .restart, .older(ReplicaTerm(epoch: 6, stream: 2)), .overloaded,
        ]
        let answers = ReplicaAnswers(number: 4, answers: verdicts.map { batch.answer($0) })
        try DecoderVerifier.verifyMessage((answers.encoded(), answers)) { try ReplicaAnswers(decoding: $0) }
    }

    @Test("Numbers that no node says, shards that are none and counts beyond the bytes are refused")
    func bounds() {
        func refuses(_ version: UInt8, _ incarnation: UInt64, endCount: UInt32, _ shard: UInt16? = nil) -> Bool {
            var bytes = ByteBuffer()
            bytes.writeMultipleIntegers(version, incarnation, UInt64(1), UInt64(1), endCount)
            if let shard { bytes.writeMultipleIntegers(shard, UInt32(1), UInt64(1)) }
            bytes.writeInteger(UInt32(0))
            return (try? ReplicaMessage(decoding: bytes)) == nil
        }
        #expect(!refuses(1, 1, endCount: 0) && !refuses(1, 1, endCount: 1, 4095))
        #expect(refuses(2, 1, endCount: 0), "another layout")
        #expect(refuses(1, .max, endCount: 0), "an incarnation that is none")
        #expect(refuses(1, 1, endCount: .max), "more ends than bytes")
        #expect(refuses(1, 1, endCount: 1, 4096), "a shard that is none")
        var message = ReplicaMessage(targetIncarnation: 1, number: 1, revision: 1, ends: [], batches: [])
        let term = ReplicaTerm(epoch: 1, stream: 1)
        message.ends = Array(repeating: ReplicaEnd(shard: shard, term: term), count: ShardID.count)
        #expect((try? ReplicaMessage(decoding: message.encoded())) == message)
        message.ends.append(message.ends[0])
        #expect((try? ReplicaMessage(decoding: message.encoded())) == nil, "more ends than shards")
        let batch = ReplicaBatch(shard: shard, term: term, sequence: 1, position: 0)
        message = ReplicaMessage(
            targetIncarnation: 1, number: 1, revision: 1, ends: [],
            batches: Array(repeating: batch, count: ShardID.count + 1))
        #expect((try? ReplicaMessage(decoding: message.encoded())) == nil, "more batches than shards")
        let answers = ReplicaAnswers(
            number: 1, answers: Array(repeating: batch.answer(.restart), count: ShardID.count + 1))
        #expect((try? ReplicaAnswers(decoding: answers.encoded())) == nil, "more answers than shards")
    }
}

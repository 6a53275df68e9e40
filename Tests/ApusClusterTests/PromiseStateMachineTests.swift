import ApusCluster
import ApusCore
import ApusWire
import Testing

/// A node answers for entities with kept state only while most members have promised not to declare it dead (D4).
@Suite("Promises that allow a node to answer (D4)")
struct PromiseStateMachineTests {
    private static let configuration = MembershipConfiguration()
    private typealias Step = PromiseStateMachine.Step

    private let b = node("b")
    private let c = node("c")
    private let d = node("d")

    private func machine(_ peers: [NodeID]) -> PromiseStateMachine {
        var machine = PromiseStateMachine(configuration: Self.configuration)
        machine.setPeers(peers)
        return machine
    }

    private func at(_ milliseconds: Int64) -> MonotonicTime { .zero + .milliseconds(milliseconds) }

    /// A promise of 200 ms to what was sent at this time.
    private func promise(
        sent: Int64, echo: Int64, held: Int64 = 0, vote: UInt32 = 0, for milliseconds: UInt16 = 200
    ) -> HeartbeatPromise {
        HeartbeatPromise(
            sentNanoseconds: at(sent).nanoseconds, echoNanoseconds: at(echo).nanoseconds,
            heldMicroseconds: UInt32(held * 1000), promisedMilliseconds: milliseconds, vote: vote)
    }

    @Test("A node that joined no cluster may not answer, and a member without peers always may")
    func alone() {
        var outside = PromiseStateMachine(configuration: Self.configuration)
        #expect(outside.evaluate(gone: [], now: at(1000)).isEmpty == true)
        #expect(outside.answersUntil <= at(1000))
        outside.setPeers([])
        #expect(outside.evaluate(gone: [], now: at(1000)).isEmpty == true)
        outside.exclude()
        #expect(outside.evaluate(gone: [], now: at(1000)).isEmpty == true)
        #expect(outside.answersUntil <= at(1000), "a node that is dead in the map may answer")
        var single = machine([])
        #expect(single.evaluate(gone: [], now: at(1000)).isEmpty == true)
        #expect(single.answersUntil == at(1200))
    }

    @Test("After a stall a node without others replaces the map before it answers again")
    func stallAlone() {
        var single = machine([])
        for now in stride(from: Int64(1000), through: 1500, by: 10) {
            #expect(single.evaluate(gone: [], now: at(now)).isEmpty == true)
            #expect(single.answersUntil == at(now + 200))
        }
        #expect(single.evaluate(gone: [], now: at(1630)).isEmpty == true, "others look after 200 ms")
        #expect(single.answersUntil == at(1830))
        #expect(single.evaluate(gone: [], now: at(1770)) == [Step.confirmMap(1)])
        #expect(single.answersUntil <= at(1770))
        single.confirmed(1, isDone: true, now: at(1775))
        #expect(single.evaluate(gone: [], now: at(1780)).isEmpty == true)
        #expect(single.answersUntil == at(1980))
    }

    @Test("A stall during the replacement of the map needs another one")
    func stallTwice() {
        var machine = machine([b])
        machine.received(promise(sent: 5000, echo: 1000, for: 700), from: b, now: at(1001))
        #expect(machine.evaluate(gone: [], now: at(1001)).isEmpty == true)
        #expect(machine.answersUntil > at(1600))
        #expect(machine.evaluate(gone: [], now: at(1200)) == [Step.confirmMap(1)], "the promise outlives the stall")
        #expect(machine.answersUntil <= at(1200))
        #expect(machine.evaluate(gone: [], now: at(1400)).isEmpty == true)
        machine.confirmed(1, isDone: true, now: at(1400))
        #expect(machine.evaluate(gone: [], now: at(1401)) == [Step.confirmMap(2)])
        machine.confirmed(2, isDone: true, now: at(1405))
        #expect(machine.evaluate(gone: [], now: at(1406)).isEmpty == true)
        #expect(machine.answersUntil > at(1600))
    }

    @Test("A promise counts from the time at which the echoed heartbeat was sent, less a margin")
    func end() {
        var machine = machine([b])
        machine.received(promise(sent: 5000, echo: 1000), from: b, now: at(1040))
        #expect(machine.evaluate(gone: [], now: at(1040)).isEmpty == true)
        #expect(machine.answersUntil == at(1199))
        // An older echo, which arrives late, shortens nothing.
        machine.received(promise(sent: 4990, echo: 990), from: b, now: at(1050))
        #expect(machine.evaluate(gone: [], now: at(1050)).isEmpty == true)
        #expect(machine.answersUntil == at(1199))
    }

    @Test("A promise without an echo, or with one from the future, allows nothing")
    func noEcho() {
        var machine = machine([b])
        machine.received(promise(sent: 5000, echo: 0), from: b, now: at(1000))
        machine.received(promise(sent: 5001, echo: 1001), from: b, now: at(1000))
        machine.received(promise(sent: 5002, echo: 990, for: 0), from: b, now: at(1000))
        #expect(machine.evaluate(gone: [], now: at(1000)).isEmpty == true)
        #expect(machine.answersUntil <= at(1000))
    }

    @Test(
        "A majority must have promised, this node included",
        arguments: [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (8, 4), (31, 16)])
    func majority(peerCount: Int, neededCount: Int) {
        let peers = (0..<peerCount).map { NodeID(name: NodeName(unchecked: "p\($0)"), incarnation: 1) }
        var machine = machine(peers)
        for (count, peer) in peers.enumerated() {
            #expect(machine.evaluate(gone: [], now: at(1040)).isEmpty == true)
            #expect((machine.answersUntil > at(1040)) == (count >= neededCount), "\(count) of \(peerCount) promised")
            machine.received(promise(sent: 5000, echo: 1000), from: peer, now: at(1040))
        }
    }

    @Test("The permission ends with the promise that makes the majority; a proven death ends the promise of its node")
    func gone() {
        var machine = machine([b, c, d])
        machine.received(promise(sent: 5000, echo: 1000), from: b, now: at(1040))
        machine.received(promise(sent: 5000, echo: 1020), from: c, now: at(1040))
        machine.received(promise(sent: 5000, echo: 1040), from: d, now: at(1050))
        #expect(machine.evaluate(gone: [], now: at(1050)).isEmpty == true)
        // Of four members two others are needed.
        #expect(machine.answersUntil == at(1219))
        #expect(machine.evaluate(gone: [b], now: at(1050)).isEmpty == true)
        #expect(machine.answersUntil == at(1219))
        #expect(machine.evaluate(gone: [c, d], now: at(1050)).isEmpty == true)
        #expect(machine.answersUntil <= at(1050), "one promise of three others permitted to answer")
        // The map shows the deaths.
        machine.setPeers([b])
        #expect(machine.evaluate(gone: [], now: at(1060)).isEmpty == true)
        #expect(machine.answersUntil == at(1199))
        machine.setPeers([])
        #expect(machine.evaluate(gone: [], now: at(1070)).isEmpty == true)
        #expect(machine.answersUntil == at(1270))
    }

    @Test("A node votes only when its promise has ended, and promises nothing while its vote counts")
    func votes() {
        var machine = machine([b])
        machine.received(promise(sent: 7000, echo: 0), from: b, now: at(1000))
        let messages = machine.heartbeats(to: b, now: at(1010))
        #expect(messages == [HeartbeatMessage.promise(promise(sent: 1010, echo: 7000, held: 10))])
        #expect(!machine.mayVote(against: b, now: at(1199)))
        #expect(machine.mayVote(against: b, now: at(1200)))
        machine.voted(against: b, now: at(1200))
        machine.received(promise(sent: 7300, echo: 1010), from: b, now: at(1300))
        // 300 ms of its lifetime and 200 ms on its way.
        let during = machine.heartbeats(to: b, now: at(1699))
        #expect(during == [HeartbeatMessage.promise(promise(sent: 1699, echo: 7300, held: 399, vote: 1, for: 0))])
        machine.received(promise(sent: 7690, echo: 1010), from: b, now: at(1700))
        guard case .promise(let after) = machine.heartbeats(to: b, now: at(1700)).first else {
            Issue.record("no promise")
            return
        }
        #expect(after.vote == 1)
        #expect(after.promisedMilliseconds >= 200)
        machine.received(promise(sent: 17690, echo: 1700), from: b, now: at(11_200))
        guard case .promise(let later) = machine.heartbeats(to: b, now: at(11_200)).first else {
            Issue.record("no promise")
            return
        }
        #expect(later.vote == 0, "a vote of 10 s ago is told")
    }

    @Test("The round trip extends a promise, up to a limit", arguments: [(0, 200), (300, 500), (2000, 700)])
    func roundTrip(milliseconds: Int64, expected: UInt16) {
        var machine = machine([b])
        let now = 10_000 + milliseconds
        machine.received(promise(sent: 7000, echo: 10_000 - 20, held: 20), from: b, now: at(now))
        guard case .promise(let made) = machine.heartbeats(to: b, now: at(now)).first else {
            Issue.record("no promise")
            return
        }
        #expect(made.promisedMilliseconds == expected)
        #expect(!machine.mayVote(against: b, now: at(now + Int64(expected) - 1)))
        #expect(machine.mayVote(against: b, now: at(now + Int64(expected))))
    }

    @Test("A peer that echoes nothing new is promised nothing, and its datagrams do not show that it is alive")
    func oneDirection() {
        var machine = machine([b])
        for now in stride(from: Int64(1000), through: 2000, by: 50) {
            machine.heard(b, now: at(now))
            // From 1200 on nothing of this node arrives at the peer.
            let echo = min(now, 1200)
            machine.received(promise(sent: now + 5000, echo: echo - 1, held: now - echo), from: b, now: at(now))
            let isFresh = now <= 1350
            #expect(machine.hasContact(with: b, now: at(now)) == isFresh, "at \(now)")
            guard case .promise(let made) = machine.heartbeats(to: b, now: at(now)).first else {
                Issue.record("no promise")
                return
            }
            #expect((made.promisedMilliseconds > 0) == isFresh, "at \(now)")
        }
        #expect(machine.mayVote(against: b, now: at(1551)))
        machine.answered(by: b, now: at(2010))
        #expect(machine.hasContact(with: b, now: at(2150)))
        #expect(!machine.hasContact(with: b, now: at(2161)))
    }

    @Test("A peer that has heard nothing yet is alive for the time of the first contact")
    func firstContact() {
        var machine = machine([b])
        for now in stride(from: Int64(1000), through: 2500, by: 50) {
            machine.heard(b, now: at(now))
            machine.received(promise(sent: now + 5000, echo: 0), from: b, now: at(now))
            #expect(machine.hasContact(with: b, now: at(now)) == (now <= 2000))
        }
    }

    @Test("A member of an earlier version counts while it was heard within half of the silence")
    func earlierVersion() {
        var machine = machine([b])
        #expect(machine.heartbeats(to: b, now: at(1000)).count == 2)
        #expect(machine.heartbeats(to: b, now: at(1050)) == [HeartbeatMessage.heartbeat])
        #expect(machine.heartbeats(to: b, now: at(1100)).count == 2)
        for now in stride(from: Int64(1060), through: 2110, by: 50) {
            machine.heard(b, now: at(now))
            #expect(machine.evaluate(gone: [], now: at(now)).isEmpty == true)
            // Until then its promise may have been lost.
            #expect(machine.answersUntil == (now < 2060 ? MonotonicTime.zero : at(now + 100)))
        }
    }

    @Test("After a lapse without votes the node goes on at once")
    func lapseWithoutVotes() {
        var machine = machine([b, c])
        machine.received(promise(sent: 5000, echo: 1000), from: b, now: at(1001))
        #expect(machine.evaluate(gone: [], now: at(1001)).isEmpty == true)
        for now in stride(from: Int64(1100), through: 1400, by: 100) {
            #expect(machine.evaluate(gone: [], now: at(now)).isEmpty == true)
        }
        #expect(machine.answersUntil <= at(1300))
        machine.received(promise(sent: 5400, echo: 1399), from: b, now: at(1400))
        #expect(machine.evaluate(gone: [], now: at(1400)).isEmpty == true)
        #expect(machine.answersUntil == at(1598))
    }

    @Test("After a lapse with votes of a majority the map is replaced first, again and again until that is done")
    func lapseWithVotes() {
        var machine = machine([b, c])
        machine.received(promise(sent: 5400, echo: 1399, vote: 1), from: b, now: at(1400))
        machine.received(promise(sent: 5400, echo: 1399, vote: 3), from: c, now: at(1400))
        #expect(machine.evaluate(gone: [], now: at(1400)) == [Step.confirmMap(1)])
        #expect(machine.answersUntil <= at(1400))
        #expect(machine.evaluate(gone: [], now: at(1410)).isEmpty == true, "asked twice")
        machine.confirmed(1, isDone: false, now: at(1420))
        #expect(machine.evaluate(gone: [], now: at(1500)).isEmpty == true)
        #expect(machine.evaluate(gone: [], now: at(1520)) == [Step.confirmMap(2)])
        machine.confirmed(1, isDone: true, now: at(1525))
        #expect(machine.evaluate(gone: [], now: at(1525)).isEmpty == true, "the answer to an earlier question counted")
        #expect(machine.answersUntil <= at(1525))
        machine.confirmed(2, isDone: true, now: at(1530))
        #expect(machine.evaluate(gone: [], now: at(1530)).isEmpty == true)
        #expect(machine.answersUntil == at(1598))
    }

    @Test("A vote that became known while the map was replaced counts still")
    func laterVote() {
        var machine = machine([b, c])
        machine.received(promise(sent: 5400, echo: 1399, vote: 1), from: b, now: at(1400))
        machine.received(promise(sent: 5400, echo: 1399, vote: 3), from: c, now: at(1400))
        #expect(machine.evaluate(gone: [], now: at(1400)) == [Step.confirmMap(1)])
        machine.received(promise(sent: 5450, echo: 1449, vote: 2), from: b, now: at(1450))
        machine.received(promise(sent: 5450, echo: 1449, vote: 4), from: c, now: at(1450))
        machine.confirmed(1, isDone: true, now: at(1460))
        #expect(machine.evaluate(gone: [], now: at(1460)) == [Step.confirmMap(2)])
        #expect(machine.answersUntil <= at(1460))
    }

    @Test("One vote of three members, without a majority, needs no other map")
    func oneVote() {
        var machine = machine([b, c])
        machine.received(promise(sent: 5400, echo: 1399, vote: 1), from: b, now: at(1400))
        #expect(
            machine.evaluate(gone: [], now: at(1400)) == [Step.confirmMap(1)], "the only promise is of one who voted")
        machine.received(promise(sent: 5400, echo: 1399), from: c, now: at(1410))
        #expect(machine.evaluate(gone: [], now: at(1410)).isEmpty == true)
        #expect(machine.answersUntil == at(1598))
    }
}

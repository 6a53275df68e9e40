import ApusCluster
import ApusCore
import ApusWire
import Testing

@Suite("Failure detector (D4)")
struct MembershipStateMachineTests {
    private let a = node("a")
    private let b = node("b")
    private let c = node("c")

    /// A detector that heard its peers at 0 ms.
    private func detector(peers: NodeID...) -> MembershipStateMachine {
        var machine = MembershipStateMachine(local: a)
        _ = machine.handle(.membersChanged(peers), now: at(0))
        for peer in peers { _ = machine.handle(.received(.heartbeat, from: peer), now: at(0)) }
        return machine
    }

    /// Ticks every 10 ms, while `talkers` send a heartbeat with each; the actions that are neither heartbeats nor
    /// shares of votes.
    private func run(
        _ machine: inout MembershipStateMachine, from start: Int = 10, through end: Int, talkers: [NodeID] = []
    ) -> [(at: Int, action: MembershipStateMachine.Action)] {
        var log: [(at: Int, action: MembershipStateMachine.Action)] = []
        for now in stride(from: start, through: end, by: 10) {
            for talker in talkers {
                log += machine.handle(.received(.heartbeat, from: talker), now: at(now)).map { (now, $0) }
            }
            log += machine.handle(.tick, now: at(now)).map { (now, $0) }
        }
        return log.filter { entry in
            switch entry.action {
            case .send(.heartbeat, _), .send(.promise, _), .half, .uncertain: false
            default: true
            }
        }
    }

    @Test("A peer that is heard, but hears nothing, is dead as soon as one that is silent, within 450 ms")
    func hearsNothing() throws {
        var machine = detector(peers: b, c)
        var log: [(at: Int, action: MembershipStateMachine.Action)] = []
        for now in stride(from: 10, through: 1000, by: 10) {
            // It sends promises and bytes over links, and asks for probes. Its last echo is of 300 ms.
            let (echo, clock) = (min(now, 300), at(now).nanoseconds)
            let promise = HeartbeatPromise(
                sentNanoseconds: clock, echoNanoseconds: at(echo).nanoseconds,
                heldMicroseconds: UInt32(now - echo) * 1000, promisedMilliseconds: 200)
            let messages: [HeartbeatMessage] = [
                .heartbeat, .promise(promise), .probe(nonce: 1, origin: nil), .indirectRequest(nonce: 2, target: c),
            ]
            log += messages.flatMap { machine.handle(.received($0, from: b), now: at(now)) }.map { (now, $0) }
            log += machine.handle(.heard(b), now: at(now)).map { (now, $0) }
            log += machine.handle(.received(.heartbeat, from: c), now: at(now)).map { (now, $0) }
            log += machine.handle(.tick, now: at(now)).map { (now, $0) }
        }
        let dead = try #require(log.first { $0.action == .confirmedDead(b, .silence) })
        #expect(dead.at <= 300 + 450)
        #expect(!log.contains { $0.action == .recovered(b) })
        #expect(!log.contains { $0.action == .suspected(c, .silence) })
        // Its answer to a probe proves that packets arrive again.
        #expect(
            machine.handle(.received(.answer(nonce: 9, origin: nil), from: b), now: at(1010)).contains(.recovered(b)))
    }

    @Test("A peer that half of the members do not hear becomes certain and uncertain with the votes of the others")
    func shares() {
        let d = node("d")
        var machine = detector(peers: b, c, d)
        var shares: [MembershipStateMachine.Action] = []
        for now in stride(from: 10, through: 800, by: 10) {
            for talker in [c, d] {
                shares += machine.handle(.received(.heartbeat, from: talker), now: at(now))
            }
            let actions = machine.handle(.tick, now: at(now))
            shares += actions
            for case .send(.indirectRequest(let nonce, b), let voter) in actions where now < 400 {
                guard voter == c || now > 320 else { continue }
                shares += machine.handle(.received(.unheard(nonce: nonce, target: b), from: voter), now: at(now))
            }
        }
        let kinds = shares.filter { [.half(b), .certain(b), .uncertain(b)].contains($0) }
        // Votes last for 300 ms after the last one.
        #expect(kinds == [.half(b), .certain(b), .uncertain(b)])
    }

    @Test("A heartbeat goes to every peer each 50 ms")
    func beats() {
        var machine = detector(peers: b, c)
        var beats: [NodeID: Int] = [:]
        for now in stride(from: 0, to: 1000, by: 10) {
            _ = machine.handle(.heard(b), now: at(now))
            _ = machine.handle(.heard(c), now: at(now))
            for case .send(.heartbeat, let peer) in machine.handle(.tick, now: at(now)) { beats[peer, default: 0] += 1 }
        }
        #expect(beats == [b: 20, c: 20])
    }

    @Test("Silence of 200 ms and a failed burst of 60 ms confirm a death, within 280 ms")
    func silence() {
        var machine = detector(peers: b, c)
        let log = run(&machine, through: 400, talkers: [c])
        #expect(log.first?.action == .suspected(b, .silence))
        #expect(log.first?.at == 210)
        #expect(log.first { $0.action == .confirmedDead(b, .silence) }?.at == 270)
        #expect(log.count { $0.action == .send(.probe(nonce: 1, origin: nil), to: b) } == 3)
        let requests = log.filter { $0.action == .send(.indirectRequest(nonce: 1, target: b), to: c) }
        #expect(requests.count { $0.at <= 270 } == 3)
        // From then on it asks for votes, with each heartbeat. The death is not certain without one.
        #expect(requests.count { $0.at > 270 } == 3)
        #expect(!log.contains { $0.action == .certain(b) })
    }

    @Test("Three heartbeats lost in a row raise no suspicion")
    func lossTolerated() {
        var machine = detector(peers: b)
        #expect(run(&machine, through: 190).isEmpty)
    }

    @Test(
        "Any sign of life during the burst ends the suspicion",
        arguments: [
            MembershipStateMachine.Input.received(.answer(nonce: 1, origin: nil), from: node("b")),
            .received(.heartbeat, from: node("b")), .heard(node("b")), .linkUp(node("b")),
            .received(.indirectAnswer(nonce: 1, target: node("b")), from: node("c")),
        ])
    func life(_ input: MembershipStateMachine.Input) {
        var machine = detector(peers: b, c)
        _ = run(&machine, through: 240, talkers: [c])
        #expect(machine.handle(input, now: at(245)).contains(.recovered(b)))
        // An answer through a helper begins a check of the path, which sends probes.
        let verdicts = run(&machine, from: 250, through: 400, talkers: [c]).filter { entry in
            if case .send = entry.action { false } else { true }
        }
        #expect(verdicts.isEmpty)
    }

    @Test("An indirect answer to an earlier burst is no sign of life")
    func lateAnswer() {
        var machine = detector(peers: b, c)
        _ = run(&machine, through: 240, talkers: [c])
        #expect(machine.handle(.received(.indirectAnswer(nonce: 99, target: b), from: c), now: at(245)).isEmpty)
    }

    @Test("A lost link and a refused connection confirm a death at once")
    func processGone() {
        var machine = detector(peers: b)
        #expect(machine.handle(.linkLost(b), now: at(20)).isEmpty)
        #expect(machine.handle(.connectRefused(b), now: at(21)) == [.confirmedDead(b, .processGone)])
    }

    @Test("A lost link that comes up again is no death, and a later refusal only a suspicion")
    func linkRestored() {
        var machine = detector(peers: b)
        _ = machine.handle(.linkLost(b), now: at(20))
        _ = machine.handle(.linkUp(b), now: at(25))
        let actions = machine.handle(.connectRefused(b), now: at(30))
        #expect(actions.first == .suspected(b, .connectionRefused))
        #expect(!actions.contains(.confirmedDead(b, .processGone)))
    }

    @Test("A datagram that was under way does not call back a process that is gone; a new link does")
    func lateDatagram() {
        var machine = detector(peers: b)
        _ = machine.handle(.linkLost(b), now: at(20))
        _ = machine.handle(.connectRefused(b), now: at(21))
        #expect(machine.handle(.received(.heartbeat, from: b), now: at(22)).isEmpty)
        #expect(machine.handle(.linkUp(b), now: at(30)) == [.recovered(b)])
    }

    @Test("An observer that was itself late discards its suspicion and starts the silence anew")
    func ownLateness() {
        var machine = detector(peers: b)
        _ = run(&machine, through: 240)
        let late = machine.handle(.tick, now: at(300))
        #expect(late.contains(.discarded(b)))
        #expect(machine.lateTickCount == 1)
        let log = run(&machine, from: 310, through: 500)
        #expect(log.isEmpty)
    }

    @Test("An observer that slept takes back a death that it had confirmed by silence, not one by a refused connection")
    func sleptAfterConfirming() {
        var machine = detector(peers: b, c)
        _ = machine.handle(.linkLost(c), now: at(5))
        _ = machine.handle(.connectRefused(c), now: at(6))
        _ = run(&machine, through: 280)
        let late = machine.handle(.tick, now: at(5000))
        #expect(late.filter { $0 == .discarded(b) || $0 == .discarded(c) } == [.discarded(b)])
    }

    @Test("A peer that was confirmed dead and speaks again is alive")
    func revived() {
        var machine = detector(peers: b)
        _ = run(&machine, through: 300)
        #expect(machine.handle(.received(.heartbeat, from: b), now: at(305)) == [.recovered(b)])
    }

    @Test("A member that was never heard gets a second for its first word")
    func firstContact() {
        var machine = MembershipStateMachine(local: a)
        _ = machine.handle(.membersChanged([b]), now: at(0))
        let log = run(&machine, through: 1100)
        #expect(log.first?.at == 1010)
        #expect(log.last?.action == .confirmedDead(b, .silence))
    }

    @Test("A link is no first word: a peer that the map has not reached yet answers it and sends no heartbeats")
    func firstContactOverLinks() {
        var machine = MembershipStateMachine(local: a)
        _ = machine.handle(.membersChanged([b]), now: at(0))
        _ = machine.handle(.linkUp(b), now: at(5))
        _ = machine.handle(.heard(b), now: at(30))
        #expect(run(&machine, through: 1000).isEmpty)
        #expect(run(&machine, from: 1010, through: 1200).last?.action == .confirmedDead(b, .silence))
        _ = machine.handle(.received(.heartbeat, from: b), now: at(1205))
        #expect(run(&machine, from: 1210, through: 1600).last?.action == .confirmedDead(b, .silence))
    }

    @Test("Another incarnation's datagrams are no life and get no answer")
    func foreignIncarnation() {
        var machine = detector(peers: b)
        let probe = MembershipStateMachine.Input.received(.probe(nonce: 4, origin: nil), from: node("b", 7))
        #expect(machine.handle(probe, now: at(10)).isEmpty)
        #expect(run(&machine, through: 300, talkers: [node("b", 7)]).last?.action == .confirmedDead(b, .silence))
    }

    @Test("A helper asks the target, and passes its answer on to who asked")
    func helper() {
        var machine = detector(peers: b, c)
        #expect(
            machine.handle(.received(.indirectRequest(nonce: 9, target: c), from: b), now: at(5))
                == [.send(.probe(nonce: 9, origin: b), to: c)])
        #expect(
            machine.handle(.received(.answer(nonce: 9, origin: b), from: c), now: at(6))
                == [.send(.indirectAnswer(nonce: 9, target: c), to: b)])
    }

    @Test("A probe is answered with what it carried")
    func answer() {
        var machine = detector(peers: b, c)
        #expect(
            machine.handle(.received(.probe(nonce: 3, origin: c), from: b), now: at(5))
                == [.send(.answer(nonce: 3, origin: c), to: b)])
    }

    @Test("At most three helpers are asked, and none that is suspected itself")
    func helperBound() {
        let others = ["c", "d", "e", "f", "g"].map { node($0) }
        var machine = MembershipStateMachine(local: a)
        _ = machine.handle(.membersChanged([b] + others), now: at(0))
        for peer in [b] + others { _ = machine.handle(.received(.heartbeat, from: peer), now: at(0)) }
        let log = run(&machine, through: 230, talkers: Array(others.dropFirst(2)))
        var asked: [NodeID] = []
        for case .send(.indirectRequest(_, b), let helper) in log.map(\.action) where !asked.contains(helper) {
            asked.append(helper)
        }
        #expect(asked.count <= 3)
        #expect(!asked.isEmpty)
    }

    @Test("With 5 % of datagrams lost, no one of five nodes is evicted in ten minutes", arguments: [1, 2, 3, 4])
    func lossy(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        let ids = ["a", "b", "c", "d", "e"].map { node($0) }
        var machines = ids.map { MembershipStateMachine(local: $0) }
        for index in machines.indices { _ = machines[index].handle(.membersChanged(ids), now: at(0)) }
        var confirmedCount = 0
        for now in stride(from: 0, to: 600_000, by: 10) {
            var wire: [(from: Int, to: NodeID, HeartbeatMessage)] = []
            for index in machines.indices {
                for case .send(let message, let to) in machines[index].handle(.tick, now: at(now)) {
                    wire.append((index, to, message))
                }
            }
            // Answers within the tick: a loopback's round trip is far below 10 ms.
            while !wire.isEmpty {
                var next: [(from: Int, to: NodeID, HeartbeatMessage)] = []
                for (from, to, message) in wire where random.nextUnit() >= 0.05 {
                    guard let receiver = ids.firstIndex(of: to) else { continue }
                    for action in machines[receiver].handle(.received(message, from: ids[from]), now: at(now)) {
                        switch action {
                        case .send(let message, let to): next.append((receiver, to, message))
                        case .confirmedDead: confirmedCount += 1
                        case .suspected, .recovered, .discarded, .inspect, .certain, .half, .uncertain, .confirmMap,
                            .pathCut, .pathRestored:
                            break
                        }
                    }
                }
                wire = next
            }
            confirmedCount += machines.reduce(0) { $0 + $1.peerHealth.count { $0.health == .confirmedDead } }
        }
        #expect(confirmedCount == 0)
    }
}

import ApusCluster
import ApusCore
import ApusWire
import Testing

/// Promises and votes between a member and its watchers, in a cluster that is larger than a full mesh.
@Suite("Promises and votes of watchers (D4)")
struct WatcherPromiseTests {
    private let others = nodes(20)
    private var watchers: [NodeID] { Array(others.prefix(8)) }

    private func machine() -> PromiseStateMachine {
        var machine = PromiseStateMachine(configuration: MembershipConfiguration())
        machine.setPeers(others, watchers: watchers)
        return machine
    }

    private func promise(isAmongWatchers: Bool = true) -> HeartbeatPromise {
        HeartbeatPromise(
            sentNanoseconds: at(0).nanoseconds, echoNanoseconds: at(0).nanoseconds, promisedMilliseconds: 200,
            isAmongWatchers: isAmongWatchers)
    }

    /// A machine that may answer until 199 ms.
    private func permitted() -> PromiseStateMachine {
        var machine = machine()
        for watcher in watchers { machine.received(promise(), from: watcher, now: at(1)) }
        _ = machine.evaluate(gone: [], now: at(1))
        return machine
    }

    @Test("A node may answer with the promises of five of eight watchers, and not with those of any other nodes")
    func majority() {
        var machine = machine()
        for other in others.dropFirst(8) { machine.received(promise(), from: other, now: at(1)) }
        for (count, watcher) in watchers.enumerated() {
            _ = machine.evaluate(gone: [], now: at(1))
            #expect((machine.answersUntil > at(1)) == (count >= 5), "\(count) promised")
            machine.received(promise(), from: watcher, now: at(1))
        }
    }

    @Test("Watchers that are proven dead promise nothing, and count until the map shows their deaths")
    func gone() {
        var machine = machine()
        for watcher in watchers.prefix(5) { machine.received(promise(), from: watcher, now: at(1)) }
        _ = machine.evaluate(gone: Array(watchers.suffix(3)), now: at(1))
        #expect(machine.answersUntil > at(1))
        _ = machine.evaluate(gone: [watchers[4]], now: at(1))
        #expect(machine.answersUntil <= at(1), "four of eight watchers permitted to answer")
        // The map shows the death, and another watcher.
        machine.setPeers(others.filter { $0 != watchers[4] }, watchers: watchers.filter { $0 != watchers[4] })
        _ = machine.evaluate(gone: [], now: at(2))
        #expect(machine.answersUntil > at(2), "four of seven watchers did not permit to answer")
        _ = machine.evaluate(gone: watchers, now: at(3))
        #expect(machine.answersUntil <= at(3))
    }

    @Test("A stall ends the permission that watchers gave, and its votes with it")
    func stall() {
        var machine = permitted()
        #expect(machine.vote(against: watchers[0], now: at(139)) == .counted)
        #expect(machine.vote(against: watchers[0], now: at(142)) == .uncounted)
        for watcher in watchers { machine.received(promise(), from: watcher, now: at(150)) }
        let steps = machine.evaluate(gone: [], now: at(150))
        #expect(steps == [.confirmMap(1)])
        #expect(machine.answersUntil <= at(150))
        machine.confirmed(1, isDone: true, now: at(155))
        _ = machine.evaluate(gone: [], now: at(160))
        #expect(machine.answersUntil > at(160))
    }

    @Test("Datagrams show that a member is alive while it is not watched, and later only if it echoes")
    func contact() {
        var machine = permitted()
        let (member, stranger) = (watchers[0], others[12])
        machine.received(promise(), from: stranger, now: at(1))
        #expect(machine.hasContact(with: member, now: at(150)))
        #expect(!machine.hasContact(with: member, now: at(200)))
        #expect(machine.hasContact(with: stranger, now: at(200)))
        machine.setPeers(others, watchers: Array(watchers.dropFirst()) + [stranger])
        #expect(machine.hasContact(with: member, now: at(5000)))
        // It has a second for its first echo, as a new member has.
        machine.heard(stranger, now: at(300))
        #expect(machine.hasContact(with: stranger, now: at(1300)))
        #expect(!machine.hasContact(with: stranger, now: at(1301)))
        machine.received(
            HeartbeatPromise(sentNanoseconds: at(1400).nanoseconds, echoNanoseconds: at(1395).nanoseconds),
            from: stranger, now: at(1400))
        #expect(machine.hasContact(with: stranger, now: at(1550)))
    }

    @Test("A node does not vote against a member that it does not watch")
    func strangers() {
        #expect(permitted().vote(against: others[12], now: at(100)) == .none)
    }

    @Test("A vote counts once the member's promises show that it counts this node, and ends with the watch")
    func acknowledgement() {
        var machine = machine()
        // Permitted by five others.
        for watcher in watchers.suffix(5) { machine.received(promise(), from: watcher, now: at(1)) }
        _ = machine.evaluate(gone: [], now: at(1))
        let member = watchers[0]
        #expect(machine.vote(against: member, now: at(50)) == .uncounted)
        machine.receivedHeartbeat(from: member)
        machine.received(promise(isAmongWatchers: false), from: member, now: at(2))
        #expect(machine.vote(against: member, now: at(50)) == .uncounted)
        machine.received(promise(), from: member, now: at(3))
        #expect(machine.vote(against: member, now: at(50)) == .counted)
        machine.setPeers(others, watchers: Array(others[1..<9]))
        #expect(machine.vote(against: member, now: at(50)) == .none)
        machine.setPeers(others, watchers: watchers)
        #expect(machine.vote(against: member, now: at(50)) == .uncounted)
    }

    @Test("A member that joins later counts this node from its first map on")
    func newcomer() {
        var machine = permitted()
        let newcomer = node("new")
        machine.setPeers(others + [newcomer], watchers: Array(watchers.dropLast()) + [newcomer])
        _ = machine.evaluate(gone: [], now: at(2))
        #expect(machine.vote(against: newcomer, now: at(50)) == .counted)
    }

    @Test("A node that may not answer itself does not count against others, and one that promised says nothing")
    func permission() {
        var machine = permitted()
        _ = machine.evaluate(gone: [], now: at(100))
        #expect(machine.vote(against: watchers[0], now: at(100)) == .counted)
        _ = machine.evaluate(gone: [], now: at(300))
        #expect(machine.vote(against: watchers[0], now: at(300)) == .uncounted)
        _ = machine.heartbeats(to: watchers[0], now: at(150))
        #expect(machine.vote(against: watchers[0], now: at(180)) == .none)
    }

    @Test("In a full mesh of more than nine members, an acknowledgement of a ring does not count")
    func mesh() {
        var machine = permitted()
        machine.setPeers(others)
        #expect(machine.vote(against: watchers[0], now: at(100)) == .uncounted)
        #expect(machine.vote(against: others[12], now: at(100)) == .uncounted)
        machine.receivedHeartbeat(from: others[12])
        #expect(machine.vote(against: others[12], now: at(100)) == .counted)
    }
}

/// The detector of one node among 20.
@Suite("Failure detector of a large cluster (D4)")
struct WatcherDetectorTests {
    private typealias Action = MembershipStateMachine.Action

    private let members = nodes(20)
    private var plan: WatchPlan { WatchPlan(members: members, watcherCount: 8) }
    private var local: NodeID { members[0] }
    private var watchers: [NodeID] { plan.watchers(of: local) ?? [] }
    private var strangers: [NodeID] { members.filter { $0 != local && !watchers.contains($0) } }

    private func detector() -> MembershipStateMachine {
        var machine = MembershipStateMachine(local: local)
        _ = machine.handle(.membersChanged(members, plan), now: at(0))
        return machine
    }

    /// A heartbeat of a member that promises and counts this node.
    private func heartbeat(at now: Int) -> HeartbeatMessage {
        .promise(
            HeartbeatPromise(
                sentNanoseconds: at(now).nanoseconds, echoNanoseconds: at(now - 5).nanoseconds,
                promisedMilliseconds: 200, isAmongWatchers: true))
    }

    /// Ticks every 10 ms while the talkers send heartbeats and answer direct probes.
    private func run(
        _ machine: inout MembershipStateMachine, from start: Int, through end: Int, talkers: [NodeID],
        answerers: [NodeID] = []
    ) -> [Action] {
        var log: [Action] = []
        for now in stride(from: start, through: end, by: 10) {
            for talker in talkers { log += machine.handle(.received(heartbeat(at: now), from: talker), now: at(now)) }
            let actions = machine.handle(.tick, now: at(now))
            log += actions
            for case .send(.probe(let nonce, nil), let peer) in actions where answerers.contains(peer) {
                log += machine.handle(.received(.answer(nonce: nonce, origin: nil), from: peer), now: at(now))
            }
        }
        return log
    }

    private func sends(_ actions: [Action]) -> [(message: HeartbeatMessage, to: NodeID)] {
        actions.compactMap { if case .send(let message, let peer) = $0 { (message, peer) } else { nil } }
    }

    @Test("Heartbeats go to the watchers alone, and one other member is probed with each")
    func heartbeats() {
        var machine = detector()
        let sent = sends(run(&machine, from: 0, through: 990, talkers: watchers, answerers: strangers))
        let regular = sent.filter {
            switch $0.message {
            case .promise, .heartbeat: true
            default: false
            }
        }
        #expect(Set(regular.map(\.to)) == Set(watchers))
        let probes = sent.filter { if case .probe(_, nil) = $0.message { true } else { false } }
        #expect(Set(probes.map(\.to)) == Set(strangers))
        #expect(probes.count == 20)
        #expect(machine.peerHealth.count == 19 && machine.peerHealth.allSatisfy { $0.health == .alive })
    }

    @Test("All members get heartbeats within 60 ms once a map has a member of an earlier version")
    func earlierVersion() {
        var machine = detector()
        _ = run(&machine, from: 0, through: 500, talkers: watchers, answerers: strangers)
        let earlier = node("earlier")
        #expect(machine.handle(.membersChanged(members + [earlier], .fullMesh), now: at(505)).isEmpty)
        let sent = sends(run(&machine, from: 510, through: 560, talkers: watchers))
        let plain = sent.filter { $0.message == .heartbeat }.map(\.to)
        #expect(plain.contains(earlier))
        #expect(Set(sent.map(\.to)) == Set(members + [earlier]).subtracting([local]))
        // Nobody is suspected while the others' maps are on their way.
        let log = run(&machine, from: 570, through: 1400, talkers: watchers)
        #expect(!log.contains { if case .suspected = $0 { true } else { false } })
    }

    @Test("The silence of a member that is not watched means nothing, and its ended process is seen at once")
    func silentStrangers() {
        var machine = detector()
        let log = run(&machine, from: 0, through: 3000, talkers: watchers)
        #expect(!log.contains { if case .suspected = $0 { true } else { false } })
        let stranger = strangers[0]
        #expect(machine.handle(.connectRefused(stranger), now: at(3010)).isEmpty)
        _ = machine.handle(.linkLost(stranger), now: at(3010))
        #expect(machine.handle(.connectRefused(stranger), now: at(3011)) == [.confirmedDead(stranger, .processGone)])
    }

    /// Runs until the victim is silent for `silence`, with the votes of `voters`; the shares that were reported.
    private func votes(
        of voters: [NodeID], isCounted: Bool = true, talkers: [NodeID]? = nil
    ) -> [Action] {
        var machine = detector()
        let victim = watchers[3]
        _ = run(&machine, from: 0, through: 500, talkers: watchers, answerers: strangers)
        var shares: [Action] = []
        for now in stride(from: 510, through: 1000, by: 10) {
            for talker in talkers ?? watchers where talker != victim {
                _ = machine.handle(.received(heartbeat(at: now), from: talker), now: at(now))
            }
            var actions = machine.handle(.tick, now: at(now))
            for case .send(.indirectRequest(let nonce, victim), let peer) in actions where voters.contains(peer) {
                let vote = HeartbeatMessage.unheard(nonce: nonce, target: victim)
                let other = HeartbeatMessage.unheardUncounted(nonce: nonce, target: victim)
                actions += machine.handle(.received(isCounted ? vote : other, from: peer), now: at(now))
            }
            shares += actions.filter { [.certain(victim), .half(victim), .uncertain(victim)].contains($0) }
        }
        return shares
    }

    @Test("The votes of five of eight watchers make a death certain, and those of four make it half")
    func majority() throws {
        let victim = watchers[3]
        let voters = try #require(plan.watchers(of: victim)).filter { $0 != local }
        #expect(votes(of: Array(voters.prefix(4))).contains(.certain(victim)))
        #expect(votes(of: Array(voters.prefix(3))) == [.half(victim)])
        #expect(votes(of: Array(voters.prefix(2))).isEmpty)
    }

    @Test("Only the watchers of the silent member are asked, and nobody else's vote counts")
    func voters() throws {
        let victim = watchers[3]
        let voters = try #require(plan.watchers(of: victim))
        let others = members.filter { !voters.contains($0) }
        #expect(votes(of: others).isEmpty)
    }

    @Test("Votes that do not count leave the decision to the lease")
    func uncounted() throws {
        let victim = watchers[3]
        let voters = try #require(plan.watchers(of: victim)).filter { $0 != local }
        #expect(votes(of: voters, isCounted: false) == [.half(victim)])
    }

    @Test("A watcher that its neighbours do not permit to answer counts its own vote only with the lease")
    func minority() throws {
        let victim = watchers[3]
        let voters = try #require(plan.watchers(of: victim)).filter { $0 != local }
        let shares = votes(of: Array(voters.prefix(4)), talkers: Array(watchers.prefix(3)))
        #expect(!shares.contains(.certain(victim)))
    }

    @Test("A suspicion ends when a map shows that the member has other watchers")
    func moved() {
        var machine = detector()
        let victim = watchers[3]
        _ = run(&machine, from: 0, through: 500, talkers: watchers, answerers: strangers)
        let log = run(&machine, from: 510, through: 900, talkers: watchers.filter { $0 != victim })
        #expect(log.contains(.confirmedDead(victim, .silence)))
        var moved = plan
        moved.sets?[local] = watchers.filter { $0 != victim } + [strangers[0]]
        #expect(machine.handle(.membersChanged(members, moved), now: at(900)).contains(.recovered(victim)))
        // The new one has a second for its first heartbeat.
        let later = run(&machine, from: 910, through: 1800, talkers: watchers.filter { $0 != victim })
        #expect(!later.contains(.suspected(strangers[0], .silence)))
    }

    @Test("A watcher that is heard and echoes nothing is dead to this node, and one that moved away is not")
    func hearsNothing() {
        let deaf = watchers[3]
        for isMoved in [false, true] {
            var machine = detector()
            _ = run(&machine, from: 0, through: 500, talkers: watchers, answerers: strangers)
            var moved = plan
            if isMoved { moved.sets?[local] = watchers.filter { $0 != deaf } + [strangers[0]] }
            _ = machine.handle(.membersChanged(members, moved), now: at(505))
            var log: [Action] = []
            for now in stride(from: 510, through: 1400, by: 10) {
                let promise = HeartbeatPromise(
                    sentNanoseconds: at(now).nanoseconds, echoNanoseconds: at(495).nanoseconds,
                    heldMicroseconds: UInt32(now - 500) * 1000, isAmongWatchers: true)
                log += machine.handle(.received(.promise(promise), from: deaf), now: at(now))
                log += machine.handle(.heard(deaf), now: at(now))
                log += run(&machine, from: now, through: now, talkers: watchers.filter { $0 != deaf })
            }
            #expect(log.contains(.confirmedDead(deaf, .silence)) != isMoved)
            #expect(!log.contains(.recovered(deaf)))
        }
    }

    @Test("A new map confirms again that the process of a member is gone, whether it is watched or not")
    func goneAgain() {
        var machine = detector()
        for id in [watchers[0], strangers[0]] {
            _ = machine.handle(.linkLost(id), now: at(0))
            _ = machine.handle(.connectRefused(id), now: at(0))
        }
        let log = machine.handle(.membersChanged(members, plan), now: at(5))
        for id in [watchers[0], strangers[0]] { #expect(log.contains(.confirmedDead(id, .processGone))) }
    }

    @Test("The path to a member that is not watched is checked when its link falls silent, within 600 ms")
    func silentLink() throws {
        var machine = detector()
        let stranger = strangers[4]
        let others = strangers.filter { $0 != stranger }
        for now in stride(from: 0, through: 500, by: 10) {
            _ = machine.handle(.heard(stranger), now: at(now))
            _ = run(&machine, from: now, through: now, talkers: watchers, answerers: strangers)
        }
        var cutAt: Int?
        for now in stride(from: 510, through: 1200, by: 10) {
            var actions = run(&machine, from: now, through: now, talkers: watchers, answerers: others)
            for case .send(.indirectRequest(let nonce, stranger), let helper) in actions {
                let answer = HeartbeatMessage.indirectAnswer(nonce: nonce, target: stranger)
                actions += machine.handle(.received(answer, from: helper), now: at(now))
            }
            actions += machine.handle(.tick, now: at(now + 5))
            if cutAt == nil, actions.contains(where: { if case .pathCut(stranger, _) = $0 { true } else { false } }) {
                cutAt = now
            }
        }
        #expect(try #require(cutAt) <= 1100)
        #expect(machine.helper(to: stranger) != nil)
    }

    @Test("Probes and checks of members that are not watched are bounded, even if none of them answers")
    func bounded() {
        var machine = detector()
        for stranger in strangers { _ = machine.handle(.linkLost(stranger), now: at(0)) }
        let sent = sends(run(&machine, from: 0, through: 990, talkers: watchers))
        // Per second: 160 heartbeats, and for each of the 11 others at most 5 examinations and checks.
        #expect(sent.count < 160 + 9 * 8 + 11 * 5 * (5 + 3 + 9))
    }
}

@Suite("Ownership in a large cluster (D4)")
struct WatcherOwnershipTests {
    private typealias Machine = OwnershipStateMachine

    private func machine(_ name: String, of count: Int) throws -> (machine: Machine, map: ClusterMap) {
        let rule = WatchRule(watcherCount: 8, fullMeshMax: 9)
        var map = ClusterMap(cluster: ClusterID(unchecked: "test"))
        for index in 0..<count where "n\(index)" != name {
            map = try map.after(
                .join(node("n\(index)"), addresses: addresses("n\(index)"), weight: 100, watchRule: rule))
        }
        var machine = Machine(map: ClusterMap(cluster: map.cluster))
        _ = machine.handle(.tick, now: at(0))
        _ = machine.handle(.read(map), now: at(0))
        let decision = OwnershipDecision.join(
            node(name), addresses: addresses(name), weight: 100, watchRule: rule)
        let actions = machine.handle(.propose(1, decision), now: at(0))
        for case .compareAndSwap(let expected, var next) in actions {
            next.revision = expected + 1
            _ = machine.handle(.swapWon(revision: next.revision), now: at(1))
            return (machine, next)
        }
        throw ApusError(.internalFailure)
    }

    @Test("The standing is that of the node's neighbours, not of all members")
    func standing() throws {
        var (machine, map) = try machine("n3", of: 30)
        let watchers = try #require(map.watchPlan.watchers(of: node("n3")))
        for watcher in watchers.prefix(4) {
            _ = machine.handle(.confirmedDead(watcher, isCertain: false), now: at(10))
        }
        #expect(machine.standing == .majority)
        _ = machine.handle(.confirmedDead(watchers[4], isCertain: false), now: at(10))
        #expect(machine.standing == .minority)
        for watcher in watchers { _ = machine.handle(.recovered(watcher), now: at(20)) }
        #expect(machine.standing == .majority)
    }

    @Test("A silent member whose watchers hear it by half dies when its lease has run out")
    func lease() throws {
        var (machine, map) = try machine("n3", of: 30)
        let victim = try #require(map.watchPlan.watchers(of: node("n3"))?.first)
        let actions = machine.handle(.unheard(victim, by: .half, revision: map.revision), now: at(10))
        #expect(actions.contains(.readLeases))
        _ = machine.handle(.leases([victim]), now: at(20))
        #expect(machine.handle(.tick, now: at(400)).allSatisfy { $0 == .readLeases })
        let decided = machine.handle(.leases([]), now: at(410))
        #expect(
            decided.contains { if case .compareAndSwap(_, let map) = $0 { !map.isAlive(victim) } else { false } })
    }

    @Test("The watchers of a dead member declare it first")
    func rank() throws {
        var (machine, map) = try machine("n3", of: 30)
        let watchers = try #require(map.watchPlan.watchers(of: node("n3")))
        let stranger = try #require(nodes(30).first { $0 != node("n3") && !watchers.contains($0) })
        _ = machine.handle(.confirmedDead(stranger, isCertain: true), now: at(10))
        // Eight watchers come before it, 30 ms apart.
        #expect(machine.handle(.tick, now: at(10 + 8 * 30 - 1)).isEmpty)
    }
}

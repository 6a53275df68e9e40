import ApusClient
import ApusCore
import Testing

@Suite("Which node a client uses (D6, D7, IV-A5, IV-A7)")
struct LinkStateMachineTests {
    private static let endpoints = (1...3).map { HostPort(host: "endpoint\($0)", port: 7443) }
    private static let welcome = LinkStateMachine.Welcome(endpoints: endpoints)

    private func time(_ milliseconds: UInt64) -> MonotonicTime {
        MonotonicTime(nanoseconds: 1_000_000_000 + milliseconds * 1_000_000)
    }

    private func machine(endpoints: [HostPort] = Self.endpoints) -> LinkStateMachine {
        LinkStateMachine(configuration: LinkStateMachine.Configuration(), endpoints: endpoints, seed: 1)
    }

    /// Takes an attempt through TCP and TLS, each in the time given, until its hello is out; the time of that.
    private func greet(
        _ id: LinkStateMachine.AttemptID, _ machine: inout LinkStateMachine, from start: UInt64, stage: UInt64 = 1
    ) -> UInt64 {
        let secure = machine.connected(id, now: time(start + stage))
        #expect(secure == [.secure(id)])
        let greet = machine.secured(id, now: time(start + stage * 2))
        #expect(greet == [.greet(id)])
        return start + stage * 2
    }

    /// A client that is online since 5 ms and watches.
    private func online(stage: UInt64 = 1) -> LinkStateMachine {
        var machine = machine()
        #expect(machine.start(now: time(0)) == [.connect(1, Self.endpoints[0])])
        let greeted = greet(1, &machine, from: 5 - 3, stage: 1)
        let actions = machine.welcomed(1, Self.welcome, now: time(greeted + 1))
        #expect(actions == [.activate(1), .report(.online)])
        machine.streamsWanted(true, now: time(5))
        machine.streamOpened(1, now: time(5))
        return machine
    }

    @Test("An attempt that does not answer is joined by a socket to the next node, which waits while there is hope")
    func hedge() {
        var machine = machine()
        _ = machine.start(now: time(0))
        #expect(machine.tick(now: time(240)).isEmpty)
        #expect(machine.tick(now: time(250)) == [.connect(2, Self.endpoints[1])])
        // The first answers after all: it alone goes on.
        #expect(machine.connected(1, now: time(300)) == [.secure(1)])
        #expect(machine.connected(2, now: time(550)).isEmpty)
        #expect(machine.secured(1, now: time(600)) == [.greet(1)])
        let actions = machine.welcomed(1, Self.welcome, now: time(900))
        #expect(actions == [.drop(2), .activate(1), .report(.online)])
    }

    /// A client that was redirected at 100 ms and is connected to another node at 110 ms.
    private func moved() -> (machine: LinkStateMachine, actions: [LinkStateMachine.Action]) {
        var machine = online()
        machine.heard(1, now: time(100))
        #expect(
            machine.redirected(1, endpoints: [Self.endpoints[1]], now: time(100)) == [.connect(2, Self.endpoints[1])])
        _ = greet(2, &machine, from: 105)
        let actions = machine.welcomed(2, Self.welcome, now: time(110))
        return (machine, actions)
    }

    @Test("A node that leaves goes on to serve its client until the streams and requests have moved (decision 31)")
    func retired() {
        var (machine, actions) = moved()
        #expect(actions == [.retire(1), .activate(2)])
        #expect(machine.activeID == 2)
        #expect(machine.moved(2).isEmpty)
        #expect(machine.moved(1) == [.drop(1)])
        #expect(machine.moved(1).isEmpty)
    }

    @Test("On a path of one second, a node that leaves serves for four round trips longer")
    func retiredFarAway() {
        var machine = online()
        machine.heard(1, now: time(100))
        _ = machine.redirected(1, endpoints: [Self.endpoints[1]], now: time(100))
        let greeted = greet(2, &machine, from: 100, stage: 1000)
        #expect(machine.welcomed(2, Self.welcome, now: time(greeted + 1000)) == [.retire(1), .activate(2)])
        machine.heard(2, now: time(greeted + 6900))
        #expect(!machine.tick(now: time(greeted + 6999)).contains(.drop(1)))
        #expect(machine.tick(now: time(greeted + 7000)).contains(.drop(1)))
    }

    @Test("The connection to a node that leaves is closed after two seconds, and with the session")
    func retiredForLong() {
        var (machine, _) = moved()
        machine.streamsWanted(false, now: time(110))
        // And four round trips of 1 ms.
        #expect(machine.nextTick(now: time(110)) == time(2114))
        #expect(machine.tick(now: time(2113)).isEmpty)
        #expect(machine.tick(now: time(2114)) == [.drop(1)])
        (machine, _) = moved()
        #expect(machine.stop() == [.drop(2), .drop(1), .report(.offline)])
    }

    @Test("The end of a connection that was retired changes nothing, and a second move closes it")
    func retiredTwice() {
        var (machine, _) = moved()
        #expect(machine.closed(1, error: ApusError(.shuttingDown), now: time(120)).isEmpty)
        #expect(machine.moved(1).isEmpty)
        (machine, _) = moved()
        let connect = machine.redirected(2, endpoints: [Self.endpoints[2]], now: time(120))
        #expect(connect == [.connect(3, Self.endpoints[2])])
        _ = greet(3, &machine, from: 120)
        #expect(machine.welcomed(3, Self.welcome, now: time(130)) == [.drop(1), .retire(2), .activate(3)])
    }

    @Test("An attempt that stops between its stages is overtaken by the one beside it")
    func overtaken() {
        var machine = machine()
        _ = machine.start(now: time(0))
        #expect(machine.connected(1, now: time(1)) == [.secure(1)])
        #expect(machine.tick(now: time(240)).isEmpty)
        #expect(machine.tick(now: time(260)) == [.connect(2, Self.endpoints[1])])
        #expect(machine.connected(2, now: time(261)) == [.secure(2)])
        #expect(machine.secured(2, now: time(262)) == [.greet(2)])
        let actions = machine.welcomed(2, Self.welcome, now: time(263))
        #expect(actions == [.drop(1), .activate(2), .report(.online)])
        let late = machine.welcomed(1, Self.welcome, now: time(264))
        #expect(late == [.drop(1)])
    }

    @Test("What a line showed is waited for: where a connect took 200 ms, none is joined by another at 300 ms")
    func measured() {
        var machine = machine()
        _ = machine.start(now: time(0))
        let greeted = greet(1, &machine, from: 0, stage: 200)
        _ = machine.welcomed(1, Self.welcome, now: time(greeted + 200))
        _ = machine.closed(1, error: nil, now: time(1000))
        for millisecond in stride(from: UInt64(1000), to: 1300, by: 20) {
            #expect(machine.tick(now: time(millisecond)).allSatisfy { $0 == .report(.offline) }, "\(millisecond)")
        }
    }

    @Test("A lost connection is replaced at once at another node, without a word of offline")
    func lost() {
        var machine = online()
        let actions = machine.closed(1, error: nil, now: time(50))
        #expect(actions.count == 1)
        guard case .connect(2, _) = actions[0] else { return #expect(Bool(false), "\(actions)") }
        let greeted = greet(2, &machine, from: 50)
        #expect(machine.welcomed(2, Self.welcome, now: time(greeted + 1)) == [.activate(2)])
    }

    /// A client without streams, of a node whose spread is 2 s, that loses it at 10 ms.
    private func lostOne(
        ofMany seed: UInt64, closed: Bool = true
    ) -> (machine: LinkStateMachine, actions: [LinkStateMachine.Action]) {
        var machine = LinkStateMachine(
            configuration: LinkStateMachine.Configuration(), endpoints: Self.endpoints, seed: seed)
        _ = machine.start(now: time(0))
        let greeted = greet(1, &machine, from: 1)
        _ = machine.welcomed(1, Self.welcome, now: time(greeted + 1))
        machine.ponged(1, roundTrip: .milliseconds(1), reconnectSpread: .seconds(2))
        let actions = closed ? machine.closed(1, error: nil, now: time(10)) : []
        return (machine, actions)
    }

    @Test("Clients without streams spread their connects over the time that their node has told (decision 44)")
    func spread() throws {
        var times: [UInt64] = []
        for seed in UInt64(1)...400 {
            var (machine, actions) = lostOne(ofMany: seed)
            #expect(actions.isEmpty)
            var now = time(10)
            while actions.isEmpty || actions == [.report(.offline)] {
                now = try #require(machine.nextTick(now: now))
                actions = machine.tick(now: now)
            }
            guard case .connect = actions[0] else { return #expect(Bool(false), "\(actions)") }
            times.append((now.nanoseconds - time(10).nanoseconds) / 1_000_000)
        }
        #expect(times.max()! <= 2_000)
        // Each tenth of the time has its share, within chance.
        for tenth in 0..<10 {
            #expect((15...70).contains(times.count { $0 / 200 == UInt64(tenth) }), "\(tenth)")
        }
    }

    @Test("A client that waits for its turn connects at once when a request or a stream wants the link")
    func wanted() {
        for (seed, hasStream) in [(UInt64(1), false), (2, true)] {
            var (machine, _) = lostOne(ofMany: seed)
            if hasStream { machine.streamsWanted(true, now: time(12)) }
            let actions = machine.wanted(now: time(12))
            guard actions.count == 1, case .connect = actions[0] else { return #expect(Bool(false), "\(actions)") }
            #expect(machine.wanted(now: time(13)).isEmpty)
        }
        // Whose connection alone was ended by its node does not wait, and a node that stops ends all.
        for (code, isWaiting) in [(ErrorCode.idleTimeout, false), (.shuttingDown, true)] {
            var machine = lostOne(ofMany: 1, closed: false).machine
            let actions = machine.closed(1, error: ApusError(code), node: "n1", now: time(10))
            #expect(actions.isEmpty == isWaiting, "\(code)")
        }
        // With a stream nobody waits in the first place.
        var streaming = online()
        streaming.ponged(1, roundTrip: .milliseconds(1), reconnectSpread: .seconds(2))
        #expect(streaming.closed(1, error: nil, now: time(50)).count == 1)
    }

    @Test("A link that is wanted is not held back by an attempt that hangs")
    func wantedBesideAnAttempt() throws {
        var (machine, _) = lostOne(ofMany: 1, closed: false)
        // The node falls silent: an attempt elsewhere begins, and then the connection breaks.
        #expect(machine.tick(now: time(12_010)).count == 1)
        _ = machine.closed(1, error: nil, now: time(12_020))
        #expect(machine.wanted(now: time(12_030)).isEmpty)
        let next = try #require(machine.nextTick(now: time(12_030)))
        #expect(next <= time(12_010 + 1_000))
        #expect(machine.tick(now: time(12_010 + 1_000)).contains { if case .connect = $0 { true } else { false } })
    }

    @Test("What is due at a moment is done at the next tick, also if something else happens first")
    func dueTimes() throws {
        var machine = machine(endpoints: [Self.endpoints[0]])
        _ = machine.start(now: time(0))
        _ = machine.tick(now: time(500))
        // The attempt's time is over, and the tick for it is late.
        #expect(machine.nextTick(now: time(8_005)) == time(8_025))
        #expect(machine.tick(now: time(8_025)).contains(.drop(1)))
    }

    @Test("Wants do not shorten the wait after a round in which every endpoint has failed")
    func wantedInVain() {
        var (machine, _) = lostOne(ofMany: 1)
        _ = machine.wanted(now: time(12))
        for id in UInt64(2)...4 { _ = machine.closed(id, error: nil, now: time(13)) }
        #expect(machine.wanted(now: time(14)).isEmpty)
    }

    @Test("One of many clients tries a second node after a second, not after 150 ms")
    func patience() {
        var (machine, _) = lostOne(ofMany: 1)
        _ = machine.wanted(now: time(12))
        #expect(machine.tick(now: time(1_011)).filter { $0 != .report(.offline) }.isEmpty)
        #expect(machine.tick(now: time(1_012)).count == 1)
        #expect(machine.attemptCount == 2)
    }

    @Test("Silence of 180 ms opens a second connection beside the first; signs of life from the first drop it again")
    func silence() {
        var machine = online()
        #expect(machine.tick(now: time(180)).isEmpty)
        let actions = machine.tick(now: time(186))
        guard case .connect(2, let endpoint) = actions.first else { return #expect(Bool(false), "\(actions)") }
        #expect(endpoint != Self.endpoints[0])
        let greeted = greet(2, &machine, from: 186)
        machine.heard(1, now: time(190))
        #expect(machine.welcomed(2, Self.welcome, now: time(greeted + 7)) == [.drop(2)])
        #expect(machine.activeID == 1)
    }

    @Test("A client looks again when the silence would be too long, or when an attempt is overtaken or given up")
    func alarm() {
        var machine = machine()
        // A stream that is asked for before the start connects nothing.
        machine.streamsWanted(true, now: time(0))
        #expect(machine.nextTick(now: time(0)) == nil)
        _ = machine.start(now: time(0))
        // Another node is tried beside the first after 250 ms; the state is offline after 500.
        #expect(machine.nextTick(now: time(0)) == time(250))
        _ = machine.tick(now: time(250))
        #expect(machine.attemptCount == 2)
        #expect(machine.nextTick(now: time(250)) == time(500))
        machine = online()
        #expect(machine.nextTick(now: time(10)) == time(5 + 180))
        machine.heard(1, now: time(100))
        #expect(machine.nextTick(now: time(185)) == time(100 + 180))
        // A hello that took long made the line seem long, until a ping shows it.
        var slow = self.machine()
        _ = slow.start(now: time(0))
        let greeted = greet(1, &slow, from: 0, stage: 300)
        _ = slow.welcomed(1, Self.welcome, now: time(greeted + 300))
        slow.streamsWanted(true, now: time(900))
        slow.streamOpened(1, now: time(900))
        #expect(slow.nextTick(now: time(900)) == time(900 + 80 + 600))
        slow.ponged(1, roundTrip: .milliseconds(1))
        #expect(slow.nextTick(now: time(900)) == time(900 + 180))
        // Without a stream the node may be silent for 12 s, and two round trips more.
        machine.streamsWanted(false, now: time(200))
        #expect(machine.nextTick(now: time(200)) == time(100 + 12_002))
        _ = machine.tick(now: time(12_102))
        #expect(machine.attemptCount == 1)
        // The measured connect takes 2 ms, so another node is tried after the shortest delay.
        #expect(machine.nextTick(now: time(12_102)) == time(12_102 + 150))
        _ = machine.stop()
        #expect(machine.nextTick(now: time(12_110)) == nil)
    }

    @Test("No hello is said to a second node once the first shows life again")
    func spared() {
        var machine = online()
        _ = machine.tick(now: time(186))
        machine.heard(1, now: time(187))
        #expect(machine.connected(2, now: time(188)).isEmpty)
        #expect(machine.tick(now: time(200)) == [.drop(2)])
    }

    @Test("A second node that answers while the first stays silent takes over")
    func takeOver() {
        var machine = online()
        _ = machine.tick(now: time(186))
        let greeted = greet(2, &machine, from: 186)
        #expect(machine.welcomed(2, Self.welcome, now: time(greeted + 7)) == [.drop(1), .activate(2)])
        #expect(machine.activeID == 2)
    }

    @Test("The silence that counts follows the line: 180 ms on a short one, more by its round trip and its gaps")
    func longLine() throws {
        var short = online()
        #expect(short.silenceMax == .milliseconds(180))
        short.heard(1, now: time(5 + 280))
        #expect(try #require(short.silenceMax) > .milliseconds(370))
        // It is forgotten in the course of a minute.
        for tick in 1...1000 { short.heard(1, now: time(285 + UInt64(tick) * 80)) }
        #expect(short.silenceMax == .milliseconds(180))

        var long = machine()
        _ = long.start(now: time(0))
        let greeted = greet(1, &long, from: 0, stage: 600)
        _ = long.welcomed(1, Self.welcome, now: time(greeted + 600))
        long.streamsWanted(true, now: time(greeted + 600))
        #expect(long.silenceMax == .milliseconds(600 + 1200))
        long.streamOpened(1, now: time(greeted + 1200))
        #expect(long.silenceMax == .milliseconds(80 + 1200))
        // What a busy node added to the handshakes does not count once a ping shows the line.
        long.ponged(1, roundTrip: .milliseconds(20))
        #expect(long.silenceMax == .milliseconds(180))
    }

    @Test("A stream keepalive that the cluster set is what silence is measured by")
    func keepalive() {
        var machine = machine()
        _ = machine.start(now: time(0))
        let greeted = greet(1, &machine, from: 0)
        let welcome = LinkStateMachine.Welcome(
            endpoints: Self.endpoints, keepalive: .seconds(30), streamKeepalive: .milliseconds(200))
        _ = machine.welcomed(1, welcome, now: time(greeted + 1))
        #expect(machine.silenceMax == .milliseconds(60_002))
        machine.streamsWanted(true, now: time(10))
        machine.streamOpened(1, now: time(10))
        #expect(machine.silenceMax == .milliseconds(300))
    }

    @Test("Where no other endpoint is known, a silent connection is replaced by one to the same")
    func onlyOne() {
        var machine = machine(endpoints: [Self.endpoints[0]])
        _ = machine.start(now: time(0))
        let greeted = greet(1, &machine, from: 0)
        _ = machine.welcomed(1, LinkStateMachine.Welcome(endpoints: []), now: time(greeted + 1))
        machine.streamsWanted(true, now: time(5))
        machine.streamOpened(1, now: time(5))
        #expect(machine.tick(now: time(190)) == [.connect(2, Self.endpoints[0])])
    }

    @Test("When every endpoint failed, attempts wait, and the state is offline after the grace (IV-A7)")
    func offline() {
        var machine = online()
        _ = machine.closed(1, error: nil, now: time(100))
        for id in UInt64(2)...4 { _ = machine.closed(id, error: nil, now: time(100)) }
        #expect(machine.tick(now: time(110)).isEmpty)
        var reported = false
        var connects = 0
        for millisecond in stride(from: UInt64(120), to: 1200, by: 20) {
            for action in machine.tick(now: time(millisecond)) {
                if case .report(.offline) = action { reported = true }
                if case .connect(let id, _) = action {
                    connects += 1
                    _ = machine.closed(id, error: nil, now: time(millisecond))
                }
            }
        }
        #expect(reported)
        #expect((3...40).contains(connects))
    }

    @Test("A stage that is never answered is given up after 8 s where nothing was measured, else after 2 s")
    func timeout() {
        var machine = machine(endpoints: [Self.endpoints[0]])
        _ = machine.start(now: time(0))
        #expect(machine.tick(now: time(7990)).allSatisfy { $0 == .report(.offline) })
        #expect(machine.tick(now: time(8000)) == [.drop(1)])
        var known = online()
        _ = known.closed(1, error: nil, now: time(100))
        #expect(!known.tick(now: time(2080)).contains(.drop(2)))
        #expect(known.tick(now: time(2120)).contains(.drop(2)))
    }

    @Test("Never more than three attempts at once, and endpoints that are learned are bounded (D13)")
    func bounds() {
        var machine = online()
        let many = (0..<100).map { HostPort(host: "d\($0)", port: 1) }
        _ = machine.closed(1, error: nil, now: time(10))
        let greeted = greet(2, &machine, from: 10)
        _ = machine.welcomed(2, LinkStateMachine.Welcome(endpoints: many), now: time(greeted + 1))
        #expect(machine.endpoints.count == 32)
        _ = machine.closed(2, error: nil, now: time(30))
        var most = 0
        for millisecond in stride(from: UInt64(40), to: 8000, by: 20) {
            _ = machine.tick(now: time(millisecond))
            most = max(most, machine.attemptCount)
        }
        #expect(most == 3)
    }
}

@Suite("Which errors end a client for good (IV-A5, IV-A7)")
struct LinkEndingTests {
    private static let endpoints = (1...3).map { HostPort(host: "endpoint\($0)", port: 7443) }

    private func time(_ milliseconds: UInt64) -> MonotonicTime {
        MonotonicTime(nanoseconds: 1_000_000_000 + milliseconds * 1_000_000)
    }

    /// A client whose first hello is out.
    private func greeting(endpoints: [HostPort] = Self.endpoints) -> LinkStateMachine {
        var machine = LinkStateMachine(configuration: LinkStateMachine.Configuration(), endpoints: endpoints, seed: 1)
        _ = machine.start(now: time(0))
        _ = machine.connected(1, now: time(1))
        _ = machine.secured(1, now: time(2))
        return machine
    }

    @Test(
        "A session taken elsewhere, or a token of another role, ends the link at once",
        arguments: [(ErrorCode.kicked, LinkState.kicked), (.notAllowed, .tokenFailed)])
    func atOnce(code: ErrorCode, state: LinkState) {
        var machine = greeting()
        #expect(machine.closed(1, error: ApusError(code), node: "n1", now: time(50)) == [.report(state)])
        #expect(machine.tick(now: time(10_000)).isEmpty)
        #expect(machine.activeID == nil)
    }

    @Test(
        "A token that one node refuses is shown to another first, and two end the link",
        arguments: [ErrorCode.tokenInvalid, .tokenExpired])
    func twoNodes(code: ErrorCode) {
        var machine = greeting()
        let next = machine.closed(1, error: ApusError(code), node: "n1", now: time(50))
        #expect(next == [.connect(2, Self.endpoints[1])])
        _ = machine.connected(2, now: time(51))
        _ = machine.secured(2, now: time(52))
        let end = machine.closed(2, error: ApusError(code), node: "n2", now: time(53))
        #expect(end == [.report(.tokenFailed)])
    }

    @Test("A node whose clock is wrong ends nobody: the next node takes the token, and the refusal is forgotten")
    func wrongClock() {
        var machine = greeting()
        _ = machine.closed(1, error: ApusError(.tokenExpired), node: "n1", now: time(50))
        _ = machine.connected(2, now: time(51))
        _ = machine.secured(2, now: time(52))
        let online = machine.welcomed(2, LinkStateMachine.Welcome(endpoints: Self.endpoints), now: time(53))
        #expect(online == [.activate(2), .report(.online)])
        // The next time only one node refuses again.
        _ = machine.closed(2, error: nil, now: time(100))
        _ = machine.closed(3, error: ApusError(.tokenExpired), node: "n1", now: time(101))
        #expect(machine.tick(now: time(200)).allSatisfy { $0 != .report(.tokenFailed) })
    }

    @Test("One node under two addresses is one node, unless the client knows no other")
    func twoAddresses() {
        var three = greeting()
        _ = three.closed(1, error: ApusError(.tokenExpired), node: "n1", now: time(50))
        let second = three.closed(2, error: ApusError(.tokenExpired), node: "n1", now: time(60))
        #expect(second == [.connect(3, Self.endpoints[2])])
        var two = greeting(endpoints: Array(Self.endpoints[..<2]))
        _ = two.closed(1, error: ApusError(.tokenExpired), node: "n1", now: time(50))
        #expect(two.closed(2, error: ApusError(.tokenExpired), node: "n1", now: time(60)) == [.report(.tokenFailed)])
    }

    @Test("The only node that is known decides alone; nodes that cannot be reached say nothing")
    func only() {
        var one = greeting(endpoints: [Self.endpoints[0]])
        #expect(one.closed(1, error: ApusError(.tokenExpired), now: time(50)) == [.report(.tokenFailed)])
        var three = greeting()
        _ = three.closed(1, error: ApusError(.tokenExpired), node: "n1", now: time(50))
        _ = three.closed(2, error: nil, now: time(51))
        #expect(three.closed(3, error: nil, now: time(52)).isEmpty)
        #expect(three.tick(now: time(600)).contains(.report(.offline)))
    }

    @Test(
        "No other error of the catalogue ends a link",
        arguments: ErrorCode.all.filter { !$0.ends(.session) && !$0.ends(.sessionByTwoNodes) })
    func others(code: ErrorCode) {
        var machine = greeting()
        for id in UInt64(1)...3 {
            let actions = machine.closed(id, error: ApusError(code), node: "n\(id)", now: time(50))
            #expect(!actions.contains(.report(.tokenFailed)) && !actions.contains(.report(.kicked)))
        }
        let later = machine.tick(now: time(200))
        #expect(later.contains { if case .connect = $0 { true } else { false } })
    }
}

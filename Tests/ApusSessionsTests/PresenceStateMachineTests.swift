import ApusCore
import ApusSessions
import Testing

@Suite("Presence of one identity (D6, IV-A5, IV-D9)")
struct PresenceStateMachineTests {
    private static let node = [1, 2].map { NodeID(name: NodeName(unchecked: "node\($0)"), incarnation: 1) }
    private let home = SessionPlace(node: node[0], session: "a")
    private let app = SessionPlace(node: node[1], session: "app")

    private func time(_ seconds: UInt64) -> MonotonicTime { MonotonicTime(nanoseconds: seconds * 1_000_000_000) }

    /// A registration of a client without an instance; its order is as old as `since`.
    private func register(
        _ place: SessionPlace, since: UInt64, on machine: inout PresenceStateMachine, wallSeconds: Int64
    ) -> (isAccepted: Bool, actions: [PresenceStateMachine.Action]) {
        let result = machine.register(
            PresenceStateMachine.Registration(place: place, order: SessionOrder(epoch: 1, sequence: since)),
            now: time(5), wallSeconds: wallSeconds)
        return (result.order != nil, result.actions)
    }

    private func machine(subscribersMax: Int = 8) -> PresenceStateMachine {
        var configuration = PresenceStateMachine.Configuration()
        configuration.subscribersMax = subscribersMax
        return PresenceStateMachine(configuration: configuration, epoch: 1, now: time(0), wallSeconds: 100)
    }

    private func online(at second: Int64 = 101) -> PresenceStateMachine {
        var machine = machine()
        #expect(machine.subscribe(app, now: time(5)).isAccepted == true)
        let result = register(home, since: 5, on: &machine, wallSeconds: second)
        #expect(result.isAccepted)
        #expect(result.actions == [.push(Presence(online: .online, time: second), [app])])
        return machine
    }

    @Test("A device that registers is online, and its subscribers hear it once (IV-D10)")
    func register() {
        var machine = online()
        #expect(machine.presence == Presence(online: .online, time: 101))
        let again = register(home, since: 5, on: &machine, wallSeconds: 102)
        #expect(again.actions.isEmpty)
        #expect(machine.presence.time == 101)
    }

    @Test("A newer session kicks the older one, an older one is turned away (IV-A5)")
    func kick() {
        var machine = online()
        let second = SessionPlace(node: Self.node[1], session: "b")
        let newer = register(second, since: 6, on: &machine, wallSeconds: 102)
        #expect(newer.actions == [.kick(home, by: SessionOrder(epoch: 1, sequence: 6))])
        let older = register(home, since: 5, on: &machine, wallSeconds: 103)
        #expect(older.isAccepted == false)
        #expect(machine.place == second)
    }

    @Test("The same session at another node is no second one: nobody is kicked and nobody hears of it")
    func resumedElsewhere() {
        var machine = online()
        let moved = SessionPlace(node: Self.node[1], session: "a")
        let resumed = register(moved, since: 5, on: &machine, wallSeconds: 102)
        #expect(resumed.actions.isEmpty)
        #expect(machine.unregister(home, isResumable: true, now: time(9), wallSeconds: 103).isEmpty)
        #expect(machine.presence.online == .online)
        #expect(machine.place == moved)
    }

    @Test("A broken socket is offline only after the grace, and not at all where the client is back in time")
    func grace() {
        var machine = online()
        #expect(machine.unregister(home, isResumable: true, now: time(10), wallSeconds: 110) == [.wake(at: time(13))])
        #expect(machine.tick(now: time(12), wallSeconds: 112) == [.wake(at: time(13))])
        #expect(machine.presence.online == .online)
        var back = machine
        _ = register(home, since: 5, on: &back, wallSeconds: 112)
        #expect(back.tick(now: time(20), wallSeconds: 120).isEmpty)
        #expect(machine.tick(now: time(13), wallSeconds: 113) == [.push(Presence(online: .offline, time: 113), [app])])
    }

    @Test("A session that ends is offline at once")
    func ends() {
        var machine = online()
        #expect(
            machine.unregister(home, isResumable: false, now: time(10), wallSeconds: 110)
                == [.push(Presence(online: .offline, time: 110), [app])])
    }

    @Test("A device was seen when it signed in last, or when its last connection ended; not when it is announced again")
    func seen() {
        var machine = machine()
        _ = machine.register(.init(place: home, instance: 7), now: time(1), wallSeconds: 101)
        #expect(machine.memory.seenSeconds == 101)
        // An edge says again what it has said.
        let order = machine.memory.newest
        _ = machine.register(.init(place: home, instance: 7, order: order), now: time(2), wallSeconds: 102)
        #expect(machine.memory.seenSeconds == 101)
        _ = machine.unregister(home, isResumable: true, now: time(10), wallSeconds: 110)
        _ = machine.tick(now: time(13), wallSeconds: 113)
        #expect(machine.presence.online == .offline && machine.memory.seenSeconds == 113)
        _ = machine.register(.init(place: home, instance: 7, order: order), now: time(50), wallSeconds: 150)
        #expect(machine.memory.seenSeconds == 150)
        // The next owner has what was written, and hears of the session again.
        var next = self.machine()
        next.restore(machine.memory)
        _ = next.register(.init(place: home, instance: 7, order: order), now: time(60), wallSeconds: 160)
        #expect(next.memory.seenSeconds == 150)
        _ = next.unregister(home, isResumable: false, now: time(70), wallSeconds: 170)
        #expect(next.memory.seenSeconds == 170)
    }

    @Test("A node's death starts the grace of the sessions there and drops the subscribers there")
    func nodeLost() {
        var machine = online()
        #expect(machine.nodeLost(Self.node[0], now: time(10)) == [.wake(at: time(13))])
        #expect(machine.nodeLost(Self.node[0], now: time(11)).isEmpty)
        #expect(machine.nodeLost(Self.node[1], now: time(11)).isEmpty)
        #expect(machine.subscriberCount == 0)
        #expect(machine.tick(now: time(13), wallSeconds: 113) == [.idle])
        #expect(machine.presence.online == .offline)
    }

    @Test("Sleep and waking are told, from the session's own socket only (`_online` 2)")
    func sleep() {
        var machine = online()
        #expect(machine.setAsleep(true, from: app, wallSeconds: 102).isEmpty)
        #expect(
            machine.setAsleep(true, from: home, wallSeconds: 102) == [
                .push(Presence(online: .asleep, time: 102), [app])
            ])
        #expect(machine.presence.online == .asleep)
    }

    @Test("A new owner calls nobody offline before the edges had the grace to speak, then says what it knows")
    func settling() {
        var machine = machine()
        #expect(machine.subscribe(app, now: time(1)).actions == [.wake(at: time(3))])
        #expect(machine.tick(now: time(3), wallSeconds: 103) == [.push(Presence(online: .offline, time: 100), [app])])
        #expect(machine.tick(now: time(4), wallSeconds: 104).isEmpty)
    }

    @Test("What nothing uses is released: at once, or after a quiet time where an account with a right has asked")
    func quiet() {
        var machine = machine()
        #expect(machine.handled(isKept: false, now: time(1)) == [.idle])
        #expect(machine.handled(isKept: true, now: time(1)) == [.wake(at: time(610))])
        // One call is requested, whoever asks meanwhile, and calls for something else release nothing.
        #expect(machine.handled(isKept: false, now: time(2)).isEmpty)
        #expect(machine.tick(now: time(3), wallSeconds: 103).isEmpty)
        #expect(machine.handled(isKept: true, now: time(300)).isEmpty)
        #expect(machine.tick(now: time(610), wallSeconds: 710) == [.wake(at: time(910))])
        #expect(machine.presence == Presence(online: .offline, time: 100))
        #expect(machine.tick(now: time(910), wallSeconds: 1010) == [.idle])
        // With a client it stays. The call may come while it has one, and is then requested again.
        #expect(machine.handled(isKept: true, now: time(1001)) == [.wake(at: time(1610))])
        _ = register(home, since: 5, on: &machine, wallSeconds: 1101)
        #expect(machine.handled(isKept: true, now: time(1200)).isEmpty)
        #expect(machine.tick(now: time(1610), wallSeconds: 1710).isEmpty)
        #expect(machine.unregister(home, isResumable: false, now: time(1650), wallSeconds: 1750).isEmpty)
        #expect(machine.handled(isKept: true, now: time(1650)) == [.wake(at: time(2260))])
        // The last subscriber's node dies.
        #expect(machine.subscribe(app, now: time(1660)).isAccepted == true)
        #expect(machine.nodeLost(Self.node[1], now: time(1661)).isEmpty)
        // A page that is opened and closed.
        #expect(machine.subscribe(app, now: time(1662)).isAccepted == true)
        #expect(machine.unsubscribe(app).isEmpty)
        #expect(machine.handled(isKept: false, now: time(1663)).isEmpty)
        #expect(machine.tick(now: time(2260), wallSeconds: 2360) == [.idle])
        #expect(machine.subscribe(app, now: time(2300)).isAccepted == true)
        #expect(machine.nodeLost(Self.node[1], now: time(2301)) == [.idle])
    }

    @Test("Subscribers are bounded, and the same place counts once (D13)")
    func subscribers() {
        var machine = machine(subscribersMax: 1)
        #expect(machine.subscribe(app, now: time(5)).isAccepted == true)
        #expect(machine.subscribe(app, now: time(5)).isAccepted == true)
        #expect(machine.subscribe(home, now: time(5)).isAccepted == false)
        #expect(machine.unsubscribe(app) == [.idle])
    }
}

import ApusCore
import ApusSessions
import Testing

@Suite("Attempts of one client are one client (D6, IV-A5)")
struct PresenceInstanceTests {
    private static let node = [1, 2, 3].map { NodeID(name: NodeName(unchecked: "node\($0)"), incarnation: 1) }
    private typealias Registration = PresenceStateMachine.Registration

    private func time(_ milliseconds: UInt64) -> MonotonicTime {
        MonotonicTime(nanoseconds: milliseconds * 1_000_000)
    }

    private func place(_ node: Int, _ session: String) -> SessionPlace {
        SessionPlace(node: Self.node[node - 1], session: session)
    }

    private func machine(epoch: Epoch = 1, placesMax: Int = 8) -> PresenceStateMachine {
        var configuration = PresenceStateMachine.Configuration()
        configuration.placesMax = placesMax
        return PresenceStateMachine(configuration: configuration, epoch: epoch, now: time(0), wallSeconds: 0)
    }

    @Test("Sessions of one instance at several nodes stand beside each other, and nobody is kicked")
    func oneInstance() {
        var machine = machine()
        for (index, name) in ["a", "b", "c"].enumerated() {
            let result = machine.register(
                Registration(place: place(index + 1, name), instance: 7), now: time(5), wallSeconds: 1)
            #expect(result.order != nil && result.actions.isEmpty)
        }
        #expect(machine.places.count == 3)
        // The client goes on with the first. That the last was registered later does not matter.
        #expect(machine.unregister(place(3, "c"), isResumable: true, now: time(9), wallSeconds: 1).isEmpty)
        #expect(machine.unregister(place(2, "b"), isResumable: true, now: time(9), wallSeconds: 1).isEmpty)
        #expect(machine.place == place(1, "a"))
        #expect(machine.presence.online == .online)
        #expect(machine.unregister(place(1, "a"), isResumable: true, now: time(9), wallSeconds: 1).count == 1)
        _ = machine.tick(now: time(3009), wallSeconds: 4)
        #expect(machine.presence.online == .offline)
    }

    @Test("A node that dies takes only its own places: the client is lost with the last of them")
    func nodeLost() {
        var machine = machine()
        for (index, name) in ["a", "b"].enumerated() {
            _ = machine.register(
                Registration(place: place(index + 1, name), instance: 7), now: time(5), wallSeconds: 1)
        }
        #expect(machine.nodeLost(Self.node[1], now: time(10)).isEmpty)
        #expect(machine.nodeLost(Self.node[0], now: time(20)) == [.wake(at: time(3020))])
    }

    @Test("Another instance kicks every session of the one before, by its order")
    func another() throws {
        var machine = machine()
        let first = machine.register(Registration(place: place(1, "a"), instance: 7), now: time(5), wallSeconds: 1)
        _ = machine.register(Registration(place: place(2, "b"), instance: 7), now: time(5), wallSeconds: 1)
        let second = machine.register(Registration(place: place(3, "c"), instance: 8), now: time(5), wallSeconds: 1)
        let order = try #require(second.order)
        #expect(try #require(first.order) < order)
        #expect(second.actions == [.kick(place(1, "a"), by: order), .kick(place(2, "b"), by: order)])
        #expect(machine.places == [place(3, "c")])
    }

    @Test("A late hello of an instance that was superseded is refused, and repeats of it too")
    func late() {
        var machine = machine()
        _ = machine.register(Registration(place: place(1, "a"), instance: 7), now: time(5), wallSeconds: 1)
        _ = machine.register(Registration(place: place(2, "b"), instance: 8), now: time(6), wallSeconds: 1)
        for _ in 1...2 {
            let late = machine.register(
                Registration(place: place(3, "c"), instance: 7), now: time(7), wallSeconds: 1)
            #expect(late.order == nil && late.actions.isEmpty)
        }
        #expect(machine.places == [place(2, "b")])
    }

    @Test("The next owner keeps the order, whoever of the two registers again first", arguments: [false, true])
    func nextOwner(olderFirst: Bool) throws {
        var before = machine(epoch: 3)
        let older = Registration(place: place(1, "a"), instance: 7)
        let newer = Registration(place: place(2, "b"), instance: 8)
        var again = [older, newer]
        again[0].order = before.register(older, now: time(1_000_000), wallSeconds: 1).order
        again[1].order = before.register(newer, now: time(1_000_000), wallSeconds: 1).order
        // The clock of the next owner's machine is far behind.
        var after = machine(epoch: 4)
        for registration in olderFirst ? again : again.reversed() {
            _ = after.register(registration, now: time(5), wallSeconds: 1)
        }
        #expect(after.places == [place(2, "b")])
        // And one that comes now is newer than both, whatever the clocks say.
        let third = after.register(Registration(place: place(3, "c"), instance: 9), now: time(6), wallSeconds: 1)
        let order = try #require(third.order)
        #expect(third.actions == [.kick(place(2, "b"), by: order)])
        #expect(order.epoch == 4)
        // The one that was cut off and comes back with its ticket is the older one.
        #expect(after.register(again[0], now: time(7), wallSeconds: 1).order == nil)
    }

    @Test("A superseded client's ticket opens nothing after the newer client left, with or without an instance")
    func supersededTicket() throws {
        for instances in [[UInt64(7), 8], [0, 0]] {
            var machine = machine()
            let older = Registration(place: place(1, "a"), instance: instances[0])
            let newer = Registration(place: place(2, "b"), instance: instances[1])
            var again = older
            again.order = machine.register(older, now: time(5), wallSeconds: 1).order
            #expect(again.order != nil)
            _ = try #require(machine.register(newer, now: time(6), wallSeconds: 1).order)
            _ = machine.unregister(place(2, "b"), isResumable: false, now: time(7), wallSeconds: 1)
            #expect(machine.place == nil)
            let refused = machine.register(again, now: time(9_000), wallSeconds: 10)
            #expect(refused.order == nil && refused.actions.isEmpty)
            #expect(machine.presence.online == .offline)
            // The newer one comes back with its own.
            var back = newer
            back.order = machine.memory.newest
            #expect(machine.register(back, now: time(9_001), wallSeconds: 10).order == back.order)
        }
    }

    @Test("The next owner knows from the memory of the one before who was superseded, though none of them is connected")
    func restored() throws {
        var before = machine(epoch: 3)
        let older = Registration(place: place(1, "a"), instance: 7)
        let newer = Registration(place: place(2, "b"), instance: 8)
        let olderOrder = try #require(before.register(older, now: time(1_000_000), wallSeconds: 1).order)
        let newerOrder = try #require(before.register(newer, now: time(1_000_000), wallSeconds: 1).order)
        for epoch in [Epoch(3), 4] {
            // Deactivated meanwhile, or at another node.
            var after = machine(epoch: epoch)
            after.restore(before.memory)
            var shown = older
            shown.order = olderOrder
            #expect(after.register(shown, now: time(5), wallSeconds: 1).order == nil, "with its ticket")
            #expect(after.register(older, now: time(5), wallSeconds: 1).order == nil, "a late hello")
            shown.instance = 0
            #expect(after.register(shown, now: time(5), wallSeconds: 1).order == nil, "without its instance")
            let third = after.register(Registration(place: place(3, "c"), instance: 9), now: time(6), wallSeconds: 1)
            #expect(try #require(third.order) > newerOrder)
            var late = newer
            late.order = newerOrder
            #expect(after.register(late, now: time(7), wallSeconds: 1).order == nil, "superseded in its turn")
        }
    }

    @Test("An order from the wire that is the largest of all breaks nothing")
    func largest() {
        var machine = machine()
        let largest = SessionOrder(epoch: .max, sequence: .max)
        let first = Registration(place: place(1, "a"), instance: 7, order: largest)
        #expect(machine.register(first, now: time(5), wallSeconds: 1).order == largest)
        #expect(
            machine.register(Registration(place: place(2, "b"), instance: 8), now: time(6), wallSeconds: 1).order
                == largest)
        #expect(machine.places == [place(2, "b")])
    }

    @Test("Clients without an instance keep their rule: one session each, the newer kicks")
    func without() throws {
        var machine = machine()
        _ = machine.register(Registration(place: place(1, "a")), now: time(5), wallSeconds: 1)
        let second = machine.register(Registration(place: place(2, "b")), now: time(5), wallSeconds: 1)
        #expect(second.actions == [.kick(place(1, "a"), by: try #require(second.order))])
        // Resumed elsewhere it is the same session still.
        let moved = machine.register(
            Registration(place: place(3, "b"), order: second.order), now: time(6), wallSeconds: 1)
        #expect(moved.order == second.order && moved.actions.isEmpty)
    }

    @Test("A session is its client's also at a node that does not know of instances")
    func mixed() {
        var machine = machine()
        let first = machine.register(Registration(place: place(1, "a"), instance: 7), now: time(5), wallSeconds: 1)
        let moved = machine.register(
            Registration(place: place(2, "a"), order: SessionOrder(epoch: 0, sequence: 9)), now: time(6),
            wallSeconds: 1)
        #expect(moved.order == first.order && moved.actions.isEmpty)
    }

    @Test("Places of one client are bounded: the oldest is released, which ends no client (D13)")
    func bound() {
        var machine = machine(placesMax: 2)
        for (index, name) in ["a", "b"].enumerated() {
            _ = machine.register(
                Registration(place: place(index + 1, name), instance: 7), now: time(5), wallSeconds: 1)
        }
        let third = machine.register(Registration(place: place(3, "c"), instance: 7), now: time(5), wallSeconds: 1)
        #expect(third.actions == [.release(place(1, "a"))])
        #expect(machine.places == [place(2, "b"), place(3, "c")])
    }

    @Test(
        "In whatever order clients register, are repeated and leave, one of them stays, and no kick hits it",
        arguments: UInt64(1)...200)
    func random(seed: UInt64) throws {
        var random = SeededRandom(seed: seed)
        var machine = machine()
        var orders: [SessionPlace: (instance: UInt64, order: SessionOrder)] = [:]
        for step in 1...40 {
            let instance = UInt64.random(in: 1...3, using: &random)
            let at = place(
                Int.random(in: 1...3, using: &random), "s\(instance)\(Int.random(in: 0...2, using: &random))")
            let now = time(UInt64(step))
            let isRepeated = Bool.random(using: &random)
            if orders[at] != nil, Bool.random(using: &random) {
                _ = machine.unregister(at, isResumable: true, now: now, wallSeconds: 1)
                orders[at] = nil
                continue
            }
            let registration = Registration(
                place: at, instance: instance, order: isRepeated ? orders[at]?.order : nil)
            let (order, actions) = machine.register(registration, now: now, wallSeconds: 1)
            if let order { orders[at] = (instance, order) }
            for case .kick(let loser, let by) in actions {
                let lost = try #require(orders[loser])
                #expect(lost.instance != instance, "an instance kicked itself")
                #expect(lost.order < by, "a newer client was kicked by an older one")
                orders[loser] = nil
            }
        }
        let instances = Set(machine.places.compactMap { orders[$0]?.instance })
        #expect(instances.count <= 1)
        #expect(machine.places.isEmpty || instances.count == 1)
    }
}

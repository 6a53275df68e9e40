import ApusCore
import ApusSessions
import Testing

@Suite("Sockets of sessions at an edge (D6, IV-A5, docs/decisions/7)")
struct EdgeLinkTests {
    private typealias Bench = EdgeBench

    /// An opened session "s" of order 5, over link 1.
    private func bench(instance: UInt64 = 7, _ configure: (inout Bench.Machine.Configuration) -> Void = { _ in })
        -> Bench
    {
        var bench = Bench(configure)
        bench.open("s", 1, instance: instance)
        return bench
    }

    private func session(instance: UInt64 = 7) -> Session {
        Bench.session("s", instance: instance, order: Bench.order(5))
    }

    @Test("Two sockets of one session stand beside each other until its client chooses one")
    func chosenLater() {
        var bench = bench()
        let resumed = bench.resume(session(), 2)
        #expect(resumed.isConfirmed == true && resumed.said == [.ask(.register(isAsleep: false), "s")])
        #expect(bench.said(bench.machine.chosen("s", 2)) == [.end([1], .linkLost)])
        // The one that was ended closes a little later, which is no news.
        #expect(bench.machine.closed("s", 1).isEmpty)
        bench.settle()
        #expect(bench.machine.held("s")?.links == [2])
    }

    @Test("The earlier of two sockets may be chosen: the later one stays until its client closes it")
    func chosenEarlier() {
        var bench = bench()
        _ = bench.resume(session(), 2)
        #expect(bench.machine.chosen("s", 1).isEmpty)
        #expect(bench.machine.held("s")?.links == [1, 2])
        #expect(bench.machine.closed("s", 2).isEmpty)
        bench.settle()
        #expect(bench.machine.held("s")?.links == [1] && bench.machine.held("s")?.isReported == true)
    }

    @Test("Two sockets, in whatever order they are chosen and closed: the owner hears when the last one is gone")
    func everyOrder() {
        enum Step: CaseIterable { case choose1, choose2, close1, close2 }
        for number in 0..<256 {
            let steps = (0..<4).map { Step.allCases[(number >> ($0 * 2)) & 3] }
            var bench = bench()
            _ = bench.resume(session(), 2)
            bench.settle()
            var open: Set<Int> = [1, 2]
            for step in steps {
                let wasOpen = !open.isEmpty
                let said: [Said]
                switch step {
                case .choose1: said = bench.said(bench.machine.chosen("s", 1))
                case .choose2:
                    said = bench.said(bench.machine.chosen("s", 2))
                    #expect(said == (open == [1, 2] ? [.end([1], .linkLost)] : []), "\(steps)")
                    if open.contains(2) { open = [2] }
                    continue
                case .close1:
                    said = bench.said(bench.machine.closed("s", 1))
                    open.remove(1)
                case .close2:
                    said = bench.said(bench.machine.closed("s", 2))
                    open.remove(2)
                }
                #expect(said == (wasOpen && open.isEmpty ? [.ask(.unregister, "s")] : []), "\(steps)")
            }
            #expect(Set(bench.machine.held("s")?.links ?? []) == open, "\(steps)")
            bench.settle()
            #expect(bench.machine.sessionCount == (open.isEmpty ? 0 : 1), "\(steps)")
        }
    }

    @Test("One socket more than there may be ends the oldest")
    func bound() {
        var bench = bench { $0.linksMax = 2 }
        _ = bench.resume(session(), 2)
        #expect(bench.resume(session(), 3).said.first == .end([1], .linkLost))
        #expect(bench.machine.held("s")?.links == [2, 3])
    }

    @Test("Without an instance nothing says that two sockets are of one client: the earlier one is kicked")
    func withoutInstance() {
        var bench = bench(instance: 0)
        let resumed = bench.resume(session(instance: 0), 2)
        #expect(resumed.said == [.end([1], .kicked), .ask(.register(isAsleep: false), "s")])
        #expect(bench.machine.held("s")?.links == [2])
    }

    @Test("A client that is back before the owner heard that it left is registered again, and stays")
    func back() {
        var bench = bench()
        #expect(bench.said(bench.machine.closed("s", 1)) == [.ask(.unregister, "s")])
        let resumed = bench.resume(session(), 2)
        #expect(resumed.isConfirmed == false && resumed.said.isEmpty, "one question at a time")
        #expect(bench.answer(.done) == [.ask(.register(isAsleep: false), "s")])
        #expect(bench.answer(.registered(Bench.order(5))) == [.confirm([2])])
        #expect(bench.machine.held("s")?.links == [2])
    }

    @Test("An answer that an owner gave before its client came back does not confirm it (docs/decisions/13)")
    func confirmedTooEarly() {
        var bench = Bench()
        #expect(bench.resume(session(), 1).said == [.ask(.register(isAsleep: false), "s")])
        // It leaves, and a newer client comes: nobody is here to be kicked.
        _ = bench.machine.closed("s", 1)
        #expect(bench.machine.kicked("s", .kicked, by: Bench.order(6), epoch: 0).isEmpty)
        #expect(bench.resume(session(), 2).isConfirmed == false)
        #expect(bench.answer(.registered(Bench.order(5))) == [.ask(.register(isAsleep: false), "s")])
        #expect(bench.fail(.kicked) == [.end([2], .kicked), .ask(.unregister, "s")])
    }

    @Test("A kick by a later client ends all sockets at once, and one by an earlier client none")
    func kick() {
        var bench = bench()
        _ = bench.resume(session(), 2)
        bench.settle()
        #expect(bench.machine.kicked("s", .kicked, by: Bench.order(4), epoch: 0).isEmpty)
        #expect(
            bench.said(bench.machine.kicked("s", .kicked, by: Bench.order(6), epoch: 0))
                == [.end([1, 2], .kicked), .ask(.unregister, "s")])
        #expect(bench.machine.closed("s", 1).isEmpty && bench.machine.closed("s", 2).isEmpty)
        #expect(bench.machine.kicked("s", .kicked, by: Bench.order(6), epoch: 0).isEmpty, "it is ended once")
        #expect(bench.machine.kicked("nobody", .kicked, by: Bench.order(6), epoch: 0).isEmpty)
    }

    @Test("A superseded client that comes back before its socket is closed is not confirmed")
    func kickedAndBack() {
        var bench = bench()
        _ = bench.said(bench.machine.kicked("s", .kicked, by: Bench.order(6), epoch: 0))
        #expect(bench.resume(session(), 2).isConfirmed == false)
        #expect(bench.answer(.done) == [.ask(.register(isAsleep: false), "s")])
        #expect(bench.fail(.kicked) == [.end([2], .kicked), .ask(.unregister, "s")])
        #expect(bench.answer(.done).isEmpty)
        #expect(bench.machine.sessionCount == 0)
    }

    @Test("What owners that were replaced say late ends nothing and is shown to nobody (D4)")
    func formerOwner() {
        var bench = bench()
        let device = ShardID(of: Bench.camera)
        _ = bench.map([Bench.shard: 4, device: 4])
        bench.settle()
        #expect(bench.machine.kicked("s", .kicked, by: Bench.order(9, epoch: 9), epoch: 3).isEmpty)
        #expect(bench.machine.kicked("s", .linkLost, by: nil, epoch: 3).isEmpty)
        #expect(bench.machine.presenceChanged(Bench.camera, sessions: ["s"], epoch: 3) == [])
        // The next owner speaks before the map comes.
        #expect(bench.machine.presenceChanged(Bench.camera, sessions: ["s", "nobody"], epoch: 5) == [1])
        #expect(bench.machine.presenceChanged(Bench.camera, sessions: ["s"], epoch: 4) == [])
        // A node that says no epoch is believed as before.
        #expect(bench.machine.presenceChanged(Bench.camera, sessions: ["s"], epoch: 0) == [1])
        #expect(bench.said(bench.machine.kicked("s", .linkLost, by: nil, epoch: 5)).first == .end([1], .linkLost))
    }

    @Test("Sessions that are revoked end, the oldest first, and others do not")
    func revoked() {
        var bench = Bench()
        for (link, id) in ["b", "a", "c"].enumerated() { bench.open(id, link) }
        let list = RevocationList(["a", "b"].map { RevocationRecord(.token(TokenMark.tag(of: $0)), expires: .max) })
        let (sessions, actions) = bench.machine.revoked(by: list)
        #expect(sessions.map(\.id) == ["b", "a"])
        #expect(
            bench.said(actions) == [
                .end([0], .tokenInvalid), .ask(.unregister, "b"), .end([1], .tokenInvalid), .ask(.unregister, "a"),
            ])
        #expect(bench.machine.held("c")?.links == [2])
    }

    @Test("Sessions that have used a device end when their account loses a right to it, and others do not (IV-B10)")
    func withdrawn() {
        var bench = Bench()
        for (link, id) in ["b", "a", "c"].enumerated() { bench.open(id, link) }
        #expect(bench.machine.withdrawn(Self.lost("other"), now: bench.now).count == 0)
        #expect(bench.machine.withdrawn([], now: bench.now).count == 0)
        let others = bench.machine.withdrawn(Self.lost("acme"), now: bench.now).count
        #expect(others == 0, "others end sessions that never used their device")
        for id in ["a", "b"] { bench.machine.uses(id, Bench.camera) }
        for id in ["c", "nobody"] { bench.machine.uses(id, Bench.other) }
        let (count, actions) = bench.machine.withdrawn(Self.lost("acme"), now: bench.now)
        #expect(count == 2)
        #expect(
            bench.said(actions) == [
                .end([0], .linkLost), .ask(.unregister, "b"), .end([1], .linkLost), .ask(.unregister, "a"),
            ])
        #expect(bench.machine.held("c")?.links == [2])
        // The client is there again, and has not asked for the device.
        bench.settle()
        bench.open("a", 3)
        #expect(bench.machine.withdrawn(Self.lost("acme"), now: bench.now).count == 0)
        #expect(bench.machine.held("a")?.links == [3])
    }

    private static func lost(_ account: String) -> [DeviceWithdrawal] {
        [DeviceWithdrawal(device: Bench.camera, account: AccountID(unchecked: account), expires: .max)]
    }

    @Test("A session that gives a device away has the answer before it ends, which is after a second at most (IV-B10)")
    func ownRequest() {
        var bench = Bench()
        for (link, id) in ["a", "b", "c"].enumerated() {
            bench.open(id, link)
            bench.machine.uses(id, Bench.camera)
        }
        // b has asked for it; c has, and was answered.
        for (id, isBegin) in [("b", true), ("c", true), ("c", false), ("c", false), ("nobody", true)] {
            bench.machine.relates(id, isBegin)
        }
        #expect(!bench.machine.hasEnds)
        let (count, actions) = bench.machine.withdrawn(Self.lost("acme"), now: bench.now)
        #expect(count == 3)
        #expect(
            bench.said(actions) == [
                .end([0], .linkLost), .ask(.unregister, "a"), .end([2], .linkLost), .ask(.unregister, "c"),
            ])
        #expect(bench.machine.hasEnds && bench.machine.held("b")?.links == [1])
        // Neither more such requests nor more losses give it more time, and its answer does not end it before.
        bench.now = bench.now + .milliseconds(999)
        bench.machine.relates("b", true)
        #expect(bench.said(bench.machine.withdrawn(Self.lost("acme"), now: bench.now).actions) == [])
        bench.machine.relates("b", false)
        #expect(bench.said(bench.machine.endsDue(now: bench.now)) == [])
        bench.now = bench.now + .milliseconds(1)
        #expect(bench.said(bench.machine.endsDue(now: bench.now)) == [.end([1], .linkLost), .ask(.unregister, "b")])
        #expect(!bench.machine.hasEnds && bench.machine.held("b")?.links == [])
    }

    @Test("A token that is revoked ends its session at once, whatever it has asked for (IV-A6)")
    func revokedMeanwhile() {
        var bench = Bench()
        bench.open("a", 0)
        bench.machine.uses("a", Bench.camera)
        bench.machine.relates("a", true)
        #expect(bench.said(bench.machine.withdrawn(Self.lost("acme"), now: bench.now).actions) == [])
        let list = RevocationList([RevocationRecord(.token(TokenMark.tag(of: "a")), expires: .max)])
        let ended = bench.said(bench.machine.revoked(by: list).actions)
        #expect(ended == [.end([0], .tokenInvalid), .ask(.unregister, "a")])
        bench.settle()
        bench.now = bench.now + .seconds(2)
        #expect(bench.said(bench.machine.endsDue(now: bench.now)) == [] && !bench.machine.hasEnds)
    }
}

import ApusCore
import ApusSessions
import Testing

@Suite("What an edge tells the owners of identities (D6)")
struct EdgeTellingTests {
    private typealias Bench = EdgeBench
    private let register = Said.ask(.register(isAsleep: false), "s")
    private let listen = Said.ask(.subscribe(Bench.camera), "s")
    private let forget = Said.ask(.forget(Bench.camera), "s")
    private let cameraShard = ShardID(of: Bench.camera)

    private func bench(_ configure: (inout Bench.Machine.Configuration) -> Void = { _ in }) -> Bench {
        var bench = Bench(configure)
        bench.open("s", 1)
        return bench
    }

    private func asking(_ bench: inout Bench, _ device: DeviceID = Bench.camera) throws -> UInt64 {
        try bench.machine.subscribing("s", device).get()
    }

    // MARK: - The owner is unknown

    @Test("A client that comes back while its owner is unknown is served, and the owner asked ever more rarely")
    func ownerUnknown() {
        var bench = Bench()
        let resumed = bench.resume(Bench.session("s", order: Bench.order(5)), 1)
        #expect(resumed.isConfirmed == false && resumed.said == [register])
        for pause in [50, 100, 200, 400, 800, 1000, 1000] {
            #expect(bench.fail() == [.wait(.milliseconds(pause))])
            #expect(bench.pauseEnds() == [register])
        }
        #expect(bench.answer(.registered(Bench.order(5))) == [.confirm([1])])
        // The next failure begins with short pauses again.
        #expect(bench.resume(Bench.session("s", order: Bench.order(5)), 2).said == [register])
        #expect(bench.fail() == [.wait(.milliseconds(50))])
    }

    @Test("A new map ends a pause, and what waited for the end of that pause asks nothing")
    func mapEndsPause() {
        var bench = Bench()
        _ = bench.resume(Bench.session("s", order: Bench.order(5)), 1)
        for _ in 0..<3 {
            _ = bench.fail()
            _ = bench.pauseEnds()
        }
        #expect(bench.fail() == [.wait(.milliseconds(400))])
        #expect(bench.map([Bench.shard: 2]) == [register])
        #expect(bench.pauseEnds().isEmpty)
        #expect(bench.fail() == [.wait(.milliseconds(50))])
    }

    @Test("A client that leaves during a pause is unregistered when it ends, and until the owner knows")
    func leavesDuringPause() {
        var bench = Bench()
        _ = bench.resume(Bench.session("s", order: Bench.order(5)), 1)
        _ = bench.fail()
        #expect(bench.said(bench.machine.closed("s", 1)).isEmpty)
        #expect(bench.pauseEnds() == [.ask(.unregister, "s")])
        #expect(bench.fail() == [.wait(.milliseconds(100))])
        #expect(bench.machine.sessionCount == 1)
        #expect(bench.pauseEnds() == [.ask(.unregister, "s")])
        #expect(bench.answer(.done).isEmpty)
        #expect(bench.machine.sessionCount == 0)
    }

    @Test("An answer that came before is not taken for a later one")
    func staleAnswer() throws {
        var bench = Bench()
        _ = bench.resume(Bench.session("s", order: Bench.order(5)), 1)
        let first = try #require(bench.asks.first)
        _ = bench.fail()
        _ = bench.pauseEnds()
        #expect(bench.machine.answered(first, .registered(Bench.order(5)), now: bench.now).isEmpty)
        #expect(bench.machine.held("s")?.isReported == false)
    }

    @Test(
        "A session that its owner does not know as the newest ends",
        arguments: [ErrorCode.kicked, .boundToOtherUser, .tokenInvalid, .deviceDisabled])
    func superseded(code: ErrorCode) {
        var bench = Bench()
        _ = bench.resume(Bench.session("s", order: Bench.order(5)), 1)
        _ = bench.resume(Bench.session("s", order: Bench.order(5)), 2)
        #expect(bench.fail(code) == [.end([1, 2], code), .ask(.unregister, "s")])
        #expect(bench.answer(.done).isEmpty && bench.machine.sessionCount == 0)
    }

    @Test("A session takes the later order that its owner knows of its client")
    func laterOrder() {
        var bench = Bench()
        _ = bench.resume(Bench.session("s", order: Bench.order(5)), 1)
        _ = bench.answer(.registered(Bench.order(9)))
        #expect(bench.machine.held("s")?.order == Bench.order(9))
        #expect(bench.machine.kicked("s", .kicked, by: Bench.order(8), epoch: 0).isEmpty)
    }

    // MARK: - Maps

    @Test("A map asks nothing of sessions whose shards it leaves, and of others the oldest first")
    func touched() {
        var bench = bench()
        bench.open("t", 2)
        bench.subscribe("s", Bench.camera)
        #expect(bench.map([cameraShard: 2]) == [listen], "the session's own owner is the same")
        bench.settle()
        #expect(bench.map([cameraShard: 2, Bench.shard: 2]) == [register, .ask(.register(isAsleep: false), "t")])
        bench.settle()
        #expect(bench.map([cameraShard: 2, Bench.shard: 2]).isEmpty)
        #expect(bench.map([cameraShard: 1, Bench.shard: 1]).isEmpty, "an older map")
        #expect(bench.map([ShardID(1): 7]).isEmpty)
    }

    @Test("A map that comes while the owner is asked makes the edge ask once more")
    func mapMeanwhile() {
        var bench = bench()
        #expect(bench.map([Bench.shard: 2]) == [register])
        #expect(bench.map([Bench.shard: 3]).isEmpty)
        #expect(bench.answer(.registered(Bench.order(5))) == [register])
        #expect(bench.answer(.registered(Bench.order(5))).isEmpty)
        #expect(bench.machine.held("s")?.isReported == true)
    }

    @Test("A change of any shard is seen, for sessions and for what they listen to")
    func everyShard() throws {
        for number in [0, 1, 2047, ShardID.count - 1] {
            let shard = ShardID(UInt16(number))
            let name = try #require((0..<1_000_000).lazy.map { "d\($0)" }.first { ShardID(key: $0) == shard })
            let device = DeviceID(unchecked: name)
            var bench = bench()
            let session = Bench.session("camera", role: .device, device: device, order: Bench.order(5))
            _ = bench.resume(session, 2)
            bench.settle()
            bench.subscribe("s", device)
            let told = [Said.ask(.subscribe(device), "s"), .ask(.register(isAsleep: false), "camera")]
            #expect(bench.map([shard: 1]) == told)
        }
    }

    @Test("Sessions that have left are in no map's way")
    func indexEmptied() {
        var bench = bench()
        bench.subscribe("s", Bench.camera)
        _ = bench.said(bench.machine.closed("s", 1))
        bench.settle()
        #expect(bench.machine.sessionCount == 0 && bench.machine.interestCount == 0)
        #expect(bench.map([cameraShard: 2, Bench.shard: 2]).isEmpty)
    }

    // MARK: - Presence of devices

    @Test("A subscription survives its owner: the next one is told, until it knows")
    func subscriptionSurvives() {
        var bench = bench()
        bench.subscribe("s", Bench.camera)
        #expect(bench.machine.held("s")?.devices == [Bench.camera])
        #expect(bench.map([cameraShard: 2]) == [listen])
        #expect(bench.fail() == [.wait(.milliseconds(50))])
        #expect(bench.pauseEnds() == [listen])
        #expect(bench.answer(.done).isEmpty)
        #expect(bench.machine.held("s")?.isReported == true && bench.machine.held("s")?.devices == [Bench.camera])
    }

    @Test("A map that comes while the owner answers a subscription: the next owner is told too")
    func mapWhileSubscribing() throws {
        var bench = bench()
        let number = try asking(&bench)
        #expect(bench.map([cameraShard: 2]).isEmpty, "the client's own question is under way")
        #expect(bench.said(bench.machine.subscribed("s", Bench.camera, number, nil)) == [listen])
    }

    @Test("A session that unsubscribes while the next owner is told has that owner told again")
    func unsubscribedWhileTelling() throws {
        for isAnswerFirst in [true, false] {
            var bench = bench()
            bench.subscribe("s", Bench.camera)
            #expect(bench.map([cameraShard: 2]) == [listen])
            let number = try required(bench.machine.forgetting("s", Bench.camera))
            // Nobody knows which of the two the owner hears last.
            if isAnswerFirst { #expect(bench.answer(.done).isEmpty) }
            let said = bench.said(bench.machine.forgotten("s", Bench.camera, number, isDone: true))
            #expect(said == (isAnswerFirst ? [forget] : []))
            if !isAnswerFirst { #expect(bench.answer(.done) == [forget]) }
            #expect(bench.machine.held("s")?.devices == [] && bench.machine.held("s")?.isReported == false)
            #expect(bench.answer(.done).isEmpty)
            #expect(bench.machine.held("s")?.isReported == true)
            #expect(bench.map([cameraShard: 3]).isEmpty, "nothing is left of it")
        }
    }

    @Test("A session that unsubscribes and nothing crosses it: the owner is told once")
    func unsubscribed() throws {
        var bench = bench()
        bench.subscribe("s", Bench.camera)
        let number = try required(bench.machine.forgetting("s", Bench.camera))
        #expect(bench.machine.forgotten("s", Bench.camera, number, isDone: true).isEmpty)
        #expect(bench.machine.held("s")?.isReported == true)
        #expect(bench.machine.forgetting("s", Bench.camera) == nil)
    }

    @Test("An unsubscription whose answer is lost is told until the owner knows")
    func unsubscriptionFails() throws {
        var bench = bench()
        bench.subscribe("s", Bench.camera)
        let number = try required(bench.machine.forgetting("s", Bench.camera))
        #expect(bench.said(bench.machine.forgotten("s", Bench.camera, number, isDone: false)) == [forget])
        #expect(bench.fail() == [.wait(.milliseconds(50))])
        #expect(bench.pauseEnds() == [forget])
        #expect(bench.answer(.done).isEmpty)
        #expect(bench.map([cameraShard: 3]).isEmpty)
    }

    @Test("A subscription that was refused leaves nothing to be told")
    func subscriptionRefused() throws {
        for code in [ErrorCode.targetUnknown, .illegalRelation, .deviceDisabled, .overloaded] {
            var bench = bench()
            let number = try asking(&bench)
            #expect(bench.machine.subscribed("s", Bench.camera, number, ApusError(code)).isEmpty)
            #expect(bench.machine.held("s")?.devices == [] && bench.machine.held("s")?.isReported == true)
        }
    }

    @Test("A subscription that was not answered is taken back, since its owner may have heard of it")
    func subscriptionUnanswered() throws {
        var bench = bench()
        let number = try asking(&bench)
        let error = ApusError(.deadlineExceeded)
        #expect(bench.said(bench.machine.subscribed("s", Bench.camera, number, error)) == [forget])
        #expect(bench.machine.held("s")?.devices == [])
    }

    @Test("Two sockets subscribe at once: what one was given stays, whatever becomes of the other")
    func subscribedTwice() throws {
        var bench = bench()
        let first = try asking(&bench)
        let second = try asking(&bench)
        #expect(bench.said(bench.machine.subscribed("s", Bench.camera, first, nil)).isEmpty)
        let error = ApusError(.deadlineExceeded)
        #expect(bench.said(bench.machine.subscribed("s", Bench.camera, second, error)) == [listen])
        #expect(bench.machine.held("s")?.devices == [Bench.camera])
    }

    @Test("A session that leaves takes its subscriptions with it, also one whose answer is under way")
    func leaves() throws {
        var bench = bench()
        bench.subscribe("s", Bench.camera)
        let number = try asking(&bench, Bench.other)
        #expect(bench.said(bench.machine.closed("s", 1)) == [.ask(.unregister, "s")])
        #expect(bench.answer(.done) == [forget])
        #expect(bench.answer(.done).isEmpty)
        #expect(bench.machine.sessionCount == 1)
        #expect(
            bench.said(bench.machine.subscribed("s", Bench.other, number, nil)) == [.ask(.forget(Bench.other), "s")])
        #expect(bench.answer(.done).isEmpty)
        #expect(bench.machine.sessionCount == 0)
        #expect(throws: ApusError.self) { try bench.machine.subscribing("s", Bench.camera).get() }
    }

    @Test("A device whose owner cannot be told does not keep the others waiting")
    func fairness() {
        var bench = bench()
        bench.subscribe("s", Bench.camera)
        bench.subscribe("s", Bench.other)
        #expect(bench.map([cameraShard: 2, ShardID(of: Bench.other): 2]).count == 1)
        let first = bench.asks.first?.content
        #expect(bench.fail(.overloaded) == [.wait(.milliseconds(50))])
        let second = bench.pauseEnds()
        #expect(second.count == 1 && bench.asks.first?.content != first)
        #expect(bench.answer(.done).count == 1)
        #expect(bench.asks.first?.content == first)
    }

    @Test(
        "A subscription that the next owner does not allow ends",
        arguments: [ErrorCode.targetUnknown, .illegalRelation, .deviceDisabled])
    func notAllowed(code: ErrorCode) {
        var bench = bench()
        bench.subscribe("s", Bench.camera)
        _ = bench.map([cameraShard: 2])
        #expect(bench.fail(code).isEmpty)
        #expect(bench.machine.held("s")?.devices == [] && bench.machine.held("s")?.isReported == true)
    }

    @Test("Subscriptions of one session are bounded: one more is refused with 10007 (D13)")
    func bound() throws {
        var bench = bench { $0.subscriptionsMax = 1 }
        bench.subscribe("s", Bench.camera)
        let error = #expect(throws: ApusError.self) { try bench.machine.subscribing("s", Bench.other).get() }
        #expect(error?.code == .overloaded)
        _ = try asking(&bench)
    }

    // MARK: - Sleep

    @Test("A device that sleeps says so itself, and nothing more is told")
    func sleeps() throws {
        var bench = bench()
        let number = try required(bench.machine.sleeping("s", true))
        #expect(bench.machine.slept("s", number, isDone: true).isEmpty)
        #expect(bench.machine.held("s")?.isReported == true && bench.machine.held("s")?.isAsleep == true)
        #expect(bench.map([Bench.shard: 2]) == [.ask(.register(isAsleep: true), "s")])
    }

    @Test("Sleep that crosses a registration is told again, since the owner may hear of it first")
    func sleepCrosses() throws {
        var bench = bench()
        #expect(bench.map([Bench.shard: 2]) == [register])
        let number = try required(bench.machine.sleeping("s", true))
        #expect(bench.answer(.registered(Bench.order(5))).isEmpty)
        #expect(bench.said(bench.machine.slept("s", number, isDone: true)) == [.ask(.register(isAsleep: true), "s")])
        bench.settle()
        #expect(bench.machine.held("s")?.isReported == true)
    }

    @Test("Sleep and waking that cross each other: the owner is told the last of them")
    func sleepsAndWakes() throws {
        var bench = bench()
        let first = try required(bench.machine.sleeping("s", true))
        let second = try required(bench.machine.sleeping("s", false))
        #expect(bench.machine.slept("s", second, isDone: true).isEmpty)
        #expect(bench.said(bench.machine.slept("s", first, isDone: true)) == [register])
    }

    @Test("Sleep whose answer is lost is told until the owner knows")
    func sleepFails() throws {
        var bench = bench()
        let number = try required(bench.machine.sleeping("s", true))
        #expect(bench.said(bench.machine.slept("s", number, isDone: false)) == [.ask(.register(isAsleep: true), "s")])
    }

    @Test("A device that leaves does not wait for the answer to its sleep")
    func leavesAsleep() throws {
        var bench = bench()
        let number = try required(bench.machine.sleeping("s", true))
        #expect(bench.said(bench.machine.closed("s", 1)) == [.ask(.unregister, "s")])
        #expect(bench.answer(.done).isEmpty)
        #expect(bench.machine.sessionCount == 1, "its answer finds it")
        #expect(bench.machine.slept("s", number, isDone: true).isEmpty)
        #expect(bench.machine.sessionCount == 0)
    }
}

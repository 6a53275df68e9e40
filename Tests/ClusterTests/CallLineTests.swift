import ApusClient
import ApusCore
import NIOCore
import NIOPosix
import Testing

@Suite("Calls on long lines, and with wrong clocks (CALL-6 to CALL-9, CALL-13)", .serialized, .timeLimit(.minutes(5)))
struct CallLineTests {
    private static let bell = DeviceID(unchecked: "bell")
    private static let base = 31_300

    /// How often each stage came, in order.
    private func stages(_ client: CallClient, _ call: String) -> [String] {
        client.notices(of: call).map { notice in
            switch notice.stage {
            case .ring: "ring"
            case .ringing: "ringing"
            case .accepted: "accepted"
            case .message: "message"
            case .ended: "ended"
            }
        }
    }

    /// All frames since the first one that arrived. A side that is played late begins with the live picture.
    private func arrived(_ sides: CallSide..., last: UInt64) async throws {
        for side in sides {
            try await eventually { () throws(ApusError) in
                guard side.newest == last else {
                    throw ApusError(.deadlineExceeded, "\(side.received), \(side.newest ?? 0) is the newest")
                }
            }
            #expect(side.received.lostCount == 0, "\(side.received)")
        }
    }

    @Test("On lines of 0 to 1,000 ms a call rings, has media in both directions, and ends; each notice comes once")
    func calls() async throws {
        try await LongLines.with(base: Self.base) { lines in
            for roundTrip in [0, 300, 1_000] { try await call(lines, roundTrip) }
        }
    }

    private func call(_ lines: LongLines, _ roundTrip: Int) async throws {
        lines.set(roundTrip)
        let (bell, app) = try await lines.pair()
        let begin = MonotonicTime.now()
        let call = try await app.start([.device(Self.bell)]).id
        _ = try await bell.next(call) { if case .ring = $0.stage { true } else { false } }
        let rung = MonotonicTime.now() - begin
        // Half a round trip to the cluster, half to the device; the answer of the start takes one.
        #expect(rung < .milliseconds(Int64(roundTrip) * 3 / 2 + 3_000), "\(rung) at \(roundTrip) ms")
        _ = try await app.next(call) { $0.stage == .ringing }
        try await bell.session.acceptCall(call)
        _ = try await app.next(call) { $0.stage == .accepted }
        let appSide = CallSide(app.session, call: call, name: "app")
        let bellSide = CallSide(bell.session, call: call, name: "bell")
        async let sending: Void = appSide.send(50, byteCount: 2_000)
        try await bellSide.send(50, byteCount: 2_000)
        try await sending
        try await arrived(appSide, bellSide, last: 49)
        // Who hangs up has the end with the answer, and no notice.
        #expect(try await app.session.hangUpCall(call).isEnded)
        #expect(try await bell.end(call)?.code == .peerHungUp)
        // A notice whose confirmation is on its way can come again; it is passed on once.
        try await Task.sleep(for: .milliseconds(Int64(roundTrip) * 2 + 500))
        #expect(stages(bell, call) == ["ring", "accepted", "ended"], "\(roundTrip) ms: \(stages(bell, call))")
        #expect(stages(app, call) == ["ringing", "accepted"], "\(roundTrip) ms: \(stages(app, call))")
        for client in [bell, app] { client.close() }
    }

    @Test("On a line of a second, a cancel and an accept that cross end the call in one way for both sides (CALL-8)")
    func crossing() async throws {
        try await LongLines.with(base: Self.base) { lines in
            lines.set(1_000)
            let (bell, app) = try await lines.pair()
            for _ in 0..<3 {
                let call = try await app.ring(bell)
                async let cancel = app.session.hangUpCall(call)
                async let accept = bell.session.acceptCall(call)
                let (atApp, atBell) = (try await cancel, try await accept)
                #expect(atApp.isEnded && atApp.error == nil, "\(atApp)")
                // The cancel came first, or the accept did and the cancel was a hang-up.
                let end: ErrorCode = atApp.isAccepted ? .peerHungUp : .callCancelled
                #expect(try await bell.end(call)?.code == end)
                #expect(atBell.isAccepted == atApp.isAccepted || !atBell.isEnded, "\(atBell), \(atApp)")
            }
            for client in [bell, app] { client.close() }
        }
    }

    @Test("On lines of 300 ms, a call whose nodes are killed in turn loses no frame, and ends as it should (CALL-13)")
    func kills() async throws {
        try await LongLines.with(base: Self.base) { lines in
            lines.set(300)
            let (bell, app) = try await lines.pair()
            let call = try await app.ring(bell)
            try await bell.session.acceptCall(call)
            _ = try await app.next(call) { $0.stage == .accepted }
            let appSide = CallSide(app.session, call: call, name: "app")
            let bellSide = CallSide(bell.session, call: call, name: "bell")
            async let sending: Void = appSide.send(600, byteCount: 2_000)
            async let sendingBack: Void = bellSide.send(600, byteCount: 2_000)
            for node in [2, 1] {
                try await Task.sleep(for: .seconds(2))
                #expect(try lines.cluster.run("cluster", "kill", "\(node)").status == 0)
                try await Task.sleep(for: .seconds(3))
            }
            try await sending
            try await sendingBack
            try await arrived(appSide, bellSide, last: 599)
            try await eventually { () throws(ApusError) in try await app.session.hangUpCall(call) }
            #expect(try await bell.end(call)?.code == .peerHungUp)
            for client in [bell, app] { client.close() }
        }
    }

    @Test(
        "With a node two hours ahead of the others, or an hour behind, calls end after their time, no earlier (CALL-6)",
        .enabled(if: WrongClock.isBuilt, "Tests/Tools/wrong_clock.c is not built"), arguments: [2, -1])
    func clocks(hours: Int) async throws {
        let cluster = try Cluster(nodes: 3, basePort: 31_340)
        defer { cluster.down() }
        let clock = try WrongClock(cluster, node: 2, ahead: .seconds(hours * 3600))
        defer { clock.end() }
        let wrong = NodeView(2, of: cluster)
        #expect(await waited(.seconds(20)) { wrong.get("/healthz") != nil } != nil)
        try await Task.sleep(for: .seconds(3))
        let isNoticed = await waited(.seconds(20)) {
            wrong.status?.conditions?.contains { $0.type == "clock_differs" && $0.unhealthy } ?? false
        }
        #expect(isNoticed != nil)
        // Devices at all nodes, with owners at all nodes.
        for number in 0..<4 {
            let name = "bell-\(number)"
            let bell = try await CallClient(cluster, number % 3 + 1, device: name).ready()
            let app = try await CallClient(cluster, (number + 1) % 3 + 1, access: "phone-\(number)").ready()
            defer { for client in [bell, app] { client.close() } }
            let target = ClientSession.CallParty.device(DeviceID(unchecked: name))
            let began = MonotonicTime.now()
            let missed = try await app.start([target], timeout: .seconds(5)).id
            #expect(try await app.end(missed)?.code == .callNotAnswered)
            let rung = MonotonicTime.now() - began
            #expect(rung > .milliseconds(4_500) && rung < .seconds(9), "\(rung) with \(hours) h")
            #expect(try await bell.end(missed)?.code == .callTimedOut)

            let call = try await app.start([target], timeout: .seconds(5)).id
            _ = try await bell.next(call) { if case .ring = $0.stage { true } else { false } }
            try await bell.session.acceptCall(call)
            _ = try await app.next(call) { $0.stage == .accepted }
            for client in [bell, app] { try await client.session.reportCallConnected(call) }
            // It outlasts the time of its ring.
            if number == 0 { try await Task.sleep(for: .seconds(7)) }
            #expect(try await !app.session.reportCallConnected(call).isEnded)
            try await app.session.hangUpCall(call)
            #expect(try await bell.end(call)?.code == .peerHungUp)
        }
    }

    @Test(
        "The clock of an owner steps two hours ahead, and an hour back: rings and calls keep their times (CALL-6)",
        .enabled(if: WrongClock.isBuilt, "Tests/Tools/wrong_clock.c is not built"))
    func steps() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 31_370)
        defer { cluster.down() }
        let owner = try cluster.owner(of: "bell-0")
        let others = (1...3).filter { $0 != owner }
        let clock = try WrongClock(cluster, node: owner, ahead: .zero)
        defer { clock.end() }
        let view = NodeView(owner, of: cluster)
        #expect(await waited(.seconds(20)) { view.get("/healthz") != nil } != nil)
        try await Task.sleep(for: .seconds(3))
        let name = "bell-0"
        let bell = try await CallClient(cluster, others[0], device: name).ready()
        let app = try await CallClient(cluster, others[1], access: "phone").ready()
        defer { for client in [bell, app] { client.close() } }
        let target = ClientSession.CallParty.device(DeviceID(unchecked: name))
        for hours in [2, 1, -1] {
            let began = MonotonicTime.now()
            let missed = try await app.start([target], timeout: .seconds(8)).id
            _ = try await bell.next(missed) { if case .ring = $0.stage { true } else { false } }
            try clock.step(to: .seconds(hours * 3600))
            #expect(try await app.end(missed)?.code == .callNotAnswered)
            let rung = MonotonicTime.now() - began
            #expect(rung > .milliseconds(7_500) && rung < .seconds(12), "\(rung) after a step to \(hours) h")
            _ = try await bell.end(missed)
        }
        let call = try await app.start([target], timeout: .seconds(8)).id
        _ = try await bell.next(call) { if case .ring = $0.stage { true } else { false } }
        try await bell.session.acceptCall(call)
        _ = try await app.next(call) { $0.stage == .accepted }
        try clock.step(to: .seconds(6 * 3600))
        try await Task.sleep(for: .seconds(2))
        for client in [bell, app] { #expect(try await !client.session.reportCallConnected(call).isEnded) }
        try await app.session.hangUpCall(call)
        #expect(try await bell.end(call)?.code == .peerHungUp)
    }
}

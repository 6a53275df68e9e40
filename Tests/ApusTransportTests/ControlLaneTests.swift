import ApusCore
import ApusTestKit
import ApusTransport
import ApusWire
import NIOCore
import Synchronization
import Testing

@Suite("Control lanes and the requests on them (D3)", .timeLimit(.minutes(2)))
struct ControlLaneTests {
    private func request(
        _ pair: TestPair, _ route: PeerRoute, lane: Int = 0, _ method: UInt16, _ number: UInt32 = 0,
        timeout: Duration = .seconds(5)
    ) -> SentRequest {
        route.request(lane: lane, method: method, byteCount: 4, deadline: .now() + timeout) {
            $0.writeInteger(number)
        }
    }

    private func number(_ outcome: CallOutcome) -> UInt32? {
        guard case .reply(let bytes) = outcome else { return nil }
        return bytes.getInteger(at: bytes.readerIndex)
    }

    private func code(_ outcome: CallOutcome) -> ErrorCode? {
        guard case .failure(let failure) = outcome else { return nil }
        return failure.error.code
    }

    @Test("Every number has a lane, and what is sent under one number keeps its order")
    func lanes() async throws {
        try await TestPair.with(configure: { $0.controlLaneCount = 4 }) { pair in
            try await eventually("all lanes are up") { pair.a.transport.isLinked(to: pair.b.id.name) }
            let route = try #require(pair.a.transport.route(to: pair.b.id.name))
            let loops = Set((0..<4).map { ObjectIdentifier(route.executor(lane: $0)) })
            #expect(loops.count == min(4, System.coreCount))
            for lane in 0..<9 {
                let sent = request(pair, route, lane: lane, 1, UInt32(lane))
                #expect(number(await sent.outcome()) == UInt32(lane))
            }
            for number in UInt32(0)..<20_000 {
                try route.tell(lane: Int(number % 4), method: 2, byteCount: 4) { $0.writeInteger(number) }
            }
            for lane in 0..<4 { _ = await request(pair, route, lane: lane, 1).outcome() }
            let seen = pair.b.control.seen.withLock { $0.tells }
            #expect(seen.count == 20_000)
            for lane in UInt32(0)..<4 {
                let ofLane = seen.filter { $0 % 4 == lane }
                #expect(ofLane == ofLane.sorted())
            }
        }
    }

    @Test("A lane lies on the same event loop at both ends, lanes of a pair on different ones", arguments: 0..<4)
    func placement(_ round: Int) async throws {
        try await TestPair.with { pair in
            let route = try #require(pair.a.transport.route(to: pair.b.id.name))
            var seen: Set<UInt32> = []
            for lane in 0..<2 {
                let loop = route.executor(lane: lane).loop
                let here = TestLoops.index { $0 === loop }
                let there = number(await request(pair, route, lane: lane, 7).outcome())
                #expect(there == here, "lane \(lane)")
                seen.insert(here)
            }
            #expect(seen.count == min(2, TestLoops.all.count))
        }
    }

    @Test("An answer that comes before its caller waits is the caller's")
    func early() async throws {
        try await TestPair.with { pair in
            let route = try #require(pair.a.transport.route(to: pair.b.id.name))
            let first = request(pair, route, 1, 7)
            let second = request(pair, route, 1, 8)
            // Answers come in order, so the first one's is here when the second one's is.
            #expect(number(await second.outcome()) == 8)
            #expect(number(await first.outcome()) == 7)
        }
    }

    @Test("A deadline that passes before the caller waits ends the request at both ends")
    func earlyDeadline() async throws {
        try await TestPair.with { pair in
            let route = try #require(pair.a.transport.route(to: pair.b.id.name))
            let sent = request(pair, route, 3, timeout: .milliseconds(30))
            try await eventually("the handler was cancelled") { pair.b.control.seen.withLock { $0.cancelled } == 1 }
            #expect(code(await sent.outcome()) == .deadlineExceeded)
        }
    }

    @Test("A link that is lost before the caller waits fails the request with 10008")
    func earlyLoss() async throws {
        try await TestPair.with { pair in
            let route = try #require(pair.a.transport.route(to: pair.b.id.name))
            let sent = request(pair, route, 3)
            try await eventually("the handler runs") { pair.b.control.seen.withLock { $0.sleeping } == 1 }
            await pair.b.transport.stop()
            try await eventually("the link is lost") { pair.a.events.has(.linkLost(pair.b.id, .control)) }
            #expect(code(await sent.outcome()) == .linkLost)
        }
    }

    @Test("A slot is free again after each way in which a request can end")
    func slots() async throws {
        try await TestPair.with(configure: { $0.inFlightMax = 2 }) { pair in
            let route = try #require(pair.a.transport.route(to: pair.b.id.name))
            for number in UInt32(0)..<1000 {
                let sent = [request(pair, route, 1, number), request(pair, route, 4)]
                #expect(code(await request(pair, route, 1).outcome()) == .overloaded)
                #expect(code(await sent[1].outcome()) == .moved)
                #expect(self.number(await sent[0].outcome()) == number)
            }
        }
    }

    @Test("Answers given on other threads arrive, each at its caller")
    func foreignAnswers() async throws {
        try await TestPair.with { pair in
            try await withThrowingTaskGroup(of: Bool.self) { group in
                for number in UInt32(0)..<500 {
                    group.addTask {
                        let reply = try await pair.ask(6, ByteBuffer(integer: number))
                        return reply.getInteger(at: reply.readerIndex, as: UInt32.self) == number
                    }
                }
                for try await isRight in group { #expect(isRight) }
            }
        }
    }
}

import ApusCore
import ApusTestKit
import ApusTransport
import ApusWire
import NIOCore
import Synchronization
import Testing

@Suite("Calls between two nodes (D3)", .timeLimit(.minutes(2)))
struct CallTests {
    @Test("A request is answered with what the other side made of it")
    func echo() async throws {
        try await TestPair.with { pair in
            let reply = try await pair.ask(1, ByteBuffer(string: "hello"))
            #expect(String(buffer: reply) == "hello")
        }
    }

    @Test("1,000 callers at the same time each get their own answer")
    func concurrentCallers() async throws {
        try await TestPair.with { pair in
            try await withThrowingTaskGroup(of: Bool.self) { group in
                for number in 0..<1000 {
                    group.addTask {
                        let reply = try await pair.ask(1, ByteBuffer(integer: number))
                        return reply.getInteger(at: reply.readerIndex, as: Int.self) == number
                    }
                }
                for try await isRight in group { #expect(isRight) }
            }
        }
    }

    @Test("100,000 tells arrive in the order in which they were sent, none lost, none doubled")
    func order() async throws {
        try await TestPair.with { pair in
            for number in UInt32(0)..<100_000 {
                try pair.a.transport.tell(pair.b.id.name, method: 2, payload: ByteBuffer(integer: number))
                if number % 4096 == 4095 { _ = try await pair.ask(1) }
            }
            _ = try await pair.ask(1)
            let seen = pair.b.control.seen.withLock { $0.tells }
            #expect(seen == Array(0..<100_000))
        }
    }

    @Test("A cancelled caller gets 10006 and the handler on the other node is cancelled")
    func cancellation() async throws {
        try await TestPair.with { pair in
            let call = Task { await code { _ = try await pair.ask(3, timeout: .seconds(30)) } }
            try await eventually("the handler runs") { pair.b.control.seen.withLock { $0.sleeping } == 1 }
            call.cancel()
            #expect(await call.value == .cancelled)
            try await eventually("the handler was cancelled") { pair.b.control.seen.withLock { $0.cancelled } == 1 }
        }
    }

    @Test("A call over its deadline gets 10005 within 200 ms and the handler is cancelled")
    func deadline() async throws {
        try await TestPair.with { pair in
            let start = MonotonicTime.now()
            #expect(await code { _ = try await pair.ask(3, timeout: .milliseconds(50)) } == .deadlineExceeded)
            #expect(MonotonicTime.now() - start < .milliseconds(250))
            try await eventually("the handler was cancelled") { pair.b.control.seen.withLock { $0.cancelled } == 1 }
        }
    }

    @Test("A call over the bound of calls in flight gets 10007, and the others go on")
    func inFlightBound() async throws {
        try await TestPair.with(configure: { $0.inFlightMax = 4 }) { pair in
            let calls = (0..<4).map { _ in Task { await code { _ = try await pair.ask(3, timeout: .seconds(30)) } } }
            try await eventually("four handlers run") { pair.b.control.seen.withLock { $0.sleeping } == 4 }
            #expect(await code { _ = try await pair.ask(1) } == .overloaded)
            for call in calls { call.cancel() }
            for call in calls { #expect(await call.value == .cancelled) }
            try await eventually("the handlers ended") { pair.b.control.seen.withLock { $0.cancelled } == 4 }
            try await eventually("there is room again") { await code { _ = try await pair.ask(1) } == nil }
        }
    }

    @Test("Waiting bytes over the bound refuse tells with 10007, and the link lives on")
    func outboundBound() async throws {
        try await TestPair.with(
            configure: {
                $0.controlOutboundByteCountMax = 64 << 10
                $0.compressionThreshold = .max
            }
        ) { pair in
            let payload = ByteBuffer(repeating: 1, count: 60_000)
            var refusals = 0
            for _ in 0..<10_000 where refusals < 10 {
                do throws(ApusError) {
                    try pair.a.transport.tell(pair.b.id.name, method: 9, payload: payload)
                } catch {
                    #expect(error.code == .overloaded)
                    refusals += 1
                }
            }
            #expect(refusals == 10)
            try await eventually("there is room again") { await code { _ = try await pair.ask(1) } == nil }
        }
    }

    @Test("Payloads over the threshold are compressed on the way and arrive as they were")
    func compression() async throws {
        try await TestPair.with(configure: { $0.controlOutboundByteCountMax = 64 << 10 }) { pair in
            // 4 MiB of zeros fit a 64 KiB bound only compressed, in both directions.
            let zeros = ByteBuffer(repeating: 0, count: 4 << 20)
            let reply = try await pair.ask(1, zeros)
            #expect(reply == zeros)
        }
    }

    @Test("Bytes that do not compress arrive as they were")
    func incompressible() async throws {
        try await TestPair.with { pair in
            var random = SeededRandom(seed: 1)
            let noise = ByteBuffer(bytes: (0..<100_000).map { _ in UInt8(truncatingIfNeeded: random.next()) })
            let reply = try await pair.ask(1, noise)
            #expect(reply == noise)
        }
    }

    @Test("A payload over the frame limit is refused with 10002 before it is sent, also as an answer")
    func frameLimit() async throws {
        try await TestPair.with(configure: {
            $0.frameByteCountMax = 1 << 20; $0.compressionThreshold = .max
        }) { pair in
            #expect(
                await code { _ = try await pair.ask(1, ByteBuffer(repeating: 0, count: (1 << 20) + 1)) }
                    == .frameTooLarge)
            #expect(await code { _ = try await pair.ask(5, ByteBuffer(integer: UInt32(2 << 20))) } == .frameTooLarge)
            #expect(await code { _ = try await pair.ask(1) } == nil)
        }
    }

    @Test("A compressed payload that grows over the limit closes the link and not the node")
    func decompressionBomb() async throws {
        let authority = try TestPKI.authority()
        let a = TestNode("a", tls: try TestPair.tls("a", authority)) { $0.frameByteCountMax = 8 << 20 }
        let b = TestNode("b", tls: try TestPair.tls("b", authority)) { $0.frameByteCountMax = 1 << 20 }
        _ = try await a.transport.start()
        let address = try await b.transport.start()
        a.transport.setPeers([Peer(id: b.id, address: address)])
        try await eventually("the link is up") { a.events.has(.linkUp(b.id, .control)) }
        let failure = await code {
            let bomb = ByteBuffer(repeating: 0, count: 4 << 20)
            _ = try await a.transport.ask(b.id.name, method: 1, payload: bomb, timeout: .seconds(5))
        }
        #expect(failure == .linkLost)
        #expect(b.events.has(.rejected(.oversized)))
        try await eventually("the link is up again") {
            await code {
                _ = try await a.transport.ask(b.id.name, method: 1, payload: ByteBuffer(), timeout: .seconds(1))
            } == nil
        }
        await a.transport.stop()
        await b.transport.stop()
    }

    @Test("A refusal carries its number, the epoch and the owner")
    func moved() async throws {
        try await TestPair.with { pair in
            let outcome = await pair.a.transport.call(
                pair.b.id.name, method: 4, payload: ByteBuffer(), timeout: .seconds(5))
            guard case .failure(let failure) = outcome else {
                Issue.record("the call succeeded")
                return
            }
            #expect(failure.error.code == .moved)
            #expect(failure.epoch == 7)
            #expect(failure.owner?.rawValue == "n9")
            #expect(await code { _ = try await pair.ask(99) } == .methodUnknown)
        }
    }

    @Test("A node that is no peer cannot be reached: 10010")
    func noRoute() async throws {
        try await TestPair.with { pair in
            let outsider = NodeName(unchecked: "outsider")
            let transport = pair.a.transport
            #expect(
                await code {
                    _ = try await transport.ask(outsider, method: 1, payload: ByteBuffer(), timeout: .seconds(1))
                } == .noRoute)
            #expect(await code { try transport.tell(outsider, method: 1, payload: ByteBuffer()) } == .noRoute)
        }
    }
}

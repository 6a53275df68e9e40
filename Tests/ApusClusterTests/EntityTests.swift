import ApusCluster
import ApusCore
import ApusTestKit
import ApusTransport
import ApusWire
import Foundation
import NIOCore
import SwiftProtobuf
import Synchronization
import Testing

private func echo(_ number: UInt64) -> ProbeEcho {
    var echo = ProbeEcho()
    echo.number = number
    return echo
}

private func count(_ number: UInt64) -> ProbeCount {
    var count = ProbeCount()
    count.number = number
    return count
}

@Suite("Entities are reached wherever they live (D1, D5)", .timeLimit(.minutes(2)))
struct EntityTests {
    @Test("A reference reaches the entity on the other node and on this one alike")
    func locationTransparency() async throws {
        try await EntityPair.with { pair in
            pair.adopt(pair.map(revision: 1, owner: pair.b, epoch: 1))
            for node in [pair.a, pair.b] {
                let reply = try await node.registry.ref(ProbeEntity.self, EntityPair.probe).ask(echo(42))
                #expect(reply.number == 42)
            }
            #expect(pair.b.registry.entityCount == 1)
            #expect(pair.a.registry.entityCount == 0)
        }
    }

    @Test("100,000 tells of one sender are handled in their order", arguments: [true, false])
    func order(isRemote: Bool) async throws {
        try await EntityPair.with { pair in
            pair.adopt(pair.map(revision: 1, owner: pair.b, epoch: 1))
            let ref = (isRemote ? pair.a : pair.b).registry.ref(ProbeEntity.self, EntityPair.probe)
            for number in UInt64(0)..<100_000 {
                try ref.tell(count(number))
                if number % 1000 == 999 { _ = try await ref.ask(ProbeReport()) }
            }
            let report = try await ref.ask(ProbeReport())
            #expect(report.count == 100_000)
            #expect(report.outOfOrder == 0)
        }
    }

    @Test("An entity is made with its first message, under its shard's epoch")
    func activation() async throws {
        let facts = SlowEntity.Shared()
        try await EntityPair.with(register: { SlowEntity.register(in: $0, facts: facts) }) { pair in
            pair.adopt(pair.map(revision: 1, owner: pair.b, epoch: 7))
            #expect(facts.read(\.made).isEmpty)
            let ref = pair.a.registry.ref(SlowEntity.self, EntityPair.probe)
            _ = try await ref.ask(echo(0))
            _ = try await ref.ask(echo(0))
            #expect(facts.read(\.made).map(\.epoch) == [7])
            #expect(facts.read(\.made).map(\.address) == [EntityPair.probe])
        }
    }

    @Test("A caller with an old map is told who owns the shard, and gets there once its map is new")
    func moved() async throws {
        try await EntityPair.with { pair in
            pair.a.view.update(pair.map(revision: 1, owner: pair.b, epoch: 1))
            pair.b.view.update(pair.map(revision: 2, owner: pair.a, epoch: 2))
            let ref = pair.a.registry.ref(ProbeEntity.self, EntityPair.probe)
            async let reply = ref.ask(echo(5))
            try await eventually("the caller was told of the epoch") { pair.a.moves.withLock { $0.contains(2) } }
            pair.a.view.update(pair.map(revision: 2, owner: pair.a, epoch: 2))
            let reply3 = try await reply
            #expect(reply3.number == 5)
            #expect(pair.a.registry.entityCount == 1)
        }
    }

    @Test("A message under an epoch that is over is refused, though the owner is the same")
    func staleEpoch() async throws {
        try await EntityPair.with { pair in
            pair.a.view.update(pair.map(revision: 1, owner: pair.b, epoch: 1))
            pair.b.view.update(pair.map(revision: 2, owner: pair.b, epoch: 2))
            let ref = pair.a.registry.ref(ProbeEntity.self, EntityPair.probe)
            #expect(await code { _ = try await ref.ask(echo(5), timeout: .milliseconds(100)) } == .deadlineExceeded)
            #expect(pair.b.registry.entityCount == 0)
        }
    }

    @Test("A shard that leaves takes its entities with it; the next epoch makes new ones")
    func deactivation() async throws {
        let facts = SlowEntity.Shared()
        try await EntityPair.with(register: { SlowEntity.register(in: $0, facts: facts) }) { pair in
            pair.adopt(pair.map(revision: 1, owner: pair.b, epoch: 1))
            let ref = pair.a.registry.ref(SlowEntity.self, EntityPair.probe)
            _ = try await ref.ask(echo(0))
            pair.adopt(pair.map(revision: 2, owner: pair.a, epoch: 2))
            #expect(pair.b.registry.entityCount == 0)
            try await eventually("the entity was told") { facts.read(\.deactivated) == 1 }
            _ = try await ref.ask(echo(0))
            #expect(facts.read(\.made).map(\.epoch) == [1, 2])
        }
    }

    @Test("What an entity answers after its shard left does not count: the call goes to the new owner")
    func answerAfterDeactivation() async throws {
        let facts = SlowEntity.Shared()
        try await EntityPair.with(register: { SlowEntity.register(in: $0, facts: facts) }) { pair in
            pair.adopt(pair.map(revision: 1, owner: pair.b, epoch: 1))
            let ref = pair.a.registry.ref(SlowEntity.self, EntityPair.probe)
            let call = Task { await code { _ = try await ref.ask(echo(1), timeout: .seconds(20)) } }
            try await eventually("the old owner handles it") { facts.read(\.waiting) == 1 }
            pair.adopt(pair.map(revision: 2, owner: pair.a, epoch: 2))
            call.cancel()
            _ = await call.value
            try await eventually("the handler ended") { facts.read(\.cancelled) == 1 }
        }
    }

    @Test("Cancelling the caller cancels the handler on the other node")
    func cancellation() async throws {
        let facts = SlowEntity.Shared()
        try await EntityPair.with(register: { SlowEntity.register(in: $0, facts: facts) }) { pair in
            pair.adopt(pair.map(revision: 1, owner: pair.b, epoch: 1))
            let ref = pair.a.registry.ref(SlowEntity.self, EntityPair.probe)
            let call = Task { await code { _ = try await ref.ask(echo(1), timeout: .seconds(20)) } }
            try await eventually("it is handled") { facts.read(\.waiting) == 1 }
            call.cancel()
            #expect(await call.value == .cancelled)
            try await eventually("the handler was cancelled") { facts.read(\.cancelled) == 1 }
        }
    }

    @Test("Unknown kinds and methods are refused with 10004, here and there")
    func unknown() async throws {
        try await EntityPair.with(register: { SlowEntity.register(in: $0, facts: .init()) }) { pair in
            pair.adopt(pair.map(revision: 1, owner: pair.b, epoch: 1))
            for node in [pair.a, pair.b] {
                let strange = node.registry.ref(ProbeEntity.self, EntityAddress(kind: .app, key: "x"))
                #expect(await code { _ = try await strange.ask(echo(1)) } == .methodUnknown)
                let probe = node.registry.ref(SlowEntity.self, EntityPair.probe)
                #expect(await code { _ = try await probe.ask(ProbeReport()) } == .methodUnknown)
            }
        }
    }

    @Test("Calls over an entity's bound, and entities over the node's, are refused with 10007")
    func bounds() async throws {
        let facts = SlowEntity.Shared()
        var configuration = EntityRegistry.Configuration()
        configuration.entityCountMax = 2
        try await EntityPair.with(
            configuration: configuration, register: { SlowEntity.register(in: $0, facts: facts, mailboxCountMax: 3) }
        ) { pair in
            pair.adopt(pair.map(revision: 1, owner: pair.b, epoch: 1))
            let ref = pair.a.registry.ref(SlowEntity.self, EntityPair.probe)
            let calls = (0..<3).map { _ in Task { await code { _ = try await ref.ask(echo(1), timeout: .seconds(20)) } }
            }
            try await eventually("three are under way") { facts.read(\.waiting) == 3 }
            #expect(await code { _ = try await ref.ask(echo(0)) } == .overloaded)
            let keys = ["k1", "k2"].map { EntityAddress(kind: .probe, key: $0) }
            #expect(await code { _ = try await pair.a.registry.ref(SlowEntity.self, keys[0]).ask(echo(0)) } == nil)
            #expect(
                await code { _ = try await pair.b.registry.ref(SlowEntity.self, keys[1]).ask(echo(0)) } == .overloaded)
            for call in calls { call.cancel() }
            for call in calls { #expect(await call.value == .cancelled) }
        }
    }

    @Test("An idle entity is let go, and made again when it is wanted")
    func passivation() async throws {
        let facts = SlowEntity.Shared()
        try await EntityPair.with(
            register: { SlowEntity.register(in: $0, facts: facts, passivateAfter: .milliseconds(40)) }
        ) { pair in
            pair.adopt(pair.map(revision: 1, owner: pair.b, epoch: 1))
            let ref = pair.a.registry.ref(SlowEntity.self, EntityPair.probe)
            _ = try await ref.ask(echo(0))
            try await eventually("it is let go") { pair.b.registry.entityCount == 0 && facts.read(\.deactivated) == 1 }
            _ = try await ref.ask(echo(0))
            #expect(facts.read(\.made).count == 2)
        }
    }

    @Test("An entity that says it has nothing left to do is let go")
    func voluntaryPassivation() async throws {
        try await EntityPair.with { pair in
            pair.adopt(pair.map(revision: 1, owner: pair.b, epoch: 1))
            _ = try await pair.a.registry.ref(ProbeEntity.self, EntityPair.probe).ask(echo(0))
            pair.b.registry.passivate(EntityPair.probe)
            #expect(pair.b.registry.entityCount == 0)
        }
    }

    @Test("A call whose link is lost under it goes to the next owner if its message may come twice, and only then")
    func linkLost() async throws {
        let calls = Mutex(0)
        let register: (EntityRegistry) -> Void = { registry in
            registry.register(.probe, make: { ProbeEntity($0) }, passivateAfter: nil) { handlers in
                // The first two calls are never answered.
                let wait: @Sendable () async -> Void = {
                    let number = calls.withLock { calls in
                        calls += 1
                        return calls
                    }
                    if number <= 2 { try? await Task.sleep(for: .seconds(60)) }
                }
                handlers.on(ProbeEcho.self) { _, message async throws(ApusError) in
                    await wait()
                    return message
                }
                handlers.on(ProbeCount.self) { _, _ async throws(ApusError) in
                    await wait()
                    return ProbeReport()
                }
            }
        }
        try await EntityPair.with(register: register) { pair in
            pair.adopt(pair.map(revision: 1, owner: pair.b, epoch: 1))
            let ref = pair.a.registry.ref(ProbeEntity.self, EntityPair.probe)
            async let twice = ref.ask(echo(42), timeout: .seconds(20))
            async let once = code { _ = try await ref.ask(count(1), timeout: .seconds(20)) }
            try await eventually("both calls are under way") { calls.withLock { $0 } == 2 }
            await pair.b.stop()
            #expect(await once == .linkLost)
            pair.a.view.update(pair.map(revision: 2, owner: pair.a, epoch: 2))
            #expect(try await twice.number == 42)
            #expect(calls.withLock { $0 } == 3)
        }
    }

    @Test("Without an owner a call waits for one, and ends with 10005 where none comes")
    func noOwner() async throws {
        try await EntityPair.with { pair in
            let ref = pair.a.registry.ref(ProbeEntity.self, EntityPair.probe)
            #expect(await code { _ = try await ref.ask(echo(1), timeout: .milliseconds(60)) } == .deadlineExceeded)
            #expect(await code { try ref.tell(count(1)) } == .noRoute)
            async let late = ref.ask(echo(9))
            pair.adopt(pair.map(revision: 1, owner: pair.b, epoch: 1))
            let reply4 = try await late
            #expect(reply4.number == 9)
        }
    }

    @Test("Calls wait while a shard is handed over, and are answered by the new owner")
    func handover() async throws {
        let facts = SlowEntity.Shared()
        try await EntityPair.with(register: { SlowEntity.register(in: $0, facts: facts) }) { pair in
            pair.adopt(pair.map(revision: 1, owner: pair.b, epoch: 1))
            let ref = pair.a.registry.ref(SlowEntity.self, EntityPair.probe)
            _ = try await ref.ask(count(77))
            try await pair.b.registry.holdUntilQuiet(EntityPair.probe.shard)
            #expect(await code { _ = try await ref.ask(echo(0), timeout: .milliseconds(50)) } == .deadlineExceeded)
            async let waiting = ref.ask(echo(0))
            pair.adopt(pair.map(revision: 2, owner: pair.a, epoch: 2))
            let reply = try await waiting
            #expect(reply.number == 0)
            #expect(facts.read(\.made).map(\.epoch) == [1, 2])
            #expect(pair.b.registry.entityCount == 0)
        }
    }

    @Test("An abandoned hand-over lets calls go on")
    func abandonedHandover() async throws {
        try await EntityPair.with(register: { SlowEntity.register(in: $0, facts: .init()) }) { pair in
            pair.adopt(pair.map(revision: 1, owner: pair.b, epoch: 1))
            let ref = pair.a.registry.ref(SlowEntity.self, EntityPair.probe)
            _ = try await ref.ask(count(77))
            try await pair.b.registry.holdUntilQuiet(EntityPair.probe.shard)
            #expect(await code { _ = try await ref.ask(echo(0), timeout: .milliseconds(50)) } == .deadlineExceeded)
            pair.b.registry.release(EntityPair.probe.shard)
            let reply = try await ref.ask(echo(0))
            #expect(reply.number == 77)
        }
    }
}

@Suite("The entity header on the wire (D2)")
struct EntityHeaderTests {
    @Test("It is read as it was written, and every shorter form is refused with nothing taken")
    func roundTrip() {
        let header = EntityHeader(kind: .device, shard: ShardID(4095), epoch: WireNumber.termMax, key: "camera-1")
        var buffer = ByteBuffer()
        header.encode(into: &buffer)
        for length in 0..<buffer.readableBytes {
            var short = buffer.getSlice(at: 0, length: length) ?? ByteBuffer()
            #expect(EntityHeader(from: &short) == nil)
            #expect(short.readableBytes == length)
        }
        buffer.writeString("payload")
        #expect(EntityHeader(from: &buffer) == header)
        #expect(String(buffer: buffer) == "payload")
    }

    @Test("An epoch that no shard reaches is refused (D3)")
    func epochBound() {
        var buffer = ByteBuffer()
        let header = EntityHeader(kind: .device, shard: ShardID(0), epoch: WireNumber.termMax + 1, key: "camera-1")
        header.encode(into: &buffer)
        #expect(EntityHeader(from: &buffer) == nil)
    }

    @Test("A shard over 4095 or an empty key is refused")
    func limits() {
        var shard = ByteBuffer(bytes: [1, 0x10, 0, 0, 0, 0, 1, 1, 65])
        var key = ByteBuffer(bytes: [1, 0, 0, 0, 0, 0, 1, 0])
        #expect(EntityHeader(from: &shard) == nil)
        #expect(EntityHeader(from: &key) == nil)
    }
}

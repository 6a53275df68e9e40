import ApusCluster
import ApusCore
import ApusTestKit
import ApusWire
import Synchronization
import Testing

@Suite("Calls whose shard leaves under them (D15)", .timeLimit(.minutes(1)))
struct LeavingShardTests {
    private final class Gate: Sendable {
        let isOpen = Atomic<Bool>(false)
        let callCount = Atomic<Int>(0)

        /// The first call waits until the gate is open.
        func pass() async {
            guard callCount.add(1, ordering: .relaxed).newValue == 1 else { return }
            try? await eventually("the gate is open") { self.isOpen.load(ordering: .acquiring) }
        }
    }

    private func register(_ gate: Gate) -> (EntityRegistry) -> Void {
        { registry in
            registry.register(.probe, make: { ProbeEntity($0) }) { handlers in
                handlers.on(ProbeCount.self) { _, _ async throws(ApusError) in
                    await gate.pass()
                    return ProbeReport()
                }
            }
        }
    }

    /// Asks while the shard goes from b to a under the handler, and answers the error and how often it ran.
    private func leave(
        asked isRemote: Bool, _ call: EntityCall
    ) async throws -> (error: ErrorCode?, callCount: Int) {
        let gate = Gate()
        var result: (ErrorCode?, Int) = (nil, 0)
        try await EntityPair.with(register: register(gate)) { pair in
            pair.adopt(pair.map(revision: 1, owner: pair.b, epoch: 1))
            let ref = (isRemote ? pair.a : pair.b).registry.ref(ProbeEntity.self, EntityPair.probe)
            let asking = Task { () -> ErrorCode? in
                do throws(ApusError) {
                    _ = try await ref.ask(ProbeCount(), call: call)
                    return nil
                } catch {
                    return error.code
                }
            }
            try await eventually("the call is under way") { gate.callCount.load(ordering: .relaxed) == 1 }
            pair.adopt(pair.map(revision: 2, owner: pair.a, epoch: 2))
            gate.isOpen.store(true, ordering: .releasing)
            result = (await asking.value, gate.callCount.load(ordering: .relaxed))
        }
        return result
    }

    @Test("One that may have been carried out is not repeated; its caller is told so", arguments: [true, false])
    func once(isRemote: Bool) async throws {
        let (error, callCount) = try await leave(asked: isRemote, EntityCall())
        #expect(error == .linkLost)
        #expect(callCount == 1)
    }

    @Test("One with a request id goes on to the next owner", arguments: [true, false])
    func repeated(isRemote: Bool) async throws {
        var call = EntityCall()
        call.request = RequestID(high: 1, low: 1)
        let (error, callCount) = try await leave(asked: isRemote, call)
        #expect(error == nil)
        #expect(callCount == 2)
    }

    /// A handler on b waits at the gate while the body runs.
    private func withCallInProgress(
        _ body: (EntityPair, Gate, Task<ErrorCode?, Never>) async throws -> Void
    ) async throws {
        let gate = Gate()
        try await EntityPair.with(register: register(gate)) { pair in
            pair.adopt(pair.map(revision: 1, owner: pair.b, epoch: 1))
            let ref = pair.a.registry.ref(ProbeEntity.self, EntityPair.probe)
            let asking = Task { await code { _ = try await ref.ask(ProbeCount(), timeout: .seconds(20)) } }
            try await eventually("the call is in progress") { gate.callCount.load(ordering: .relaxed) == 1 }
            try await body(pair, gate, asking)
        }
    }

    @Test("A hand-over waits for calls in progress")
    func handoverWaits() async throws {
        try await withCallInProgress { pair, gate, asking in
            let held = Gate()
            try await withThrowingTaskGroup(of: Void.self) { group in
                group.addTask {
                    try await pair.b.registry.holdUntilQuiet(EntityPair.probe.shard)
                    held.isOpen.store(true, ordering: .releasing)
                }
                try await Task.sleep(for: .milliseconds(40))
                #expect(held.isOpen.load(ordering: .acquiring) == false)
                gate.isOpen.store(true, ordering: .releasing)
                try await group.waitForAll()
            }
            #expect(await asking.value == nil)
        }
    }

    @Test("A hand-over waits for calls in progress no longer than 200 ms")
    func handoverWaitIsBounded() async throws {
        try await withCallInProgress { pair, gate, asking in
            let start = MonotonicTime.now()
            #expect(
                await code { try await pair.b.registry.holdUntilQuiet(EntityPair.probe.shard) } == .deadlineExceeded)
            let time = MonotonicTime.now() - start
            #expect(time >= EntityRegistry.quietTimeout)
            #expect(time < EntityRegistry.quietTimeout + .seconds(2), "\(time)")
            #expect(EntityRegistry.quietTimeout == .milliseconds(200))
            #expect(EntityRegistry.quietTimeout < HandoverStateMachine.Configuration().holdTimeout)
            pair.b.registry.release(EntityPair.probe.shard)
            gate.isOpen.store(true, ordering: .releasing)
            #expect(await asking.value == nil)
        }
    }
}

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

    /// Asks while the shard goes from b to a under the handler, and answers the error and how often it ran.
    private func leave(
        asked isRemote: Bool, _ call: EntityCall
    ) async throws -> (error: ErrorCode?, callCount: Int) {
        let gate = Gate()
        let register: (EntityRegistry) -> Void = { registry in
            registry.register(.probe, make: { ProbeEntity($0) }) { handlers in
                handlers.on(ProbeCount.self) { _, _ async throws(ApusError) in
                    await gate.pass()
                    return ProbeReport()
                }
            }
        }
        var result: (ErrorCode?, Int) = (nil, 0)
        try await EntityPair.with(register: register) { pair in
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
}

import ApusCluster
import ApusCore
import ApusTestKit
import ApusTracing
import ApusWire
import SwiftProtobuf
import Synchronization
import Testing

@Suite("Traces through entities", .timeLimit(.minutes(1)))
struct EntityTraceTests {
    private static let counter = EntityAddress(kind: .probe, key: "counter-1")

    /// Entities that count.
    private static func register(_ registry: EntityRegistry, _ states: KeptStates) {
        var definition = EntityDefinition<ProbeReported>(.probe, name: "counter", durability: .replicated)
        definition.on(ProbeEcho.self) { content, message, _ throws(ApusError) in
            content.count += message.number
            return ProbeEcho.with { $0.number = content.count }
        }
        registry.register(definition, states: states)
    }

    @Test("Messages that wait for one another keep their traces, and one without a trace gets none")
    func waiting() async throws {
        let ended = Mutex<[FinishedSpan]>([])
        let tracer = SpanTracer(sampleRatio: 1) { span in ended.withLock { $0.append(span) } }
        let states = KeptStates()
        try await EntityPair.with(tracer: tracer, register: { Self.register($0, states) }) { pair in
            pair.adopt(pair.map(revision: 1, owner: pair.b, epoch: 1))
            let ref = pair.a.registry.ref(EntityCell<ProbeReported>.self, Self.counter)
            let message = ProbeEcho.with { $0.number = 1 }
            let roots = (0..<4).compactMap { tracer.request("root \($0)", of: nil, [:]) }
            states.hold()
            await withTaskGroup(of: Void.self) { group in
                for root in roots {
                    group.addTask { await root.run { _ = try? await ref.ask(message) } }
                    group.addTask { _ = try? await ref.ask(message) }
                }
                try? await eventually("the changes are written") { states.heldCount > 0 }
                states.release()
            }
            let count = try await ref.ask(ProbeEcho()).number
            #expect(count == 8, "each message was carried out")
            // Of each trace both ends of the message.
            let spans = ended.withLock { $0 }
            #expect(roots.count == 4 && spans.count == 8)
            for root in roots {
                var parent = root.trace.span
                for _ in 0..<2 {
                    let span = try #require(spans.first { $0.parent == parent })
                    #expect(span.trace.traceID == root.trace.traceID && !span.isFailure)
                    parent = span.trace.span
                }
            }
        }
    }
}

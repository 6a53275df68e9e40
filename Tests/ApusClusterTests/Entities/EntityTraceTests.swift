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
    private static let first = EntityAddress(kind: .probe, key: "counter-1")
    private static let second = EntityAddress(kind: .probe, key: "counter-2")

    /// Entities that count, and that have the second one count.
    private static func register(_ registry: EntityRegistry, _ states: KeptStates) {
        var definition = EntityDefinition<ProbeReported>(.probe, name: "counter", durability: .replicated)
        definition.on(ProbeEcho.self) { content, message, _ throws(ApusError) in
            content.count += message.number
            return ProbeEcho.with { $0.number = content.count }
        }
        definition.onTurn(ProbeCount.self) { turn, message async throws(ApusError) in
            _ = try await turn.ask(ProbeReported.self, Self.second, ProbeEcho.with { $0.number = message.number })
            return ProbeReport()
        }
        registry.register(definition, states: states)
    }

    @Test("Messages that wait for one another keep their traces, and one without a trace gets none")
    func turns() async throws {
        let ended = Mutex<[FinishedSpan]>([])
        let tracer = SpanTracer(sampleRatio: 1) { span in ended.withLock { $0.append(span) } }
        let states = KeptStates()
        try await EntityPair.with(tracer: tracer, register: { Self.register($0, states) }) { pair in
            // The first is at b, the second at a.
            try #require(Self.first.shard != Self.second.shard)
            var map = pair.map(revision: 1, owner: pair.b, epoch: 1)
            map.shards[Int(Self.second.shard.rawValue)] = ShardAssignment(owner: MemberSlot(rawValue: 0), epoch: 1)
            pair.adopt(map)
            let ref = pair.a.registry.ref(EntityCell<ProbeReported>.self, Self.first)
            let message = ProbeCount.with { $0.number = 1 }
            let roots = (0..<4).compactMap { tracer.request("root \($0)", of: nil, [:]) }
            await withTaskGroup(of: Void.self) { group in
                for root in roots {
                    group.addTask { await root.run { _ = try? await ref.ask(message) } }
                    group.addTask { _ = try? await ref.ask(message) }
                }
            }
            let count = try await pair.a.registry.ref(EntityCell<ProbeReported>.self, Self.second)
                .ask(ProbeEcho()).number
            #expect(count == 8, "each message was carried out")
            // Of each trace both ends of the call to the first, and of its call to the second.
            let spans = ended.withLock { $0 }
            #expect(roots.count == 4 && spans.count == 16)
            for root in roots {
                var parent = root.trace.span
                for _ in 0..<4 {
                    let span = try #require(spans.first { $0.parent == parent })
                    #expect(span.trace.traceID == root.trace.traceID && !span.isFailure)
                    parent = span.trace.span
                }
            }
        }
    }
}

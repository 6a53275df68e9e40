import ApusCluster
import ApusCore
import ApusWire
import SwiftProtobuf
import Testing

private typealias Text = Google_Protobuf_StringValue

extension Google_Protobuf_StringValue: EntityContentMessage {}

@Suite("Texts in the states of entities", .timeLimit(.minutes(1)))
struct EntityTextTests {
    /// An entity whose state is the last name that it was told.
    private static func register(_ registry: EntityRegistry) {
        var definition = EntityDefinition<Text>(.probe, name: "text", durability: .none)
        definition.on(ProbeEcho.self) { content, message, _ throws(ApusError) in
            content.value = message.name
            return ProbeEcho()
        }
        definition.onReading(ProbeReport.self) { content, _, _ throws(ApusError) in
            .with { $0.count = UInt64(content.value.utf8.count) }
        }
        registry.register(definition, states: UnkeptStates())
    }

    @Test("A change of a text to another Unicode normalization is a change of the state")
    func normalization() async throws {
        try await EntityPair.with(register: Self.register) { pair in
            pair.adopt(pair.map(revision: 1, owner: pair.b, epoch: 1))
            let text = pair.b.registry.ref(EntityCell<Text>.self, EntityPair.probe)
            for name in ["\u{e9}", "e\u{301}", "\u{e9}"] {
                _ = try await text.ask(ProbeEcho.with { $0.name = name })
                let report = try await text.ask(ProbeReport())
                #expect(report.count == UInt64(name.utf8.count))
            }
        }
    }

    @Test("States are the same if they are encoded alike")
    func encoding() {
        let (composed, decomposed) = (Text("\u{e9}"), Text("e\u{301}"))
        #expect(composed == decomposed)
        #expect(!composed.isExactly(decomposed))
        #expect(composed.isExactly(Text("\u{e9}")) && !composed.isExactly(Text("e")))
    }
}

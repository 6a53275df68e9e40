import ApusCore
import ApusGrammar
import Testing

@Suite("Sentences that nothing may follow that changes their meaning (VA)")
struct CompletenessTests {
    /// The intent, and the slots without the area of what is named.
    private static func meaning(_ match: GrammarMatch) -> [String] {
        [match.intent]
            + match.slots.filter { !$0.name.isExactly("area") }.map { "\($0.name)=\($0.value)" }.sorted()
    }

    @Test("Every longer sentence means the same as the complete one with which it begins")
    func beginnings() throws {
        let grammar = try GrammarHome.grammar(.english)
        var completeCount = 0
        for sample in grammar.sample(count: 12_000, seed: 9) {
            let words = sample.text.split(separator: " ")
            for count in 1..<max(1, words.count) {
                let text = words.prefix(count).joined(separator: " ")
                guard grammar.isComplete(text) else { continue }
                completeCount += 1
                let (short, long) = (grammar.match(text).all, grammar.match(sample.text, context: sample.context).all)
                let meanings = Set(short.map(Self.meaning))
                #expect(
                    long.contains { meanings.contains(Self.meaning($0)) }, "\"\(text)\" begins \"\(sample.text)\"")
            }
        }
        #expect(completeCount > 100, "\(completeCount)")
    }

    @Test("No Chinese sentence is complete")
    func chinese() throws {
        let grammar = try GrammarHome.grammar(.chinese)
        let samples = grammar.sample(count: 200, seed: 9)
        #expect(!samples.isEmpty && !samples.contains { grammar.isComplete($0.text) })
    }

    @Test("A name with which another one begins is not complete")
    func names() throws {
        func grammar(_ names: [String]) throws -> Grammar {
            let yaml = try #require(VoiceTemplates.yaml(of: .english))
            let values = names.enumerated().map {
                GrammarValue($0.element, value: "lamp-\($0.offset)", context: [VoiceKind.light.fact])
            }
            return try Grammar(GrammarTemplates(GrammarSource(yaml: yaml)), lists: [GrammarList("name", values)])
        }
        #expect(try grammar(["Hall lamp", "desk lamp"]).isComplete("turn on the hall lamp"))
        #expect(try !grammar(["Hall lamp", "hall lamp two"]).isComplete("turn on the hall lamp"))
        #expect(try grammar(["hall lamp", "hall lamp two"]).isComplete("turn on the hall lamp two"))
        #expect(try !grammar(["hall lamp", "hall lamp"]).isComplete("turn on the hall lamp"), "which of the two?")
        for text in ["open the hall lamp", "set a timer for ten minutes", "stop", "cancel", "no", "turn on", ""] {
            #expect(try !grammar(["hall lamp"]).isComplete(text), "\(text)")
        }
    }
}

import ApusCore
import ApusGrammar
import ApusProvider
import ApusSphinx
import Testing

@Suite("Grammars in JSGF, as a recognizer follows them (VA)")
struct SpeechGrammarTests {
    /// A grammar by chance, as text and as its sentences.
    private struct Made {
        var text: String
        var sentences: Set<[String]>

        init(_ random: inout SeededRandom, depth: Int) {
            switch Int.random(in: 0..<(depth > 3 ? 2 : 6), using: &random) {
            case 0, 1:
                let word = String(
                    UnicodeScalar(UInt8.random(in: UInt8(ascii: "a")...UInt8(ascii: "d"), using: &random)))
                (text, sentences) = (word, [[word]])
            case 2, 3:
                let parts = (0..<Int.random(in: 1...3, using: &random)).map { _ in
                    Made(&random, depth: depth + 1)
                }
                text = parts.map { "( \($0.text) )" }.joined(separator: " ")
                sentences = parts.reduce([[]]) { all, part in
                    Set(all.flatMap { first in part.sentences.map { first + $0 } })
                }
            case 4:
                let parts = (0..<Int.random(in: 1...3, using: &random)).map { _ in
                    Made(&random, depth: depth + 1)
                }
                text = parts.map(\.text).joined(separator: " | ")
                sentences = parts.reduce([]) { $0.union($1.sentences) }
            default:
                let part = Made(&random, depth: depth + 1)
                (text, sentences) = ("[\(part.text)]", part.sentences.union([[]]))
            }
        }
    }

    private static func head(_ rules: String) -> String { "#JSGF V1.0;\ngrammar apus;\n\(rules)\n" }

    private static func numbers(_ words: some Sequence<String>) -> [ExactText: Int32] {
        Dictionary(uniqueKeysWithValues: words.enumerated().map { (ExactText($0.element), Int32($0.offset)) })
    }

    @Test("A graph has exactly the sentences of its grammar", arguments: 0..<400 as Range<UInt64>)
    func exact(seed: UInt64) throws {
        var random = SeededRandom(seed: seed)
        let (first, second) = (Made(&random, depth: 0), Made(&random, depth: 1))
        let text = Self.head("public <all> = ( \(first.text) ) [ <rest> ];\n<rest> = \(second.text);")
        var wanted = first.sentences.union(
            first.sentences.flatMap { first in second.sentences.map { first + $0 } })
        wanted.remove([])
        let numbers = Self.numbers(["a", "b", "c", "d"])
        guard !wanted.isEmpty else { return }
        let sentences = try SentenceGraph(try SpeechGrammar(jsgf: text), numbers: numbers)
        let graph = sentences.graph(words: ["a", "b", "c", "d"])
        var found: Set<[String]> = []
        var open: [(state: Int32, words: [String])] = [(0, [])]
        while let (state, words) = open.popLast() {
            if state == graph.final { found.insert(words) }
            for arc in graph.arcs where arc.from == state {
                open.append((arc.to, words + [graph.words[Int(arc.word)]]))
            }
        }
        #expect(found == wanted, "seed \(seed): \(text)")
        for sentence in wanted {
            let place = try #require(sentences.place(of: sentence.map { numbers[ExactText($0)] ?? -1 }))
            let isBeginning = wanted.contains { $0.count > sentence.count && $0.starts(with: sentence) }
            #expect(place.isSentence && place.isBeginning == isBeginning, "seed \(seed): \(sentence) of \(text)")
        }
    }

    @Test("The sentences of a home are those of its grammar, and their graph is small", arguments: [40, 256])
    func home(devices: Int) throws {
        let rooms = ["kitchen", "hall", "bedroom", "garden", "office", "attic", "cellar", "garage"]
        let things: [(String, VoiceKind)] = [
            ("lamp", .light), ("light", .light), ("fan", .fan), ("radio", .speaker), ("heater", .climate),
            ("camera", .camera), ("blinds", .cover), ("socket", .socket),
        ]
        let names = (0..<devices).map { number in
            let thing = things[number / rooms.count % things.count]
            let text = "\(rooms[number % rooms.count]) \(thing.0)" + (number < 64 ? "" : " \(number / 64 + 1)")
            return GrammarValue(text, value: "d\(number)", context: [thing.1.fact])
        }
        let yaml = try #require(VoiceTemplates.yaml(of: .english))
        let grammar = try Grammar(
            GrammarTemplates(GrammarSource(yaml: yaml)),
            lists: [
                GrammarList("name", names), GrammarList("area", rooms.map { GrammarValue($0, value: $0) }),
                GrammarList("contact", [GrammarValue("grandma", value: "c")]),
                GrammarList("screen", [GrammarValue("kitchen screen", value: "s")]),
            ])
        let text = try grammar.jsgf(byteCountMax: 300_000)
        let speech = try SpeechGrammar(jsgf: text)
        let numbers = Self.numbers(speech.words.sorted())
        let began = MonotonicTime.now()
        let sentences = try SentenceGraph(speech, numbers: numbers)
        let graph = sentences.graph(words: speech.words.sorted())
        let seconds = (MonotonicTime.now() - began).milliseconds / 1000
        #expect(seconds < 20, "\(text.utf8.count) bytes, \(graph.stateCount) states, \(graph.arcs.count) transitions")
        #expect(graph.stateCount < 20_000 && graph.arcs.count < 60_000)
        for sample in grammar.sample(count: 2000, seed: 5) {
            let words = sample.text.split(separator: " ").compactMap { numbers[ExactText(String($0))] }
            #expect(sentences.place(of: words)?.isSentence ?? false, "\(sample.text)")
        }
    }

    @Test("Words without a pronunciation are left out, with the sentences that need them")
    func unknown() throws {
        let grammar = try SpeechGrammar(jsgf: Self.head("public <all> = turn on the (lamp | qqq) | [the] www;"))
        let sentences = try SentenceGraph(grammar, numbers: Self.numbers(["turn", "on", "the", "lamp"]))
        #expect(sentences.graph(words: []).arcs.count == 4)
        #expect(sentences.place(of: [2]) == nil)
        #expect(throws: ApusError(.configurationInvalid)) {
            try SentenceGraph(grammar, numbers: Self.numbers(["turn", "the"]))
        }
    }

    @Test(
        "What is not such a grammar is refused with 10022",
        arguments: [
            "", "<a> = b;", "public <a> = b; public <c> = d;", "public <a> = (b;", "public <a> = b);", "public <a> b;",
            "public <a> = b*;", "public <a> = /2/ b | c;", "public <a> = b {tag};", "public <a> = b; <a> = c;",
            "public <a> = [b", "import <x.y>; public <a> = b;",
            "public <a> = " + String(repeating: "(", count: 70) + "b" + String(repeating: ")", count: 70) + ";",
        ])
    func refused(rules: String) {
        #expect(throws: ApusError(.configurationInvalid)) { try SpeechGrammar(jsgf: Self.head(rules)) }
    }

    @Test("A grammar that explodes, or contains itself, is refused in bounded time")
    func explosion() throws {
        let numbers = Self.numbers(["a", "b"])
        func rules(_ count: Int, _ next: (String) -> String, _ last: String) -> String {
            let all = (1...count).map { "<r\($0)> = \(next("<r\($0 + 1)>"));" }.joined(separator: "\n")
            return Self.head("public <r0> = <r1>;\n\(all)\n<r\(count + 1)> = \(last);")
        }
        let began = MonotonicTime.now()
        for text in [
            rules(40, { "\($0) \($0)" }, "a"), rules(40, { "\($0) \($0)" }, "[a]"), rules(40, { "\($0) \($0)" }, "()"),
            rules(40, { "\($0) | \($0)" }, "a"), rules(200, { $0 }, "a"), rules(3, { $0 }, "<r1>"),
            rules(3, { $0 }, "<none>"),
            // Its states are all subsets of the last 20 words.
            Self.head(
                "public <a> = " + (0..<40).map { _ in "[a | b]" }.joined(separator: " ") + " a "
                    + (0..<20).map { _ in "(a | b)" }.joined(separator: " ") + ";"),
            Self.head("public <a> = " + Array(repeating: "a", count: 100_000).joined(separator: " ") + ";"),
        ] {
            #expect(throws: ApusError.self, "\(text.prefix(80))") {
                _ = try SentenceGraph(try SpeechGrammar(jsgf: text), numbers: numbers)
            }
        }
        #expect(MonotonicTime.now() - began < .seconds(30))
    }
}

import ApusCore
import ApusGrammar
import Testing

@Suite("Texts and templates by chance")
struct GrammarFuzzTests {
    /// Pieces of the notation, words of the templates and other characters.
    private static let pieces = [
        "(", ")", "[", "]", "{", "}", "<", ">", "|", ";", ":", "\\", " ", "  ", "turn", "on", "a", "lamp", "{name}",
        "<the>",
        "{size:x}", "[the]", "(a|b)", "{1..5}", "{9..1}", "{a..b,c}", "twenty", "five", "百", "五", "分之", "%", "'", "-",
        "7", "0.5",
        "\u{0}", "\u{301}", "é", "👩‍👩‍👧", "\u{ffff}", "ﬃ", "İ", "ß", "。", "\n", "灯", "99999999999999999999", "<loop>",
        "{rest}",
    ]

    private static func text(_ random: inout SeededRandom, countMax: Int) -> String {
        (0..<Int.random(in: 0...countMax, using: &random)).map { _ in pieces.randomElement(using: &random) ?? "" }
            .joined()
    }

    private static func source(_ sentences: [String], _ language: GrammarLanguage) -> GrammarSource {
        var source = GrammarSource(language)
        source.rules = [GrammarRule("the", "[the|my]"), GrammarRule("loop", "x <loop>")]
        source.lists = [
            GrammarList("size", [GrammarValue("small"), GrammarValue("(big|large)", value: "large")]),
            GrammarList("rest", .wildcard),
        ]
        source.intents = [.init("Test", [.init(sentences)])]
        return source
    }

    @Test("Templates by chance compile, or have an error with a column or a bound", arguments: ["en", "zh-CN", "de"])
    func templates(language: String) throws {
        var random = SeededRandom(seed: 11)
        var (compiledCount, refusedCount, matchedCount) = (0, 0, 0)
        let names = [GrammarList("name", [GrammarValue("lamp", value: "1"), GrammarValue("五灯", value: "2")])]
        for _ in 0..<4000 {
            let sentence = Self.text(&random, countMax: 12)
            do {
                let source = Self.source([sentence], GrammarLanguage(language))
                let grammar = try Grammar(GrammarTemplates(source), lists: names)
                compiledCount += 1
                let sample = grammar.sample(count: 1, seed: random.next()).first
                if let sample {
                    matchedCount += 1
                    #expect(GrammarExpansionTests.hasMeaning(sample, in: grammar), "\(sentence): \(sample)")
                }
                _ = grammar.verdict(of: Self.text(&random, countMax: 12))
            } catch {
                refusedCount += 1
                #expect(error.code == .badParameter || error.code == .frameTooLarge)
                #expect(error.message.contains("intent Test"), "\(error)")
            }
        }
        #expect(compiledCount > 400 && refusedCount > 1000 && matchedCount > 200, "\(compiledCount) \(matchedCount)")
    }

    @Test("Templates that are made well by chance have sentences that match themselves", arguments: ["en", "zh-CN"])
    func trees(language: String) throws {
        var random = SeededRandom(seed: 12)
        var count = 0
        for _ in 0..<400 {
            let sentences = (0..<3).map { _ in Self.template(&random, depth: 4) }
            let grammar = try Grammar(
                GrammarTemplates(Self.source(sentences, GrammarLanguage(language))),
                lists: [GrammarList("name", [GrammarValue("lamp 5", value: "1"), GrammarValue("灯", value: "2")])])
            for sample in grammar.sample(count: 5, seed: random.next()) {
                count += 1
                #expect(GrammarExpansionTests.hasMeaning(sample, in: grammar), "\(sentences): \(sample)")
                let verdict = grammar.verdict(of: sample.text)
                #expect(verdict == .whole || verdict == .wholeAndBeginning, "\(sentences): \(sample)")
            }
        }
        #expect(count > 1000)
    }

    private static func template(_ random: inout SeededRandom, depth: Int) -> String {
        let children = { (random: inout SeededRandom, separator: String) in
            (0..<Int.random(in: 1...3, using: &random)).map { _ in template(&random, depth: depth - 1) }
                .joined(separator: separator)
        }
        switch depth == 0 ? 0 : Int.random(in: 0...8, using: &random) {
        case 0, 1: return ["turn", "on", "twenty", "five", "七", "百", "灯", "it's"].randomElement(using: &random) ?? "a"
        case 2: return "(\(children(&random, " | ")))"
        case 3: return "[\(children(&random, "|"))]"
        case 4: return "(\(children(&random, " ; ")))"
        case 5: return ["{name}", "{size:x}", "{0..30:y}", "<the> x"].randomElement(using: &random) ?? "a"
        default: return children(&random, " ")
        }
    }

    @Test("Bytes by chance are matched without a trap, with or without meaning", arguments: ["en", "zh-CN"])
    func bytes(language: String) throws {
        let grammar = try GrammarHome.grammar(GrammarLanguage(language))
        let samples = grammar.sample(count: 200, seed: 1)
        var random = SeededRandom(seed: 13)
        var meaningCount = 0
        for index in 0..<2000 {
            // A sentence with some bytes replaced, or only bytes by chance.
            var bytes = index % 2 == 0 ? Array(samples[index % samples.count].text.utf8) : []
            for _ in 0..<Int.random(in: 0...3, using: &random) where !bytes.isEmpty {
                bytes[Int.random(in: 0..<bytes.count, using: &random)] = UInt8.random(in: .min ... .max, using: &random)
            }
            if bytes.isEmpty { bytes = (0..<40).map { _ in UInt8.random(in: .min ... .max, using: &random) } }
            let text = String(decoding: bytes, as: UTF8.self)
            let matches = grammar.match(text, context: VoiceCase.context)
            meaningCount += matches.isEmpty ? 0 : 1
            for slot in matches.all.flatMap(\.slots) {
                guard let range = slot.range else { continue }
                #expect(String(decoding: Array(text.utf8)[range], as: UTF8.self) == slot.text)
            }
            let isWhole = [.whole, .wholeAndBeginning].contains(grammar.verdict(of: text, context: VoiceCase.context))
            #expect(isWhole == !matches.isEmpty, "\(text)")
        }
        #expect(meaningCount > 200)
    }

    @Test("Files by chance are read, or have an error")
    func files() {
        var random = SeededRandom(seed: 14)
        let lines = [
            "language: en", "intents:", "  A:", "    data:", "      - sentences: [a]", "        slots: {a: b}",
            "lists:",
            "  x: [a, b]", "  y: {range: {from: 1, to: 5}}", "expansion_rules: {a: b}", "skip_words: [a]", "  - x", "{",
            "&a",
            "*a", "- [", "? b", "\t", "  z: {wildcard: true}", "        requires_context: {a: }",
        ]
        var (readCount, refusedCount) = (0, 0)
        for _ in 0..<3000 {
            let count = Int.random(in: 0...8, using: &random)
            let text = (0..<count).map { _ in lines.randomElement(using: &random) ?? "" }.joined(separator: "\n")
            do {
                _ = try GrammarSource(yaml: text)
                readCount += 1
            } catch {
                refusedCount += 1
                #expect(error.code == .badParameter, "\(error)")
            }
        }
        #expect(readCount > 20 && refusedCount > 1000, "\(readCount)")
    }

    @Test("Matches have one order, and do not depend on what was matched before")
    func determinism() throws {
        for language in [GrammarLanguage.english, .chinese] {
            let (first, second) = (try GrammarHome.grammar(language), try GrammarHome.grammar(language))
            #expect(first.hash == second.hash)
            let texts = first.sample(count: 100, seed: 9).map(\.text)
            let forward = texts.map { first.match($0, context: VoiceCase.context) }
            let backward = texts.reversed().map { second.match($0, context: VoiceCase.context) }
            #expect(forward == backward.reversed())
        }
    }
}

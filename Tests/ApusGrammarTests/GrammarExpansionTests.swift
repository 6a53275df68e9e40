import ApusCore
import ApusGrammar
import Testing

@Suite("Sentences that are made of a grammar")
struct GrammarExpansionTests {
    /// True if a text has the meaning that its expansion says, with the slots.
    static func hasMeaning(_ sample: GrammarExpansion, in grammar: Grammar) -> Bool {
        grammar.match(sample.text, context: sample.context).all.contains { match in
            match.intent == sample.intent && match.slots.count == sample.slots.count
                && sample.slots.allSatisfy { fact in
                    match.slots.contains { slot in
                        slot.name == fact.name && slot.candidates.contains { $0.value == fact.value }
                    }
                }
        }
    }

    @Test("2,000 sentences by chance match with their own intent and slots", arguments: ["en", "zh-CN"])
    func samples(language: String) throws {
        let grammar = try GrammarHome.grammar(GrammarLanguage(language))
        let samples = grammar.sample(count: 2000, seed: 42)
        #expect(samples.count == 2000)
        for sample in samples {
            #expect(Self.hasMeaning(sample, in: grammar), "\(sample)")
        }
        #expect(Set(samples.map(\.intent)) == Set(VoiceIntent.allCases.map(\.rawValue)))
    }

    @Test(
        "A recognizer gets every sentence of a small template, some of a large one, none twice, and the same each time",
        arguments: ["en", "zh-CN"])
    func spoken(language: String) throws {
        let grammar = try GrammarHome.grammar(GrammarLanguage(language))
        let texts = grammar.spokenSentences(countMax: 20_000, templateMax: 400)
        #expect((1000...20_000).contains(texts.count) && Set(texts).count == texts.count, "\(texts.count)")
        #expect(texts == grammar.spokenSentences(countMax: 20_000, templateMax: 400))
        let words = language == "en" ? ["stop", "yes", "what time is it"] : ["停止", "几点了"]
        for text in words { #expect(texts.contains(text), "\(text)") }
        for text in texts.enumerated() where text.offset % 50 == 0 {
            let match = grammar.match(text.element, context: VoiceCase.context)
            #expect(!match.all.isEmpty, "\(text.element)")
        }
        #expect(grammar.spokenSentences(countMax: 7, templateMax: 400) == Array(texts.prefix(7)))
    }

    @Test("The first sentences of each language match with their own intent and slots", arguments: ["en", "zh-CN"])
    func expansions(language: String) throws {
        let grammar = try GrammarHome.grammar(GrammarLanguage(language))
        var count = 0
        for (index, expansion) in grammar.expansions(countMax: 20_000).enumerated() {
            count += 1
            guard index % 40 == 0 else { continue }
            #expect(Self.hasMeaning(expansion, in: grammar), "\(expansion)")
        }
        #expect(count == 20_000)
    }

    @Test(
        "A sentence of one intent means no other, but that 打开大门 opens a device and unlocks it",
        arguments: [("en", []), ("zh-CN", ["DeviceOpen DeviceUnlock"])])
    func conflicts(language: String, known: [String]) throws {
        let grammar = try GrammarHome.grammar(GrammarLanguage(language))
        var found: Set<String> = []
        for sample in grammar.sample(count: 4000, seed: 77) {
            let intents = Set(grammar.match(sample.text, context: sample.context).all.map(\.intent))
            if intents.count > 1 { found.insert(intents.sorted().joined(separator: " ")) }
        }
        #expect(found == Set(known))
    }

    @Test("All sentences of a small grammar, in order, each once")
    func all() throws {
        let lists = "  size: [small, {in: (big|large), out: large}]\n  rest: {wildcard: true}"
        let grammar = try GrammarHome.grammar(
            ["(a|b) [c]", "{size} [{20..21:x}]", "say {rest}", "d [{rest}]"], lists: lists)
        let expansions = Array(grammar.expansions(countMax: 100))
        #expect(
            expansions.map(\.text) == [
                "a c", "a", "b c", "b", "small twenty", "small twenty one", "small", "big twenty", "big twenty one",
                "big",
                "large twenty", "large twenty one", "large", "d",
            ])
        #expect(grammar.sentenceCount == 14)
        #expect(expansions[8].slots == [GrammarFact("size", "large"), GrammarFact("x", "21")])
        #expect(Array(grammar.expansions(countMax: 3)).count == 3)
        #expect(Array(grammar.expansions(countMax: 0)).isEmpty)
    }

    @Test("Sentences are counted with saturation, and the first ones are made of any number of them")
    func saturation() throws {
        let parts = (0..<8).map { "{0..9999:a\($0)}" }.joined(separator: " x ")
        let grammar = try GrammarHome.grammar([parts])
        #expect(grammar.sentenceCount == .max)
        let first = try #require(grammar.expansions(countMax: 1).first { _ in true })
        #expect(first.text == Array(repeating: "zero", count: 8).joined(separator: " x "))
        #expect(Self.hasMeaning(first, in: grammar))
    }

    @Test("The same seed gives the same sentences, and another one gives others")
    func seeds() throws {
        let grammar = try GrammarHome.grammar(.english)
        let first = grammar.sample(count: 50, seed: 1)
        #expect(first == grammar.sample(count: 50, seed: 1))
        #expect(first != grammar.sample(count: 50, seed: 2))
        let calls = grammar.sample(count: 20, seed: 1, intent: "CallStart")
        #expect(calls.count == 20 && calls.allSatisfy { $0.intent == "CallStart" })
        #expect(grammar.sample(count: 20, seed: 1, intent: "Unknown").isEmpty)
        #expect(grammar.sample(count: 0, seed: 1).isEmpty)
    }

    @Test("An expansion names the context that it needs, and values of other kinds are not in it")
    func contexts() throws {
        let grammar = try GrammarHome.grammar(.english)
        let locks = grammar.sample(count: 200, seed: 3, intent: "DeviceLock")
        #expect(Set(locks.compactMap { $0.slots.value(of: "name") }) == ["garage-1", "lock-1", "lock-2"])
        let lights = grammar.sample(count: 300, seed: 3, intent: "DeviceOn")
        #expect(lights.contains { $0.context.value(of: "area") != nil })
        #expect(lights.allSatisfy { $0.context.isEmpty || $0.slots.value(of: "area") == "any" })
    }

    @Test("JSGF has one public rule, words in lower case and numbers as words", arguments: ["en", "zh-CN"])
    func jsgf(language: String) throws {
        let grammar = try GrammarHome.grammar(GrammarLanguage(language))
        let text = try grammar.jsgf(byteCountMax: 200_000)
        let lines = text.split(separator: "\n").dropFirst(2)
        #expect(text.hasPrefix("#JSGF V1.0;\ngrammar apus;\npublic <sentence> = "))
        #expect(lines.count { $0.hasPrefix("public ") } == 1)
        var defined: Set<Substring> = []
        var named: Set<Substring> = []
        for line in lines {
            let parts = line.split(separator: " = ", maxSplits: 1)
            let name = try #require(parts.first?.split(separator: " ").last)
            #expect(defined.insert(name).inserted, "\(name) is defined twice")
            let tokens = try #require(parts.last?.dropLast()).split(separator: " ")
            for token in tokens where !["(", ")", "[", "]", "|"].contains(token) {
                if token.hasPrefix("<") {
                    named.insert(token)
                } else {
                    #expect(token == token.lowercased() && !token.contains { $0.isASCII && $0.isNumber }, "\(token)")
                }
            }
        }
        #expect(named.isSubset(of: defined), "\(named.subtracting(defined))")
        #expect(defined.subtracting(named) == ["<sentence>"])
    }

    @Test("Sentences of some intents are left out for a recognizer")
    func without() throws {
        let grammar = try GrammarHome.grammar(.english)
        let rest = ["Yes", "No"]
        let texts = grammar.spokenSentences(countMax: 20_000, templateMax: 400, without: rest)
        let dropped = Set(grammar.spokenSentences(countMax: 20_000, templateMax: 400)).subtracting(texts)
        #expect(dropped.contains("yes") && dropped.contains("no") && texts.contains("stop"))
        for text in dropped { #expect(grammar.match(text).all.allSatisfy { rest.contains($0.intent) }, "\(text)") }
        let (all, some) = (
            try grammar.jsgf(byteCountMax: 200_000), try grammar.jsgf(byteCountMax: 200_000, without: rest)
        )
        #expect(all.contains("nope") && !some.contains("nope") && some.utf8.count < all.utf8.count)
    }

    @Test("JSGF of a small grammar")
    func smallJSGF() throws {
        let grammar = try GrammarHome.grammar(
            ["turn on [the] {name}", "turn on [the] {9..10:x}", "say {rest}", "what's {area}"],
            lists: "  rest: {wildcard: true}",
            bound: [GrammarList("name", [GrammarValue("TV 21"), GrammarValue("Lamp"), GrammarValue("lamp")])])
        let text = try grammar.jsgf(byteCountMax: 1000)
        #expect(
            text == """
                #JSGF V1.0;
                grammar apus;
                public <sentence> = turn on <n5> <l0> | turn on <n5> <l1>;
                <l0> = tv twenty one | lamp;
                <l1> = nine | ten;
                <n5> = [ the ];

                """)
        expectError(.frameTooLarge, ["100 bytes"]) { _ = try grammar.jsgf(byteCountMax: 100) }
        let empty = try GrammarHome.grammar(["say {name}"])
        expectError(.badParameter, ["no sentence"]) { _ = try empty.jsgf(byteCountMax: 100) }
    }

    @Test("The hash is the same for the same grammar, and another one for any other")
    func hashes() throws {
        func hash(_ sentence: String, value: String = "1", context: [GrammarFact] = [], block: String = "") throws
            -> String
        {
            try GrammarHome.grammar(
                [sentence], block: block,
                bound: [GrammarList("name", [GrammarValue("lamp", value: value, context: context)])]
            ).hash
        }
        let first = try hash("turn on {name}")
        #expect(first == "7b1597f9f821f26a9f1374b8227c0d8d")
        #expect(try first == hash("turn on {name}"))
        let others = [
            try hash("turn off {name}"), try hash("turn on [the] {name}"), try hash("turn on {name:device}"),
            try hash("turn on {name}", value: "2"), try hash("turn on {name}", context: [GrammarFact("a", "b")]),
            try hash("turn on {name}", block: "        slots: {a: b}"),
            try hash("turn on {name}", block: "        requires_context: {a: b}"),
            try hash("turn on {name}", block: "        excludes_context: {a: b}"),
        ]
        #expect(Set(others + [first]).count == others.count + 1)
    }
}

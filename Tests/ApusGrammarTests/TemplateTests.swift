import ApusCore
import ApusGrammar
import Testing

@Suite("hassil's notation")
struct TemplateTests {
    static let lists = """
          size: [small, {in: (large|big), out: large}]
          number: {range: {from: 1, to: 10}}
          even: {range: {from: 0, to: 20, step: 2}}
          share: {range: {type: percentage, from: 0, to: 100}}
          heat: {range: {type: temperature, from: 5, to: 30, fractions: halves}}
          fine: {range: {from: 0, to: 5, fractions: tenths}}
          rest: {wildcard: true}
        """
    static let rules = """
          the: (the|my)
          article: <the>|a
          lamp: lamp[s]
        """

    static func grammar(_ sentence: String) throws -> Grammar {
        try GrammarHome.grammar(
            [sentence], lists: lists, rules: rules,
            bound: [GrammarList("name", [GrammarValue("desk lamp", value: "1"), GrammarValue("desk", value: "2")])])
    }

    /// A sentence with the texts that it has, and others.
    struct Case: Sendable, CustomTestStringConvertible {
        var sentence: String
        var fits: [String]
        var others: [String]

        init(_ sentence: String, fits: [String], others: [String]) {
            (self.sentence, self.fits, self.others) = (sentence, fits, others)
        }

        var testDescription: String { sentence }
    }

    static let cases = [
        Case("turn on", fits: ["turn on", "Turn  ON!"], others: ["turn", "on", "turn on it", "on turn", "turnon"]),
        Case("(a|b c) d", fits: ["a d", "b c d"], others: ["d", "b d", "a b c d"]),
        Case("a [b] c", fits: ["a c", "a b c"], others: ["a b", "b c", "a b b c"]),
        Case("[a|b] c", fits: ["c", "a c", "b c"], others: ["a b c", "a"]),
        Case("(a;b) c", fits: ["a b c", "b a c"], others: ["a c", "b c", "a b", "a a c"]),
        Case("(a;b c;[d])", fits: ["a b c d", "d b c a", "b c a"], others: ["a b d c", "a d"]),
        Case("a|b|c d", fits: ["a", "b", "c d"], others: ["a d", "c"]),
        Case("light[s]", fits: ["light", "lights"], others: ["light s", "s"]),
        Case("turn(s|ed|ing) it", fits: ["turns it", "turned it", "turning it"], others: ["turn it", "turn s it"]),
        Case("[un]lock", fits: ["lock", "unlock"], others: ["un lock"]),
        Case("light[ in there]", fits: ["light", "light in there"], others: ["lightin there"]),
        Case("[the ]light", fits: ["light", "the light"], others: ["thelight"]),
        Case("bed[ ]room", fits: ["bedroom", "bed room"], others: ["bed", "bed  light"]),
        Case("use {name}[ ][']s", fits: ["use desk s"], others: ["use desk", "use desks"]),
        Case("to {9990..12000}", fits: ["to 9990", "to 9999"], others: ["to 10000", "to 9989"]),
        Case("<the> <lamp>", fits: ["my lamps", "the lamp"], others: ["lamp", "the"]),
        Case("<article> x", fits: ["a x", "the x"], others: ["x"]),
        Case("big<lamp>", fits: ["biglamp", "biglamps"], others: ["big lamp"]),
        Case("a \\[b\\] \\(c", fits: ["a b c"], others: ["a", "a c"]),
        Case("{size} box", fits: ["small box", "big box", "Large box"], others: ["box", "medium box"]),
        Case(
            "to {number}", fits: ["to 5", "to five", "to ten"], others: ["to 11", "to zero", "to 2.5", "to five six"]),
        Case("to {even}", fits: ["to 0", "to twenty"], others: ["to one", "to 3", "to 22"]),
        Case(
            "to {share}%", fits: ["to 50%", "to fifty percent", "to a hundred percent"], others: ["to 50", "to 101%"]),
        Case(
            "to {heat}", fits: ["to 21.5", "to twenty point five", "to 5"], others: ["to 21.3", "to 4.5", "to 30.5"]),
        Case("to {fine}", fits: ["to 0.1", "to 4.9", "to five"], others: ["to 5.1"]),
        Case("say {rest} now", fits: ["say hi now", "say now now"], others: ["say now", "say hi"]),
        Case("{0..3:x} {10..20,5:y}", fits: ["0 10", "three fifteen"], others: ["4 10", "3 11"]),
        Case("use {name}", fits: ["use desk lamp", "use Desk"], others: ["use lamp", "use desk lamp desk", "use"]),
        Case("twenty five things", fits: ["25 things", "twenty-five things"], others: ["20 5 things", "5 things"]),
        Case("what's up", fits: ["what's up", "whats up", "What’s up?"], others: ["what is up"]),
        Case("one (two|three)", fits: ["one two", "1 3"], others: ["12", "one"]),
    ]

    @Test("Texts fit a template, or do not", arguments: cases)
    func notation(test: Case) throws {
        let grammar = try Self.grammar(test.sentence)
        for text in test.fits { #expect(!grammar.match(text).isEmpty, "'\(text)' fits \(test.sentence)") }
        for text in test.others { #expect(grammar.match(text).isEmpty, "'\(text)' does not fit \(test.sentence)") }
    }

    @Test("Chinese templates are matched by character")
    func chinese() throws {
        let grammar = try GrammarHome.grammar(["(打开|开)[一下]{size}灯[吗]"], lists: "  size: [大, 小]", language: "zh-CN")
        for text in ["打开大灯", "开一下小灯吗", "打 开 大 灯"] { #expect(!grammar.match(text).isEmpty, "\(text)") }
        for text in ["打大灯", "开灯", "打开中灯", "打开大灯灯"] { #expect(grammar.match(text).isEmpty, "\(text)") }
    }

    @Test("Slots have the value, what was said, and its place")
    func slots() throws {
        let grammar = try Self.grammar("make {number:count} {size:how} boxes")
        let match = try #require(grammar.match("Make FIVE  Big boxes").best)
        #expect(match.summary == "Test count=5 how=large")
        #expect(match.slot("count")?.text == "FIVE")
        #expect(match.slot("count")?.range == 5..<9)
        #expect(match.slot("how")?.text == "Big")
        #expect(match.literalWordCount == 2)
        #expect(match.wildcardWordCount == 0)
    }

    @Test("Skip words may be anywhere but within a value")
    func skipWords() throws {
        let grammar = try GrammarHome.grammar(
            ["turn on {name}"], top: "skip_words: [please, could you]",
            bound: [GrammarList("name", [GrammarValue("desk lamp", value: "1")])])
        for text in [
            "please turn on desk lamp", "turn please on could you desk lamp please",
            "could you please turn on desk lamp",
        ] {
            let match = try #require(grammar.match(text).best, "\(text)")
            #expect(match.summary == "Test name=1")
            #expect(match.slot("name")?.text == "desk lamp")
            #expect(match.literalWordCount == 2)
        }
        #expect(grammar.match("turn on desk please lamp").isEmpty)
        #expect(grammar.match("could turn on desk lamp").isEmpty)
        #expect(grammar.match("please").isEmpty)
    }

    @Test("A block requires and excludes facts of the context")
    func context() throws {
        let block = """
                    requires_context: {mode: [day, dusk], owner: }
                    excludes_context: {locked: 'true'}
            """
        let grammar = try GrammarHome.grammar(["go"], block: block)
        let owner = GrammarFact("owner", "x")
        #expect(grammar.all("go", [GrammarFact("mode", "day"), owner]) == ["Test"])
        #expect(grammar.all("go", [GrammarFact("mode", "dusk"), owner, GrammarFact("locked", "false")]) == ["Test"])
        #expect(grammar.all("go", [GrammarFact("mode", "night"), owner]) == [])
        #expect(grammar.all("go", [GrammarFact("mode", "day")]) == [])
        #expect(grammar.all("go") == [])
        #expect(grammar.all("go", [GrammarFact("mode", "day"), owner, GrammarFact("locked", "true")]) == [])
    }

    @Test("A required fact may come from a value, and other values are left out")
    func contextOfValues() throws {
        let values = [
            GrammarValue("door", value: "1", context: [GrammarFact("kind", "lock")]),
            GrammarValue("door", value: "2", context: [GrammarFact("kind", "camera")]),
            GrammarValue("door", value: "3"),
            GrammarValue("lamp", value: "4", context: [GrammarFact("kind", "light")]),
        ]
        let bound = [GrammarList("name", values)]
        let required = try GrammarHome.grammar(
            ["use {name}"], block: "        requires_context: {kind: [lock, light]}", bound: bound)
        #expect(required.all("use door") == ["Test name=1"])
        #expect(required.all("use lamp") == ["Test name=4"])
        // The context has the fact, so a value without it also fits.
        #expect(required.all("use door", [GrammarFact("kind", "lock")]) == ["Test name=1|3"])
        let excluded = try GrammarHome.grammar(
            ["use {name}"], block: "        excludes_context: {kind: [lock, light]}", bound: bound)
        #expect(excluded.all("use door") == ["Test name=2|3"])
        #expect(excluded.all("use lamp") == [])
    }

    @Test("A fact of the context becomes a slot, and a slot that was said is not replaced")
    func contextSlots() throws {
        let block = """
                    requires_context: {area: {slot: true}}
                    slots: {kind: light, size: small}
            """
        let grammar = try GrammarHome.grammar(
            ["light [in {area}] [{size}]"], lists: Self.lists, block: block,
            bound: [GrammarList("area", [GrammarValue("kitchen", value: "1")])])
        #expect(grammar.all("light", [GrammarFact("area", "7")]) == ["Test area=7 kind=light size=small"])
        #expect(grammar.all("light in kitchen", [GrammarFact("area", "7")]) == ["Test area=1 kind=light size=small"])
        #expect(grammar.all("light big", [GrammarFact("area", "7")]) == ["Test area=7 kind=light size=large"])
        #expect(grammar.all("light") == [])
        #expect(grammar.match("light", context: [GrammarFact("area", "7")]).best?.slot("area")?.range == nil)
    }

    @Test("Rules and lists of a block hide the global ones, and no other block sees them")
    func local() throws {
        let source = try GrammarSource(
            yaml: """
                language: en
                lists: {size: [small]}
                expansion_rules: {word: global, outer: <word> it}
                intents:
                  A:
                    data:
                      - sentences: ['<outer> {size}']
                        expansion_rules: {word: local}
                        lists: {size: [large]}
                      - sentences: ['<outer> {size} b']
                """)
        let grammar = try Grammar(GrammarTemplates(source))
        #expect(grammar.all("local it large") == ["A size=large"])
        #expect(grammar.all("global it small b") == ["A size=small"])
        for text in ["global it large", "local it small", "local it small b", "global it large b"] {
            #expect(grammar.all(text) == [], "\(text)")
        }
    }

    @Test("Sentences of two files of an intent are joined")
    func files() throws {
        var source = try GrammarSource(yaml: "{language: en, intents: {A: [one], B: [two]}}")
        source.add(try GrammarSource(yaml: "{language: en, skip_words: [oh], intents: {A: [three], C: [four]}}"))
        let templates = try GrammarTemplates(source)
        #expect(templates.intentNames == ["A", "B", "C"])
        let grammar = try Grammar(templates)
        #expect(grammar.best("oh three") == "A")
        #expect(grammar.best("four") == "C")
    }

    @Test("Domains of names, and domains that words say, are read")
    func domains() throws {
        let names = [
            GrammarValue("hall", value: "1", context: [GrammarFact("domain", "light")]),
            GrammarValue("hall", value: "2", context: [GrammarFact("domain", "fan")]),
        ]
        func grammar(_ block: String) throws -> Grammar {
            try GrammarHome.grammar(["go {name}"], block: "        \(block)", bound: [GrammarList("name", names)])
        }
        #expect(try grammar("name_domains: [light, lock]").all("go hall") == ["Test name=1"])
        #expect(try grammar("name_domains: default").all("go hall") == ["Test name=1|2"])
        #expect(try grammar("inferred_domain: light").all("go hall") == ["Test domain=light name=1|2"])
    }

    @Test("Values keep their metadata, and ranges their multiplier")
    func values() throws {
        let lists = """
              color:
                values:
                  - {in: red, out: '#f00', metadata: {domain: light}}
              level: {range: {from: 0, to: 10, multiplier: 10}}
            """
        let grammar = try GrammarHome.grammar(["{color} {level}"], lists: lists)
        let match = try #require(grammar.match("red seven").best)
        #expect(match.summary == "Test color=#f00 level=70")
        #expect(match.slot("color")?.candidates.first?.metadata == [GrammarFact("domain", "light")])
    }
}

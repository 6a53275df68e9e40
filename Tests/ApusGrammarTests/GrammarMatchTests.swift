import ApusCore
import ApusGrammar
import Testing

@Suite("Matches")
struct GrammarMatchTests {
    @Test("An unknown value is no match, and a list without values matches nothing")
    func unknown() throws {
        let names = [GrammarList("name", [GrammarValue("garage door", value: "1")])]
        let grammar = try GrammarHome.grammar(["lock [the] {name}", "lock everything"], bound: names)
        #expect(grammar.all("lock the garage door") == ["Test name=1"])
        for text in ["lock the garage bicycle", "lock the garage", "lock the", "lock", "lock garage door garage door"] {
            #expect(grammar.all(text) == [], "\(text)")
        }
        let empty = try GrammarHome.grammar(["lock [the] {name}", "stop [{name}]"])
        #expect(empty.all("lock the garage door") == [])
        #expect(empty.all("stop") == ["Test"])
        #expect(empty.verdict(of: "lock the") == .none)
    }

    @Test("Two devices of one name are the candidates of one slot, in the order of the list")
    func ambiguous() throws {
        let names = [
            GrammarList(
                "name",
                [
                    GrammarValue("Lamp", value: "2"), GrammarValue("lamp", value: "1"),
                    GrammarValue("LAMP!", value: "2"),
                    GrammarValue("fan", value: "3"),
                ])
        ]
        let grammar = try GrammarHome.grammar(["(turn on;the {name})"], bound: names)
        let match = try #require(grammar.match("turn on the lamp").best)
        #expect(match.summary == "Test name=2|1")
        #expect(match.slot("name")?.isAmbiguous == true)
        #expect(grammar.match("turn on the lamp").all.count == 1)
        #expect(grammar.match("the fan turn on").best?.slot("name")?.isAmbiguous == false)
    }

    @Test("Different readings of a text are different matches")
    func readings() throws {
        let names = [
            GrammarList("name", [GrammarValue("lamp", value: "1"), GrammarValue("kitchen lamp", value: "2")]),
            GrammarList("area", [GrammarValue("kitchen", value: "9")]),
        ]
        let grammar = try GrammarHome.grammar(["turn on [the] [{area}] {name}"], bound: names)
        // The longer value comes first.
        #expect(grammar.all("turn on the kitchen lamp") == ["Test name=2", "Test area=9 name=1"])
        let numbers = try GrammarHome.grammar(["at {0..23:hour} [{0..59:minute}]"])
        #expect(numbers.all("at twenty five") == ["Test hour=20 minute=5"])
        #expect(numbers.all("at seven thirty five") == ["Test hour=7 minute=35"])
        #expect(numbers.all("at seven oh five") == ["Test hour=7 minute=5"])
        #expect(numbers.all("at 7:05") == ["Test hour=7 minute=5"])
    }

    @Test("A value with number words is matched by digits, and the other way round")
    func numberNames() throws {
        let names = [
            GrammarList("name", [GrammarValue("camera 1", value: "1"), GrammarValue("Room twenty one", value: "2")])
        ]
        let grammar = try GrammarHome.grammar(["show {name}"], bound: names)
        for text in ["show camera 1", "show camera one"] { #expect(grammar.all(text) == ["Test name=1"], "\(text)") }
        for text in ["show room 21", "show room twenty-one"] {
            #expect(grammar.all(text) == ["Test name=2"], "\(text)")
        }
        #expect(grammar.all("show room twenty") == [])
    }

    @Test("A value may have the s of a possessive, which belongs to its text")
    func possessives() throws {
        let names = [GrammarList("name", [GrammarValue("desk lamp", value: "1"), GrammarValue("grandma", value: "2")])]
        let grammar = try GrammarHome.grammar(["{name} light", "what's {name}"], bound: names)
        let match = try #require(grammar.match("Desk Lamp's light").best)
        #expect(match.summary == "Test name=1")
        #expect(match.slot("name")?.text == "Desk Lamp's")
        #expect(grammar.all("what’s grandma") == ["Test name=2"])
        for text in ["desk lamps light", "desk lamp't light", "what grandma", "'s light"] {
            #expect(grammar.all(text) == [], "\(text)")
        }
    }

    @Test("Fewer words of wildcards come first, and then more literal words")
    func order() throws {
        let lists = "  rest: {wildcard: true}\n  thing: [music, loud music]"
        let grammar = try GrammarHome.grammar(
            ["play {rest}", "play loud {rest}", "play {thing}", "play [loud] {thing} now"], lists: lists)
        let matches = grammar.match("play loud music now").all
        #expect(
            matches.map(\.summary) == [
                "Test thing=loud music", "Test thing=music", "Test rest=music now", "Test rest=loud music now",
            ])
        #expect(matches.map(\.wildcardWordCount) == [0, 0, 2, 3])
        #expect(matches.map(\.literalWordCount) == [2, 3, 2, 1])
    }

    @Test("Two ways to the same meaning are one match, with the more literal words")
    func duplicates() throws {
        let grammar = try GrammarHome.grammar(["[a] [b] x", "[b|a b] x", "(a b|a [b]) x"], top: "skip_words: [a, b]")
        let matches = grammar.match("a b x").all
        #expect(matches.count == 1)
        #expect(matches.first?.literalWordCount == 3)
    }

    @Test("Matches are bounded, and say that they are")
    func truncated() throws {
        let grammar = try GrammarHome.grammar(
            ["{rest:a} [{rest:b}] [{rest:c}] [{rest:d}]"], lists: "  rest: {wildcard: true}")
        let matches = grammar.match(Array(repeating: "x", count: 40).joined(separator: " "))
        #expect(matches.extent == .truncated)
        #expect(!matches.isEmpty && matches.all.count <= GrammarLimits.matchCountMax)
        #expect(grammar.match("x").extent == .complete)
    }

    @Test("A text that is too long has no match, and says so")
    func tooLong() throws {
        let grammar = try GrammarHome.grammar(["{rest}"], lists: "  rest: {wildcard: true}")
        let longest = Array(repeating: "x", count: GrammarLimits.wordCountMax).joined(separator: " ")
        #expect(grammar.match(longest).all.count == 1)
        #expect(grammar.match(longest + " x") == GrammarMatches(extent: .tooLong))
        #expect(grammar.match(String(repeating: "x", count: 5000)) == GrammarMatches(extent: .tooLong))
        #expect(grammar.verdict(of: longest + " x") == .none)
        #expect(grammar.match("") == GrammarMatches())
        #expect(grammar.match(" .,!") == GrammarMatches())
    }

    @Test("A walk over its bound of steps has no match, and says so")
    func stopped() throws {
        let grammar = try GrammarHome.grammar(["[a] [b] [c] d", "e"])
        #expect(grammar.match("a b c d", context: [], stepCountMax: 5) == GrammarMatches(extent: .stopped))
        #expect(grammar.match("a b c d", context: [], stepCountMax: 1000).extent == .complete)
    }

    @Test("A grammar that makes a backtracking matcher slow needs few steps")
    func backtracking() throws {
        // Each word fits each of the parts, so there are thousands of ways to fail.
        func sentence(_ count: Int) -> String {
            Array(repeating: "[a] [b] [(a|b)]", count: count).joined(separator: " ") + " c"
        }
        let text = Array(repeating: "a b", count: 30).joined(separator: " ")
        let grammar = try GrammarHome.grammar([sentence(4)])
        #expect(grammar.match(text, context: [], stepCountMax: 2000).extent == .complete)
        #expect(grammar.match("a b a b c", context: [], stepCountMax: 2000).all.count == 1)
        expectError(.frameTooLarge, ["forms"]) { _ = try GrammarHome.grammar([sentence(20)]) }
    }

    @Test("20,000 names that begin with one word are matched within the bound")
    func manyNames() throws {
        let names = (0..<GrammarLimits.valueCountMax).map { GrammarValue("kitchen \($0) lamp", value: "\($0)") }
        let grammar = try GrammarHome.grammar(["turn on {name}"], bound: [GrammarList("name", names)])
        #expect(grammar.all("turn on kitchen 4711 lamp") == ["Test name=4711"])
        #expect(grammar.match("turn on kitchen kitchen").extent == .complete)
    }

    @Test(
        "A verdict says whether a text is whole, a beginning, or both",
        arguments: [
            ("", GrammarVerdict.none), ("please", .none), ("make", .beginning), ("make it", .beginning),
            ("make it warmer", .wholeAndBeginning), ("make it warmer in", .beginning),
            ("make it warmer in the", .beginning), ("make it warmer in the living", .beginning),
            ("make it warmer in the living room", .whole), ("please make it warmer please", .wholeAndBeginning),
            ("make it blue", .none), ("warmer", .none), ("make it warmer in the garden", .none),
            ("set to", .beginning), ("set to twenty", .wholeAndBeginning), ("set to twenty five", .whole),
            ("set to 20", .wholeAndBeginning), ("set to one hundred", .wholeAndBeginning), ("set to nine", .whole),
            ("set to one hundred and", .beginning), ("set to a", .beginning),
            ("set to one hundred and fifty", .wholeAndBeginning),
            ("say", .beginning), ("say a", .wholeAndBeginning), ("go", .whole), ("go go", .none),
        ])
    func verdict(text: String, verdict: GrammarVerdict) throws {
        let grammar = try GrammarHome.grammar(
            ["make it warmer [in the {area}]", "set to {0..30:x}", "set to {100..200:x}", "say {rest}", "go"],
            lists: "  rest: {wildcard: true}", top: "skip_words: [please]",
            bound: [GrammarList("area", [GrammarValue("living room", value: "1")])])
        #expect(grammar.verdict(of: text) == verdict)
    }

    @Test(
        "Verdicts of Chinese text",
        arguments: [
            ("把", GrammarVerdict.beginning), ("把灯", .beginning), ("把灯打开", .whole), ("灯", .none),
            ("调到百分之", .beginning), ("调到百分之五", .wholeAndBeginning), ("调到百分之五十", .wholeAndBeginning),
            ("调到百分之五十五", .whole), ("调到百", .beginning), ("调到千", .none),
        ])
    func chineseVerdict(text: String, verdict: GrammarVerdict) throws {
        let grammar = try GrammarHome.grammar(
            ["把灯打开", "调到{share}"], lists: "  share: {range: {type: percentage, from: 0, to: 100}}", language: "zh-CN")
        #expect(grammar.verdict(of: text) == verdict)
    }

    @Test("Every beginning of a sentence is one, and the sentence is whole")
    func prefixes() throws {
        for language in [GrammarLanguage.english, .chinese] {
            let grammar = try GrammarHome.grammar(language)
            for sample in grammar.sample(count: 60, seed: 7) {
                let words = TextNormalizer(language).words(sample.text)
                let bytes = Array(sample.text.utf8)
                for word in words.dropLast() {
                    let prefix = String(decoding: bytes[..<word.range.upperBound], as: UTF8.self)
                    let verdict = grammar.verdict(of: prefix, context: sample.context)
                    #expect(
                        verdict == .beginning || verdict == .wholeAndBeginning,
                        "'\(prefix)' of '\(sample.text)' is \(verdict)")
                }
                let verdict = grammar.verdict(of: sample.text, context: sample.context)
                #expect(verdict == .whole || verdict == .wholeAndBeginning, "\(sample.text)")
            }
        }
    }
}

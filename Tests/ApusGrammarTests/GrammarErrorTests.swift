import ApusCore
import ApusGrammar
import Testing

@Suite("Errors and bounds of a grammar")
struct GrammarErrorTests {
    @Test(
        "An error names the intent, the sentence and the column (21031)",
        arguments: [
            ("turn (on", "column 6", "the group has no )"), ("turn [on", "column 6", "the group has no ]"),
            ("turn on)", "column 8", "')' closes no group"), ("a ] b", "column 3", "']' closes no group"),
            ("a (b]", "column 5", "']' closes no group"), ("a () b", "column 3", "the group is empty"),
            ("a [] b", "column 3", "the group is empty"), ("a {} b", "column 3", "a name is expected"),
            ("a {x y}", "column 3", "a name is expected"), ("a {x", "column 3", "the name has no }"),
            ("a <x", "column 3", "the name has no >"), ("a } b", "column 3", "'}' closes no name"),
            ("a > b", "column 3", "'>' closes no name"), ("a {x:}", "column 3", "{list:slot}"),
            ("a {x:y:z}", "column 3", "{list:slot}"), ("(a|b;c)", "column 5", "'|' and ';' in one group"),
            ("(a;;b)", "column 1", "a part of the permutation is empty"), ("a \\", "column 3", "follows the backslash"),
            ("a {x}", "column 3", "the list {x} is unknown"), ("a <x>", "column 3", "the rule <x> is unknown"),
            ("a {5..1}", "column 3", "a range has 'from' up to 'to'"), ("a {10000..10001}", "column 3", "9999"),
            ("a {1..5,0:x}", "column 3", "'step'"), ("打开 {灯}", "column 4", "the list {灯} is unknown"),
        ])
    func notation(sentence: String, column: String, reason: String) {
        expectError(.badParameter, ["intent Test", "'\(sentence.replacing("\\", with: "\\\\"))'", column, reason]) {
            _ = try GrammarHome.grammar([sentence])
        }
    }

    @Test("A sentence without words is refused", arguments: ["''", "'  '"])
    func empty(sentence: String) {
        expectError(.badParameter, ["at least one word"]) {
            _ = try GrammarTemplates(GrammarSource(yaml: "{language: en, intents: {A: [\(sentence)]}}"))
        }
    }

    @Test("A rule that reaches itself is refused with the way that it takes")
    func recursion() {
        let rules = """
              a: x <b>
              b: y [<c>]
              c: z <a>
            """
        expectError(.badParameter, ["intent Test", "'go <a>'", "reaches itself: <a> <b> <c> <a>"]) {
            _ = try GrammarHome.grammar(["go <a>"], rules: rules)
        }
        expectError(.badParameter, ["reaches itself: <a> <a>"]) {
            _ = try GrammarHome.grammar(["<a>"], rules: "  a: (x|light<a>)")
        }
    }

    @Test("A rule is read even if no sentence names it")
    func unusedRule() {
        expectError(.badParameter, ["rule a", "column 3"]) {
            _ = try GrammarHome.grammar(["go"], rules: "  a: x (y")
        }
    }

    @Test("A value of a list has words, and names no list")
    func listValues() {
        expectError(.badParameter, ["list a", "at least one word"]) {
            _ = try GrammarHome.grammar(["{a}"], lists: "  a: ['[x]']")
        }
        expectError(.badParameter, ["list a", "'in {b}'", "names no list"]) {
            _ = try GrammarHome.grammar(["{a}"], lists: "  a: ['in {b}']\n  b: [x]")
        }
    }

    @Test(
        "A file that has not the form of sentences is refused with its line (21031)",
        arguments: [
            ("", "the file is empty"), ("a: [", "not valid YAML"), ("[a]", "a map is expected"),
            ("intents: {}", "'language' is missing"), ("{language: en, intents: {A: {}}}", "'data' is missing"),
            ("{language: en, intents: {A: {data: [{}]}}}", "'sentences' is missing"),
            ("{language: en, intents: {A: {data: {}}}}", "a list is expected"),
            ("{language: en, intents: {A: [[x]]}}", "a text is expected"),
            ("{language: en, intents: [A]}", "a map is expected"),
            ("{language: [en]}", "a text is expected"), ("{language: en, lists: {a: {}}}", "'values', 'range'"),
            ("{language: en, lists: {a: {wildcard: false}}}", "'values', 'range'"),
            ("{language: en, lists: {a: {range: {from: 1}}}}", "'from' and 'to'"),
            ("{language: en, lists: {a: {range: {from: x, to: 2}}}}", "whole number"),
            ("{language: en, lists: {a: {range: {from: 1, to: 2, type: weight}}}}", "percentage"),
            ("{language: en, lists: {a: {range: {from: 1, to: 2, fractions: thirds}}}}", "halves"),
            ("{language: en, lists: {a: [{out: x}]}}", "'in' and 'out'"),
            ("{language: en, expansion_rules: {a: [x]}}", "a text is expected"),
            ("{language: en, a: 1, a: 2}", "not valid YAML"),
            ("{language: en, intents: {A: {data: [{sentences: [x], requires_context: {a: {b: 1}}}]}}}", "'slot'"),
        ])
    func file(yaml: String, reason: String) {
        expectError(.badParameter, [reason], yaml) { _ = try GrammarSource(yaml: yaml) }
    }

    @Test("A file of 4 MB is refused before it is read (10002)")
    func longFile() {
        let yaml = "language: en\n" + String(repeating: "# a comment, and no sentence\n", count: (4 << 20) / 28)
        expectError(.frameTooLarge, ["\(yaml.utf8.count) bytes"]) { _ = try GrammarSource(yaml: yaml) }
    }

    @Test("Aliases that repeat one another are refused by the count of their nodes (10002)")
    func aliases() {
        var yaml = "language: en\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
        for level in 1...6 {
            let names = Array(repeating: "*a\(level - 1)", count: 10).joined(separator: ", ")
            yaml += "a\(level): &a\(level) [\(names)]\n"
        }
        expectError(.frameTooLarge, ["nodes"]) { _ = try GrammarSource(yaml: yaml) }
    }

    @Test("A million sentences are refused by their number (10002)")
    func sentences() {
        var source = GrammarSource(.english)
        source.intents = [.init("A", [.init(Array(repeating: "turn on", count: 1_000_000))])]
        expectError(.frameTooLarge, ["1000000 sentences"]) { _ = try GrammarTemplates(source) }
    }

    @Test("Alternatives that explode are refused with the number of their forms, which is computed (10002)")
    func explosion() throws {
        func sentence(_ count: Int) -> String { Array(repeating: "(a|b|c|d) x", count: count).joined(separator: " ") }
        _ = try GrammarHome.grammar([sentence(14)])
        expectError(.frameTooLarge, ["intent Test", "1073741824 forms"]) {
            _ = try GrammarHome.grammar([sentence(15)])
        }
        expectError(.frameTooLarge, ["2^64 or more forms"]) { _ = try GrammarHome.grammar([sentence(200)]) }
        let rules = (1...16).map { "  r\($0): <r\($0 - 1)> x <r\($0 - 1)>" }.joined(separator: "\n")
        expectError(.frameTooLarge, ["forms"]) {
            _ = try GrammarHome.grammar(["<r16>"], rules: "  r0: (a|b)\n" + rules)
        }
    }

    @Test("Deep nesting is refused, of groups and of rules (10002)")
    func depth() throws {
        func groups(_ count: Int) -> String {
            String(repeating: "(a ", count: count) + "b" + String(repeating: ")", count: count)
        }
        _ = try GrammarHome.grammar([groups(GrammarLimits.depthMax - 1)])
        expectError(.frameTooLarge, ["intent Test", "nested deeper than \(GrammarLimits.depthMax)"]) {
            _ = try GrammarHome.grammar([groups(GrammarLimits.depthMax)])
        }
        expectError(.frameTooLarge, ["nested deeper"]) {
            _ = try GrammarHome.grammar([String(repeating: "[", count: 4000)])
        }
        func rules(_ count: Int) -> String {
            "  r0: x\n" + (1..<count).map { "  r\($0): '[<r\($0 - 1)>] y'" }.joined(separator: "\n")
        }
        _ = try GrammarHome.grammar(["<r20>"], rules: rules(21))
        expectError(.frameTooLarge, ["nested deeper"]) { _ = try GrammarHome.grammar(["<r999>"], rules: rules(1000)) }
        let nested = String(repeating: "[", count: 5000)
        #expect(throws: ApusError.self) { _ = try GrammarSource(yaml: "language: en\na: \(nested)") }
    }

    @Test("Long sentences, permutations, spellings and lists are refused (10002)")
    func counts() throws {
        expectError(.frameTooLarge, ["4100 bytes"]) {
            _ = try GrammarHome.grammar([String(repeating: "abcd ", count: 820)])
        }
        _ = try GrammarHome.grammar(["(a;b;c;d;e)"])
        expectError(.frameTooLarge, ["column 1", "6 parts"]) { _ = try GrammarHome.grammar(["(a;b;c;d;e;f)"]) }
        let spellings = String(repeating: "(a|b)", count: 8)
        expectError(.frameTooLarge, ["spellings"]) { _ = try GrammarHome.grammar([spellings]) }
        let values = (0...GrammarLimits.valueCountMax).map { GrammarValue("x\($0)") }
        expectError(.frameTooLarge, ["list name", "20001 values"]) {
            _ = try GrammarHome.grammar(["{name}"], bound: [GrammarList("name", values)])
        }
        var source = GrammarSource(.english)
        source.lists = [GrammarList("a", values)]
        expectError(.frameTooLarge, ["list a", "20001 values"]) { _ = try GrammarTemplates(source) }
        source.lists = []
        source.intents = (0...GrammarLimits.intentCountMax).map { .init("A\($0)", [.init(["x"])]) }
        expectError(.frameTooLarge, ["513 intents"]) { _ = try GrammarTemplates(source) }
    }

    @Test("An error message shows a part of a long sentence, and no control characters")
    func messages() {
        let sentence = String(repeating: "word ", count: 100) + "("
        expectError(.badParameter, ["…'", "column 501"]) { _ = try GrammarHome.grammar([sentence]) }
        var source = GrammarSource(.english)
        source.intents = [.init("A\n", [.init(["\u{1b}[ ("])])]
        do {
            _ = try GrammarTemplates(source)
            Issue.record("no error")
        } catch {
            #expect(!error.message.unicodeScalars.contains { $0.value < 0x20 })
        }
    }
}

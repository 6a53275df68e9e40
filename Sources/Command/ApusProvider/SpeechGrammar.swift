package import ApusCore

/// A grammar in the Java Speech Grammar Format as nodes have it: one public rule, words, rules without recursion,
/// alternatives, groups and optional parts. Weights, tags and repetitions are refused.
///
/// Pure value.
package struct SpeechGrammar: Sendable {
    package indirect enum Part: Sendable, Hashable {
        case words([String])
        case rule(String)
        case sequence([Part])
        case choice([Part])
        case optional(Part)
    }

    /// The deepest brackets.
    static let depthMax = 64

    /// By their names.
    let rules: [ExactText: Part]
    let main: String

    /// - Throws: 10022 if the text is not such a grammar.
    package init(jsgf text: String) throws(ApusError) {
        var rules: [ExactText: Part] = [:]
        var main: String?
        for statement in text.split(separator: ";").dropFirst() {
            var parser = Parser(statement)
            guard let first = parser.next(), !first.isExactly("grammar") else { continue }
            let isPublic = first.isExactly("public")
            guard let name = isPublic ? parser.next() : first, Self.isRule(name), parser.next()?.isExactly("=") ?? false
            else { throw Self.refused("a statement is not a rule") }
            guard rules.updateValue(try parser.choice(depth: 0), forKey: ExactText(name)) == nil, parser.next() == nil
            else { throw Self.refused("\(name) is defined twice, or has a bracket too many") }
            guard !isPublic || main == nil else { throw Self.refused("there are two public rules") }
            if isPublic { main = name }
        }
        guard let main else { throw Self.refused("there is no public rule") }
        (self.rules, self.main) = (rules, main)
    }

    fileprivate static func isRule(_ token: String) -> Bool { token.hasPrefix("<") && token.hasSuffix(">") }

    fileprivate static func refused(_ message: String) -> ApusError {
        ApusError(.configurationInvalid, "the grammar in JSGF: \(message)")
    }

    /// All words.
    package var words: Set<String> {
        var found: Set<String> = []
        var open = Array(rules.values)
        while let part = open.popLast() {
            switch part {
            case .words(let words): found.formUnion(words)
            case .rule: continue
            case .sequence(let parts), .choice(let parts): open += parts
            case .optional(let part): open.append(part)
            }
        }
        return found
    }

    /// Reads the tokens of a statement.
    private struct Parser {
        private var rest: Substring
        private var peeked: String?

        init(_ statement: Substring) { rest = statement }

        private static func isSign(_ character: Character) -> Bool { "()[]|=".contains(character) }

        mutating func next() -> String? {
            if let token = peeked {
                peeked = nil
                return token
            }
            rest = rest.drop { $0.isWhitespace }
            guard let first = rest.first else { return nil }
            if Self.isSign(first) {
                rest = rest.dropFirst()
                return String(first)
            }
            let token = rest.prefix { !$0.isWhitespace && !Self.isSign($0) }
            rest = rest.dropFirst(token.count)
            return String(token)
        }

        private mutating func peek() -> String? {
            if peeked == nil { peeked = next() }
            return peeked
        }

        /// Alternatives, up to a closing bracket or the end.
        mutating func choice(depth: Int) throws(ApusError) -> Part {
            guard depth <= SpeechGrammar.depthMax else { throw SpeechGrammar.refused("the brackets are too deep") }
            var alternatives: [Part] = []
            while true {
                alternatives.append(try sequence(depth: depth))
                guard peek()?.isExactly("|") ?? false else { break }
                peeked = nil
            }
            return alternatives.count == 1 ? alternatives[0] : .choice(alternatives)
        }

        private mutating func sequence(depth: Int) throws(ApusError) -> Part {
            var parts: [Part] = []
            while let token = peek(), !["|", ")", "]"].contains(where: { token.isExactly($0) }) {
                peeked = nil
                switch token {
                case "(", "[":
                    let inner = try choice(depth: depth + 1)
                    guard next()?.isExactly(token.isExactly("(") ? ")" : "]") ?? false else {
                        throw SpeechGrammar.refused("a bracket is missing")
                    }
                    parts.append(token.isExactly("(") ? inner : .optional(inner))
                case _ where SpeechGrammar.isRule(token): parts.append(.rule(token))
                default:
                    guard !token.contains(where: { "*+/{}<>=\"".contains($0) }) else {
                        throw SpeechGrammar.refused("\(token) is not supported")
                    }
                    parts.append(.words(CompiledGrammar.words(of: token)))
                }
            }
            return parts.count == 1 ? parts[0] : .sequence(parts)
        }
    }
}

/// The states and transitions of a grammar, one for each place in it.
struct SpeechNetwork {
    /// The most places: words, brackets and names of rules, as often as they are used.
    private static let placeCountMax = 500_000

    /// By state: 0 is the start, 1 the end.
    private(set) var arcs: [[(word: Int32, to: Int)]] = [[], []]
    /// By state: others that are reached without a word.
    private(set) var skips: [[Int]] = [[], []]
    private var count = 0
    private let grammar: SpeechGrammar
    private let numbers: [ExactText: Int32]

    /// - Parameter numbers: of the words that can be heard. Sentences with other words are left out.
    /// - Throws: 10022 if a rule is missing or recursive; 10002 if it is too large.
    init(_ grammar: SpeechGrammar, numbers: [ExactText: Int32]) throws(ApusError) {
        (self.grammar, self.numbers) = (grammar, numbers)
        try add(.rule(grammar.main), from: 0, to: 1, above: [])
    }

    private mutating func state() -> Int {
        arcs.append([])
        skips.append([])
        return arcs.count - 1
    }

    private mutating func add(
        _ part: SpeechGrammar.Part, from: Int, to: Int, above: [String]
    ) throws(ApusError) {
        count += 1
        guard count <= Self.placeCountMax, above.count <= SpeechGrammar.depthMax else {
            throw ApusError(.frameTooLarge, "the grammar in JSGF is too large")
        }
        switch part {
        case .words(let words):
            guard let last = words.last else { return skips[from].append(to) }
            var from = from
            for word in words.dropLast() {
                let next = state()
                add(word, from: from, to: next)
                from = next
            }
            add(last, from: from, to: to)
        case .rule(let name):
            guard let rule = grammar.rules[ExactText(name)], !above.contains(where: { $0.isExactly(name) }) else {
                throw SpeechGrammar.refused("\(name) is missing, or contains itself")
            }
            try add(rule, from: from, to: to, above: above + [name])
        case .sequence(let parts):
            guard let last = parts.last else { return skips[from].append(to) }
            var from = from
            for part in parts.dropLast() {
                let next = state()
                try add(part, from: from, to: next, above: above)
                from = next
            }
            try add(last, from: from, to: to, above: above)
        case .choice(let parts):
            for part in parts { try add(part, from: from, to: to, above: above) }
        case .optional(let part):
            try add(part, from: from, to: to, above: above)
            skips[from].append(to)
        }
    }

    private mutating func add(_ word: String, from: Int, to: Int) {
        if let number = numbers[ExactText(word)] { arcs[from].append((number, to)) }
    }

    /// The states that are reached from these without a word, sorted.
    func closed(_ states: some Sequence<Int>) -> [Int] {
        var all = Set(states)
        var open = Array(all)
        while let state = open.popLast() {
            for next in skips[state] where all.insert(next).inserted { open.append(next) }
        }
        return all.sorted()
    }
}

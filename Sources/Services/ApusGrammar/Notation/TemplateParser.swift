import ApusCore

/// Reads a sentence in hassil's notation.
///
/// | notation | what it means |
/// |---|---|
/// | `turn on` | the words |
/// | `(a\|b)` | one of them; without parentheses, of the whole sentence |
/// | `[a]` | the same, or nothing |
/// | `(a;b)` | all of them, in any order |
/// | `{list}`, `{list:slot}` | a value of a list |
/// | `{0..100}`, `{0..100,5:slot}` | a number of a range |
/// | `<rule>` | the template of a rule |
/// | `light[s]`, `turn(s\|ed)` | the spellings of one word |
/// | `\(` | the character itself |
struct TemplateParser {
    private let characters: [Unicode.Scalar]
    private let place: GrammarPlace
    private var index = 0
    private var depth = 0

    /// - Throws: 21031 with the column if the text is not in the notation; 10002 if it is longer than
    ///   ``GrammarLimits/sentenceByteCountMax``, nested deeper than ``GrammarLimits/depthMax``, or has a permutation of
    ///   more than ``GrammarLimits/permutationPartCountMax`` parts.
    static func parse(_ text: String, _ place: GrammarPlace) throws(ApusError) -> Template {
        var place = place
        place.sentence = text
        guard text.utf8.count <= GrammarLimits.sentenceByteCountMax else {
            throw ApusError(
                grammarTooLarge: place,
                "\(text.utf8.count) bytes, and at most \(GrammarLimits.sentenceByteCountMax) are allowed")
        }
        var parser = TemplateParser(characters: Array(text.unicodeScalars), place: place)
        let template = try parser.group(until: nil, from: 0)
        guard template != .empty else { throw ApusError(grammar: place, "a sentence has at least one word") }
        return template
    }

    private init(characters: [Unicode.Scalar], place: GrammarPlace) {
        (self.characters, self.place) = (characters, place)
    }

    private func error(_ reason: String, at index: Int) -> ApusError {
        ApusError(grammar: place.at(index + 1), reason)
    }

    /// The content of a group, up to the character that closes it.
    private mutating func group(until close: Unicode.Scalar?, from start: Int) throws(ApusError) -> Template {
        depth += 1
        defer { depth -= 1 }
        guard depth <= GrammarLimits.depthMax else {
            throw ApusError(
                grammarTooLarge: place.at(start + 1), "groups are nested deeper than \(GrammarLimits.depthMax)")
        }
        var alternatives: [Template] = []
        var separator: Unicode.Scalar?
        while true {
            alternatives.append(try sequence())
            guard index < characters.count else {
                if let close { throw error("the group has no \(close)", at: start) }
                break
            }
            let character = characters[index]
            if character == "|" || character == ";" {
                guard separator == nil || separator == character else {
                    throw error("'|' and ';' in one group", at: index)
                }
                separator = character
                index += 1
            } else if character == close {
                break
            } else {
                throw error("'\(character)' closes no group", at: index)
            }
        }
        guard separator == ";" else {
            if alternatives.count == 1 { return alternatives[0] }
            return .choice(alternatives)
        }
        guard !alternatives.contains(.empty) else { throw error("a part of the permutation is empty", at: start) }
        guard alternatives.count <= GrammarLimits.permutationPartCountMax else {
            throw ApusError(
                grammarTooLarge: place.at(start + 1),
                "a permutation has \(alternatives.count) parts, and at most \(GrammarLimits.permutationPartCountMax)")
        }
        return .permutation(alternatives)
    }

    /// Parts up to the next character that ends an alternative.
    private mutating func sequence() throws(ApusError) -> Template {
        var parts: [Template.Part] = []
        // The first part is glued to what is before its group: `light[s]`, but not `light[ s]`.
        var isGlued = true
        while index < characters.count {
            let start = index
            let part: Template
            switch characters[index] {
            case "|", ";", ")", "]":
                // The space at the end of a group. The group `[ ]` has nothing else.
                if !isGlued, depth > 1 { parts.append(Template.Part(.text(""), isGlued: false)) }
                return .sequence(parts)
            case "(":
                index += 1
                part = try group(until: ")", from: start)
                guard part != .empty else { throw error("the group is empty", at: start) }
                index += 1
            case "[":
                index += 1
                let content = try group(until: "]", from: start)
                guard content != .empty else { throw error("the group is empty", at: start) }
                part = Self.optional(content)
                index += 1
            case "{": part = try list()
            case "<": part = .rule(try name(until: ">"), column: start + 1)
            case "}", ">": throw error("'\(characters[index])' closes no name", at: index)
            case let character where character.properties.isWhitespace:
                index += 1
                isGlued = false
                continue
            default: part = .text(try text())
            }
            parts.append(Template.Part(part, isGlued: isGlued))
            isGlued = true
        }
        return .sequence(parts)
    }

    private static func optional(_ content: Template) -> Template {
        if case .choice(let alternatives) = content { return .choice(alternatives + [.empty]) }
        return .choice([content, .empty])
    }

    private mutating func text() throws(ApusError) -> String {
        var text = String.UnicodeScalarView()
        while index < characters.count {
            let character = characters[index]
            if "|;()[]{}<>".unicodeScalars.contains(character) || character.properties.isWhitespace { break }
            if character == "\\" {
                index += 1
                guard index < characters.count else { throw error("nothing follows the backslash", at: index - 1) }
            }
            text.append(characters[index])
            index += 1
        }
        return String(text)
    }

    private mutating func list() throws(ApusError) -> Template {
        let start = index
        let content = try name(until: "}")
        let parts = content.parts(separatedBy: ":")
        guard parts.count <= 2, parts.allSatisfy({ !$0.isEmpty }) else {
            throw error("a list is {list} or {list:slot}", at: start)
        }
        return .list(parts[0], slot: parts.count == 2 ? parts[1] : parts[0], column: start + 1)
    }

    /// The name between the character at the index and the one that closes it.
    private mutating func name(until close: Unicode.Scalar) throws(ApusError) -> String {
        let start = index
        guard let end = characters[index...].firstIndex(of: close) else {
            throw error("the name has no \(close)", at: start)
        }
        let name = characters[(start + 1)..<end]
        let isPlain = name.allSatisfy { !"|;()[]{}<> \\".unicodeScalars.contains($0) }
        guard !name.isEmpty, isPlain else { throw error("a name is expected", at: start) }
        index = end + 1
        var text = String.UnicodeScalarView()
        text.append(contentsOf: name)
        return String(text)
    }
}

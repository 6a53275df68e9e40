import ApusCore

extension GrammarCompiler.Scope {
    /// The texts of a template without lists, as people write them; nil if it has a list or a permutation.
    ///
    /// - Throws: 10002 if there are more than ``GrammarLimits/spellingCountMax``.
    func spellings(of template: Template) throws(ApusError) -> [String]? {
        switch template {
        case .text(let text): return [text]
        case .list, .permutation: return nil
        case .rule(let name, _):
            guard let template = rules[ExactText(name)], !path.contains(ExactText(name)),
                path.count < GrammarLimits.ruleDepthMax
            else { return nil }
            var inner = self
            inner.path.append(ExactText(name))
            return try inner.spellings(of: template)
        case .choice(let alternatives):
            var texts: [String] = []
            for alternative in alternatives {
                guard let next = try spellings(of: alternative) else { return nil }
                texts += next
                try check(texts.count)
            }
            return texts
        case .sequence(let parts):
            var texts = [""]
            for part in parts {
                guard let next = try spellings(of: part.template) else { return nil }
                texts = try joined(texts, next, part.isGlued ? "" : " ")
            }
            return texts
        }
    }

    /// Each text of the left, followed by each of the right.
    func joined(_ left: [String], _ right: [String], _ separator: String) throws(ApusError) -> [String] {
        try check(left.count * right.count)
        return left.flatMap { first in right.map { first + separator + $0 } }
    }

    private func check(_ count: Int) throws(ApusError) {
        guard count <= GrammarLimits.spellingCountMax else {
            throw ApusError(
                grammarTooLarge: place,
                "parts without a space between them have more than \(GrammarLimits.spellingCountMax) spellings")
        }
    }
}

extension Template {
    /// True if a part forms one word with the part before it, as in `light[s]`. In `light[ in the hall]` it does not.
    static func needsGlue(_ parts: [Part], _ index: Int) -> Bool {
        guard index > 0, index < parts.count, parts[index].isGlued else { return false }
        return parts[index - 1].template.endsInWord && parts[index].template.beginsInWord
    }

    private var beginsInWord: Bool {
        switch self {
        case .text, .rule: true
        // A value of a list is never a part of a word.
        case .list: false
        case .sequence(let parts): parts.first.map { $0.isGlued && $0.template.beginsInWord } ?? false
        case .choice where isSpace: true
        case .choice(let alternatives), .permutation(let alternatives): alternatives.contains { $0.beginsInWord }
        }
    }

    /// True for `[ ]`, which joins two words to one or not.
    private var isSpace: Bool {
        switch self {
        case .text(let text): text.isEmpty
        case .sequence(let parts): parts.allSatisfy { $0.template.isSpace }
        case .choice(let alternatives): alternatives.allSatisfy { $0.isSpace }
        case .permutation, .list, .rule: false
        }
    }

    private var endsInWord: Bool {
        switch self {
        case .text(let text): !text.isEmpty
        case .rule: true
        case .list: false
        // The empty text behind a space.
        case .sequence(let parts): parts.last?.template.endsInWord ?? false
        case .choice where isSpace: true
        case .choice(let alternatives), .permutation(let alternatives): alternatives.contains { $0.endsInWord }
        }
    }
}

package import ApusCore

/// The sentences of a language with the lists of an account: its devices, areas and contacts.
///
/// **Matching.** ``match(_:context:)`` walks the nodes over the positions of a text. Each node is visited at most once
/// per position, so the time grows with the length of the text, and never with the number of forms that the sentences
/// have. An unknown value of a list is no match: it never stands for another value, or for all of them.
///
/// **Numbers.** A text has all readings of its numbers at once: `twenty five` is 25, and also 20 and 5.
///
/// Pure value.
package struct Grammar: Sendable {
    package let templates: GrammarTemplates
    let vocabulary: GrammarVocabulary
    /// The values of each use of a list.
    let lists: [BoundList]
    /// What each node may begin with (``FirstWords``).
    let firsts: [UInt64]
    /// Whether a node matches any text at all. A list without values matches none.
    let isAlive: [Bool]
    /// Whether a node matches a text that is not empty.
    let hasWords: [Bool]
    /// The names of facts that values of lists have.
    let factNames: Set<ExactText>

    /// Binds the lists of an account.
    ///
    /// - Parameter lists: values of the lists that sentences name, as plain text. A list that is missing has no values.
    ///   Values without a letter or a digit cannot be said, and are left out.
    /// - Throws: 10002 if a list has more than ``GrammarLimits/valueCountMax`` values.
    package init(_ templates: GrammarTemplates, lists: [GrammarList] = []) throws(ApusError) {
        self.templates = templates
        var vocabulary = templates.vocabulary
        var bound: [ExactText: BoundList] = [:]
        for list in lists {
            if case .values(let values) = list.content, values.count > GrammarLimits.valueCountMax {
                throw ApusError(
                    grammarTooLarge: GrammarPlace("list \(list.name)"),
                    "\(values.count) values, and at most \(GrammarLimits.valueCountMax) are allowed")
            }
            if case .range(let range) = list.content { try range.check(GrammarPlace("list \(list.name)")) }
            bound[ExactText(list.name)] = BoundList(list.content, templates, &vocabulary)
        }
        let all = templates.lists.map { bound[ExactText($0.name)] ?? BoundList($0.content) }
        let used = templates.uses.map { all[$0.list].filtered(by: $0.filter) }
        (self.lists, self.vocabulary) = (used, vocabulary)
        factNames = Set(used.flatMap { list in list.values.flatMap { $0.context.map { ExactText($0.name) } } })
        let summary = FirstWords.summary(of: templates, used)
        (firsts, isAlive, hasWords) = (summary.firsts, summary.isAlive, summary.hasWords)
    }
}

/// A filter of the words with which a node may begin: a bit for each class of words. It has no false negatives.
enum FirstWords {
    static let number = UInt64(1) << 60
    /// A word that the grammar does not have.
    static let unknown = UInt64(1) << 61
    static let all = UInt64.max

    static func word(_ word: Int32) -> UInt64 { UInt64(1) << UInt64(word % 60) }

    static func leaf(_ leaf: GrammarLeaf) -> UInt64 {
        switch leaf {
        case .word(let word): Self.word(word)
        case .number: number
        }
    }

    static func summary(
        of templates: GrammarTemplates, _ lists: [BoundList]
    ) -> (firsts: [UInt64], isAlive: [Bool], hasWords: [Bool]) {
        var (firsts, isAlive, hasWords): ([UInt64], [Bool], [Bool]) = ([], [], [])
        firsts.reserveCapacity(templates.nodes.count)
        for node in templates.nodes {
            var (first, alive, words) = (UInt64(0), true, true)
            switch node {
            case .word(let word): first = Self.word(word)
            case .number: first = number
            case .list(let use, _):
                first = lists[Int(use)].first(firsts)
                alive = !lists[Int(use)].isEmpty
                words = alive
            case .sequence(let children):
                alive = children.allSatisfy { isAlive[Int($0)] }
                words = alive && children.contains { hasWords[Int($0)] }
                for child in children {
                    first |= firsts[Int(child)]
                    guard templates.isNullable[Int(child)] else { break }
                }
            case .choice(let children):
                alive = children.contains { isAlive[Int($0)] }
                words = children.contains { isAlive[Int($0)] && hasWords[Int($0)] }
                for child in children where isAlive[Int(child)] { first |= firsts[Int(child)] }
            }
            firsts.append(alive ? first : 0)
            isAlive.append(alive)
            hasWords.append(words)
        }
        return (firsts, isAlive, hasWords)
    }
}

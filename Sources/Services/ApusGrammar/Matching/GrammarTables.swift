import ApusCore

/// The nodes of a grammar with the values of its lists: what a walk needs.
///
/// Pure value.
struct GrammarTables: Sendable {
    let templates: GrammarTemplates
    let vocabulary: GrammarVocabulary
    /// The values of each use of a list.
    let lists: [BoundList]
    /// What each node may begin with (``FirstWords``).
    let firsts: [UInt64]
    /// Whether some text matches a node. A list without values matches nothing.
    let isAlive: [Bool]
    /// Whether a node matches a text that is not empty.
    let hasWords: [Bool]
    /// The names of facts that values of lists have.
    let factNames: Set<ExactText>
    /// The texts of values, in lower case, with which the text of another value begins.
    let beginnings: Set<ExactText>

    /// - Throws: as ``Grammar/init(_:lists:)``.
    init(_ templates: GrammarTemplates, _ lists: [GrammarList]) throws(ApusError) {
        self.templates = templates
        var vocabulary = templates.vocabulary
        var bound: [ExactText: BoundList] = [:]
        for list in lists {
            let place = GrammarPlace("list \(list.name)")
            var content = list.content
            switch content {
            case .values(let values):
                guard values.count <= GrammarLimits.valueCountMax else {
                    throw ApusError(
                        grammarTooLarge: place,
                        "\(values.count) values, and at most \(GrammarLimits.valueCountMax) are allowed")
                }
            case .range(let range): content = .range(try range.checked(place))
            case .wildcard: break
            }
            bound[ExactText(list.name)] = BoundList(content, templates, &vocabulary)
        }
        let all = templates.lists.map { bound[ExactText($0.name)] ?? BoundList($0.content) }
        let used = templates.uses.map { all[$0.list].filtered(by: $0.filter) }
        (self.lists, self.vocabulary) = (used, vocabulary)
        factNames = Set(used.flatMap { list in list.values.flatMap { $0.context.map { ExactText($0.name) } } })
        beginnings = Self.beginnings(of: bound.values.flatMap(\.values))
        (firsts, isAlive, hasWords) = Self.summary(of: templates, used)
    }

    private static func beginnings(of values: [GrammarValue]) -> Set<ExactText> {
        // In this order the texts that begin with a text follow it.
        let texts = Set(values.map { ExactText($0.text.lowercased()) }).sorted()
        return Set(
            zip(texts, texts.dropFirst()).filter { $1.string.utf8.starts(with: $0.string.utf8) }.map(\.0))
    }

    private static func summary(
        of templates: GrammarTemplates, _ lists: [BoundList]
    ) -> (firsts: [UInt64], isAlive: [Bool], hasWords: [Bool]) {
        var (firsts, isAlive, hasWords): ([UInt64], [Bool], [Bool]) = ([], [], [])
        firsts.reserveCapacity(templates.nodes.count)
        for node in templates.nodes {
            var (first, alive, words) = (UInt64(0), true, true)
            switch node {
            case .word(let word): first = FirstWords.word(word)
            case .number: first = FirstWords.number
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

import ApusCore

/// Compiles the sentences of a source into nodes.
///
/// A rule is compiled once for each filter that its lists have, and once more for each block with rules or lists of its
/// own, since these may hide what the rule names.
struct GrammarCompiler {
    /// What the names of a sentence mean.
    struct Scope {
        /// 0: only global rules and lists; from 1: the number of the block; negative: that of an extension.
        var number = 0
        var rules: [ExactText: Template] = [:]
        var lists: [ExactText: GrammarList] = [:]
        var filter = GrammarTemplates.Filter()
        var place = GrammarPlace()
        /// The rules that are being compiled, the outermost first.
        var path: [ExactText] = []
        /// True within the text of a list's value, which names no list.
        var isValue = false
    }

    private struct RuleKey: Hashable {
        var scope: Int
        var name: ExactText
        var filter: GrammarTemplates.Filter
        var isValue: Bool
    }

    private struct ListKey: Hashable {
        var scope: Int
        var name: ExactText
    }

    let normalizer: TextNormalizer
    var nodes = GrammarNodeTable()
    var vocabulary = GrammarVocabulary()
    private(set) var slots: [String] = []
    private(set) var sentences: [GrammarTemplates.Sentence] = []
    private(set) var blocks: [GrammarTemplates.Block] = []
    private(set) var lists: [GrammarTemplates.List] = []
    private(set) var uses: [GrammarTemplates.ListUse] = []
    private(set) var skipPhrases: [[GrammarLeaf]] = []

    private let source: GrammarSource
    private let boundLists: Set<ExactText>
    private var global = Scope()
    private var slotNumbers: [ExactText: Int32] = [:]
    private var listNumbers: [ListKey: Int] = [:]
    private var useNumbers: [GrammarTemplates.ListUse: Int32] = [:]
    private var ruleNodes: [RuleKey: Int32] = [:]
    /// The nesting depth of the template that is being compiled.
    private var depth = 0

    init(_ source: GrammarSource, boundLists: [String]) throws(ApusError) {
        self.source = source
        self.boundLists = Set(boundLists.map { ExactText($0) })
        normalizer = TextNormalizer(source.language)
        try checkCounts()
        global.rules = try Self.rules(source.rules)
        global.lists = try Self.lists(source.lists)
    }

    private func checkCounts() throws(ApusError) {
        let sources = [source] + source.extensions
        let intents = sources.flatMap(\.intents)
        let blocks = intents.flatMap(\.blocks)
        let sentenceCount = blocks.reduce(0) { $0 + $1.sentences.count }
        let ruleCount = sources.reduce(0) { $0 + $1.rules.count } + blocks.reduce(0) { $0 + $1.rules.count }
        let listCount = sources.reduce(0) { $0 + $1.lists.count } + blocks.reduce(0) { $0 + $1.lists.count }
        let conditionCount = blocks.map { max($0.requires.count, $0.excludes.count, $0.slots.count) }.max() ?? 0
        let bounds = [
            ("intents", intents.count, GrammarLimits.intentCountMax),
            ("sentences", sentenceCount, GrammarLimits.sentenceCountMax),
            ("rules", ruleCount, GrammarLimits.ruleCountMax),
            ("lists", listCount, GrammarLimits.listCountMax),
            ("skip words", sources.reduce(0) { $0 + $1.skipWords.count }, GrammarLimits.skipWordCountMax),
            ("conditions or slots of a block", conditionCount, GrammarLimits.conditionCountMax),
        ]
        for (name, count, countMax) in bounds where count > countMax {
            throw ApusError(grammarTooLarge: GrammarPlace(), "\(count) \(name), and at most \(countMax) are allowed")
        }
    }

    private static func rules(_ rules: [GrammarRule]) throws(ApusError) -> [ExactText: Template] {
        var templates: [ExactText: Template] = [:]
        for rule in rules {
            let place = GrammarPlace("rule \(rule.name)")
            templates[ExactText(rule.name)] = try TemplateParser.parse(rule.text, place)
        }
        return templates
    }

    private static func lists(_ lists: [GrammarList]) throws(ApusError) -> [ExactText: GrammarList] {
        var found: [ExactText: GrammarList] = [:]
        for list in lists {
            let place = GrammarPlace("list \(list.name)")
            switch list.content {
            case .range(let range):
                found[ExactText(list.name)] = GrammarList(list.name, .range(try range.checked(place)))
                continue
            case .values(let values):
                guard values.count <= GrammarLimits.valueCountMax else {
                    throw ApusError(
                        grammarTooLarge: place,
                        "\(values.count) values, and at most \(GrammarLimits.valueCountMax) are allowed")
                }
            case .wildcard: break
            }
            found[ExactText(list.name)] = list
        }
        return found
    }

    mutating func compile() throws(ApusError) {
        for phrase in ([source] + source.extensions).flatMap(\.skipWords) {
            let leaves = vocabulary.leaves(of: phrase, source.language, normalizer)
            if !leaves.isEmpty { skipPhrases.append(leaves) }
        }
        for (index, other) in source.extensions.enumerated() {
            var scope = global
            scope.number = -1 - index
            scope.rules.merge(try Self.rules(other.rules)) { $1 }
            scope.lists.merge(try Self.lists(other.lists)) { $1 }
            for intent in other.intents {
                for block in intent.blocks { try compile(block, of: intent.name, in: scope) }
            }
        }
        for intent in source.intents {
            for block in intent.blocks { try compile(block, of: intent.name, in: global) }
        }
    }

    private mutating func compile(
        _ block: GrammarSource.Block, of intent: String, in outer: Scope
    ) throws(ApusError) {
        var scope = outer
        scope.place = GrammarPlace("intent \(intent)")
        scope.filter = GrammarTemplates.Filter(requires: block.requires, excludes: block.excludes)
        if !block.rules.isEmpty || !block.lists.isEmpty {
            scope.number = blocks.count + 1
            scope.rules.merge(try Self.rules(block.rules)) { $1 }
            scope.lists.merge(try Self.lists(block.lists)) { $1 }
        }
        let number = blocks.count
        blocks.append(GrammarTemplates.Block(intent: intent, slots: block.slots, filter: scope.filter))
        for text in block.sentences {
            scope.place.sentence = text
            let root = try node(try TemplateParser.parse(text, scope.place), scope)
            let count = nodes.formCounts[Int(root)]
            guard count <= GrammarLimits.formCountMax else {
                let shown = count == .max ? "2^64 or more" : "\(count)"
                throw ApusError(
                    grammarTooLarge: scope.place,
                    "the alternatives have \(shown) forms, and at most \(GrammarLimits.formCountMax) are allowed")
            }
            sentences.append(GrammarTemplates.Sentence(text: text, root: root, block: number))
        }
    }

    // MARK: Nodes

    private mutating func node(_ template: Template, _ scope: Scope) throws(ApusError) -> Int32 {
        depth += 1
        defer { depth -= 1 }
        guard depth <= GrammarLimits.nodeDepthMax else {
            throw ApusError(
                grammarTooLarge: scope.place, "rules and groups are nested deeper than \(GrammarLimits.nodeDepthMax)")
        }
        switch template {
        case .text(let text):
            return try nodes.text(vocabulary.leaves(of: text, source.language, normalizer), scope.place)
        case .sequence(let parts): return try node(parts, scope)
        case .choice(let alternatives):
            var children: [Int32] = []
            for alternative in alternatives { children.append(try node(alternative, scope)) }
            return try nodes.choice(children, scope.place)
        case .permutation(let parts):
            var children: [Int32] = []
            for part in parts { children.append(try node(part, scope)) }
            var orders: [Int32] = []
            for order in Self.orders(children) { orders.append(try nodes.sequence(order, scope.place)) }
            return try nodes.choice(orders, scope.place)
        case .list(let name, let slot, let column):
            let use = try use(of: name, scope, column)
            return try nodes.add(.list(use: use, slot: number(ofSlot: slot)), scope.place.at(column))
        case .rule(let name, let column): return try rule(name, scope, column)
        }
    }

    /// Parts that are glued become the spellings of one word.
    private mutating func node(_ parts: [Template.Part], _ scope: Scope) throws(ApusError) -> Int32 {
        var children: [Int32] = []
        // Words that no notation separates are read together, since a number may have several.
        var index = 0
        while index < parts.count {
            var spellings: [String]?
            var end = index + 1
            if !source.language.isByCharacter, Template.needsGlue(parts, end),
                var texts = try scope.spellings(of: parts[index].template)
            {
                while Template.needsGlue(parts, end), let next = try scope.spellings(of: parts[end].template) {
                    texts = try scope.joined(texts, next, "")
                    end += 1
                }
                if end > index + 1 { spellings = texts }
            }
            if let spellings {
                var alternatives: [Int32] = []
                for text in spellings { alternatives.append(try node(.text(text), scope)) }
                children.append(try nodes.choice(alternatives, scope.place))
            } else if case .text(var text) = parts[index].template {
                while end < parts.count, case .text(let next) = parts[end].template, !Template.needsGlue(parts, end + 1)
                {
                    text += " " + next
                    end += 1
                }
                children.append(try node(.text(text), scope))
            } else {
                children.append(try node(parts[index].template, scope))
            }
            index = end
        }
        return try nodes.sequence(children, scope.place)
    }

    private static func orders(_ parts: [Int32]) -> [[Int32]] {
        guard parts.count > 1 else { return [parts] }
        return parts.indices.flatMap { index in
            var rest = parts
            let first = rest.remove(at: index)
            return orders(rest).map { [first] + $0 }
        }
    }

    private mutating func rule(_ name: String, _ scope: Scope, _ column: Int) throws(ApusError) -> Int32 {
        let (name, place) = (ExactText(name), scope.place.at(column))
        guard let template = scope.rules[name] else {
            throw ApusError(grammar: place, "the rule <\(name)> is unknown")
        }
        guard scope.path.count < GrammarLimits.ruleDepthMax else {
            throw ApusError(grammarTooLarge: place, "rules are nested deeper than \(GrammarLimits.ruleDepthMax)")
        }
        guard !scope.path.contains(name) else {
            let path = (scope.path + [name]).map { "<\($0)>" }.joined(separator: " ")
            throw ApusError(grammar: place, "the rule <\(name)> reaches itself: \(path)")
        }
        let key = RuleKey(scope: scope.number, name: name, filter: scope.filter, isValue: scope.isValue)
        if let node = ruleNodes[key] { return node }
        var inner = scope
        inner.path.append(name)
        let node = try node(template, inner)
        ruleNodes[key] = node
        return node
    }

    private mutating func number(ofSlot name: String) -> Int32 {
        if let number = slotNumbers[ExactText(name)] { return number }
        let number = Int32(slots.count)
        slots.append(name)
        slotNumbers[ExactText(name)] = number
        return number
    }

    // MARK: Lists

    private mutating func use(of name: String, _ scope: Scope, _ column: Int) throws(ApusError) -> Int32 {
        let place = scope.place.at(column)
        guard !scope.isValue else { throw ApusError(grammar: place, "a value of a list names no list") }
        let use = GrammarTemplates.ListUse(list: try list(name, scope, place), filter: scope.filter)
        if let number = useNumbers[use] { return number }
        let number = Int32(uses.count)
        uses.append(use)
        useNumbers[use] = number
        return number
    }

    private mutating func list(_ name: String, _ scope: Scope, _ place: GrammarPlace) throws(ApusError) -> Int {
        let key = ListKey(scope: scope.number, name: ExactText(name))
        if let number = listNumbers[key] { return number }
        let content: GrammarTemplates.List.Content
        if let list = scope.lists[key.name] {
            switch list.content {
            case .range(let range): content = .range(range)
            case .wildcard: content = .wildcard
            case .values(let values): content = .values(try compiled(values, of: name, scope))
            }
        } else if let range = try Self.range(name, place) {
            content = .range(range)
        } else if boundLists.contains(key.name) {
            content = .bound
        } else {
            throw ApusError(grammar: place, "the list {\(name)} is unknown")
        }
        lists.append(GrammarTemplates.List(name: name, content: content))
        listNumbers[key] = lists.count - 1
        return lists.count - 1
    }

    /// The range of `{0..100}` or `{0..100,5}`; nil if the name is not one.
    private static func range(_ name: String, _ place: GrammarPlace) throws(ApusError) -> GrammarRange? {
        let parts = name.parts(separatedBy: ",")
        let bounds = parts[0].split(separator: "..", omittingEmptySubsequences: false)
        guard parts.count <= 2, bounds.count == 2, let from = Int(bounds[0]), let to = Int(bounds[1]) else {
            return nil
        }
        guard let step = parts.count == 2 ? Int(parts[1]) : 1 else { return nil }
        return try GrammarRange(from, to, step: step).checked(place)
    }

    private mutating func compiled(
        _ values: [GrammarValue], of name: String, _ scope: Scope
    ) throws(ApusError) -> [GrammarTemplates.Value] {
        var inner = scope
        inner.isValue = true
        inner.filter = GrammarTemplates.Filter()
        var compiled: [GrammarTemplates.Value] = []
        for value in values {
            inner.place = GrammarPlace("list \(name)", sentence: value.text)
            let node = try node(try TemplateParser.parse(value.text, inner.place), inner)
            guard !nodes.isNullable[Int(node)] else {
                throw ApusError(grammar: inner.place, "a value has at least one word")
            }
            let text = leaves(of: node).map { GrammarTemplates.Value.Text.leaves($0) } ?? .node(node)
            compiled.append(GrammarTemplates.Value(value: value, text: text))
        }
        return compiled
    }

    /// The leaves of a node that is plain text; nil for others.
    private func leaves(of node: Int32) -> [GrammarLeaf]? {
        switch nodes.nodes[Int(node)] {
        case .word(let word): return [.word(word)]
        case .number(let tenths): return [.number(tenths)]
        case .list, .choice: return nil
        case .sequence(let children):
            var leaves: [GrammarLeaf] = []
            for child in children {
                guard let inner = self.leaves(of: child) else { return nil }
                leaves += inner
            }
            return leaves
        }
    }
}

package import ApusCore
import Yams

extension GrammarSource {
    /// Reads a file. Keys that say nothing about the matching, such as `response`, are ignored.
    ///
    /// An intent may also be a list of sentences without `data`, and a list a list of values without `values`.
    ///
    /// - Throws: 10002 if the file is longer than ``GrammarLimits/fileByteCountMax``, or has more than
    ///   ``GrammarLimits/yamlNodeCountMax`` nodes; 21031 with the place if it is not YAML, or not a file of sentences.
    package init(yaml: String) throws(ApusError) {
        guard yaml.utf8.count <= GrammarLimits.fileByteCountMax else {
            throw ApusError(
                grammarTooLarge: GrammarPlace(),
                "the file has \(yaml.utf8.count) bytes, and at most \(GrammarLimits.fileByteCountMax) are allowed")
        }
        let root: Node?
        do {
            root = try Yams.compose(yaml: yaml)
        } catch {
            throw ApusError(grammar: GrammarPlace(), "the file is not valid YAML: \(error)")
        }
        guard let root else { throw ApusError(grammar: GrammarPlace(), "the file is empty") }
        var count = 0
        try Self.count(root, &count)
        var reader = YAMLReader()
        self = try reader.source(root)
    }

    /// Aliases repeat what they name, so a short file can have many nodes.
    private static func count(_ node: Node, _ count: inout Int) throws(ApusError) {
        count += 1
        guard count <= GrammarLimits.yamlNodeCountMax else {
            throw ApusError(
                grammarTooLarge: GrammarPlace(), "the file has more than \(GrammarLimits.yamlNodeCountMax) nodes")
        }
        switch node {
        case .scalar, .alias: break
        case .sequence(let sequence): for element in sequence { try Self.count(element, &count) }
        case .mapping(let mapping):
            for (_, value) in mapping { try Self.count(value, &count) }
        }
    }
}

/// Reads the nodes of a file.
private struct YAMLReader {
    private typealias Entry = (name: String, node: Node)

    private func error(_ owner: String, _ node: Node?, _ reason: String) -> ApusError {
        let line = node?.mark.map { "line \($0.line)" } ?? ""
        let parts = [line, owner].filter { !$0.isEmpty }
        return ApusError(grammar: GrammarPlace(parts.joined(separator: ", ")), reason)
    }

    private func entries(_ node: Node, _ owner: String) throws(ApusError) -> [Entry] {
        if case .scalar(let scalar) = node, scalar.string.isEmpty { return [] }
        guard case .mapping(let mapping) = node else { throw error(owner, node, "a map is expected") }
        var entries: [Entry] = []
        for (key, value) in mapping {
            guard let name = key.scalar?.string else { throw error(owner, key, "a key must be text") }
            entries.append((name, value))
        }
        return entries
    }

    private func elements(_ node: Node, _ owner: String) throws(ApusError) -> [Node] {
        guard case .sequence(let sequence) = node else { throw error(owner, node, "a list is expected") }
        return Array(sequence)
    }

    private func text(_ node: Node, _ owner: String) throws(ApusError) -> String {
        guard let scalar = node.scalar else { throw error(owner, node, "a text is expected") }
        return scalar.string
    }

    private func number(_ node: Node, _ owner: String) throws(ApusError) -> Int {
        guard let scalar = node.scalar, let number = Int(scalar.string) else {
            throw error(owner, node, "a whole number is expected")
        }
        return number
    }

    private func texts(_ node: Node, _ owner: String) throws(ApusError) -> [String] {
        if case .scalar(let scalar) = node { return [scalar.string] }
        var texts: [String] = []
        for element in try elements(node, owner) { texts.append(try text(element, owner)) }
        return texts
    }

    mutating func source(_ root: Node) throws(ApusError) -> GrammarSource {
        let entries = try entries(root, "")
        guard let language = entries.first(where: { $0.name == "language" }) else {
            throw error("", root, "the key 'language' is missing")
        }
        var source = GrammarSource(GrammarLanguage(try text(language.node, "language")))
        for (name, node) in entries {
            switch name {
            case "intents":
                for (name, node) in try self.entries(node, "intents") {
                    source.intents.append(try intent(name, node))
                }
            case "lists": source.lists = try lists(node)
            case "expansion_rules": source.rules = try rules(node, "expansion_rules")
            case "skip_words": source.skipWords = try texts(node, "skip_words")
            default: break
            }
        }
        return source
    }

    private func intent(_ name: String, _ node: Node) throws(ApusError) -> GrammarSource.Intent {
        let owner = "intent \(name)"
        if case .sequence = node { return GrammarSource.Intent(name, [GrammarSource.Block(try texts(node, owner))]) }
        guard let data = try entries(node, owner).first(where: { $0.name == "data" }) else {
            throw error(owner, node, "the key 'data' is missing")
        }
        var blocks: [GrammarSource.Block] = []
        for element in try elements(data.node, owner) { blocks.append(try block(element, owner)) }
        return GrammarSource.Intent(name, blocks)
    }

    private func block(_ node: Node, _ owner: String) throws(ApusError) -> GrammarSource.Block {
        let entries = try entries(node, owner)
        guard let sentences = entries.first(where: { $0.name == "sentences" }) else {
            throw error(owner, node, "the key 'sentences' is missing")
        }
        var block = GrammarSource.Block(try texts(sentences.node, owner))
        for (name, node) in entries {
            switch name {
            case "slots": block.slots += try facts(node, owner)
            case "requires_context": block.requires += try conditions(node, owner)
            case "excludes_context": block.excludes = try conditions(node, owner)
            case "expansion_rules": block.rules = try rules(node, owner)
            case "lists": block.lists = try lists(node)
            // Newer files of home-assistant-intents name the domains of {name}, and a domain that the words say.
            case "name_domains":
                let domains = try texts(node, owner)
                if domains != ["default"] { block.requires.append(GrammarCondition("domain", domains)) }
            case "inferred_domain": block.slots.append(GrammarFact("domain", try text(node, owner)))
            default: break
            }
        }
        return block
    }

    private func rules(_ node: Node, _ owner: String) throws(ApusError) -> [GrammarRule] {
        var rules: [GrammarRule] = []
        for (name, node) in try entries(node, owner) { rules.append(GrammarRule(name, try text(node, "rule \(name)"))) }
        return rules
    }

    private func facts(_ node: Node, _ owner: String) throws(ApusError) -> [GrammarFact] {
        var facts: [GrammarFact] = []
        for (name, node) in try entries(node, owner) {
            // Metadata may be of any shape; only texts are kept.
            guard let scalar = node.scalar else { continue }
            facts.append(GrammarFact(name, scalar.string))
        }
        return facts
    }

    private func conditions(_ node: Node, _ owner: String) throws(ApusError) -> [GrammarCondition] {
        var conditions: [GrammarCondition] = []
        for (name, node) in try entries(node, owner) {
            switch node {
            case .scalar(let scalar):
                conditions.append(GrammarCondition(name, Self.isNull(scalar) ? [] : [scalar.string]))
            case .sequence: conditions.append(GrammarCondition(name, try texts(node, owner)))
            case .mapping:
                var condition = GrammarCondition(name)
                for (key, node) in try entries(node, owner) {
                    switch key {
                    case "slot": condition.fillsSlot = try text(node, owner) == "true"
                    case "value": condition.values = try texts(node, owner)
                    default: throw error(owner, node, "a condition has 'slot' and 'value'")
                    }
                }
                conditions.append(condition)
            case .alias: throw error(owner, node, "a value is expected")
            }
        }
        return conditions
    }

    private static func isNull(_ scalar: Node.Scalar) -> Bool {
        scalar.style == .plain && ["", "~", "null"].contains(scalar.string)
    }

    private func lists(_ node: Node) throws(ApusError) -> [GrammarList] {
        var lists: [GrammarList] = []
        for (name, node) in try entries(node, "lists") { lists.append(try list(name, node)) }
        return lists
    }

    private func list(_ name: String, _ node: Node) throws(ApusError) -> GrammarList {
        let owner = "list \(name)"
        if case .sequence = node { return GrammarList(name, .values(try values(node, owner))) }
        for (key, node) in try entries(node, owner) {
            switch key {
            case "values": return GrammarList(name, .values(try values(node, owner)))
            case "range": return GrammarList(name, .range(try range(node, owner)))
            case "wildcard":
                if try text(node, owner) == "true" { return GrammarList(name, .wildcard) }
            default: break
            }
        }
        throw error(owner, node, "a list has 'values', 'range' or 'wildcard: true'")
    }

    private func values(_ node: Node, _ owner: String) throws(ApusError) -> [GrammarValue] {
        var values: [GrammarValue] = []
        for element in try elements(node, owner) {
            guard case .mapping = element else {
                values.append(GrammarValue(try text(element, owner)))
                continue
            }
            var (input, output): (String?, String?)
            var (context, metadata): ([GrammarFact], [GrammarFact]) = ([], [])
            for (key, node) in try entries(element, owner) {
                switch key {
                case "in": input = try text(node, owner)
                // Several values are one with commas.
                case "out": output = try texts(node, owner).joined(separator: ",")
                case "context": context = try facts(node, owner)
                case "metadata": metadata = try facts(node, owner)
                default: break
                }
            }
            guard let input else { throw error(owner, element, "a value has 'in' and 'out'") }
            values.append(GrammarValue(input, value: output, context: context, metadata: metadata))
        }
        return values
    }

    private func range(_ node: Node, _ owner: String) throws(ApusError) -> GrammarRange {
        var range = GrammarRange(0, 0)
        var names: Set<ExactText> = []
        for (key, node) in try entries(node, owner) {
            names.insert(ExactText(key))
            switch key {
            case "from": range.from = try number(node, owner)
            case "to": range.to = try number(node, owner)
            case "step": range.step = try number(node, owner)
            case "multiplier": range.multiplier = try number(node, owner)
            case "type":
                guard let kind = GrammarRange.Kind(rawValue: try text(node, owner)) else {
                    throw error(owner, node, "the type of a range is number, percentage or temperature")
                }
                range.kind = kind
            case "fractions":
                guard let fractions = GrammarRange.Fractions(rawValue: try text(node, owner)) else {
                    throw error(owner, node, "the fractions of a range are none, halves or tenths")
                }
                range.fractions = fractions
            default: break
            }
        }
        guard names.isSuperset(of: [ExactText("from"), ExactText("to")]) else {
            throw error(owner, node, "a range has 'from' and 'to'")
        }
        return range
    }
}

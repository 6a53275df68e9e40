package import ApusCore

extension Grammar {
    /// The grammar in the Java Speech Grammar Format, for recognisers with a closed grammar: one public rule, words in
    /// lower case, numbers as words. Forms with a wildcard or with a list without values are left out.
    ///
    /// - Parameters:
    ///   - byteCountMax: the longest text.
    ///   - intents: sentences of these are left out.
    /// - Throws: 10002 if the text is longer; 21031 if the grammar has no sentence.
    package func jsgf(byteCountMax: Int, without intents: [String] = []) throws(ApusError) -> String {
        var writer = JSGFWriter(tables, byteCountMax: byteCountMax)
        return try writer.text(of: sentences(without: intents))
    }

    /// The templates of all intents but these.
    func sentences(without intents: [String]) -> [GrammarTemplates.Sentence] {
        templates.sentences.filter { sentence in
            !intents.contains { $0.isExactly(templates.blocks[sentence.block].intent) }
        }
    }

    /// A hash of all that decides about matches, as 32 hexadecimal digits: the same for the same sentences and lists in
    /// every process. It names a grammar in a cache of the same account; it does not withstand an attacker.
    package var hash: String {
        var bytes: [UInt8] = []
        func add(_ text: String) {
            bytes += text.utf8
            // Not part of UTF-8, so that no two lists of texts have the same bytes.
            bytes.append(0xff)
        }
        func add(_ facts: [GrammarFact]) {
            add("\(facts.count)")
            for fact in facts {
                add(fact.name)
                add(fact.value)
            }
        }
        add(templates.language.tag)
        for (number, node) in templates.nodes.enumerated() { add("\(number) \(node)") }
        for word in tables.vocabulary.shown { add(word) }
        for sentence in templates.sentences { add("\(sentence.root) \(sentence.block)") }
        for block in templates.blocks {
            add(block.intent)
            add(block.slots)
            for condition in block.filter.requires + [GrammarCondition("")] + block.filter.excludes {
                add(condition.name)
                add("\(condition.fillsSlot) \(condition.values.count)")
                condition.values.forEach(add)
            }
        }
        for slot in templates.slots { add(slot) }
        for phrase in templates.skipPhrases { add("\(phrase)") }
        for list in tables.lists {
            if case .range(let range) = list.kind { add("\(range)") } else { add("\(list.values.count)") }
            for value in list.values {
                add(value.text)
                add(value.value)
                add(value.context)
            }
        }
        return Hexadecimal.text(
            [0, 1].flatMap { seed in
                withUnsafeBytes(of: StableHash.hash(bytes, seed: seed).bigEndian) { Array($0) }
            })
    }
}

/// Writes the nodes of a grammar as rules.
private struct JSGFWriter {
    private let tables: GrammarTables
    private let expander: GrammarExpander
    private let byteCountMax: Int
    private var output = ""
    /// The nodes that are rules of their own, as several nodes have them.
    private var shared: Set<Int32> = []

    init(_ tables: GrammarTables, byteCountMax: Int) {
        (self.tables, self.byteCountMax) = (tables, byteCountMax)
        expander = GrammarExpander(tables)
    }

    private func isPossible(_ node: Int32) -> Bool { expander.counts[Int(node)] > 0 }

    mutating func text(of sentences: [GrammarTemplates.Sentence]) throws(ApusError) -> String {
        var roots: [Int32] = []
        for sentence in sentences
        where isPossible(sentence.root) && !roots.contains(sentence.root) && tables.hasWords[Int(sentence.root)] {
            roots.append(sentence.root)
        }
        guard !roots.isEmpty else { throw ApusError(grammar: GrammarPlace(), "no sentence has words") }
        let reached = reached(from: roots)
        output = "#JSGF V1.0;\ngrammar apus;\n"
        try add("public <sentence> = " + roots.map(reference).joined(separator: " | ") + ";\n")
        for use in tables.lists.indices where reached.uses.contains(Int32(use)) {
            try add("<l\(use)> = \(values(of: Int32(use)));\n")
        }
        for node in tables.templates.nodes.indices
        where shared.contains(Int32(node)) && tables.hasWords[node] {
            try add("<n\(node)> = \(definition(of: Int32(node)));\n")
        }
        return output
    }

    private mutating func add(_ line: String) throws(ApusError) {
        output += line
        guard output.utf8.count <= byteCountMax else {
            throw ApusError(grammarTooLarge: GrammarPlace(), "the JSGF text has more than \(byteCountMax) bytes")
        }
    }

    /// The nodes and lists that the sentences have. Nodes that occur several times become rules.
    private mutating func reached(from roots: [Int32]) -> (nodes: Set<Int32>, uses: Set<Int32>) {
        var (nodes, uses, open): (Set<Int32>, Set<Int32>, [Int32]) = ([], [], roots)
        while let node = open.popLast() {
            let isNew = nodes.insert(node).inserted
            switch tables.templates.nodes[Int(node)] {
            case .word, .number: continue
            case .list(let use, _):
                if uses.insert(use).inserted { open += tables.lists[Int(use)].forms.map(\.node) }
            case .sequence(let children), .choice(let children):
                guard isNew else {
                    shared.insert(node)
                    continue
                }
                open += children.filter(isPossible)
            }
        }
        return (nodes, uses)
    }

    private func reference(_ node: Int32) -> String { shared.contains(node) ? "<n\(node)>" : definition(of: node) }

    private func definition(of node: Int32) -> String {
        switch tables.templates.nodes[Int(node)] {
        case .word(let word): return tables.vocabulary.shown[Int(word)]
        case .number(let tenths): return spelled(Int(tenths))
        case .list(let use, _): return "<l\(use)>"
        case .sequence(let children): return children.map(reference).joined(separator: " ")
        case .choice(let children):
            let possible = children.filter(isPossible)
            let full = possible.filter { tables.hasWords[Int($0)] }
            let text = full.map(reference).joined(separator: " | ")
            return full.count < possible.count ? "[ \(text) ]" : "( \(text) )"
        }
    }

    private func spelled(_ tenths: Int) -> String {
        let ways = expander.spelled(tenths).map { $0.joined(separator: " ") }
        return ways.count == 1 ? ways[0] : "( \(ways.joined(separator: " | ")) )"
    }

    private func values(of use: Int32) -> String {
        let list = tables.lists[Int(use)]
        switch list.kind {
        case .wildcard: return "<VOID>"
        case .range(let range):
            let numbers = stride(from: range.from, through: range.to, by: range.step)
            return numbers.flatMap { expander.spelled($0 * 10) }.map { $0.joined(separator: " ") }
                .joined(separator: " | ")
        case .values:
            var texts: [String] = []
            var seen: Set<ExactText> = []
            for entry in expander.plain(use) {
                let text = expander.words(of: entry).joined(separator: " ")
                if seen.insert(ExactText(text)).inserted { texts.append(text) }
            }
            return (texts + list.forms.map { reference($0.node) }).joined(separator: " | ")
        }
    }
}

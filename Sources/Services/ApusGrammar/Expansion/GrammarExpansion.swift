/// A sentence that a grammar has, and what it means.
///
/// Pure value.
package struct GrammarExpansion: Sendable, Hashable {
    /// The words, in lower case, with numbers as words.
    package var text: String
    /// The name of its intent.
    package var intent: String
    /// The slots of the sentence, and then those that its block fixes.
    package var slots: [GrammarFact]
    /// The facts that the context must have.
    package var context: [GrammarFact]
}

/// Makes sentences of a grammar, by their number or by chance.
///
/// Forms with a wildcard are left out, since any words fit it.
struct GrammarExpander {
    let tables: GrammarTables
    /// The sentences of each node, with saturation.
    private(set) var counts: [UInt64] = []
    /// The plain texts of each use of a list, in the order of its values.
    private let plains: [[BoundList.Entry]]

    init(_ tables: GrammarTables) {
        self.tables = tables
        let templates = tables.templates
        plains = tables.lists.map { list in
            list.entries.values.flatMap { $0 }.sorted { $0.value < $1.value }
        }
        counts.reserveCapacity(templates.nodes.count)
        for node in templates.nodes {
            switch node {
            case .word, .number: counts.append(1)
            case .list(let use, _):
                // The forms of a list have smaller numbers than the nodes that name it.
                counts.append(count(of: tables.lists[Int(use)]))
            case .sequence(let children):
                counts.append(children.reduce(1) { GrammarNodeTable.product($0, counts[Int($1)]) })
            case .choice(let children):
                counts.append(children.reduce(0) { GrammarNodeTable.sum($0, counts[Int($1)]) })
            }
        }
    }

    private func count(of list: BoundList) -> UInt64 {
        switch list.kind {
        case .wildcard: return 0
        case .range(let range): return UInt64(range.count)
        case .values:
            let plain = list.entries.values.reduce(0) { $0 + $1.count }
            return list.forms.reduce(UInt64(plain)) { GrammarNodeTable.sum($0, counts[Int($1.node)]) }
        }
    }

    /// What is made so far.
    private struct Output {
        var words: [String] = []
        var slots: [(slot: GrammarFact, value: GrammarValue?)] = []
    }

    /// The sentence of a number below the count of its root; nil if no context fits it.
    func expansion(_ sentence: GrammarTemplates.Sentence, number: UInt64) -> GrammarExpansion? {
        var output = Output()
        append(sentence.root, number, &output)
        return finish(output, sentence)
    }

    /// A sentence by chance; nil if no context fits it.
    func sample(
        _ sentence: GrammarTemplates.Sentence, _ random: inout some RandomNumberGenerator
    ) -> GrammarExpansion? {
        var output = Output()
        appendSample(sentence.root, &random, &output)
        return finish(output, sentence)
    }

    private func finish(_ output: Output, _ sentence: GrammarTemplates.Sentence) -> GrammarExpansion? {
        guard !output.words.isEmpty else { return nil }
        let block = tables.templates.blocks[sentence.block]
        var slots = output.slots.map(\.slot)
        var context: [GrammarFact] = []
        for condition in block.filter.requires {
            let isGiven = output.slots.contains { $0.value?.context.value(of: condition.name) != nil }
            guard condition.fillsSlot || !isGiven else { continue }
            let value = condition.values.first ?? "any"
            context.append(GrammarFact(condition.name, value))
            if condition.fillsSlot, slots.value(of: condition.name) == nil {
                slots.append(GrammarFact(condition.name, value))
            }
        }
        for fact in block.slots where slots.value(of: fact.name) == nil { slots.append(fact) }
        let isByCharacter = tables.templates.language.isByCharacter
        return GrammarExpansion(
            text: isByCharacter ? Self.joined(output.words) : output.words.joined(separator: " "),
            intent: block.intent, slots: slots, context: context)
    }

    /// Han characters without spaces, other words with them.
    private static func joined(_ words: [String]) -> String {
        var text = ""
        var wasIdeograph = true
        for word in words {
            let isIdeograph = word.unicodeScalars.first.map { TextFolding.isIdeograph($0.value) } ?? true
            if !wasIdeograph, !isIdeograph { text += " " }
            text += word
            wasIdeograph = isIdeograph
        }
        return text
    }

    // MARK: By number

    private func append(_ node: Int32, _ number: UInt64, _ output: inout Output) {
        switch tables.templates.nodes[Int(node)] {
        case .word(let word): output.words.append(tables.vocabulary.shown[Int(word)])
        case .number(let tenths): output.words += spelled(Int(tenths))[0]
        case .sequence(let children):
            // The last child changes fastest.
            var (rest, numbers) = (number, [UInt64]())
            for child in children.reversed() {
                let count = counts[Int(child)]
                numbers.append(rest % count)
                rest /= count
            }
            for (child, number) in zip(children, numbers.reversed()) { append(child, number, &output) }
        case .choice(let children):
            var rest = number
            for child in children {
                let count = counts[Int(child)]
                if rest < count {
                    append(child, rest, &output)
                    return
                }
                rest -= count
            }
        case .list(let use, let slot): append(use, slot, number, &output)
        }
    }

    private func append(_ use: Int32, _ slot: Int32, _ number: UInt64, _ output: inout Output) {
        let list = tables.lists[Int(use)]
        switch list.kind {
        case .wildcard: break
        case .range(let range):
            let value = range.from + Int(number) * range.step
            output.words += spelled(value * 10)[0]
            add(slot, range.value(ofTenths: value * 10), nil, &output)
        case .values:
            let plain = plain(use)
            if number < UInt64(plain.count) {
                append(plain[Int(number)], of: list, slot, &output)
                return
            }
            var rest = number - UInt64(plain.count)
            for form in list.forms {
                let count = counts[Int(form.node)]
                if rest < count {
                    append(form.node, rest, &output)
                    let value = list.values[Int(form.value)]
                    add(slot, value.value, value, &output)
                    return
                }
                rest -= count
            }
        }
    }

    /// The plain texts of a use of a list, in the order of its values.
    func plain(_ use: Int32) -> [BoundList.Entry] { plains[Int(use)] }

    private func append(_ entry: BoundList.Entry, of list: BoundList, _ slot: Int32, _ output: inout Output) {
        output.words += words(of: entry)
        let value = list.values[Int(entry.value)]
        add(slot, value.value, value, &output)
    }

    func words(of entry: BoundList.Entry) -> [String] {
        entry.leaves.flatMap { leaf in
            switch leaf {
            case .word(let word): [tables.vocabulary.shown[Int(word)]]
            case .number(let tenths): spelled(Int(tenths))[0]
            }
        }
    }

    private func add(_ slot: Int32, _ text: String, _ value: GrammarValue?, _ output: inout Output) {
        output.slots.append((GrammarFact(tables.templates.slots[Int(slot)], text), value))
    }

    /// The ways to say a whole number.
    func spelled(_ tenths: Int) -> [[String]] { tables.templates.language.spelled(tenths / 10) }

    // MARK: By chance

    private func appendSample(
        _ node: Int32, _ random: inout some RandomNumberGenerator, _ output: inout Output
    ) {
        switch tables.templates.nodes[Int(node)] {
        case .word, .number: append(node, 0, &output)
        case .sequence(let children):
            for child in children { appendSample(child, &random, &output) }
        case .choice(let children):
            let possible = children.filter { counts[Int($0)] > 0 }
            if let child = possible.randomElement(using: &random) { appendSample(child, &random, &output) }
        case .list(let use, let slot):
            let list = tables.lists[Int(use)]
            switch list.kind {
            case .wildcard: break
            case .range(let range):
                let value = range.from + Int.random(in: 0..<range.count, using: &random) * range.step
                output.words += spelled(value * 10).randomElement(using: &random) ?? []
                add(slot, range.value(ofTenths: value * 10), nil, &output)
            case .values:
                let plain = plain(use)
                let number = Int.random(in: 0..<(plain.count + list.forms.count), using: &random)
                if number < plain.count {
                    append(plain[number], of: list, slot, &output)
                } else {
                    let form = list.forms[number - plain.count]
                    let value = list.values[Int(form.value)]
                    appendSample(form.node, &random, &output)
                    add(slot, value.value, value, &output)
                }
            }
        }
    }
}

import ApusCore

extension Grammar {
    /// The meanings of a text.
    ///
    /// They are ordered: fewer words of wildcards first; then the longest single value, so that the device `kitchen
    /// light` comes before the area `kitchen`; then more literal words; then the order of the sentences. Two meanings
    /// with the same intent and the same slots are one.
    ///
    /// - Parameter context: facts about the speaker and the device, which conditions of data blocks see.
    package func match(_ text: String, context: [GrammarFact] = []) -> GrammarMatches {
        match(text, context: context, stepCountMax: GrammarLimits.stepCountMax)
    }

    /// The same with another bound of steps. For tests.
    package func match(_ text: String, context: [GrammarFact], stepCountMax: Int) -> GrammarMatches {
        guard let words = GrammarText(text, tables) else { return GrammarMatches(extent: .tooLong) }
        var binder = GrammarBinder(GrammarWalk(tables, words, stepCountMax: stepCountMax))
        return matches(&binder, roots(context), context)
    }

    /// Whether a text is a sentence, or the beginning of one. A text over the bounds is neither.
    ///
    /// The words so far are compared, and not parts of words. A beginning is one for values that the account has.
    package func verdict(of text: String, context: [GrammarFact] = []) -> GrammarVerdict {
        guard let words = GrammarText(text, tables), words.count > 0 else { return .none }
        var binder = GrammarBinder(GrammarWalk(tables, words))
        let (roots, sentences) = (roots(context), tables.templates.sentences)
        let isWhole = !matches(&binder, roots, context).isEmpty
        var isBeginning = false
        for sentence in roots where !isBeginning {
            words.skips[0].forEachPosition { start in
                // Nothing but skip words is the beginning of nothing.
                guard start < words.count, !isBeginning else { return }
                isBeginning = binder.walk.isOpen(sentences[sentence].root, from: start)
            }
        }
        guard !binder.walk.isStopped else { return .none }
        if isWhole { return isBeginning ? .wholeAndBeginning : .whole }
        return isBeginning ? .beginning : .none
    }

    /// The numbers of the sentences whose blocks fit the context.
    private func roots(_ context: [GrammarFact]) -> [Int] {
        let isFit = tables.templates.blocks.map { mayFit($0.filter, context) }
        let sentences = tables.templates.sentences
        return sentences.indices.filter { isFit[sentences[$0].block] }
    }

    private func matches(
        _ binder: inout GrammarBinder, _ roots: [Int], _ context: [GrammarFact]
    ) -> GrammarMatches {
        let text = binder.walk.text
        guard text.count > 0 else { return GrammarMatches() }
        let (sentences, blocks) = (tables.templates.sentences, tables.templates.blocks)
        var found: [Ranked] = []
        for index in roots {
            let root = sentences[index].root
            var starts = text.skips[0]
            while starts != 0 {
                let start = starts.trailingZeroBitCount
                starts &= starts - 1
                guard binder.walk.ends(of: root, from: start).has(text.count) else { continue }
                let block = blocks[sentences[index].block]
                for binding in binder.bindings(of: root, from: start, to: text.count) {
                    guard let slots = slots(of: binding, block, text, context) else { continue }
                    let match = GrammarMatch(
                        intent: block.intent, slots: slots, literalWordCount: binding.literalCount,
                        wildcardWordCount: binding.wildcardCount, sentence: sentences[index].text)
                    found.append(Ranked(match, binding, sentence: index, order: found.count))
                }
            }
            guard !binder.walk.isStopped else { return GrammarMatches(extent: .stopped) }
        }
        found.sort()
        var matches = GrammarMatches(extent: binder.isTruncated ? .truncated : .complete)
        for ranked in found where !matches.all.contains(where: { $0.means(ranked.match) }) {
            guard matches.all.count < GrammarLimits.matchCountMax else {
                matches.extent = .truncated
                break
            }
            matches.all.append(ranked.match)
        }
        return matches
    }

    // MARK: Conditions

    /// False if no match of a block can fit the context.
    private func mayFit(_ filter: GrammarTemplates.Filter, _ context: [GrammarFact]) -> Bool {
        for condition in filter.excludes {
            if let value = context.value(of: condition.name), condition.fits(value) { return false }
        }
        return filter.requires.allSatisfy { condition in
            context.value(of: condition.name).map(condition.fits) == true
                || !condition.fillsSlot && tables.factNames.contains(ExactText(condition.name))
        }
    }

    /// The slots of a match; nil if its values do not fit the conditions of the block.
    ///
    /// A required fact comes from the context, or from the values of a slot. If only values can have it, a slot keeps
    /// the values that do.
    private func slots(
        of binding: GrammarBinding, _ block: GrammarTemplates.Block, _ text: GrammarText, _ context: [GrammarFact]
    ) -> [GrammarSlot]? {
        var slots: [GrammarSlot] = []
        for slot in binding.slots.sorted(by: { ($0.start, $0.end) < ($1.start, $1.end) }) {
            slots.append(self.slot(of: slot, text))
        }
        for condition in block.filter.requires {
            let value = context.value(of: condition.name)
            if condition.fillsSlot {
                guard let value, condition.fits(value) else { return nil }
                guard !slots.contains(where: { $0.name.isExactly(condition.name) }) else { continue }
                slots.append(GrammarSlot(name: condition.name, candidates: [GrammarValue("", value: value)], text: ""))
                continue
            }
            guard value.map(condition.fits) != true else { continue }
            let hasFact: (GrammarValue) -> Bool = { $0.context.value(of: condition.name) != nil }
            guard let index = slots.firstIndex(where: { $0.candidates.contains(where: hasFact) }) else { return nil }
            slots[index].candidates.removeAll { !hasFact($0) }
        }
        for fact in block.slots where !slots.contains(where: { $0.name.isExactly(fact.name) }) {
            slots.append(GrammarSlot(name: fact.name, candidates: [GrammarValue("", value: fact.value)], text: ""))
        }
        for index in slots.indices {
            slots[index].candidates = Array(slots[index].candidates.prefix(GrammarLimits.candidateCountMax))
        }
        return slots
    }

    private func slot(of slot: GrammarBinding.Slot, _ text: GrammarText) -> GrammarSlot {
        let (said, range) = text.said(slot.start..<slot.end)
        let list = tables.lists[Int(slot.use)]
        let candidates: [GrammarValue]
        switch slot.content {
        case .values(let numbers):
            // Aliases of one value may be the same after normalization.
            var seen: Set<ExactText> = []
            candidates = numbers.map { list.values[Int($0)] }.filter { seen.insert(ExactText($0.value)).inserted }
        case .number(let tenths):
            guard case .range(let range) = list.kind else { preconditionFailure("a number of a list that is no range") }
            candidates = [GrammarValue(said, value: range.value(ofTenths: tenths))]
        case .words: candidates = [GrammarValue(said)]
        }
        return GrammarSlot(
            name: tables.templates.slots[Int(slot.slot)], candidates: candidates, text: said, range: range)
    }
}

/// A match with what orders it.
private struct Ranked: Comparable {
    let match: GrammarMatch
    /// The number of words of the longest value of a list.
    private let valueCount: Int
    private let sentence: Int
    private let order: Int

    init(_ match: GrammarMatch, _ binding: GrammarBinding, sentence: Int, order: Int) {
        (self.match, self.sentence, self.order) = (match, sentence, order)
        valueCount =
            binding.slots.map { slot in
                if case .words = slot.content { 0 } else { slot.end - slot.start }
            }.max() ?? 0
    }

    private var rank: (Int, Int, Int, Int, Int) {
        (match.wildcardWordCount, -valueCount, -match.literalWordCount, sentence, order)
    }

    static func == (left: Ranked, right: Ranked) -> Bool { left.rank == right.rank }
    static func < (left: Ranked, right: Ranked) -> Bool { left.rank < right.rank }
}

extension GrammarMatch {
    /// True for the same intent with the same values in the same slots.
    fileprivate func means(_ other: GrammarMatch) -> Bool {
        let names: (GrammarMatch) -> [ExactText] = { match in
            match.slots.map { slot in
                ExactText(slot.name + "\u{0}" + slot.candidates.map(\.value).joined(separator: "\u{0}"))
            }.sorted()
        }
        return intent.isExactly(other.intent) && names(self) == names(other)
    }
}

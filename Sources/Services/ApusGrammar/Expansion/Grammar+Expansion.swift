import ApusCore

extension Grammar {
    /// The number of sentences with the bound lists, `UInt64.max` if there are more. It is computed, and no sentence is
    /// made. Forms with wildcards do not count.
    package var sentenceCount: UInt64 {
        let counts = GrammarExpander(tables).counts
        return templates.sentences.reduce(0) { GrammarNodeTable.sum($0, counts[Int($1.root)]) }
    }

    /// The sentences in order, made one by one. A number is said in the usual way.
    ///
    /// - Parameter countMax: ends the sequence.
    package func expansions(countMax: Int) -> GrammarExpansions { GrammarExpansions(tables, countMax: countMax) }

    /// The sentences for a recognizer, without duplicates: all of a template that has few, and of another one some by
    /// chance, the same ones each time. Templates of times of day have millions.
    ///
    /// - Parameters:
    ///   - countMax: the maximum number of sentences.
    ///   - templateMax: the maximum number of sentences of one template.
    package func spokenSentences(countMax: Int, templateMax: Int) -> [String] {
        let expander = GrammarExpander(tables)
        var random = SeededRandom(seed: 1)
        var known: Set<ExactText> = []
        var texts: [String] = []
        func add(_ expansion: GrammarExpansion?) {
            guard let text = expansion?.text, texts.count < countMax, known.insert(ExactText(text)).inserted else {
                return
            }
            texts.append(text)
        }
        // The small templates first: they are whole sentences for people, and must not be missing.
        let sentences = templates.sentences.sorted {
            expander.counts[Int($0.root)] < expander.counts[Int($1.root)]
        }
        for sentence in sentences where texts.count < countMax {
            let count = expander.counts[Int(sentence.root)]
            if count <= UInt64(templateMax) {
                for number in 0..<count { add(expander.expansion(sentence, number: number)) }
            } else {
                for _ in 0..<templateMax { add(expander.sample(sentence, &random)) }
            }
        }
        return texts
    }

    /// Sentences by chance: the same seed gives the same sentences. Every template is as probable as every other one,
    /// as is every alternative in it. A sentence may occur several times.
    ///
    /// - Parameter intent: only sentences of this intent; nil: of all.
    package func sample(count: Int, seed: UInt64, intent: String? = nil) -> [GrammarExpansion] {
        let expander = GrammarExpander(tables)
        let possible = templates.sentences.filter { sentence in
            guard expander.counts[Int(sentence.root)] > 0 else { return false }
            return intent.map { $0.isExactly(templates.blocks[sentence.block].intent) } ?? true
        }
        var random = SeededRandom(seed: seed)
        var samples: [GrammarExpansion] = []
        // A sentence may have no words, so the tries are bounded.
        for _ in 0..<(2 * max(0, count)) where samples.count < count {
            guard let sentence = possible.randomElement(using: &random) else { break }
            if let sample = expander.sample(sentence, &random) { samples.append(sample) }
        }
        return samples
    }
}

/// The sentences of a grammar, made when they are asked for.
package struct GrammarExpansions: Sequence, IteratorProtocol {
    private let expander: GrammarExpander
    private var rest: Int
    private var sentence = 0
    private var number: UInt64 = 0

    init(_ tables: GrammarTables, countMax: Int) {
        expander = GrammarExpander(tables)
        rest = countMax
    }

    package mutating func next() -> GrammarExpansion? {
        let sentences = expander.tables.templates.sentences
        while rest > 0, sentence < sentences.count {
            guard number < expander.counts[Int(sentences[sentence].root)] else {
                (sentence, number) = (sentence + 1, 0)
                continue
            }
            let expansion = expander.expansion(sentences[sentence], number: number)
            number += 1
            guard let expansion else { continue }
            rest -= 1
            return expansion
        }
        return nil
    }
}

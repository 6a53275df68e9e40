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

    /// The sentences for a recognizer, without duplicates: first the one with the fewest words of each template, then
    /// the next one of each, since people leave out what may be left out. Of a template with very many, such as one
    /// with a time of day, the shortest of some by chance, the same ones each time.
    ///
    /// - Parameters:
    ///   - countMax: the maximum number of sentences. A smaller number gives the first ones of the same.
    ///   - templateMax: the maximum number of sentences of one template.
    ///   - intents: sentences of these are left out.
    package func spokenSentences(countMax: Int, templateMax: Int, without intents: [String] = []) -> [String] {
        let expander = GrammarExpander(tables)
        var random = SeededRandom(seed: 1)
        let own = sentences(without: intents).map { shortest($0, countMax: templateMax, expander, &random) }
        var known: Set<ExactText> = []
        var texts: [String] = []
        for rank in 0..<(own.map(\.count).max() ?? 0) {
            for sentences in own where rank < sentences.count && texts.count < countMax {
                if known.insert(ExactText(sentences[rank])).inserted { texts.append(sentences[rank]) }
            }
        }
        return texts
    }

    /// The shortest sentences of a template, without duplicates.
    private func shortest(
        _ template: GrammarTemplates.Sentence, countMax: Int, _ expander: GrammarExpander, _ random: inout SeededRandom
    ) -> [String] {
        let count = expander.counts[Int(template.root)]
        let triesMax = Self.triesPerSentence * countMax
        var known: Set<ExactText> = []
        var made: [(text: String, words: Int)] = []
        for number in 0..<min(count, UInt64(triesMax)) {
            let expansion =
                count <= UInt64(triesMax)
                ? expander.expansion(template, number: number) : expander.sample(template, &random)
            guard let text = expansion?.text, known.insert(ExactText(text)).inserted else { continue }
            made.append((text, text.utf8.count { $0 == UInt8(ascii: " ") }))
        }
        let ranked = made.indices.sorted {
            (made[$0].words, made[$0].text.utf8.count, $0) < (made[$1].words, made[$1].text.utf8.count, $1)
        }
        return ranked.prefix(countMax).map { made[$0].text }
    }

    /// How many sentences of a template are made for each one that is taken.
    private static let triesPerSentence = 8

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

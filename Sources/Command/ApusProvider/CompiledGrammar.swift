package import ApusCore
package import ApusSphinx
package import ApusWyoming
import Foundation

/// A grammar as the recognizer wants it: its graph, the pronunciations of its words, and its sentences.
///
/// Pure value, made on a worker's thread: 20,000 sentences take a second.
package struct CompiledGrammar: Sendable {
    package let hash: String
    package let graph: SphinxGraph
    /// The lines of a dictionary.
    package let dictionary: String
    /// Sentences that cannot be heard, because a word of them has no pronunciation.
    package let droppedCount: Int
    /// What can be heard: words in lower case with one space between them, sorted by their bytes.
    private let heard: [ExactText]
    /// The sentences of the client, by their index in `heard`.
    private let originals: [String]

    /// - Throws: 10022 if no sentence can be heard.
    package init(_ grammar: WyomingGrammar, _ pronunciations: Pronunciations) throws(ApusError) {
        let sentences = (grammar.sentences ?? []).map { (original: $0, words: Self.words(of: $0)) }
        let lines = pronunciations.lines(of: Set(sentences.flatMap(\.words)))
        let words = lines.keys.sorted { ExactText($0) < ExactText($1) }
        let numbers = Dictionary(uniqueKeysWithValues: words.enumerated().map { ($0.element, Int32($0.offset)) })
        var kept: [(text: ExactText, original: String, numbers: [Int32])] = []
        for sentence in sentences {
            let known = sentence.words.compactMap { numbers[$0] }
            guard !known.isEmpty, known.count == sentence.words.count else { continue }
            kept.append((ExactText(sentence.words.joined(separator: " ")), sentence.original, known))
        }
        guard !kept.isEmpty else {
            throw ApusError(.configurationInvalid, "no sentence of the grammar has words that can be said")
        }
        droppedCount = sentences.count - kept.count
        hash = grammar.hash
        dictionary = words.flatMap { lines[$0] ?? [] }.joined(separator: "\n") + "\n"
        kept.sort { $0.numbers.lexicographicallyPrecedes($1.numbers) }
        // Two sentences may have the same words.
        let paths = kept.indices.filter { $0 == 0 || kept[$0].numbers != kept[$0 - 1].numbers }
        graph = SentenceGraph(paths.map { kept[$0].numbers }).graph(words: words)
        let sorted = paths.map { kept[$0] }.sorted { $0.text < $1.text }
        (heard, originals) = (sorted.map(\.text), sorted.map(\.original))
    }

    /// The words of a sentence. Case and signs are not heard; an apostrophe may be a part of a word.
    static func words(of sentence: String) -> [String] {
        sentence.lowercased().split { !$0.isLetter && !$0.isNumber && $0 != "'" && $0 != "’" }.map {
            String($0).replacing("’", with: "'")
        }.filter { $0.contains { $0 != "'" } }
    }

    /// The sentence of the client that has these words; nil if there is none.
    package func sentence(of text: String) -> String? {
        let index = position(of: ExactText(text))
        return index < heard.count && heard[index] == ExactText(text) ? originals[index] : nil
    }

    /// True if a longer sentence begins with these words.
    package func isBeginning(_ text: String) -> Bool {
        let longer = text + " "
        let index = position(of: ExactText(longer))
        return index < heard.count && heard[index].string.utf8.starts(with: longer.utf8)
    }

    /// The index of the first sentence that is not less.
    private func position(of text: ExactText) -> Int {
        var (low, high) = (0, heard.count)
        while low < high {
            let middle = (low + high) / 2
            if heard[middle] < text { low = middle + 1 } else { high = middle }
        }
        return low
    }
}

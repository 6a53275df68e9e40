package import ApusCore
package import ApusSphinx
package import ApusWyoming
import Foundation

/// A grammar as the recognizer wants it: its graph, and the pronunciations of its words.
///
/// Pure value, made on a worker's thread: 20,000 sentences take a second.
package struct CompiledGrammar: Sendable {
    package let hash: String
    package let graph: SphinxGraph
    /// The lines of a dictionary.
    package let dictionary: String
    private let numbers: [ExactText: Int32]
    private let sentences: SentenceGraph
    /// The listed sentences by their words; nil: those of the grammar in JSGF, which are words.
    private let originals: [ExactText: String]?

    /// False if it has the listed sentences only.
    package var hasAllSentences: Bool { originals == nil }

    /// Of the grammar in JSGF; if there is none, or it cannot be read, or is too large, of the listed sentences.
    ///
    /// - Throws: 10022 if no sentence can be heard.
    package init(_ grammar: WyomingGrammar, _ pronunciations: Pronunciations) throws(ApusError) {
        if let jsgf = grammar.jsgf, let all = try? Self(jsgf: jsgf, hash: grammar.hash, pronunciations) {
            self = all
        } else {
            try self.init(listed: grammar.sentences ?? [], hash: grammar.hash, pronunciations)
        }
    }

    private init(jsgf: String, hash: String, _ pronunciations: Pronunciations) throws(ApusError) {
        let grammar = try SpeechGrammar(jsgf: jsgf)
        let words = Words(grammar.words, pronunciations)
        self.init(hash, words, try SentenceGraph(grammar, numbers: words.numbers), originals: nil)
    }

    private init(listed: [String], hash: String, _ pronunciations: Pronunciations) throws(ApusError) {
        let all = listed.map { (original: $0, words: Self.words(of: $0)) }
        let words = Words(Set(all.flatMap(\.words)), pronunciations)
        let paths = all.compactMap { sentence -> (words: [Int32], original: String)? in
            let known = sentence.words.compactMap { words.numbers[ExactText($0)] }
            return known.isEmpty || known.count < sentence.words.count ? nil : (known, sentence.original)
        }.sorted { $0.words.lexicographicallyPrecedes($1.words) }
        guard !paths.isEmpty else {
            throw ApusError(.configurationInvalid, "no sentence of the grammar has words that can be said")
        }
        // Two sentences may have the same words.
        let own = paths.indices.filter { $0 == 0 || paths[$0].words != paths[$0 - 1].words }.map { paths[$0] }
        let originals = own.map { (ExactText(words.text(of: $0.words)), $0.original) }
        self.init(
            hash, words, SentenceGraph(own.map(\.words)),
            originals: Dictionary(originals, uniquingKeysWith: { first, _ in first }))
    }

    private init(
        _ hash: String, _ words: Words, _ sentences: SentenceGraph, originals: [ExactText: String]?
    ) {
        (self.hash, self.sentences, self.originals, numbers) = (hash, sentences, originals, words.numbers)
        dictionary = words.dictionary
        graph = sentences.graph(words: words.all)
    }

    /// The words that have a pronunciation.
    private struct Words {
        let all: [String]
        let numbers: [ExactText: Int32]
        let dictionary: String

        init(_ words: Set<String>, _ pronunciations: Pronunciations) {
            let lines = pronunciations.lines(of: words)
            all = lines.keys.sorted { ExactText($0) < ExactText($1) }
            numbers = Dictionary(
                uniqueKeysWithValues: all.enumerated().map { (ExactText($0.element), Int32($0.offset)) })
            dictionary = all.flatMap { lines[$0] ?? [] }.joined(separator: "\n") + "\n"
        }

        func text(of words: [Int32]) -> String { words.map { all[Int($0)] }.joined(separator: " ") }
    }

    /// The words of a sentence, or of a word with signs. Case and signs are not heard; an apostrophe may be a part of a
    /// word.
    static func words(of sentence: String) -> [String] {
        sentence.lowercased().split { !$0.isLetter && !$0.isNumber && $0 != "'" && $0 != "’" }.map {
            String($0).replacing("’", with: "'")
        }.filter { $0.contains { $0 != "'" } }
    }

    /// The sentence of the client that has these words; nil if there is none.
    package func sentence(of text: String) -> String? {
        guard let place = place(of: text), place.isSentence else { return nil }
        return originals.map { $0[ExactText(text)] ?? text } ?? text
    }

    /// True if a longer sentence begins with these words.
    package func isBeginning(_ text: String) -> Bool { place(of: text)?.isBeginning ?? false }

    private func place(of text: String) -> (isSentence: Bool, isBeginning: Bool)? {
        let words = text.split(separator: " ")
        let known = words.compactMap { numbers[ExactText(String($0))] }
        return known.isEmpty || known.count < words.count ? nil : sentences.place(of: known)
    }
}

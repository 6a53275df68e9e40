package import ApusCore
import CApusSphinx
#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// A decoder of speech with a grammar.
///
/// Concurrency model: one thread at a time; its owner hands it on.
package final class SphinxDecoder: @unchecked Sendable {  // SAFETY: its owner is its only user.
    // SAFETY: created in `init`, freed in `deinit`; whoever has the decoder is its only user.
    private let pointer: OpaquePointer

    /// The longest text of an utterance, in bytes.
    private static let textByteCountMax = 16_384
    /// The most words of an utterance.
    private static let wordCountMax = 512

    /// - Parameters:
    ///   - model: the folder of the acoustic model.
    ///   - dictionary: the file with the words of the graph and their phones.
    ///   - parameters: the file `feat.params` of the model, with `-cmn none`.
    /// - Throws: 10021 if the model or the dictionary cannot be read, 10022 if the graph is refused.
    package init(
        _ library: SphinxLibrary, model: String, dictionary: String, parameters: String, graph: SphinxGraph
    ) throws(ApusError) {
        var found: OpaquePointer?
        let result = apus_sphinx_new(library.pointer, model, dictionary, parameters, &found)
        guard result == 0, let found else {
            throw ApusError(.storageFailed, "the acoustic model \(model) or its dictionary cannot be read")
        }
        pointer = found
        let arcs = graph.arcs.map { apus_sphinx_arc(from: $0.from, to: $0.to, word: $0.word) }
        // SAFETY: the texts are valid until the call returns, and are freed here. The library copies them.
        var words: [UnsafePointer<CChar>?] = graph.words.map { UnsafePointer(strdup($0)) }
        defer { for word in words { free(UnsafeMutablePointer(mutating: word)) } }
        let taken = apus_sphinx_set_grammar(
            pointer, graph.stateCount, graph.final, &words, Int32(words.count), arcs, arcs.count)
        guard taken == 0 else {
            throw ApusError(.configurationInvalid, "the recognizer refuses the grammar")
        }
    }

    deinit { apus_sphinx_free(pointer) }

    /// Begins an utterance of 16 kHz. The ones before have no effect on it.
    ///
    /// - Throws: 10018 if the decoder failed. It must not be used again.
    package func begin() throws(ApusError) { try check(apus_sphinx_begin(pointer)) }

    /// Takes more of the utterance, which is heard by ``settle()`` and ``end()``.
    ///
    /// - Throws: as ``begin()``.
    package func feed(_ samples: [Int16]) throws(ApusError) {
        try check(apus_sphinx_feed(pointer, samples, samples.count))
    }

    /// The text is then that of what was fed, without its last tenth of a second. More may follow.
    ///
    /// - Throws: as ``begin()``.
    package func settle() throws(ApusError) { try check(apus_sphinx_settle(pointer)) }

    /// The text and the words are then those of all that was fed. If more is fed, all is heard again from the
    /// beginning.
    ///
    /// The mean of the features is that of the first 1.5 s at least: with it 90 % of sentences are right, and 79 % with
    /// that of the first second.
    ///
    /// - Throws: as ``begin()``.
    package func end() throws(ApusError) { try check(apus_sphinx_end(pointer)) }

    /// Hears the same as another decoder of the model has heard.
    ///
    /// - Throws: as ``begin()``.
    package func hear(as other: SphinxDecoder) throws(ApusError) {
        try check(apus_sphinx_hear_as(pointer, other.pointer))
    }

    private func check(_ result: Int32) throws(ApusError) {
        guard result == 0 else { throw ApusError(.internalFailure, "the recognizer failed") }
    }

    /// The words heard, without the numbers of pronunciations.
    package var text: String {
        var bytes = [CChar](repeating: 0, count: Self.textByteCountMax)
        let count = apus_sphinx_text(pointer, &bytes, bytes.count)
        let text = String(decoding: bytes.prefix(count).map { UInt8(bitPattern: $0) }, as: UTF8.self)
        // The library names the second pronunciation of a word "word(2)".
        return text.split(separator: " ").map { $0.prefix { $0 != "(" } }.joined(separator: " ")
    }

    /// A word that was heard.
    package struct Word: Sendable {
        /// Its frames of 10 ms.
        package var frames: Range<Int32>
        /// Its acoustic score.
        package var score: Double
    }

    /// The words heard, without silences.
    package var words: [Word] {
        var words = [apus_sphinx_word](repeating: apus_sphinx_word(), count: Self.wordCountMax)
        let count = apus_sphinx_words(pointer, &words, words.count)
        return words.prefix(count).filter { $0.first < $0.last }.map {
            Word(frames: $0.first..<$0.last, score: Double($0.score))
        }
    }

    /// The acoustic score of the best path in some frames; nil if there is none.
    package func score(within frames: Range<Int32>) -> Double? {
        var score = 0.0
        return apus_sphinx_score_within(pointer, frames.lowerBound, frames.upperBound, &score) == 0 ? score : nil
    }
}

package import ApusCore
package import ApusSphinx
package import ApusWyoming
import Synchronization

/// The grammars that clients have sent, and recognizers for them that are idle.
///
/// Concurrency model: any thread may call it. A recognizer that was taken belongs to its taker.
package final class RecognitionEngine: Sendable {
    /// The most grammars. The one that was used the longest ago is dropped for another one.
    package static let grammarCountMax = 64
    /// The most bytes of their sentences, listed and in JSGF.
    static let grammarByteCountMax = 16 << 20

    private struct Entry {
        let grammar: WyomingGrammar
        let byteCount: Int
        var compiled: CompiledGrammar?
    }

    private struct State {
        /// The one used last is the last one.
        var grammars: [Entry] = []
        var idle: [SentenceRecognizer] = []
    }

    private let state = Mutex(State())
    private let model: SphinxModel
    private let pronunciations: Pronunciations
    private let idleMax: Int

    /// - Parameters:
    ///   - model: the folder of the acoustic model.
    ///   - idleMax: the most idle recognizers; each has some megabytes.
    package init(
        library: SphinxLibrary, model: String, pronunciations: Pronunciations, idleMax: Int
    ) throws(ApusError) {
        self.model = SphinxModel(library, model: model)
        (self.pronunciations, self.idleMax) = (pronunciations, idleMax)
        // A model that cannot be read is found now, and not by the first client.
        _ = try self.model.decoder(dictionary: self.model.phoneDictionary, graph: self.model.phoneGraph)
    }

    /// Keeps a grammar with its sentences, and marks it as used. False if it has none, and they are not known.
    package func keep(_ grammar: WyomingGrammar) -> Bool {
        state.withLock { state in
            if let index = state.grammars.firstIndex(where: { $0.grammar.hash.isExactly(grammar.hash) }) {
                state.grammars.append(state.grammars.remove(at: index))
                return true
            }
            guard let sentences = grammar.sentences else { return false }
            let byteCount = sentences.reduce(grammar.jsgf?.utf8.count ?? 0) { $0 + $1.utf8.count }
            state.grammars.append(Entry(grammar: grammar, byteCount: byteCount))
            while state.grammars.count > Self.grammarCountMax
                || state.grammars.reduce(0, { $0 + $1.byteCount }) > Self.grammarByteCountMax
            {
                let dropped = state.grammars.removeFirst().grammar.hash
                state.idle.removeAll { $0.grammar.hash.isExactly(dropped) }
            }
            return true
        }
    }

    /// A recognizer for a grammar, an idle one if there is one. It compiles the grammar where that was not done before.
    ///
    /// - Throws: 10022 if the grammar cannot be heard; 10007 if it was dropped for others by now.
    package func take(_ hash: String) throws(ApusError) -> SentenceRecognizer {
        let found = state.withLock { state -> (SentenceRecognizer?, Entry?) in
            if let index = state.idle.lastIndex(where: { $0.grammar.hash.isExactly(hash) }) {
                return (state.idle.remove(at: index), nil)
            }
            return (nil, state.grammars.first { $0.grammar.hash.isExactly(hash) })
        }
        if let recognizer = found.0 { return recognizer }
        guard let entry = found.1 else { throw ApusError(.overloaded, "the grammar was dropped for others") }
        if let compiled = entry.compiled { return try SentenceRecognizer(compiled, model) }
        let compiled = try CompiledGrammar(entry.grammar, pronunciations)
        state.withLock { state in
            if let index = state.grammars.firstIndex(where: { $0.grammar.hash.isExactly(hash) }) {
                state.grammars[index].compiled = compiled
            }
        }
        return try SentenceRecognizer(compiled, model)
    }

    /// Keeps a recognizer for the next utterance.
    package func putBack(_ recognizer: SentenceRecognizer) {
        state.withLock { state in
            state.idle.append(recognizer)
            if state.idle.count > idleMax { state.idle.removeFirst() }
        }
    }
}

package import ApusCore
import ApusSphinx
package import ApusWyoming
import Foundation

/// Hears one utterance after another in a grammar.
///
/// Two decoders hear the same audio: one of the grammar's sentences, which always finds one, and one of phones in any
/// order. A word that was not said fits much worse than the phones in its place. So the word that fits worst decides
/// whether the sentence was said: a mean of all words would accept sentences in which one word is another.
///
/// Concurrency model: one thread at a time; its owner hands it on.
package final class SentenceRecognizer: @unchecked Sendable {  // SAFETY: its taker is its only user.
    /// The least score at which a sentence is accepted. A higher one refuses more of what is not in the grammar, and
    /// more of what is. Chosen for 10 % accepted sentences outside of the grammar with one set of synthetic voices, and
    /// judged with another one (docs/voice.md).
    package static let acceptanceMin = -27.0
    /// Shorter words, in frames of 10 ms, count as if they had this length: a bad score of few frames says little.
    private static let wordFrameCountMin = 25.0

    package let grammar: CompiledGrammar
    private let sentences: SphinxDecoder
    private let phones: SphinxDecoder
    private var samples: [Int16] = []
    /// What was heard at the last pause. Samples after it are silence, as far as the client knows.
    private var heard: Heard?
    private var transcript: WyomingTranscript?

    private struct Heard {
        var text: String
        var words: [SphinxDecoder.Word]
        /// The samples in which it was heard.
        var sampleCount: Int
    }

    /// The most samples after a pause that are taken for silence: the longest wait for more speech, and some more. A
    /// client that sends more of them without `voice-started` has a detector that missed speech.
    private static let silenceMax = 2 * WyomingAudioFormat.speech.rate

    package init(_ grammar: CompiledGrammar, _ engine: SphinxModel) throws(ApusError) {
        self.grammar = grammar
        sentences = try engine.decoder(dictionary: grammar.dictionary, graph: grammar.graph)
        phones = try engine.decoder(dictionary: engine.phoneDictionary, graph: engine.phoneGraph)
    }

    /// The length of the audio of the utterance.
    package var milliseconds: Int { samples.count * 1000 / WyomingAudioFormat.speech.rate }

    /// Begins an utterance.
    package func start() {
        samples.removeAll(keepingCapacity: true)
        (heard, transcript) = (nil, nil)
    }

    /// Takes samples of 16 kHz. They are heard at a pause and at the end, as a whole: with the means of the features of
    /// the whole utterance 93 % of sentences are right, and 80 % with those of a running mean.
    package func add(_ new: [Int16]) { samples += new }

    /// Hears what was said so far.
    package func pause() throws(ApusError) -> WyomingTranscriptChunk {
        try hearSentences()
        let text = heard?.text ?? ""
        let sentence = grammar.sentence(of: text)
        return WyomingTranscriptChunk(
            text: sentence ?? text,
            pause: .init(
                isWhole: sentence != nil, isBeginning: sentence != nil && grammar.isBeginning(text),
                milliseconds: milliseconds))
    }

    /// Decides about what was heard at the pause, in case that it is the end: the client waits for it anyway.
    package func prepare() throws(ApusError) { transcript = try decide() }

    /// Speech goes on: what was heard at the pause is not all.
    package func resume() { (heard, transcript) = (nil, nil) }

    /// Ends the utterance. The text is empty if no sentence was said.
    package func finish() throws(ApusError) -> WyomingTranscript {
        if let heard, samples.count - heard.sampleCount > Self.silenceMax { resume() }
        if heard == nil { try hearSentences() }
        var transcript = if let transcript { transcript } else { try decide() }
        transcript.result?.milliseconds = milliseconds
        return transcript
    }

    private func hearSentences() throws(ApusError) {
        try sentences.hear(samples)
        heard = Heard(text: sentences.text, words: sentences.words, sampleCount: samples.count)
        transcript = nil
    }

    private func decide() throws(ApusError) -> WyomingTranscript {
        var result = WyomingResult(isWhole: false, milliseconds: milliseconds)
        guard let heard, let sentence = grammar.sentence(of: heard.text), !heard.words.isEmpty else {
            return WyomingTranscript(text: "", result: result)
        }
        try phones.hear(samples)
        let score = Self.score(heard.words) { phones.score(within: $0) }
        result.candidates = [.init(text: sentence, score: score)]
        result.isWhole = true
        return WyomingTranscript(text: score >= Self.acceptanceMin ? sentence : "", result: result)
    }

    /// The mean difference, in a frame, between a word and phones in any order, of the word where it is the worst.
    private static func score(_ words: [SphinxDecoder.Word], phones: (Range<Int32>) -> Double?) -> Double {
        words.map { ($0.score - (phones($0.frames) ?? 0)) / max(Double($0.frames.count), wordFrameCountMin) }.min() ?? 0
    }
}

/// The acoustic model, and the phones that it has.
///
/// Isolation: immutable.
package struct SphinxModel: Sendable {
    let phoneDictionary: String
    let phoneGraph: SphinxGraph
    private let library: SphinxLibrary
    private let model: String

    /// The phones of the CMU dictionary.
    private static let phones = [
        "AA", "AE", "AH", "AO", "AW", "AY", "B", "CH", "D", "DH", "EH", "ER", "EY", "F", "G", "HH", "IH", "IY", "JH",
        "K", "L", "M", "N", "NG", "OW", "OY", "P", "R", "S", "SH", "T", "TH", "UH", "UW", "V", "W", "Y", "Z", "ZH",
    ]

    init(_ library: SphinxLibrary, model: String) {
        (self.library, self.model) = (library, model)
        phoneDictionary = Self.phones.map { "\($0) \($0)\n" }.joined()
        phoneGraph = SphinxGraph(
            stateCount: 1, final: 0, words: Self.phones,
            arcs: Self.phones.indices.map { .init(from: 0, to: 0, word: Int32($0)) })
    }

    /// - Throws: 10021 if the model cannot be read, or no temporary file can be written.
    func decoder(dictionary: String, graph: SphinxGraph) throws(ApusError) -> SphinxDecoder {
        let path = FileManager.default.temporaryDirectory.appendingPathComponent("apus-\(UUID().uuidString).dict").path
        defer { try? FileManager.default.removeItem(atPath: path) }
        // The file is of this process, and is removed as soon as it was read.
        guard
            FileManager.default.createFile(
                atPath: path, contents: Data(dictionary.utf8), attributes: [.posixPermissions: 0o600])
        else { throw ApusError(.storageFailed, "the dictionary of a grammar cannot be written to \(path)") }
        return try SphinxDecoder(library, model: model, dictionary: path, graph: graph)
    }
}

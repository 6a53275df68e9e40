package import ApusCore
import ApusSphinx
package import ApusWyoming
import Foundation

/// Hears one utterance after another in a grammar: at the pauses and at the end.
///
/// The decoder always finds a sentence. The word that fits worst decides whether it was said: a mean of all words would
/// accept sentences in which one word is another. How well a word fits is its score for a frame, compared with the best
/// sound of that frame. Sounds of a voice that the model does not know fit badly in all words. Where the fit does not
/// decide, a second decoder therefore hears phones in any order: a word that was not said fits much worse than these.
///
/// Concurrency model: one thread at a time; its owner hands it on.
package final class SentenceRecognizer: @unchecked Sendable {  // SAFETY: its taker is its only user.
    /// A sentence with a better fit is accepted, and one with a worse fit than the lower bound is not. In between,
    /// phones are heard, which 30 % of sentences need.
    private static let undecidedFits = -90.0 ..< -60.0
    /// The least score, compared with phones, at which a sentence is accepted. A higher one refuses more of what is not
    /// in the grammar, and more of what is. Chosen for 10 % accepted sentences outside of the grammar with one set of
    /// synthetic voices, and judged with another one (docs/voice.md).
    private static let acceptanceMin = -27.0
    /// A sentence of so few words is also heard in coughs and bangs, as words of a tenth of a second. It needs a better
    /// score, in which no word counts as longer than it is, and its fit does not decide.
    private static let shortWordCount = 2
    private static let shortAcceptanceMin = -13.5
    /// Shorter words, in frames of 10 ms, count as if they had this length: a bad score of few frames says little.
    private static let wordFrameCountMin = 25.0

    package let grammar: CompiledGrammar
    private let decoder: SphinxDecoder
    private let phones: SphinxDecoder
    private var sampleCount = 0
    /// Samples after a pause: silence, as far as the client knows. They are heard if speech continues.
    private var silence: [Int16] = []
    /// What was heard at the pause.
    private var transcript: WyomingTranscript?
    /// The most samples after a pause that are taken for silence: the longest wait for more speech, and some more. A
    /// client that sends more of them without `voice-started` has a detector that missed speech.
    private static let silenceMax = 2 * WyomingAudioFormat.speech.rate

    package init(_ grammar: CompiledGrammar, _ model: SphinxModel) throws(ApusError) {
        self.grammar = grammar
        decoder = try model.decoder(dictionary: grammar.dictionary, graph: grammar.graph)
        phones = try model.decoder(dictionary: model.phoneDictionary, graph: model.phoneGraph)
    }

    /// The length of the audio of the utterance.
    package var milliseconds: Int { sampleCount * 1000 / WyomingAudioFormat.speech.rate }

    /// Begins an utterance.
    package func start() throws(ApusError) {
        (sampleCount, transcript) = (0, nil)
        silence.removeAll()
        try decoder.begin()
    }

    /// Hears samples of 16 kHz.
    package func add(_ samples: [Int16]) throws(ApusError) {
        sampleCount += samples.count
        guard transcript == nil else {
            silence += samples
            if silence.count > Self.silenceMax { try resume() }
            return
        }
        try decoder.feed(samples)
    }

    /// What was said so far.
    ///
    /// - Parameter continues: the person is still speaking.
    package func pause(continues: Bool = false) throws(ApusError) -> WyomingTranscriptChunk {
        try resume()
        if continues { try decoder.settle() } else { try decoder.end() }
        let text = decoder.text
        let sentence = grammar.sentence(of: text)
        return WyomingTranscriptChunk(
            text: sentence ?? text,
            pause: .init(
                isWhole: sentence != nil, isBeginning: sentence != nil && grammar.isBeginning(text),
                milliseconds: milliseconds))
    }

    /// Decides about what was heard at the pause, in case that it is the end: the client waits for it anyway.
    package func prepare() throws(ApusError) { transcript = try decide(decoder.text) }

    /// Speech continues: what was heard at the pause is not all.
    package func resume() throws(ApusError) {
        transcript = nil
        guard !silence.isEmpty else { return }
        let samples = silence
        silence.removeAll()
        try decoder.feed(samples)
    }

    /// Ends the utterance. The text is empty if no sentence was said.
    package func finish() throws(ApusError) -> WyomingTranscript {
        try decoder.end()
        var transcript = if let transcript { transcript } else { try decide(decoder.text) }
        transcript.result?.milliseconds = milliseconds
        return transcript
    }

    private func decide(_ text: String) throws(ApusError) -> WyomingTranscript {
        var result = WyomingResult(isWhole: false, milliseconds: milliseconds)
        let words = decoder.words
        guard let sentence = grammar.sentence(of: text), !words.isEmpty else {
            return WyomingTranscript(text: "", result: result)
        }
        let fit = Self.worst(words) { _ in 0 }
        let isShort = words.count <= Self.shortWordCount
        var isAccepted = fit >= Self.undecidedFits.upperBound && !isShort
        if Self.undecidedFits.contains(fit) || isShort {
            try phones.hear(as: decoder)
            isAccepted =
                Self.worst(words, frameCountMin: isShort ? 1 : Self.wordFrameCountMin) {
                    phones.score(within: $0) ?? 0
                } >= (isShort ? Self.shortAcceptanceMin : Self.acceptanceMin)
        }
        result.candidates = [.init(text: sentence, score: fit)]
        result.isWhole = true
        return WyomingTranscript(text: isAccepted ? sentence : "", result: result)
    }

    /// The mean difference, in a frame, between a word and a reference, of the word where it is the worst.
    private static func worst(
        _ words: [SphinxDecoder.Word], frameCountMin: Double = wordFrameCountMin, reference: (Range<Int32>) -> Double
    ) -> Double {
        words.map { ($0.score - reference($0.frames)) / max(Double($0.frames.count), frameCountMin) }.min() ?? 0
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
        guard let parameters = try? String(contentsOfFile: model + "/feat.params", encoding: .utf8) else {
            throw ApusError(.storageFailed, "the acoustic model \(model) has no feat.params")
        }
        // The means are subtracted before the library has the features.
        let lines = parameters.split(separator: "\n").filter { !$0.hasPrefix("-cmn") } + ["-cmn none"]
        // The files are of this process, and are removed as soon as they were read.
        let paths = (try Self.write(dictionary), try Self.write(lines.joined(separator: "\n") + "\n"))
        defer { for path in [paths.0, paths.1] { try? FileManager.default.removeItem(atPath: path) } }
        return try SphinxDecoder(library, model: model, dictionary: paths.0, parameters: paths.1, graph: graph)
    }

    private static func write(_ text: String) throws(ApusError) -> String {
        let path = FileManager.default.temporaryDirectory.appendingPathComponent("apus-\(UUID().uuidString).txt").path
        guard
            FileManager.default.createFile(
                atPath: path, contents: Data(text.utf8), attributes: [.posixPermissions: 0o600])
        else { throw ApusError(.storageFailed, "\(path) cannot be written") }
        return path
    }
}

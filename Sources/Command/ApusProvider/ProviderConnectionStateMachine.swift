import ApusCore
package import ApusWyoming
package import NIOCore

/// What a client of a provider may do when, and what follows of it.
///
/// A connection carries one utterance at a time, and one text that is spoken. Errors are answered, and what belongs to
/// a refused utterance is ignored up to its `audio-stop`, so that the connection serves the next one.
///
/// Pure: no I/O, no clock.
package struct ProviderConnectionStateMachine {
    /// The longest utterance.
    package static let utteranceMax = Duration.seconds(30)
    /// The most pauses of an utterance: each is heard from the beginning.
    package static let pauseCountMax = 64
    /// The longest text that is spoken, in bytes.
    package static let textByteCountMax = 4096

    package enum Action: Equatable {
        case reply(WyomingMessage)
        /// Asks the engine for the grammar; ``grammarFound(_:)`` is the answer.
        case keepGrammar(WyomingGrammar)
        /// ``utteranceRefused()`` if there is no room for it.
        case startUtterance(grammarHash: String, WyomingAudioFormat)
        case hear(ByteBuffer)
        case pause
        /// Speech continues after a pause.
        case resume
        case endUtterance
        case cancelUtterance
        /// ``speechRefused()`` if there is no room for it.
        case speak(WyomingSynthesize)
        case cancelSpeech
    }

    private enum State {
        /// No utterance. The grammar of the next one; nil if the client has not asked for one.
        case idle(grammarHash: String?)
        /// The client sends audio.
        case hearing(WyomingAudioFormat, byteCount: Int, pauseCount: Int)
        /// What the client sends belongs to an utterance that was refused.
        case ignoring
        case closed
    }

    private var state = State.idle(grammarHash: nil)
    private var isSpeaking = false
    private let info: WyomingInfo

    package init(info: WyomingInfo) { self.info = info }

    package mutating func receive(_ message: WyomingMessage) -> [Action] {
        if case .closed = state { return [] }
        switch message {
        case .describe: return [.reply(.info(info))]
        case .ping(let text): return [.reply(.pong(text: text))]
        case .transcribe(let transcribe): return self.transcribe(transcribe)
        case .audioStart(let format, _): return audioStart(format)
        case .audioChunk(let chunk): return audioChunk(chunk)
        case .audioStop: return audioStop()
        case .voiceStarted: return pause(.resume)
        case .voiceStopped: return pause(.pause)
        case .synthesize(let synthesize): return self.synthesize(synthesize)
        case .detect: return [.reply(ProviderError.unsupported("wake words"))]
        // As the reference does: a client may be newer than its provider.
        case .info, .pong, .error, .transcript, .transcriptStart, .transcriptChunk, .transcriptStop, .detection,
            .notDetected, .handled, .notHandled, .other:
            return []
        }
    }

    private mutating func transcribe(_ transcribe: WyomingTranscribe) -> [Action] {
        var actions: [Action] = []
        if case .hearing = state { actions.append(.cancelUtterance) }
        if let language = transcribe.language, !language.lowercased().hasPrefix("en") {
            return actions + refuse(ProviderError.unsupported("the language \(language)"))
        }
        guard let grammar = transcribe.grammar else { return actions + refuse(ProviderError.grammarMissing) }
        state = .idle(grammarHash: grammar.hash)
        return actions + [.keepGrammar(grammar)]
    }

    /// The answer to ``Action/keepGrammar(_:)``.
    package mutating func grammarFound(_ isFound: Bool) -> [Action] {
        isFound ? [] : refuse(ProviderError.grammarUnknown)
    }

    private mutating func audioStart(_ format: WyomingAudioFormat) -> [Action] {
        switch state {
        case .ignoring, .closed: return []
        case .hearing: return [.cancelUtterance] + refuse(ProviderError.order("audio-start within an utterance"))
        case .idle(let grammarHash):
            guard let grammarHash else { return refuse(ProviderError.order("audio-start without transcribe")) }
            if let problem = SpeechConverter.problem(with: format) { return refuse(ProviderError.format(problem)) }
            state = .hearing(format, byteCount: 0, pauseCount: 0)
            return [.startUtterance(grammarHash: grammarHash, format)]
        }
    }

    private mutating func audioChunk(_ chunk: WyomingAudioChunk) -> [Action] {
        switch state {
        case .ignoring, .closed: return []
        case .idle: return refuse(ProviderError.order("audio-chunk without audio-start"))
        case .hearing(let format, let byteCount, let pauseCount):
            guard chunk.format == format else {
                return [.cancelUtterance] + refuse(ProviderError.format("a chunk has another format than its start"))
            }
            let sum = byteCount + chunk.audio.readableBytes
            guard sum <= format.secondByteCount * Int(Self.utteranceMax.components.seconds) else {
                return [.cancelUtterance] + refuse(ProviderError.tooLong)
            }
            state = .hearing(format, byteCount: sum, pauseCount: pauseCount)
            return chunk.audio.readableBytes == 0 ? [] : [.hear(chunk.audio)]
        }
    }

    /// A pause, or its end. Both count, so that their number is bounded.
    private mutating func pause(_ action: Action) -> [Action] {
        guard case .hearing(let format, let byteCount, let pauseCount) = state else { return [] }
        guard pauseCount < 2 * Self.pauseCountMax else {
            return [.cancelUtterance] + refuse(ProviderError.order("an utterance has too many pauses"))
        }
        state = .hearing(format, byteCount: byteCount, pauseCount: pauseCount + 1)
        return [action]
    }

    private mutating func audioStop() -> [Action] {
        switch state {
        case .hearing:
            state = .idle(grammarHash: nil)
            return [.endUtterance]
        case .ignoring:
            state = .idle(grammarHash: nil)
            return []
        case .idle: return refuse(ProviderError.order("audio-stop without audio-start"), isIgnoring: false)
        case .closed: return []
        }
    }

    /// There is no room for an utterance.
    package mutating func utteranceRefused(isEnding: Bool) -> [Action] {
        refuse(isEnding ? ProviderError.ending : ProviderError.busy)
    }

    private mutating func refuse(_ error: WyomingMessage, isIgnoring: Bool = true) -> [Action] {
        state = isIgnoring ? .ignoring : .idle(grammarHash: nil)
        return [.reply(error)]
    }

    private mutating func synthesize(_ synthesize: WyomingSynthesize) -> [Action] {
        guard synthesize.text.utf8.count <= Self.textByteCountMax else {
            return [.reply(ProviderError.textTooLong)]
        }
        guard !isSpeaking else { return [.reply(ProviderError.busy)] }
        isSpeaking = true
        return [.speak(synthesize)]
    }

    /// There is no room for another text.
    package mutating func speechRefused(isEnding: Bool) -> [Action] {
        isSpeaking = false
        return [.reply(isEnding ? ProviderError.ending : ProviderError.busy)]
    }

    /// A text was spoken, or failed.
    package mutating func speechEnded() { isSpeaking = false }

    /// The connection is lost.
    package mutating func closed() -> [Action] {
        var actions: [Action] = []
        if case .hearing = state { actions.append(.cancelUtterance) }
        if isSpeaking { actions.append(.cancelSpeech) }
        state = .closed
        isSpeaking = false
        return actions
    }
}

/// The errors of a provider, each with a code for programs.
enum ProviderError {
    /// The recognizer or the voice failed.
    static let failedCode = "apus-failed"

    static let busy = WyomingMessage.error(
        text: "no room for another request; try again later, or another provider", code: WyomingGrammar.busyCode)
    static let ending = WyomingMessage.error(
        text: "this provider is being replaced; try again in a moment", code: "apus-ending")
    static let grammarUnknown = WyomingMessage.error(
        text: "the sentences of this grammar are not known; send them", code: WyomingGrammar.unknownCode)
    static let grammarMissing = WyomingMessage.error(
        text: "this recognizer needs a grammar in the context of transcribe", code: "apus-grammar-missing")
    static let tooLong = WyomingMessage.error(
        text: "an utterance has at most \(ProviderConnectionStateMachine.utteranceMax.components.seconds) seconds",
        code: "apus-too-long")
    static let textTooLong = WyomingMessage.error(
        text: "a text has at most \(ProviderConnectionStateMachine.textByteCountMax) bytes", code: "apus-too-long")

    static func format(_ problem: String) -> WyomingMessage { .error(text: problem, code: "apus-format") }

    static func order(_ problem: String) -> WyomingMessage { .error(text: problem, code: "apus-order") }

    static func unsupported(_ what: String) -> WyomingMessage {
        .error(text: "this provider does not have \(what)", code: "apus-unsupported")
    }
}

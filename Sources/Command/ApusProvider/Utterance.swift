import ApusCore
import ApusWyoming
import Dispatch
import NIOCore
import Synchronization

/// An utterance between the connection that hears it and the worker that recognizes it.
///
/// Concurrency model: one thread adds, and one performs. The length of the audio is bounded by the connection.
final class Utterance: Sendable {
    /// The longest time without a new event. The client must end an utterance.
    static let silenceMax = Duration.seconds(10)

    enum Input: Sendable {
        case audio(ByteBuffer)
        case pause
        case resume
        case end
        case cancel
    }

    private struct Inputs {
        var all: [Input] = []
        /// The first that was not taken. What was taken is removed a thousand at a time: a client may send a sample a
        /// piece.
        var next = 0

        /// The next one is a resumption.
        var isResumed: Bool {
            guard next < all.count, case .resume = all[next] else { return false }
            return true
        }

        mutating func take() -> Input {
            guard next < all.count else { return .cancel }
            let input = all[next]
            next += 1
            if next == 1024 {
                all.removeFirst(next)
                next = 0
            }
            return input
        }
    }

    private let inputs = Mutex(Inputs())
    private let added = DispatchSemaphore(value: 0)
    let grammarHash: String
    let format: WyomingAudioFormat

    init(grammarHash: String, format: WyomingAudioFormat) {
        (self.grammarHash, self.format) = (grammarHash, format)
    }

    func add(_ input: Input) {
        inputs.withLock { $0.all.append(input) }
        added.signal()
    }

    /// - Throws: 10015 if none comes for ``silenceMax``.
    private func next() throws(ApusError) -> Input {
        guard added.wait(timeout: .now() + .nanoseconds(Int(Self.silenceMax.nanoseconds))) == .success else {
            throw ApusError(.idleTimeout)
        }
        return inputs.withLock { $0.take() }
    }

    /// Recognizes it on the calling thread, to its end.
    ///
    /// - Parameter reply: takes the answers, in order.
    func perform(with engine: RecognitionEngine, reply: (WyomingMessage) -> Void) {
        do {
            let recognizer = try engine.take(grammarHash)
            try recognizer.start()
            if let transcript = try hear(recognizer, reply) { reply(.transcript(transcript)) }
            // After an error the decoder's state is unknown: it is not used again.
            engine.putBack(recognizer)
        } catch {
            let code = error.code == .overloaded ? WyomingGrammar.unknownCode : ProviderError.failedCode
            reply(.error(text: error.message, code: code))
        }
    }

    /// Nil if it was cancelled.
    private func hear(
        _ recognizer: SentenceRecognizer, _ reply: (WyomingMessage) -> Void
    ) throws(ApusError) -> WyomingTranscript? {
        var converter = SpeechConverter(format)
        while true {
            switch try next() {
            case .audio(let bytes): try recognizer.add(converter.convert(bytes))
            case .pause:
                // Clients that ask while the person is speaking send both at once.
                let continues = inputs.withLock { $0.isResumed }
                reply(.transcriptChunk(try recognizer.pause(continues: continues)))
                if !continues { try recognizer.prepare() }
            case .resume: try recognizer.resume()
            case .end: return try recognizer.finish()
            case .cancel: return nil
            }
        }
    }
}

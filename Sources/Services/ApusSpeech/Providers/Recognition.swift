import ApusCore
import ApusWyoming
import ApusWyomingClient
import NIOCore

/// What a provider has heard.
struct Heard: Sendable {
    /// Empty: nothing that the grammar has.
    var text = ""
    /// Without regard to the grammar; may be empty.
    var free = ""
    var candidates: [WyomingResult.Candidate] = []
}

/// Recognizes one utterance. If a provider fails or is busy, the next one receives the sound from the beginning.
///
/// Concurrency model: confined to the task that uses it.
final class Recognition {
    private static let chunkSampleCount = 16_000

    private let providers: SpeechProviders
    private let language: String
    private let grammar: WyomingGrammar?
    private var candidates: [SpeechProvider]
    private var current: (provider: SpeechProvider, connection: WyomingConnection)?
    /// All samples, for another provider.
    private var samples: [Int16] = []
    /// The questions without an answer, in order: each has exactly one.
    private var questions: [Int] = []
    private var isFinished = false
    private var heard: Heard?
    /// A provider that lacks the sentences is asked a second time, with them.
    private var withSentences = false
    private var lastError: ApusError

    /// - Parameter grammar: nil where the home has none of that language.
    init(_ providers: SpeechProviders, _ language: String, _ grammar: WyomingGrammar?) {
        (self.providers, self.language, self.grammar) = (providers, language, grammar)
        candidates = providers.hearing(language)
        lastError = ApusError(.unavailable, "no speech provider hears \(language)")
    }

    deinit { current?.connection.close() }

    /// - Throws: 21025 if no provider hears the language; otherwise why the last one failed.
    func start() async throws(ApusError) {
        while current == nil {
            guard let provider = candidates.first else { throw lastError }
            do throws(ApusError) {
                let connection = try await WyomingConnection.open(provider.address, on: provider.group)
                current = (provider, connection)
                var form = grammar.map { provider.form(of: $0) }
                if withSentences { form = grammar }
                connection.send(.transcribe(WyomingTranscribe(language: language, grammar: form)))
                connection.send(.audioStart(.speech, timestamp: 0))
                send(samples[...], from: 0)
                // Only the last question still matters.
                questions = questions.suffix(1)
                if !questions.isEmpty { connection.send(.voiceStopped(timestamp: milliseconds)) }
                if isFinished { connection.send(.audioStop(timestamp: milliseconds)) }
            } catch {
                drop(provider, error)
            }
        }
    }

    private var milliseconds: Int { samples.count * 1000 / SoundReader.sampleRate }

    private func send(_ new: ArraySlice<Int16>, from index: Int) {
        guard let connection = current?.connection else { return }
        var rest = new
        var offset = index
        while !rest.isEmpty {
            let part = rest.prefix(Self.chunkSampleCount)
            var audio = ByteBuffer()
            audio.reserveCapacity(part.count * 2)
            for sample in part { audio.writeInteger(sample, endianness: .little) }
            connection.send(
                .audioChunk(
                    WyomingAudioChunk(
                        format: .speech, audio: audio, timestamp: offset * 1000 / SoundReader.sampleRate)))
            offset += part.count
            rest = rest.dropFirst(part.count)
        }
    }

    private func drop(_ provider: SpeechProvider, _ error: ApusError) {
        current?.connection.close()
        current = nil
        lastError = error
        providers.noted(error, of: provider)
        candidates.removeAll { $0 === provider }
    }

    /// More sound.
    func append(_ new: [Int16]) {
        guard !new.isEmpty else { return }
        let index = samples.count
        samples += new
        send(samples[index...], from: index)
    }

    /// Asks what was heard so far. ``take()`` returns the answer.
    ///
    /// - Parameter isPause: otherwise the person continues to speak.
    func ask(_ number: Int, isPause: Bool) {
        questions.append(number)
        current?.connection.send(.voiceStopped(timestamp: milliseconds))
        if !isPause { resumed() }
    }

    /// The person continues to speak.
    func resumed() {
        current?.connection.send(.voiceStarted(timestamp: milliseconds))
    }

    /// The answers to questions since the last call.
    ///
    /// - Throws: why the last provider has failed.
    func take() async throws(ApusError) -> [(number: Int, answer: HearingStateMachine.Answer)] {
        while true {
            guard let (provider, connection) = current else {
                try await start()
                continue
            }
            do throws(ApusError) {
                return handle(try connection.take(), provider)
            } catch {
                drop(provider, error)
            }
        }
    }

    /// No sound follows. Waits for the text.
    ///
    /// - Parameter time: how long each provider may take.
    /// - Throws: 10005 at the deadline; otherwise why the last provider has failed.
    func finish(within time: Duration, until deadline: MonotonicTime) async throws(ApusError) -> Heard {
        isFinished = true
        var end = min(deadline, .now() + time)
        current?.connection.send(.audioStop(timestamp: milliseconds))
        while heard == nil {
            guard let (provider, connection) = current else {
                _ = try deadline.timeLeft()
                try await start()
                end = min(deadline, .now() + time)
                continue
            }
            do throws(ApusError) {
                _ = handle(try await connection.next(until: end), provider)
            } catch {
                guard error.code != .cancelled else { throw error }
                drop(provider, error)
            }
        }
        current?.connection.close()
        return heard ?? Heard()
    }

    private func handle(
        _ messages: [WyomingMessage], _ provider: SpeechProvider
    ) -> [(number: Int, answer: HearingStateMachine.Answer)] {
        var answers: [(number: Int, answer: HearingStateMachine.Answer)] = []
        for message in messages {
            switch message {
            case .transcriptChunk(let chunk):
                guard let pause = chunk.pause, let number = questions.first else { continue }
                questions.removeFirst()
                answers.append(
                    (number, .init(text: chunk.text, isWhole: pause.isWhole, isBeginning: pause.isBeginning)))
            case .transcript(let transcript):
                guard isFinished else { continue }
                if let grammar { provider.has(grammar, true) }
                provider.succeeded()
                heard = Heard(
                    text: transcript.text, free: transcript.result?.free ?? "",
                    candidates: transcript.result?.candidates ?? [])
            case .error(let text, let code):
                if let grammar, !withSentences, code?.isExactly(WyomingGrammar.unknownCode) ?? false {
                    // The same provider once more, with the sentences.
                    provider.has(grammar, false)
                    current?.connection.close()
                    (current, withSentences) = (nil, true)
                } else {
                    drop(provider, ApusError(provider: text, code: code))
                }
                return answers
            default: break
            }
        }
        return answers
    }
}

import ApusCore
import ApusWyoming
import Foundation
import Logging
import Synchronization

/// The bounds of a provider.
///
/// Pure value.
package struct ProviderLimits: Sendable, Equatable {
    /// Utterances that are recognized at once, each on a thread of its own.
    package var utterancesRunningMax = 8
    /// Utterances that wait for a thread. One more is refused with `apus-busy`.
    package var utterancesWaitingMax = 8
    /// Texts that are spoken at once, each by a process of its own.
    package var textsRunningMax = 2
    /// Texts that wait. One more is refused with `apus-busy`.
    package var textsWaitingMax = 16
    /// One more connection is closed at once.
    package var connectionsMax = 128
    /// The process ends after this many utterances; 0: never.
    package var utterancesMax = 0
    /// The process ends after an utterance if it has more resident memory, in MiB; 0: never.
    package var memoryMax = 1024

    package init() {}
}

/// What all connections of a provider share: the engines, the pools of threads, and the end.
///
/// Concurrency model: any thread may call it.
final class ProviderService: Sendable {
    /// Why a provider ends.
    enum Ending: Sendable, Equatable {
        /// Its bounds of utterances or memory are reached.
        case worn
        case stopped
    }

    private struct State {
        var utteranceCount = 0
        var ending: Ending?
    }

    let info: WyomingInfo
    let log: Logger
    private let limits: ProviderLimits
    private let recognition: RecognitionEngine?
    private let speech: SpeechEngine?
    private let utterances: WorkerPool
    private let texts: WorkerPool
    private let state = Mutex(State())
    private let endings: AsyncStream<Ending>
    private let feed: AsyncStream<Ending>.Continuation

    init(
        recognition: RecognitionEngine?, speech: SpeechEngine?, limits: ProviderLimits, log: Logger
    ) throws(ApusError) {
        (self.recognition, self.speech, self.limits, self.log) = (recognition, speech, limits, log)
        info = Self.info(recognition: recognition != nil, speech: speech != nil)
        utterances = try WorkerPool(
            name: "utterance", workerCount: limits.utterancesRunningMax, queueMax: limits.utterancesWaitingMax)
        texts = try WorkerPool(name: "text", workerCount: limits.textsRunningMax, queueMax: limits.textsWaitingMax)
        (endings, feed) = AsyncStream.makeStream(bufferingPolicy: .bufferingOldest(1))
    }

    private static func info(recognition: Bool, speech: Bool) -> WyomingInfo {
        var info = WyomingInfo()
        if recognition {
            let sphinx = ("Carnegie Mellon University", "https://cmusphinx.github.io")
            info.recognition = [
                .init(
                    .init(
                        name: "apus-sphinx", description: "Sentences of a grammar, by PocketSphinx",
                        version: "0.8+5prealpha", attribution: sphinx),
                    models: [
                        .init(
                            .init(name: "en-us", description: "American English", attribution: sphinx),
                            languages: ["en", "en-US"])
                    ])
            ]
        }
        if speech {
            let espeak = ("eSpeak NG", "https://github.com/espeak-ng/espeak-ng")
            info.speech = [
                .init(
                    .init(name: "apus-espeak", description: "Speech by eSpeak NG", attribution: espeak),
                    models: SpeechEngine.voices.map { voice in
                        .init(
                            .init(name: voice, attribution: espeak), languages: [voice.isExactly("cmn") ? "zh" : voice])
                    })
            ]
        }
        return info
    }

    // MARK: Requests

    var isEnding: Bool { state.withLock { $0.ending != nil } }

    /// False if the sentences are not known.
    func keep(_ grammar: WyomingGrammar) -> Bool { recognition?.keep(grammar) ?? false }

    /// False if there is no room for the utterance.
    func recognize(_ utterance: Utterance, reply: @escaping @Sendable (WyomingMessage) -> Void) -> Bool {
        guard let recognition, !isEnding else { return false }
        return utterances.submit { [self] in
            utterance.perform(with: recognition, reply: reply)
            recognized()
        }
    }

    /// False if there is no room for the text.
    func speak(
        _ request: WyomingSynthesize, _ stop: StopFlag, reply: @escaping @Sendable (WyomingMessage) -> Void
    ) -> Bool {
        guard let speech, !isEnding else { return false }
        return texts.submit { speech.speak(request, isStopped: { stop.isSet }, reply: reply) }
    }

    // MARK: The end

    private func recognized() {
        let count = state.withLock { state in
            state.utteranceCount += 1
            return state.utteranceCount
        }
        let memory = Self.residentMebibytes()
        let isWorn =
            limits.utterancesMax > 0 && count >= limits.utterancesMax
            || limits.memoryMax > 0 && memory > limits.memoryMax
        guard isWorn else { return }
        log.notice("The provider ends to be replaced", metadata: ["utterances": "\(count)", "mebibytes": "\(memory)"])
        end(.worn)
    }

    /// Takes no more requests. The first reason counts.
    func end(_ ending: Ending) {
        let isFirst = state.withLock { state in
            guard state.ending == nil else { return false }
            state.ending = ending
            return true
        }
        if isFirst { feed.yield(ending) }
    }

    /// Waits for ``end(_:)``.
    func waitForEnd() async -> Ending {
        for await reason in endings { return reason }
        return .stopped
    }

    /// Waits for what is running.
    func drain() async {
        let deadline = MonotonicTime.now() + Self.drainTime
        while utterances.count + texts.count > 0, MonotonicTime.now() < deadline {
            try? await Task.sleep(for: .milliseconds(20))
        }
    }

    /// Ends the threads. Utterances whose connection is closed are cancelled by now.
    func stopThreads() {
        utterances.stop()
        texts.stop()
    }

    /// The longest time for what is running: the longest utterance and the longest silence of a client.
    static let drainTime = ProviderConnectionStateMachine.utteranceMax + Utterance.silenceMax

    /// proc(5): the second number of statm, in pages.
    static func residentMebibytes() -> Int {
        let text = (try? String(contentsOfFile: "/proc/self/statm", encoding: .utf8)) ?? ""
        let pages = text.split(separator: " ").dropFirst().first.flatMap { Int($0) } ?? 0
        return pages * Int(sysconf(Int32(_SC_PAGESIZE))) / 1_048_576
    }
}

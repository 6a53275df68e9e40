import ApusCore
package import ApusWyoming
import ApusWyomingClient
import CoreMetrics
import NIOCore

/// The configured speech providers, in the order in which they are preferred.
///
/// Concurrency model: any thread; each provider guards its state.
final class SpeechProviders: Sendable {
    private static let lookInterval = Duration.seconds(5)
    private static let speakTimeout = Duration.seconds(10)

    let all: [SpeechProvider]
    private let up = Gauge(label: "apus_speech_providers_up")
    private let failures = Counter(label: "apus_speech_provider_failures_total")

    init(_ addresses: [WyomingAddress], on group: any EventLoopGroup) {
        all = addresses.map { SpeechProvider($0, on: group) }
    }

    /// Asks all providers what they offer, now and then, until the task is cancelled.
    func run() async {
        repeat {
            await withDiscardingTaskGroup { group in
                for provider in all { group.addTask { await provider.look() } }
            }
            up.record(all.count { $0.isUp })
        } while (try? await Task.sleep(for: Self.lookInterval)) != nil
    }

    /// The providers that hear a language, in order.
    func hearing(_ language: String) -> [SpeechProvider] { inOrder { $0.hears(language) } }

    /// Those that have failed are the last ones.
    private func inOrder(_ condition: (SpeechProvider) -> Bool) -> [SpeechProvider] {
        let found = all.filter(condition).map { (provider: $0, isSuspect: $0.isSuspect) }
        return (found.filter { !$0.isSuspect } + found.filter(\.isSuspect)).map(\.provider)
    }

    /// Errors of a provider that cannot be reached, or does not answer. With others it has answered a request that it
    /// could not carry out, and others may be carried out.
    private static let downErrors: [ErrorCode] = [
        .connectFailed, .linkLost, .deadlineExceeded, .malformed, .frameTooLarge,
    ]

    /// A provider has failed with this error.
    func noted(_ error: ApusError, of provider: SpeechProvider) {
        if error.code != .overloaded { failures.increment() }
        if Self.downErrors.contains(error.code) { provider.failed() }
    }

    /// Speaks a text. Where a provider fails or is busy, the next one is asked.
    ///
    /// - Throws: 21025 if no provider speaks the language; otherwise why the last one failed.
    func speak(_ text: String, _ language: String, until deadline: MonotonicTime) async throws(ApusError) -> Spoken {
        var reason = ApusError(.unavailable, "no speech provider speaks \(language)")
        for provider in inOrder({ $0.speaks(language) }) {
            do throws(ApusError) {
                let spoken = try await speak(text, language, provider, until: min(deadline, .now() + Self.speakTimeout))
                provider.succeeded()
                return spoken
            } catch {
                guard error.code != .cancelled else { throw error }
                noted(error, of: provider)
                reason = error
                guard MonotonicTime.now() < deadline else { throw error }
            }
        }
        throw reason
    }

    private func speak(
        _ text: String, _ language: String, _ provider: SpeechProvider, until deadline: MonotonicTime
    ) async throws(ApusError) -> Spoken {
        let connection = try await WyomingConnection.open(provider.address, on: provider.group)
        defer { connection.close() }
        connection.send(.synthesize(WyomingSynthesize(text: text, language: language)))
        var spoken: Spoken?
        while true {
            for message in try await connection.next(until: deadline) {
                switch message {
                case .audioStart(let format, _):
                    guard format.width == 2, (1...2).contains(format.channels), Spoken.rates.contains(format.rate)
                    else {
                        throw ApusError(.mediaUnreadable, "the speech provider speaks with \(format)")
                    }
                    spoken = Spoken(sampleRate: format.rate)
                case .audioChunk(let chunk):
                    guard chunk.format.width == 2, chunk.format.channels <= 2 else {
                        throw ApusError(.mediaUnreadable, "the speech provider speaks with \(chunk.format)")
                    }
                    spoken?.append(chunk)
                case .audioStop:
                    guard let spoken, !spoken.samples.isEmpty else {
                        throw ApusError(.mediaUnreadable, "the speech provider has sent no sound")
                    }
                    return spoken
                case .error(let text, let code): throw ApusError(provider: text, code: code)
                default: break
                }
            }
        }
    }
}

/// The sound of a text.
package struct Spoken: Sendable, Hashable {
    /// The numbers of samples a second that are taken.
    package static let rates = 8_000...48_000

    package let sampleRate: Int
    package private(set) var samples: [Int16] = []

    package init(sampleRate: Int) { self.sampleRate = sampleRate }

    package var duration: Duration { .microseconds(Int64(samples.count) * 1_000_000 / Int64(sampleRate)) }

    /// More samples.
    package mutating func append(_ more: [Int16]) { samples += more }

    /// Two channels become one.
    package mutating func append(_ chunk: WyomingAudioChunk) {
        var audio = chunk.audio
        if chunk.format.channels == 2 {
            while let (left, right) = audio.readMultipleIntegers(endianness: .little, as: (Int16, Int16).self) {
                samples.append(Int16((Int32(left) + Int32(right)) / 2))
            }
        } else {
            while let sample = audio.readInteger(endianness: .little, as: Int16.self) { samples.append(sample) }
        }
    }
}

extension ApusError {
    /// The error that a provider has answered with.
    init(provider text: String, code: String?) {
        let isBusy = code?.isExactly(WyomingGrammar.busyCode) ?? false
        self.init(isBusy ? .overloaded : .internalFailure, "the speech provider failed: \(text.prefix(200))")
    }
}

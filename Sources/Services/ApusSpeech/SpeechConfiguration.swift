import ApusClientAPI
package import ApusConfiguration
package import ApusCore
package import ApusWyoming

/// The bounds of spoken dialogs (VA-7, VA-8, docs/voice.md).
package struct SpeechConfiguration: Sendable, Hashable {
    /// The most providers.
    static let providersMax = 8

    /// Where speech providers listen, the preferred ones first. Key `speech.providers`.
    package var providers: [WyomingAddress] = []
    /// The devices that this node listens to at once; 10007 beyond. Key `speech.running_max`.
    package var runningMax = 64
    /// Those of one account; 10007 beyond. Key `speech.account_running_max`.
    package var accountRunningMax = 4
    /// How long a device is listened to. Key `speech.utterance_max`.
    package var utteranceMax = Duration.seconds(8)
    /// Silence that ends a whole sentence. Key `speech.silence_whole`.
    package var wholeSilence = Duration.milliseconds(200)
    /// Silence that ends a whole sentence which is the beginning of another one. Key `speech.silence_beginning`.
    package var beginningSilence = Duration.milliseconds(500)
    /// Silence that ends everything else. Key `speech.silence`.
    package var silence = Duration.milliseconds(1300)
    /// How long a provider may take for the text after the end. Key `speech.recognition_time`.
    package var recognitionTime = Duration.seconds(5)
    /// The spoken replies that a node keeps. Key `speech.replies_max`.
    package var repliesMax = 128

    package init() {}

    /// The address of a provider; nil if the text is none that a node can connect to.
    package static func provider(_ text: String) -> WyomingAddress? {
        switch try? WyomingAddress(text) {
        case .unix(let path)? where path.hasPrefix("/"): .unix(path)
        case .tcp(let address)? where address.port != 0: .tcp(address)
        default: nil
        }
    }

    var hearing: HearingLimits {
        var limits = HearingLimits()
        limits.utteranceMax = utteranceMax.nanoseconds / 1000
        limits.startMax = min(limits.startMax, limits.utteranceMax)
        (limits.wholeSilence, limits.beginningSilence) = (
            wholeSilence.nanoseconds / 1000, beginningSilence.nanoseconds / 1000
        )
        limits.silence = silence.nanoseconds / 1000
        return limits
    }
}

extension SpeechConfiguration: ServiceConfiguration {
    /// Reads the keys under `speech.`.
    package mutating func read(_ reader: inout ConfigurationReader) throws(ApusError) {
        providers = try reader.values("speech.providers", countMax: Self.providersMax, { Self.provider($0) }) { word in
            "unix:/PATH, or tcp:HOST:PORT with a loopback address, is expected, not '\(word)'"
        }
        runningMax = try reader.int("speech.running_max", default: runningMax, in: 1...10_000)
        accountRunningMax = try reader.int("speech.account_running_max", default: accountRunningMax, in: 1...10_000)
        utteranceMax = try reader.duration("speech.utterance_max", default: utteranceMax)
        wholeSilence = try reader.duration("speech.silence_whole", default: wholeSilence)
        beginningSilence = try reader.duration("speech.silence_beginning", default: beginningSilence)
        silence = try reader.duration("speech.silence", default: silence)
        recognitionTime = try reader.duration("speech.recognition_time", default: recognitionTime)
        repliesMax = try reader.int("speech.replies_max", default: repliesMax, in: 1...100_000)
        guard (.seconds(1) ... .seconds(30)).contains(utteranceMax), wholeSilence >= .milliseconds(100),
            wholeSilence <= beginningSilence, beginningSilence <= silence, silence <= utteranceMax,
            (.milliseconds(100) ... .seconds(30)).contains(recognitionTime)
        else {
            throw reader.invalid(
                "speech.silence",
                """
                100ms ≤ silence_whole ≤ silence_beginning ≤ silence ≤ utterance_max is expected; utterance_max: \
                1s to 30s; recognition_time: 100ms to 30s
                """
            )
        }
    }
}

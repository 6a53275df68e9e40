package import ApusCore
import ApusWyoming
import NIOCore
import Synchronization

/// Speaks texts with a process of espeak-ng for each.
///
/// Isolation: immutable. ``speak(_:isStopped:reply:)`` blocks its thread.
package struct SpeechEngine: Sendable {
    /// The longest time for a text, which is a hundred times what the longest one takes.
    static let timeMax = Duration.seconds(10)
    /// The longest audio.
    static let audioMax = Duration.seconds(120)
    /// The voices of espeak-ng that the provider offers, by language.
    static let voices = ["en", "en-us", "en-gb", "de", "es", "fr", "it", "nl", "pt", "pl", "ru", "cmn"]
    /// The audio of espeak-ng.
    static let format = WyomingAudioFormat(rate: 22_050, width: 2, channels: 1)
    private static let chunkByteCount = 8192
    private static let headerByteCount = 44

    private let program: String

    /// - Throws: 10021 if the program does not run.
    package init(program: String) throws(ApusError) {
        self.program = program
        do {
            try ChildProgram.run(
                program, ["--version"], input: [], deadline: .now() + Self.timeMax, byteCountMax: 65_536,
                receive: { _ in })
        } catch {
            throw ApusError(.storageFailed, "\(program) does not run; install espeak-ng")
        }
    }

    /// The voice for a request; nil if there is none.
    static func voice(for request: WyomingSynthesize) -> String? {
        guard let wanted = (request.voice ?? request.language)?.lowercased().replacing("_", with: "-") else {
            return "en-us"
        }
        if voices.contains(wanted) { return wanted }
        let language = String(wanted.prefix { $0 != "-" })
        if language.isExactly("zh") { return "cmn" }
        return voices.contains(language) ? language : nil
    }

    /// Speaks a text. `audio-start` comes with the first sound. The last message is `audio-stop` or an error; there is
    /// none if it was stopped.
    func speak(_ request: WyomingSynthesize, isStopped: () -> Bool, reply: (WyomingMessage) -> Void) {
        guard let voice = Self.voice(for: request) else {
            reply(ProviderError.unsupported("the voice \(request.voice ?? request.language ?? "")"))
            return
        }
        var pending: [UInt8] = []
        var isStarted = false
        var frameCount = 0
        func send(all: Bool) {
            if !isStarted {
                guard pending.count >= Self.headerByteCount else { return }
                pending.removeFirst(Self.headerByteCount)
                reply(.audioStart(Self.format, timestamp: 0))
                isStarted = true
            }
            while pending.count >= (all ? 2 : Self.chunkByteCount) {
                let count = min(pending.count, Self.chunkByteCount) / 2 * 2
                let audio = ByteBuffer(bytes: pending[..<count])
                pending.removeFirst(count)
                let timestamp = frameCount * 1000 / Self.format.rate
                reply(.audioChunk(WyomingAudioChunk(format: Self.format, audio: audio, timestamp: timestamp)))
                frameCount += count / 2
            }
        }
        do {
            try ChildProgram.run(
                program, ["--stdout", "--stdin", "-b", "1", "-v", voice], input: Array(request.text.utf8),
                deadline: .now() + Self.timeMax,
                byteCountMax: Self.format.secondByteCount * Int(Self.audioMax.components.seconds), isStopped: isStopped
            ) { bytes in
                pending += bytes
                send(all: false)
            }
            send(all: true)
            // A text without words has no sound, and no header either.
            if !isStarted { reply(.audioStart(Self.format, timestamp: 0)) }
            reply(.audioStop(timestamp: frameCount * 1000 / Self.format.rate))
        } catch {
            guard error.code != .cancelled else { return }
            reply(.error(text: error.message, code: ProviderError.failedCode))
        }
    }
}

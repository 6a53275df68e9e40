import ApusClient
import ApusContract
import ApusCore
import ApusDevice
import ApusMedia
import ApusSessions
import ArgumentParser
import Foundation
import Logging
import Synchronization

/// `apus dialog DEVICE`: a spoken dialog, as a device that hears it (VA-7, docs/voice.md).
struct SpokenDialogCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "dialog", abstract: "Be a device that is spoken to: let the cluster hear, and play the reply.",
        discussion: """
            Prints what was heard, the reply, and how long each stage took. Several files are several sentences, one \
            after the other.
            """)
    @Argument(help: "The device's id.") var device: String
    @Option(help: "What the microphone hears: a WAV file. Repeatable.") var wav: [String] = []
    @Option(help: "Listen to this capture device of ALSA, such as default, for one sentence.") var microphone: String?
    @Option(help: "What the microphone hears while the reply to the last sentence is played: a WAV file.")
    var interrupt: String?
    @Option(help: "Write the spoken replies to this WAV file.") var out: String?
    @Option(help: "The language, such as en or zh-CN. Default: that of the home.") var language: String?
    @Flag(help: "Want no spoken reply.") var silent = false
    @OptionGroup var output: OutputOptions
    @OptionGroup var connection: ConnectOptions

    func validate() throws {
        guard wav.isEmpty != (microphone == nil) else { throw ValidationError("Use one of --wav and --microphone.") }
        guard !silent || (out == nil && interrupt == nil) else {
            throw ValidationError("--out and --interrupt need spoken replies.")
        }
        _ = try DeviceID.argument(device, "DEVICE")
    }

    func run() async throws {
        let id = try DeviceID.argument(device, "DEVICE")
        let log = connection.log
        let configuration = try await connection.client(
            role: .device, access: AccessID(unchecked: device), device: id)
        let link = try CommandSession(configuration, log: log)
        let (session, ending) = (link.session, link.ending)
        session.start()
        let reply = ReplyFile(out)
        let dialog = SpokenDialog(session: session, device: id) { reply.received($0) }
        dialog.start()
        let result = await ending.race(seconds: nil) { () throws(ApusError) in
            let places: [SoundInput.Place] =
                microphone.map { [.alsa($0)] } ?? wav.map { .wav(path: $0, loops: false) }
            for (index, place) in places.enumerated() {
                var answer = try await dialog.ask(
                    SoundInput(place, sampleRate: SpokenDialog.sampleRate), language: language, isSilent: silent)
                if let interrupt, index == places.count - 1, answer.replyMs > 0 {
                    try output.show(answer, answer.lines)
                    let other = try await dialog.ask(
                        SoundInput(.wav(path: interrupt, loops: false), sampleRate: SpokenDialog.sampleRate),
                        language: language, whileSpeaking: true)
                    // The reply goes on, or there is another one.
                    if !other.replyGoesOn { answer = other }
                }
                if answer.replyMs > 0 {
                    try await reply.wait(for: .milliseconds(Int64(answer.replyMs)) + .seconds(2))
                    try await dialog.replyPlayed(answer.turn.id)
                }
                try output.show(answer, answer.lines)
            }
            try reply.finish()
        }
        dialog.stop()
        try await link.close()
        try result.get()
    }
}

extension ClientListenResponse {
    /// For people.
    fileprivate var lines: [String] {
        guard !heard.isEmpty else { return ["Nothing was understood (\(end))."] }
        return [
            "> \(heard)", turn.reply,
            """
            spoken \(times.spoken) ms, silence \(times.waited) ms, then text after \(times.recognized) ms, done after \
            \(times.carriedOut) ms, reply after \(times.replyBegan) ms
            """,
        ]
    }
}

/// Writes spoken replies to a file, and waits for their ends.
private final class ReplyFile: Sendable {
    private struct State {
        var file: WAVFile?
        var count = 0
        var isEnded = false
        var error: ApusError?
    }

    private let path: String?
    private let state = Mutex(State())

    init(_ path: String?) { self.path = path }

    func received(_ event: SpokenDialog.ReplyEvent) {
        state.withLock { state in
            do throws(ApusError) {
                switch event {
                case .began(let rate):
                    state.isEnded = false
                    if let path, state.file == nil { state.file = try WAVFile(path: path, sampleRate: rate) }
                case .sound(let samples):
                    guard let file = state.file else { return }
                    let time = Int64(state.count) * 1_000_000 / Int64(file.sampleRate)
                    state.count += samples.count
                    try file.render(
                        SoundSamples(sampleRate: file.sampleRate, ptsMicroseconds: time, samples: samples))
                case .ended: state.isEnded = true
                }
            } catch {
                state.error = error
            }
        }
    }

    /// Waits for the end of a reply.
    func wait(for longest: Duration) async throws(ApusError) {
        let deadline = MonotonicTime.now() + longest
        while !state.withLock({ $0.isEnded }) {
            guard MonotonicTime.now() < deadline, (try? await Task.sleep(for: .milliseconds(10))) != nil else {
                throw ApusError(.idleTimeout, "the end of the reply did not come")
            }
        }
        try state.withLock { state throws(ApusError) in
            state.isEnded = false
            if let error = state.error { throw error }
        }
    }

    func finish() throws(ApusError) {
        try state.withLock { state throws(ApusError) in
            try state.file?.finish()
            if let error = state.error { throw error }
        }
    }
}

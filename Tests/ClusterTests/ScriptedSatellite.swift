import ApusCore
import ApusWyoming
import Foundation
import NIOCore
import NIOPosix
import Synchronization

/// A satellite of tests: a server of the Wyoming protocol that behaves like wyoming-satellite with a wake word of its
/// own. It sends sound after `run-pipeline` until it gets `transcript` or `error`, and confirms a reply with `played`.
final class ScriptedSatellite: Sendable {
    struct Heard: Sendable {
        var connections = 0
        /// `run-satellite` was received, and the satellite waits for its wake word.
        var isWaiting = false
        var pings = 0
        var transcripts: [String] = []
        var texts: [String] = []
        var errors: [String] = []
        var rate = 0
        var samples: [Int16] = []
        var replies = 0
    }

    let path = "/tmp/satellite-\(UUID().uuidString.prefix(8)).sock"
    private let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
    private let server = Mutex<(any Channel)?>(nil)
    private let client = Mutex<(any Channel)?>(nil)
    private let state = Mutex(Heard())

    init() throws {
        let channel = try ServerBootstrap(group: group)
            .childChannelInitializer { [weak self] channel in
                channel.eventLoop.makeCompletedFuture {
                    guard let self else { return }
                    self.client.withLock { $0 = channel }
                    self.state.withLock { $0.connections += 1 }
                    try channel.pipeline.syncOperations.addHandler(Handler(self))
                }
            }
            .bind(unixDomainSocketPath: path).wait()
        server.withLock { $0 = channel }
    }

    var heard: Heard { state.withLock(\.self) }

    /// The wake word was heard, and then these samples of 16 kHz, at their own pace, until the server ends them.
    ///
    /// - Parameters:
    ///   - stage: where the pipeline begins.
    ///   - format: what the sound is said to be.
    func speak(
        _ samples: [Int16], stage: String = "asr", format: WyomingAudioFormat = .speech
    ) async throws {
        let before = heard
        try send(.detection(WyomingDetection(name: "okay_nabu", timestamp: nil)))
        try send(
            .other(
                WyomingEvent(
                    type: "run-pipeline",
                    data: [
                        .init(name: "start_stage", value: .string(stage)),
                        .init(name: "end_stage", value: .string("tts")),
                    ])))
        let start = MonotonicTime.now()
        for index in 0..<1000 {
            let now = heard
            if now.transcripts.count + now.errors.count > before.transcripts.count + before.errors.count { return }
            let from = min(320 * index, samples.count)
            var part = Array(samples[from..<min(from + 320, samples.count)])
            part += Array(repeating: 0, count: 320 - part.count)
            var audio = ByteBuffer()
            for sample in part { audio.writeInteger(sample, endianness: .little) }
            try send(.audioChunk(WyomingAudioChunk(format: format, audio: audio)))
            try await Task.sleep(for: max(.zero, start + .milliseconds(20 * index) - .now()))
        }
        throw ApusError(.deadlineExceeded, "the server ends no sound")
    }

    func send(_ message: WyomingMessage) throws(ApusError) {
        var buffer = ByteBuffer()
        try message.event.encode(into: &buffer)
        client.withLock(\.self)?.writeAndFlush(buffer, promise: nil)
    }

    /// The connection breaks.
    func drop() { client.withLock(\.self)?.close(promise: nil) }

    func end() {
        try? server.withLock(\.self)?.close().wait()
        try? group.syncShutdownGracefully()
        try? FileManager.default.removeItem(atPath: path)
    }

    private final class Handler: ChannelInboundHandler {
        typealias InboundIn = ByteBuffer

        private let satellite: ScriptedSatellite
        private let reader = WyomingReader()

        init(_ satellite: ScriptedSatellite) { self.satellite = satellite }

        func channelRead(context: ChannelHandlerContext, data: NIOAny) {
            do {
                try reader.take(unwrapInboundIn(data)) { message throws(ApusError) in try handle(message) }
            } catch {
                context.close(promise: nil)
            }
        }

        private func handle(_ message: WyomingMessage) throws(ApusError) {
            switch message {
            case .ping(let text): try satellite.send(.pong(text: text))
            case .audioStop: try satellite.send(.other(WyomingEvent(type: "played")))
            default: break
            }
            satellite.state.withLock { state in
                switch message {
                case .other(let event) where event.type.isExactly("run-satellite"): state.isWaiting = true
                case .ping: state.pings += 1
                case .transcript(let transcript): state.transcripts.append(transcript.text)
                case .synthesize(let synthesize): state.texts.append(synthesize.text)
                case .error(let text, let code): state.errors.append("\(code ?? "") \(text)")
                case .audioStart(let format, _): (state.rate, state.samples) = (format.rate, [])
                case .audioChunk(let chunk):
                    var audio = chunk.audio
                    while let sample = audio.readInteger(endianness: .little, as: Int16.self) {
                        state.samples.append(sample)
                    }
                case .audioStop: state.replies += 1
                default: break
                }
            }
        }

        func channelInactive(context: ChannelHandlerContext) { satellite.state.withLock { $0.isWaiting = false } }
    }
}

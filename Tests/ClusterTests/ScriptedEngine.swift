import ApusCore
import ApusWyoming
import Foundation
import NIOCore
import NIOPosix
import Synchronization

/// A speech engine of tests: it hears tones, each of which stands for a sentence, and speaks tones as long as the text.
///
/// It is a real server of the Wyoming protocol. The tone of a sentence has ``frequency(_:)``; the engine counts the
/// zero crossings of what it receives, so a sample that is lost or doubled on the way is heard.
final class ScriptedEngine: Sendable {
    static let sampleRate = 22_050
    static let baseFrequency = 400
    static let stepFrequency = 100

    struct Counts: Sendable {
        var connections = 0
        var utterances = 0
        var grammars = 0
        var unknown = 0
        var spoken: [String] = []
    }

    let path: String
    private let sentences: [String]
    /// The languages that it names.
    private let languages: [String]
    private let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
    private let server = Mutex<(any Channel)?>(nil)
    private let counted = Mutex(Counts())
    private let hashes = Mutex<[String]>([])
    /// A text that it takes long to speak.
    private let slow = Mutex<(text: String, time: TimeAmount)?>(nil)
    /// It accepts connections, and answers nothing that is asked with sound.
    private let isHanging = Mutex(false)

    init(_ sentences: [String], languages: [String] = ["en"], path: String? = nil) throws {
        (self.sentences, self.languages) = (sentences, languages)
        self.path = path ?? NSTemporaryDirectory() + "engine-\(UUID().uuidString.prefix(8)).sock"
        try start()
    }

    deinit { try? group.syncShutdownGracefully() }

    var counts: Counts { counted.withLock(\.self) }

    static func frequency(_ index: Int) -> Int { baseFrequency + stepFrequency * index }

    /// The reply's samples for a text: 30 ms for each character.
    static func reply(_ text: String) -> [Int16] {
        (0..<text.count * sampleRate * 30 / 1000).map { Int16(truncatingIfNeeded: $0 * 7 % 20_000) }
    }

    /// Speaks a text only after some time.
    func delay(_ text: String, by milliseconds: Int64) {
        slow.withLock { $0 = (text, .milliseconds(milliseconds)) }
    }

    func hang(_ hangs: Bool) { isHanging.withLock { $0 = hangs } }

    func start() throws {
        try? FileManager.default.removeItem(atPath: path)
        let channel = try ServerBootstrap(group: group)
            .childChannelInitializer { [weak self] channel in
                channel.eventLoop.makeCompletedFuture {
                    guard let self else { return }
                    self.counted.withLock { $0.connections += 1 }
                    try channel.pipeline.syncOperations.addHandler(Handler(self))
                }
            }
            .bind(unixDomainSocketPath: path).wait()
        server.withLock { $0 = channel }
    }

    /// Closes its socket. Connections in progress go on.
    func stop() {
        try? server.withLock { server in
            defer { server = nil }
            return server
        }?.close().wait()
        try? FileManager.default.removeItem(atPath: path)
    }

    func end() {
        stop()
        try? group.syncShutdownGracefully()
    }

    private var info: WyomingInfo {
        func program(_ name: String) -> WyomingInfo.Program {
            WyomingInfo.Program(.init(name: name), models: [.init(.init(name: name), languages: languages)])
        }
        return WyomingInfo(recognition: [program("tones")], speech: [program("tones")])
    }

    private final class Handler: ChannelInboundHandler {
        typealias InboundIn = ByteBuffer
        typealias OutboundOut = ByteBuffer

        private let engine: ScriptedEngine
        private let reader = WyomingReader()
        private var samples: [Int16] = []
        /// What was heard at a pause. As with other providers, only silence follows, unless the client says that speech
        /// goes on.
        private var early: String??

        init(_ engine: ScriptedEngine) { self.engine = engine }

        func channelRead(context: ChannelHandlerContext, data: NIOAny) {
            do {
                try reader.take(unwrapInboundIn(data)) { handle($0, context) }
            } catch {
                context.close(promise: nil)
            }
        }

        private func handle(_ message: WyomingMessage, _ context: ChannelHandlerContext) {
            switch message {
            case .describe: send(.info(engine.info), context)
            case .transcribe(let transcribe):
                guard let grammar = transcribe.grammar else { return }
                if grammar.sentences != nil {
                    engine.counted.withLock { $0.grammars += 1 }
                    engine.hashes.withLock { $0.append(grammar.hash) }
                } else if !engine.hashes.withLock({ $0.contains(grammar.hash) }) {
                    engine.counted.withLock { $0.unknown += 1 }
                    send(.error(text: "no such grammar", code: WyomingGrammar.unknownCode), context)
                }
            case .audioStart: (samples, early) = ([], nil)
            case .voiceStarted: early = nil
            case .audioChunk(let chunk):
                var audio = chunk.audio
                while let sample = audio.readInteger(endianness: .little, as: Int16.self) { samples.append(sample) }
            case .voiceStopped:
                guard !engine.isHanging.withLock(\.self) else { return }
                if early == nil { early = .some(heard) }
                let pause = WyomingTranscriptChunk.Pause(
                    isWhole: heard != nil, isBeginning: heard != nil, milliseconds: samples.count / 16)
                send(.transcriptChunk(WyomingTranscriptChunk(text: heard ?? "", pause: pause)), context)
            case .audioStop:
                guard !engine.isHanging.withLock(\.self) else { return }
                engine.counted.withLock { $0.utterances += 1 }
                let heard = early ?? heard
                let text = heard ?? ""
                let result = WyomingResult(candidates: [.init(text: text, score: 1)], isWhole: heard != nil)
                send(.transcript(WyomingTranscript(text: text, result: result)), context)
            case .synthesize(let synthesize):
                let text = synthesize.text
                guard let slow = engine.slow.withLock({ $0 }), slow.text.isExactly(text) else {
                    return speak(text, context)
                }
                let bound = NIOLoopBound((self, context), eventLoop: context.eventLoop)
                context.eventLoop.scheduleTask(in: slow.time) { bound.value.0.speak(text, bound.value.1) }
            default: break
            }
        }

        /// The sentence of the tone, by the crossings of zero from below in the loud part.
        private var heard: String? {
            let loud = samples.drop { $0.magnitude < 1000 }
            guard let last = loud.lastIndex(where: { $0.magnitude >= 1000 }) else { return nil }
            let part = loud[...last]
            let crossings = zip(part, part.dropFirst()).count { $0 < 0 && $1 >= 0 }
            guard part.count >= 3200 else { return nil }
            let frequency = crossings * 16_000 / part.count
            let index =
                (frequency - ScriptedEngine.baseFrequency + ScriptedEngine.stepFrequency / 2)
                / ScriptedEngine.stepFrequency
            return engine.sentences.indices.contains(index) ? engine.sentences[index] : nil
        }

        private func speak(_ text: String, _ context: ChannelHandlerContext) {
            engine.counted.withLock { $0.spoken.append(text) }
            let format = WyomingAudioFormat(rate: ScriptedEngine.sampleRate, width: 2, channels: 1)
            send(.audioStart(format, timestamp: nil), context)
            var rest = ScriptedEngine.reply(text)[...]
            while !rest.isEmpty {
                var audio = ByteBuffer()
                for sample in rest.prefix(1024) { audio.writeInteger(sample, endianness: .little) }
                rest = rest.dropFirst(1024)
                send(.audioChunk(WyomingAudioChunk(format: format, audio: audio)), context)
            }
            send(.audioStop(timestamp: nil), context)
        }

        private func send(_ message: WyomingMessage, _ context: ChannelHandlerContext) {
            var buffer = ByteBuffer()
            guard (try? message.event.encode(into: &buffer)) != nil else { return }
            context.writeAndFlush(wrapOutboundOut(buffer), promise: nil)
        }
    }
}

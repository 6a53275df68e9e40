import ApusCore
import ApusProvider
import ApusSphinx
import ApusTestKit
import ApusWyoming
import Logging
import NIOCore
import NIOPosix

/// A client of a provider.
final class SpeechClient: Sendable {
    private final class Receiver: ChannelInboundHandler, Sendable {
        typealias InboundIn = ByteBuffer
        let feed: AsyncStream<WyomingMessage>.Continuation
        private let decoder = NIOLockedDecoder()

        init(feed: AsyncStream<WyomingMessage>.Continuation) { self.feed = feed }

        func channelRead(context: ChannelHandlerContext, data: NIOAny) {
            for message in decoder.take(unwrapInboundIn(data)) { feed.yield(message) }
        }

        func channelInactive(context: ChannelHandlerContext) { feed.finish() }
    }

    let channel: any Channel
    let messages: AsyncStream<WyomingMessage>

    init(_ address: WyomingAddress) async throws {
        let (messages, feed) = AsyncStream.makeStream(of: WyomingMessage.self)
        let bootstrap = ClientBootstrap(group: MultiThreadedEventLoopGroup.singleton)
            .channelInitializer { channel in channel.pipeline.addHandler(Receiver(feed: feed)) }
        switch address {
        case .unix(let path): channel = try await bootstrap.connect(unixDomainSocketPath: path).get()
        case .tcp(let address): channel = try await bootstrap.connect(host: address.host, port: address.port).get()
        }
        self.messages = messages
    }

    deinit { channel.close(promise: nil) }

    func send(_ messages: WyomingMessage...) throws {
        var bytes = ByteBuffer()
        for message in messages { try message.event.encode(into: &bytes) }
        channel.writeAndFlush(bytes, promise: nil)
    }

    /// The next message; nil if the connection was closed. A provider that says nothing for 30 s fails the test.
    func next() async throws -> WyomingMessage? {
        try await withThrowingTaskGroup(of: WyomingMessage?.self) { group in
            group.addTask { [messages] in
                for await message in messages { return message }
                return nil
            }
            group.addTask {
                try await Task.sleep(for: .seconds(30))
                throw TestFailure("the provider says nothing")
            }
            defer { group.cancelAll() }
            return try await group.next() ?? nil
        }
    }

    /// The code of the next message, which must be an error.
    func nextCode() async throws -> String? {
        guard case .error(_, let code) = try await next() else { throw TestFailure("an error is expected") }
        return code
    }

    func nextTranscript() async throws -> WyomingTranscript {
        let message = try await next()
        guard case .transcript(let transcript) = message else {
            throw TestFailure("a transcript is expected, and not \(String(describing: message))")
        }
        return transcript
    }

    func sendAudio(_ samples: [Int16], _ format: WyomingAudioFormat = .speech) throws {
        for start in stride(from: 0, to: samples.count, by: 4096) {
            var audio = ByteBuffer()
            for sample in samples[start..<min(start + 4096, samples.count)] {
                audio.writeInteger(sample, endianness: .little)
            }
            try send(.audioChunk(WyomingAudioChunk(format: format, audio: audio)))
        }
    }

    /// A whole utterance.
    func transcribe(
        _ samples: [Int16], _ grammar: WyomingGrammar, _ format: WyomingAudioFormat = .speech
    ) async throws -> WyomingTranscript {
        try send(.transcribe(WyomingTranscribe(language: "en", grammar: grammar)), .audioStart(format, timestamp: 0))
        try sendAudio(samples, format)
        try send(.audioStop(timestamp: nil))
        return try await nextTranscript()
    }

    /// The samples of a text, as the provider speaks it: 22,050 Hz.
    func speak(_ text: String, voice: String = "en-us") async throws -> [Int16] {
        try send(.synthesize(WyomingSynthesize(text: text, voice: voice)))
        var samples: [Int16] = []
        while let message = try await next() {
            switch message {
            case .audioStart: break
            case .audioChunk(var chunk):
                while let sample = chunk.audio.readInteger(endianness: .little, as: Int16.self) {
                    samples.append(sample)
                }
            case .audioStop: return samples
            default: throw TestFailure("no audio: \(message)")
            }
        }
        throw TestFailure("the connection was closed")
    }
}

/// A decoder that is used on an event loop only.
private final class NIOLockedDecoder: @unchecked Sendable {  // SAFETY: see above.
    private var decoder = WyomingDecoder()

    func take(_ bytes: ByteBuffer) -> [WyomingMessage] {
        decoder.append(bytes)
        var messages: [WyomingMessage] = []
        while let event = try? decoder.next() {
            if let message = try? WyomingMessage(event) { messages.append(message) }
        }
        return messages
    }
}

/// A provider of a test, with the engines of this machine.
struct TestProvider {
    static let model = "/usr/share/pocketsphinx/model/en-us/en-us"
    static let dictionary = "/usr/share/pocketsphinx/model/en-us/cmudict-en-us.dict"
    static let espeak = "/usr/bin/espeak-ng"
    static let spoken = WyomingAudioFormat(rate: 22_050, width: 2, channels: 1)

    let provider: Provider
    private let folder = Folder()
    let run: Task<Bool, Never>

    static func engine() throws -> RecognitionEngine {
        try RecognitionEngine(
            library: SphinxLibrary(), model: model,
            pronunciations: Pronunciations(dictionary: dictionary, espeak: espeak), idleMax: 4)
    }

    init(_ limits: ProviderLimits = ProviderLimits()) async throws {
        let provider = try await Provider(
            WyomingAddress("unix:" + folder.file("speech.sock")), recognition: Self.engine(),
            speech: SpeechEngine(program: Self.espeak), limits: limits, log: Logger(label: "test"))
        self.provider = provider
        run = Task { await provider.run() }
    }

    func client() async throws -> SpeechClient { try await SpeechClient(provider.address) }

    func stop() async -> Bool {
        provider.stop()
        return await run.value
    }

    /// 200 sentences.
    static func grammar() throws -> WyomingGrammar {
        let rooms = ["kitchen", "bedroom", "hall", "garden", "office"]
        let things = ["light", "heater", "fan", "radio", "lamp"]
        var sentences: [String] = []
        for room in rooms {
            for thing in things {
                for verb in ["turn on", "turn off", "switch on", "switch off"] {
                    sentences += ["\(verb) the \(room) \(thing)", "\(verb) the \(thing) in the \(room)"]
                }
            }
        }
        return try WyomingGrammar(sentences: sentences)
    }
}

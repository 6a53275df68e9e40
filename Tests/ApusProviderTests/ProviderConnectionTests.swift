import ApusCore
import ApusProvider
import ApusWyoming
import NIOCore
import Testing

@Suite("What a client of a provider may do when (VA)")
struct ProviderConnectionTests {
    private typealias Machine = ProviderConnectionStateMachine

    private static let grammar = try? WyomingGrammar(sentences: ["stop"])
    private let transcribe = WyomingMessage.transcribe(WyomingTranscribe(language: "en", grammar: grammar))
    private let start = WyomingMessage.audioStart(.speech, timestamp: nil)
    private let stop = WyomingMessage.audioStop(timestamp: nil)

    private func chunk(_ byteCount: Int, _ format: WyomingAudioFormat = .speech) -> WyomingMessage {
        .audioChunk(WyomingAudioChunk(format: format, audio: ByteBuffer(repeating: 0, count: byteCount)))
    }

    private func code(_ actions: [Machine.Action]) -> String? {
        guard case .reply(.error(_, let code)) = actions.last else { return nil }
        return code
    }

    private func hearing() -> Machine {
        var machine = Machine(info: WyomingInfo())
        _ = machine.receive(transcribe)
        _ = machine.grammarFound(true)
        _ = machine.receive(start)
        return machine
    }

    @Test("An utterance is a grammar, its start, audio, pauses and its end")
    func utterance() throws {
        let grammar = try #require(Self.grammar)
        var machine = Machine(info: WyomingInfo())
        #expect(machine.receive(transcribe) == [.keepGrammar(grammar)])
        #expect(machine.grammarFound(true) == [])
        #expect(machine.receive(start) == [.startUtterance(grammarHash: grammar.hash, .speech)])
        #expect(machine.receive(chunk(4)) == [.hear(ByteBuffer(repeating: 0, count: 4))])
        #expect(machine.receive(.voiceStopped(timestamp: 1)) == [.pause])
        #expect(machine.receive(.voiceStarted(timestamp: 2)) == [.resume])
        #expect(machine.receive(stop) == [.endUtterance])
        #expect(machine.receive(.voiceStopped(timestamp: 3)) == [])
    }

    @Test("describe and ping are answered at any time")
    func questions() {
        var machine = hearing()
        #expect(machine.receive(.describe) == [.reply(.info(WyomingInfo()))])
        #expect(machine.receive(.ping(text: "a")) == [.reply(.pong(text: "a"))])
        #expect(machine.receive(stop) == [.endUtterance])
    }

    @Test("A grammar that is not known is asked for, and the utterance is ignored up to its end")
    func unknownGrammar() {
        var machine = Machine(info: WyomingInfo())
        _ = machine.receive(transcribe)
        #expect(code(machine.grammarFound(false)) == "apus-grammar-unknown")
        for message in [start, chunk(4), .voiceStopped(timestamp: nil), stop] {
            #expect(machine.receive(message) == [])
        }
        _ = machine.receive(transcribe)
        #expect(machine.grammarFound(true) == [])
        #expect(machine.receive(start).count == 1)
    }

    @Test("What is refused has a code, and the next utterance is served")
    func refused() throws {
        let stereo = WyomingAudioFormat(rate: 16_000, width: 2, channels: 2)
        let bytes = WyomingAudioFormat(rate: 16_000, width: 1, channels: 1)
        let german = WyomingMessage.transcribe(WyomingTranscribe(language: "de-DE", grammar: Self.grammar))
        let cases: [([WyomingMessage], String)] = [
            ([.transcribe(WyomingTranscribe())], "apus-grammar-missing"), ([german], "apus-unsupported"),
            ([transcribe, .audioStart(bytes, timestamp: nil)], "apus-format"),
            ([transcribe, .audioStart(.init(rate: 4000, width: 2, channels: 1), timestamp: nil)], "apus-format"),
            ([transcribe, .audioStart(.init(rate: 16_000, width: 2, channels: 6), timestamp: nil)], "apus-format"),
            ([transcribe, start, chunk(4, stereo)], "apus-format"), ([start], "apus-order"), ([chunk(2)], "apus-order"),
            ([transcribe, start, start], "apus-order"), ([transcribe, chunk(2)], "apus-order"),
            ([transcribe, start, chunk(960_002)], "apus-too-long"),
        ]
        for (messages, expected) in cases {
            var machine = Machine(info: WyomingInfo())
            var actions: [Machine.Action] = []
            for message in messages { actions += machine.receive(message) }
            #expect(code(actions) == expected, "\(messages)")
            if actions.contains(where: { if case .startUtterance = $0 { true } else { false } }) {
                #expect(actions.contains(.cancelUtterance), "\(messages)")
            }
            #expect(machine.receive(chunk(2)) == [], "an error is answered once")
            #expect(machine.receive(stop) == [])
            _ = machine.receive(transcribe)
            #expect(machine.receive(start).count == 1)
        }
        var machine = Machine(info: WyomingInfo())
        #expect(code(machine.receive(.detect(names: nil))) == "apus-unsupported")
        #expect(code(machine.receive(stop)) == "apus-order")
    }

    @Test("An utterance has 30 s of audio and no sample more")
    func length() {
        var machine = hearing()
        for _ in 0..<30 { #expect(machine.receive(chunk(32_000)).count == 1) }
        let actions = machine.receive(chunk(2))
        #expect(actions.first == .cancelUtterance)
        #expect(code(actions) == "apus-too-long")
    }

    @Test("An utterance has 64 pauses and no more")
    func pauses() {
        var machine = hearing()
        for _ in 0..<Machine.pauseCountMax {
            #expect(machine.receive(.voiceStopped(timestamp: nil)) == [.pause])
            #expect(machine.receive(.voiceStarted(timestamp: nil)) == [.resume])
        }
        let actions = machine.receive(.voiceStopped(timestamp: nil))
        #expect(actions.first == .cancelUtterance)
        #expect(code(actions) == "apus-order")
        #expect(machine.receive(stop) == [])
    }

    @Test("Without room an utterance and a text are refused, and the next ones may be served")
    func busy() {
        var machine = hearing()
        #expect(code(machine.utteranceRefused(isEnding: false)) == "apus-busy")
        #expect(machine.receive(chunk(2)) == [])
        #expect(machine.receive(stop) == [])
        let text = WyomingSynthesize(text: "Done.")
        #expect(machine.receive(.synthesize(text)) == [.speak(text)])
        #expect(code(machine.receive(.synthesize(text))) == "apus-busy")
        #expect(code(machine.speechRefused(isEnding: true)) == "apus-ending")
        #expect(machine.receive(.synthesize(text)) == [.speak(text)])
        machine.speechEnded()
        let long = WyomingSynthesize(text: String(repeating: "a", count: Machine.textByteCountMax + 1))
        #expect(code(machine.receive(.synthesize(long))) == "apus-too-long")
        #expect(machine.receive(.synthesize(text)) == [.speak(text)])
    }

    @Test("A lost connection cancels what it has, once; a second transcribe cancels the utterance")
    func closed() throws {
        var machine = hearing()
        _ = machine.receive(.synthesize(WyomingSynthesize(text: "a")))
        #expect(machine.closed() == [.cancelUtterance, .cancelSpeech])
        #expect(machine.closed() == [])
        #expect(machine.receive(.describe) == [])
        var other = hearing()
        #expect(other.receive(transcribe) == [.cancelUtterance, .keepGrammar(try #require(Self.grammar))])
    }

    @Test("Any messages in any order: each start has at most one end", arguments: 0..<300 as Range<UInt64>)
    func anyOrder(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        var machine = Machine(info: WyomingInfo())
        let messages = [
            transcribe, start, chunk(2), chunk(900_000), stop, .voiceStopped(timestamp: nil),
            .voiceStarted(timestamp: nil), .describe,
            .synthesize(WyomingSynthesize(text: "a")), .transcribe(WyomingTranscribe()),
        ]
        var (isOpen, isSpeaking) = (false, false)
        func check(_ actions: [Machine.Action]) {
            for action in actions {
                switch action {
                case .startUtterance:
                    #expect(!isOpen, "seed \(seed)")
                    isOpen = true
                case .endUtterance, .cancelUtterance:
                    #expect(isOpen, "seed \(seed)")
                    isOpen = false
                case .hear, .pause, .resume: #expect(isOpen, "seed \(seed)")
                case .speak:
                    #expect(!isSpeaking, "seed \(seed)")
                    isSpeaking = true
                case .cancelSpeech: isSpeaking = false
                case .keepGrammar: check(machine.grammarFound(Bool.random(using: &random)))
                case .reply: break
                }
            }
        }
        for _ in 0..<200 {
            switch Int.random(in: 0..<12, using: &random) {
            case 0 where isSpeaking:
                machine.speechEnded()
                isSpeaking = false
            case 1 where isOpen:
                _ = machine.utteranceRefused(isEnding: false)
                isOpen = false
            default: check(machine.receive(messages.randomElement(using: &random) ?? .describe))
            }
        }
        check(machine.closed())
        #expect(!isOpen, "seed \(seed)")
    }
}

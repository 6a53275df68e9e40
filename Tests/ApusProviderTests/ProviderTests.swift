import ApusCore
import ApusProvider
import ApusSphinx
import ApusTestKit
import ApusWyoming
import Foundation
import Logging
import NIOCore
import Testing

/// With the engines of Debian, which scripts/test installs. espeak-ng speaks what is recognized.
@Suite("A provider of speech with its engines (VA)", .serialized)
struct ProviderTests {
    private static let said = [
        "turn on the kitchen light", "switch off the radio in the garden", "turn off the bedroom fan",
        "switch on the lamp in the office", "turn on the heater in the hall", "turn off the garden lamp",
        "switch on the kitchen radio", "turn on the fan in the bedroom", "switch off the office heater",
        "turn off the light in the hall",
    ]
    private static let foreign = [
        "my brother wanted to paint the fence behind the church", "the committee never mentioned the money",
        "nobody here remembers that long letter", "she is looking for a new bicycle",
        "the children will bring two sandwiches tomorrow", "set a table for seven people",
        "what time is the next train to the airport", "remind my sister about the dinner on thursday",
        "a famous writer talked about the weather in london", "take a walk through the old town",
    ]

    @Test("describe names the two engines, and nothing else")
    func info() async throws {
        let provider = try await TestProvider()
        let client = try await provider.client()
        try client.send(.describe)
        guard case .info(let info) = try await client.next() else { throw TestFailure("no info") }
        #expect(info.recognition.map(\.artifact.name) == ["apus-sphinx"])
        #expect(info.recognition.first?.models.first?.languages == ["en", "en-US"])
        #expect(info.speech.first?.models.contains { $0.artifact.name == "en-us" } == true)
        #expect(info.handling.isEmpty && info.wake.isEmpty)
        #expect(await provider.stop() == false)
    }

    @Test(
        "Of ten sentences of 200 eight are recognized and none wrongly; of ten foreign ones one is accepted"
    )
    func recognition() async throws {
        let provider = try await TestProvider()
        let client = try await provider.client()
        let grammar = try TestProvider.grammar()
        #expect(grammar.sentences?.count == 200)
        var heard: [(said: String, text: String)] = []
        for sentence in Self.said + Self.foreign {
            let samples = try await client.speak(sentence)
            let transcript = try await client.transcribe(samples, grammar, TestProvider.spoken)
            heard.append((sentence, transcript.text))
            #expect(transcript.result?.milliseconds ?? 0 > 800)
        }
        // The voice and the recognizer are the same everywhere, and so is the result.
        let (inside, outside) = (heard.prefix(Self.said.count), heard.dropFirst(Self.said.count))
        #expect(inside.count { $0.said == $0.text } >= 8, "\(inside)")
        #expect(inside.allSatisfy { $0.text.isEmpty || $0.said == $0.text }, "\(inside)")
        #expect(outside.count { !$0.text.isEmpty } <= 1, "\(outside)")
        _ = await provider.stop()
    }

    @Test("Short words are recognized, and coughs and bangs are none (field report 15)")
    func short() async throws {
        let provider = try await TestProvider()
        let client = try await provider.client()
        let words = ["stop", "bye", "help", "hang up", "cancel", "again", "answer", "never mind"]
        let grammar = try WyomingGrammar(sentences: words + Self.said)
        var heard: [String] = []
        for word in words {
            let samples = try await client.speak(word)
            heard.append(try await client.transcribe(samples, grammar, TestProvider.spoken).text)
        }
        #expect(zip(words, heard).count { $0 == $1 } >= 4, "\(heard)")
        #expect(zip(words, heard).allSatisfy { $0 == $1 || $1.isEmpty }, "\(heard)")
        var random = SeededRandom(seed: 5)
        var accepted: [String] = []
        for milliseconds in [100, 150, 200, 250, 300, 400, 500, 600] {
            for isBang in [true, true, false, false] {
                let count = milliseconds * 16
                // Noise below some 1,300 Hz; a bang dies away.
                let white = (0..<count + 12).map { _ in Double.random(in: -1...1, using: &random) }
                let low = (0..<count).map { index in
                    let decay = isBang ? exp(-Double(index) * 5 / Double(count)) : 1
                    return Int16(8000 * decay * white[index..<index + 12].reduce(0, +) / 12)
                }
                let quiet = (0..<4800).map { _ in Int16.random(in: -3...3, using: &random) }
                let text = try await client.transcribe(quiet + low + quiet, grammar, .speech).text
                if !text.isEmpty { accepted.append(text) }
            }
        }
        #expect(accepted.count <= 2, "\(accepted)")
        _ = await provider.stop()
    }

    @Test("The same utterance gives the same transcript, whatever was heard before")
    func deterministic() async throws {
        let provider = try await TestProvider()
        let client = try await provider.client()
        let grammar = try TestProvider.grammar()
        let samples = try await client.speak(Self.said[0])
        let first = try await client.transcribe(samples, grammar, TestProvider.spoken)
        _ = try await client.transcribe(samples.map { $0 / 16 }, grammar, TestProvider.spoken)
        _ = try await client.transcribe(client.speak(Self.foreign[0]), grammar, TestProvider.spoken)
        #expect(try await client.transcribe(samples, grammar, TestProvider.spoken) == first)
        _ = await provider.stop()
    }

    @Test("A grammar is known to every connection once its sentences were sent; an unknown one is asked for")
    func hashes() async throws {
        let provider = try await TestProvider()
        let (first, second) = (try await provider.client(), try await provider.client())
        let grammar = try TestProvider.grammar()
        let samples = try await first.speak(Self.said[0])
        let short = WyomingMessage.transcribe(WyomingTranscribe(grammar: grammar.withoutSentences))
        try first.send(short, .audioStart(.speech, timestamp: nil))
        #expect(try await first.nextCode() == WyomingGrammar.unknownCode)
        try first.sendAudio(samples)
        try first.send(.audioStop(timestamp: nil))
        #expect(try await first.transcribe(samples, grammar, TestProvider.spoken).text == Self.said[0])
        let other = try await second.transcribe(samples, grammar.withoutSentences, TestProvider.spoken)
        #expect(other.text == Self.said[0])
        _ = await provider.stop()
    }

    @Test("A pause is answered with what was heard: a part, a whole sentence, and one that begins another")
    func pauses() async throws {
        let provider = try await TestProvider()
        let client = try await provider.client()
        let grammar = try WyomingGrammar(
            sentences: (TestProvider.grammar().sentences ?? []) + ["open the door", "open the door in the hall"])
        func pause(_ text: String) async throws -> WyomingTranscriptChunk {
            let samples = try await client.speak(text)
            try client.send(
                .transcribe(WyomingTranscribe(grammar: grammar)), .audioStart(TestProvider.spoken, timestamp: 0))
            try client.sendAudio(samples, TestProvider.spoken)
            try client.send(.voiceStopped(timestamp: 1000))
            guard case .transcriptChunk(let chunk) = try await client.next() else { throw TestFailure("no chunk") }
            return chunk
        }
        let part = try await pause("turn on the")
        #expect(part.pause?.isWhole == false, "\(part)")
        #expect(part.pause?.milliseconds ?? 0 > 300)
        let whole = try await pause(Self.said[0])
        #expect(whole.text == Self.said[0])
        #expect(whole.pause?.isWhole == true && whole.pause?.isBeginning == false)
        // The pause was the end: the transcript is that of the whole.
        try client.send(.audioStop(timestamp: nil))
        #expect(try await client.nextTranscript().text == Self.said[0])
        let beginning = try await pause("open the door")
        #expect(beginning.pause?.isWhole == true && beginning.pause?.isBeginning == true, "\(beginning)")
        // Speech goes on: the transcript is that of all of it.
        try client.send(.voiceStarted(timestamp: 2000))
        try client.sendAudio(try await client.speak("in the hall"), TestProvider.spoken)
        try client.send(.audioStop(timestamp: nil))
        let transcript = try await client.nextTranscript()
        #expect(transcript.result?.candidates.first?.text == "open the door in the hall", "\(transcript)")
        _ = await provider.stop()
    }

    @Test("A pause after a command of two seconds costs less than 150 ms of CPU, and its transcript nothing more")
    func pauseCost() async throws {
        let provider = try await TestProvider()
        let samples = try await provider.client().speak(Self.said[0])
        var converter = SpeechConverter(TestProvider.spoken)
        var bytes = ByteBuffer()
        for sample in samples { bytes.writeInteger(sample, endianness: .little) }
        let engine = try TestProvider.engine()
        let grammar = try TestProvider.grammar()
        #expect(engine.keep(grammar))
        let recognizer = try engine.take(grammar.hash)
        try recognizer.start()
        try recognizer.add(converter.convert(bytes))
        let start = MonotonicTime.usedByThisThread()
        let chunk = try recognizer.pause()
        let pause = MonotonicTime.usedByThisThread() - start
        #expect(chunk.pause?.isWhole == true)
        #expect(pause < .milliseconds(150), "\(pause)")
        try recognizer.prepare()
        // Silence that follows is not heard.
        try recognizer.add([Int16](repeating: 0, count: 8000))
        let end = MonotonicTime.usedByThisThread()
        #expect(try recognizer.finish().text == Self.said[0])
        #expect(MonotonicTime.usedByThisThread() - end < .milliseconds(5))
        _ = await provider.stop()
    }

    @Test("Silence, no audio, and audio that is cut are no sentence")
    func nothing() async throws {
        let provider = try await TestProvider()
        let client = try await provider.client()
        let grammar = try TestProvider.grammar()
        let samples = try await client.speak(Self.said[0])
        for audio in [
            [], [Int16](repeating: 0, count: 1), Array(repeating: 0, count: 66_150), Array(samples.prefix(4000)),
        ] {
            let transcript = try await client.transcribe(audio, grammar, TestProvider.spoken)
            #expect(transcript.text.isEmpty, "\(audio.count): \(transcript)")
        }
        _ = await provider.stop()
    }

    @Test("Audio without an end is refused after 30 s of it, and the connection serves the next utterance")
    func endless() async throws {
        let provider = try await TestProvider()
        let client = try await provider.client()
        let grammar = try TestProvider.grammar()
        try client.send(.transcribe(WyomingTranscribe(grammar: grammar)), .audioStart(.speech, timestamp: 0))
        for _ in 0..<35 { try client.sendAudio([Int16](repeating: 9, count: 16_000)) }
        #expect(try await client.nextCode() == "apus-too-long")
        try client.send(.audioStop(timestamp: nil))
        let samples = try await client.speak(Self.said[0])
        #expect(try await client.transcribe(samples, grammar, TestProvider.spoken).text == Self.said[0])
        _ = await provider.stop()
    }

    @Test("48 kHz stereo is recognized; 8 bits are refused with a code")
    func formats() async throws {
        let provider = try await TestProvider()
        let client = try await provider.client()
        let grammar = try TestProvider.grammar()
        let samples = try await client.speak(Self.said[0])
        // Each sample twice is twice the rate, and again twice is two channels.
        let stereo = samples.flatMap { [$0, $0, $0, $0] }
        let format = WyomingAudioFormat(rate: 44_100, width: 2, channels: 2)
        #expect(try await client.transcribe(stereo, grammar, format).text == Self.said[0])
        let bytes = WyomingAudioFormat(rate: 16_000, width: 1, channels: 1)
        try client.send(.transcribe(WyomingTranscribe(grammar: grammar)), .audioStart(bytes, timestamp: nil))
        #expect(try await client.nextCode() == "apus-format")
        _ = await provider.stop()
    }

    @Test("A connection that is lost within an utterance frees its place")
    func lost() async throws {
        var limits = ProviderLimits()
        (limits.utterancesRunningMax, limits.utterancesWaitingMax) = (1, 0)
        let provider = try await TestProvider(limits)
        let grammar = try TestProvider.grammar()
        let client = try await provider.client()
        let samples = try await client.speak(Self.said[0])
        let lost = try await provider.client()
        try lost.send(.transcribe(WyomingTranscribe(grammar: grammar)), .audioStart(TestProvider.spoken, timestamp: 0))
        try lost.sendAudio(Array(samples.prefix(9000)), TestProvider.spoken)
        try lost.send(.ping(text: nil))
        _ = try await lost.next()
        try client.send(.transcribe(WyomingTranscribe(grammar: grammar)), .audioStart(.speech, timestamp: 0))
        #expect(try await client.nextCode() == WyomingGrammar.busyCode)
        try client.send(.audioStop(timestamp: nil))
        try await lost.channel.close()
        // The worker notices it when it has compiled the grammar.
        var text: String?
        for _ in 0..<200 where text == nil {
            try client.send(
                .transcribe(WyomingTranscribe(grammar: grammar)), .audioStart(TestProvider.spoken, timestamp: 0))
            try client.sendAudio(samples, TestProvider.spoken)
            try client.send(.audioStop(timestamp: nil))
            if case .transcript(let transcript) = try await client.next() { text = transcript.text }
            try await Task.sleep(for: .milliseconds(50))
        }
        #expect(text == Self.said[0])
        _ = await provider.stop()
    }

    @Test(
        "Of 50 clients at once, those beyond two that are heard and eight that wait are refused, and the ten are served"
    )
    func many() async throws {
        var limits = ProviderLimits()
        (limits.utterancesRunningMax, limits.utterancesWaitingMax) = (2, 8)
        let provider = try await TestProvider(limits)
        let grammar = try TestProvider.grammar()
        let samples = try await provider.client().speak(Self.said[0])
        var clients: [SpeechClient] = []
        for _ in 0..<50 {
            let client = try await provider.client()
            try client.send(
                .transcribe(WyomingTranscribe(grammar: grammar)), .audioStart(TestProvider.spoken, timestamp: 0),
                .ping(text: nil))
            clients.append(client)
        }
        var served: [SpeechClient] = []
        for client in clients {
            switch try await client.next() {
            case .pong: served.append(client)
            case .error(_, let code):
                #expect(code == WyomingGrammar.busyCode)
                #expect(try await client.next() == .pong(text: nil))
            case let other: Issue.record("\(String(describing: other))")
            }
        }
        #expect(served.count == 10)
        for client in served {
            try client.sendAudio(samples, TestProvider.spoken)
            try client.send(.audioStop(timestamp: nil))
        }
        for client in served { #expect(try await client.nextTranscript().text == Self.said[0]) }
        _ = await provider.stop()
    }

    @Test("After its utterances a provider takes nothing more, closes its connections, and wants to be replaced")
    func replaced() async throws {
        var limits = ProviderLimits()
        limits.utterancesMax = 2
        let provider = try await TestProvider(limits)
        let grammar = try TestProvider.grammar()
        let client = try await provider.client()
        let samples = try await client.speak(Self.said[0])
        for _ in 0..<2 {
            #expect(try await client.transcribe(samples, grammar, TestProvider.spoken).text == Self.said[0])
        }
        #expect(await provider.run.value)
        #expect(try await client.next() == nil)
    }

    @Test("A text without words has no sound, a long one is refused, and so is a voice that there is none of")
    func speech() async throws {
        let provider = try await TestProvider()
        let client = try await provider.client()
        #expect(try await client.speak("Done.").count > 4000)
        #expect(try await client.speak("- ; --version").count >= 0)
        try client.send(.synthesize(WyomingSynthesize(text: String(repeating: "a ", count: 2049))))
        #expect(try await client.nextCode() == "apus-too-long")
        try client.send(.synthesize(WyomingSynthesize(text: "a", voice: "../../etc/passwd")))
        #expect(try await client.nextCode() == "apus-unsupported")
        #expect(try await client.speak("你好", voice: "zh-CN").count > 4000)
        _ = await provider.stop()
    }

    @Test("A client that breaks the protocol is answered and disconnected, and others are served")
    func broken() async throws {
        let provider = try await TestProvider()
        let client = try await provider.client()
        client.channel.writeAndFlush(ByteBuffer(string: "GET / HTTP/1.1\r\n"), promise: nil)
        #expect(try await client.nextCode() == "apus-protocol")
        #expect(try await client.next() == nil)
        let other = try await provider.client()
        try other.send(.ping(text: "x"))
        #expect(try await other.next() == .pong(text: "x"))
        _ = await provider.stop()
    }
}

@Suite("What a provider is made of (VA)")
struct ProviderPartTests {
    @Test(
        "A provider listens at a unix socket or a loopback address only",
        arguments: [
            ("unix:/tmp/a", true), ("tcp:127.0.0.1:0", true), ("tcp:127.1.2.3:10300", true), ("tcp:[::1]:1", true),
            ("tcp:localhost:1", true), ("unix:", false), ("tcp:0.0.0.0:1", false), ("tcp:[::]:1", false),
            ("tcp:10.0.0.1:1", false), ("tcp:127.0.0.1.example.org:1", false), ("tcp:example.org:1", false),
            ("127.0.0.1:1", false), ("tcp:127.0.0.1", false), ("unix:\(String(repeating: "a", count: 108))", false),
        ])
    func addresses(text: String, isTaken: Bool) {
        if isTaken {
            #expect(throws: Never.self) { try WyomingAddress(text) }
        } else {
            #expect(throws: ApusError(.configurationInvalid)) { try WyomingAddress(text) }
        }
    }

    @Test("Words that the dictionary does not have are pronounced by espeak-ng")
    func pronunciations() throws {
        let all = try Pronunciations(dictionary: TestProvider.dictionary, espeak: TestProvider.espeak)
        let lines = all.lines(of: ["lamp", "read", "nabuko", "krzysztof"])
        #expect(lines["lamp"] == ["lamp L AE M P"])
        #expect(lines["read"]?.count == 2)
        #expect(lines["nabuko"]?.first?.hasPrefix("nabuko N ") == true, "\(lines)")
        #expect(lines["krzysztof"]?.first?.hasPrefix("krzysztof K R ") == true, "\(lines)")
        #expect(Pronunciations.phones(of: "n_'A:_b_u:") == "N AA B UW")
        #expect(Pronunciations.phones(of: "n_§") == nil)
    }

    @Test("Sentences are found by what is heard, whatever their case and signs; what cannot be said is left out")
    func grammars() throws {
        let all = try Pronunciations(dictionary: TestProvider.dictionary, espeak: TestProvider.espeak)
        let grammar = try CompiledGrammar(
            WyomingGrammar(sentences: ["What's the time?", "open the door", "Open the door!", "open the door now", "☃"]
            ),
            all)
        #expect(grammar.sentence(of: "☃") == nil && !grammar.hasAllSentences)
        #expect(grammar.sentence(of: "what's the time") == "What's the time?")
        #expect(grammar.sentence(of: "open the") == nil)
        #expect(grammar.isBeginning("open the door"))
        #expect(!grammar.isBeginning("open the doo"))
        #expect(!grammar.isBeginning("what's the time"))
        #expect(throws: ApusError(.configurationInvalid)) {
            try CompiledGrammar(WyomingGrammar(sentences: ["☃", "..."]), all)
        }
    }

    @Test("The grammar in JSGF counts, and where it cannot be read, the listed sentences")
    func allSentences() throws {
        let all = try Pronunciations(dictionary: TestProvider.dictionary, espeak: TestProvider.espeak)
        let jsgf = "#JSGF V1.0;\ngrammar apus;\npublic <a> = turn on [ the ] ( lamp | fan ) [ now ];\n"
        let grammar = try CompiledGrammar(WyomingGrammar(sentences: ["turn on lamp"], jsgf: jsgf), all)
        #expect(grammar.hasAllSentences && grammar.sentence(of: "turn on the fan") == "turn on the fan")
        #expect(grammar.isBeginning("turn on lamp") && grammar.sentence(of: "turn on the") == nil)
        #expect(!grammar.isBeginning("turn on the fan now") && grammar.sentence(of: "") == nil)
        let broken = try WyomingGrammar(sentences: ["Turn on: lamp"], jsgf: jsgf + "<b> = c {tag};")
        let listed = try CompiledGrammar(broken, all)
        #expect(!listed.hasAllSentences && listed.hash == broken.hash)
        #expect(listed.sentence(of: "turn on lamp") == "Turn on: lamp" && listed.sentence(of: "turn on the fan") == nil)
    }

    @Test("A tone keeps its level when it is resampled, one above 8 kHz vanishes, in pieces of any length")
    func resampling() {
        func level(_ frequency: Double, _ rate: Int, pieces: Int) -> Double {
            var converter = SpeechConverter(WyomingAudioFormat(rate: rate, width: 2, channels: 1))
            var output: [Int16] = []
            for start in stride(from: 0, to: rate, by: pieces) {
                var bytes = ByteBuffer()
                for index in start..<min(rate, start + pieces) {
                    let sample = 10_000 * sin(2 * .pi * frequency * Double(index) / Double(rate))
                    bytes.writeInteger(Int16(sample), endianness: .little)
                }
                output += converter.convert(bytes)
            }
            #expect(abs(output.count - 16_000) < 40, "\(rate): \(output.count)")
            let middle = output.dropFirst(1000).dropLast(1000)
            return (middle.reduce(0) { $0 + Double($1) * Double($1) } / Double(middle.count)).squareRoot()
        }
        for rate in [8000, 16_000, 22_050, 44_100, 48_000] {
            #expect(abs(level(1000, rate, pieces: 441) - 7071) < 80, "\(rate)")
            #expect(abs(level(1000, rate, pieces: 441) - level(1000, rate, pieces: 17)) < 1, "\(rate)")
        }
        #expect(level(11_000, 48_000, pieces: 480) < 150)
    }
}

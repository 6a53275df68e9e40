import ApusCore
import ApusWyoming
import NIOCore
import Testing

@Suite("Wyoming messages (VA)")
struct WyomingMessageTests {
    private func message(_ type: String, _ data: String, payload: [UInt8] = []) throws -> WyomingMessage {
        guard case .object(let members) = JSONValue(Array(data.utf8)[...]) else { throw ApusError(.malformed) }
        return try WyomingMessage(WyomingEvent(type: type, data: members, payload: ByteBuffer(bytes: payload)))
    }

    @Test("Each message is read as it was written", arguments: WyomingSamples.messages)
    func roundTrip(message: WyomingMessage) throws {
        var decoder = WyomingDecoder()
        decoder.append(try WyomingSamples.bytes(message))
        let event = try #require(try decoder.next())
        #expect(try WyomingMessage(event) == message)
    }

    @Test("Null members are missing ones, and members that are not known are ignored")
    func nulls() throws {
        #expect(try message("ping", #"{"text":null}"#) == .ping(text: nil))
        #expect(try message("audio-stop", #"{"timestamp":null,"x":[1]}"#) == .audioStop(timestamp: nil))
        #expect(try message("transcribe", #"{"context":null,"vad_sensitivity":"relaxed"}"#) == .transcribe(.init()))
        #expect(try message("transcribe", #"{"context":{"chat":"id"}}"#) == .transcribe(.init()))
        #expect(
            try message("transcript", #"{"text":"a","context":{"x":{}}}"#)
                == .transcript(.init(text: "a", context: [.init(name: "x", value: .object([]))])))
        #expect(try message("voice-stopped", #"{"timestamp":12.75}"#) == .voiceStopped(timestamp: 12))
    }

    @Test(
        "A message with a member of another type, or without one that it needs, fails with 10001",
        arguments: [
            ("error", "{}"), ("transcript", "{}"), ("transcript", #"{"text":1}"#), ("synthesize", #"{"voice":{}}"#),
            ("synthesize", #"{"text":"a","voice":"b"}"#), ("audio-start", #"{"rate":16000,"width":2}"#),
            ("audio-start", #"{"rate":0,"width":2,"channels":1}"#),
            ("audio-start", #"{"rate":16000,"width":2,"channels":-1}"#),
            ("audio-start", #"{"rate":1e18,"width":2,"channels":1}"#),
            ("audio-start", #"{"rate":16000,"width":5,"channels":1}"#),
            ("audio-stop", #"{"timestamp":-1}"#), ("audio-stop", #"{"timestamp":1e300}"#),
            ("transcribe", #"{"context":{"apus":1}}"#), ("transcribe", #"{"context":{"apus":{"grammar":"abc"}}}"#),
            ("transcribe", #"{"context":{"apus":{"grammar":"\#(String(repeating: "G", count: 64))"}}}"#),
            ("transcript", #"{"text":"a","context":{"apus":{"candidates":[{"score":1}]}}}"#),
            ("transcript", #"{"text":"a","context":{"apus":{"whole":"yes"}}}"#),
            ("info", #"{"asr":{}}"#), ("info", #"{"asr":[{}]}"#), ("detect", #"{"names":[1]}"#),
        ])
    func malformed(type: String, data: String) {
        #expect(throws: ApusError(.malformed)) { try message(type, data) }
    }

    @Test("A list that is too long fails with 10002")
    func tooLong() {
        func list(_ element: String, _ count: Int) -> String {
            "[" + Array(repeating: element, count: count).joined(separator: ",") + "]"
        }
        let candidates = list(#"{"text":""}"#, WyomingResult.candidateCountMax + 1)
        let long = [
            ("info", #"{"asr":\#(list(#"{"name":"a"}"#, WyomingInfo.programCountMax + 1))}"#),
            ("info", #"{"asr":[{"name":"a","models":\#(list(#"{"name":"a"}"#, WyomingInfo.modelCountMax + 1))}]}"#),
            ("detect", #"{"names":\#(list(#""a""#, WyomingMessage.nameCountMax + 1))}"#),
            (
                "transcript",
                #"{"text":"","context":{"apus":{"candidates":\#(candidates)}}}"#
            ),
        ]
        for (type, data) in long { #expect(throws: ApusError(.frameTooLarge)) { try message(type, data) } }
    }

    @Test("An audio chunk that ends within a sample fails with 10001", arguments: [0, 1, 2, 3, 4])
    func samples(byteCount: Int) throws {
        let payload = [UInt8](repeating: 1, count: byteCount)
        let data = #"{"rate":16000,"width":2,"channels":2}"#
        if byteCount.isMultiple(of: 4) {
            _ = try message("audio-chunk", data, payload: payload)
        } else {
            #expect(throws: ApusError(.malformed)) { try message("audio-chunk", data, payload: payload) }
        }
    }

    @Test("A score that JSON cannot write is written as a very large or small one")
    func scores() throws {
        for (score, written) in [(Double.infinity, 1e300), (-.infinity, -1e300), (.nan, -1e300)] {
            let candidate = WyomingResult.Candidate(text: "a", score: score)
            let event = WyomingMessage.transcript(.init(text: "a", result: .init(candidates: [candidate]))).event
            guard case .transcript(let read) = try WyomingMessage(event) else { throw ApusError(.malformed) }
            #expect(read.result?.candidates.first?.score == written)
        }
    }
}

@Suite("Grammars in Wyoming messages (VA)")
struct WyomingGrammarTests {
    @Test("The hash is SHA-256 of the sorted sentences, once each, and the order does not matter")
    func hash() throws {
        // printf 'a\nb c' | sha256sum
        let expected = "c5f89cb93b42c46a485c44cc6f42a41a"
        let grammar = try WyomingGrammar(sentences: ["b c", "a", "b c"])
        #expect(grammar.sentences == ["a", "b c"])
        #expect(grammar.hash.utf8.count == 64)
        #expect(grammar == (try WyomingGrammar(sentences: ["a", "b c"])))
        #expect(grammar.hash.hasPrefix(expected))
        #expect(grammar.withoutSentences.hash == grammar.hash)
        #expect(grammar.withoutSentences.sentences == nil)
    }

    @Test("A grammar whose hash is another one fails with 10001")
    func wrongHash() throws {
        let event = WyomingMessage.transcribe(.init(grammar: WyomingSamples.grammar)).event
        var data = event.data
        let other = JSONValue.object([
            .init(name: "grammar", value: .string(String(repeating: "0", count: 64))),
            .init(name: "sentences", value: .array([.string("stop")])),
        ])
        data[0].value = .object([.init(name: "apus", value: other)])
        #expect(throws: ApusError(.malformed)) {
            try WyomingMessage(WyomingEvent(type: "transcribe", data: data))
        }
    }

    @Test("Empty grammars and sentences, and sentences with a line feed, fail with 10001")
    func invalid() {
        for sentences in [[], [""], ["a", "b\nc"]] {
            #expect(throws: ApusError(.malformed)) { try WyomingGrammar(sentences: sentences) }
        }
    }

    @Test("The largest grammars are taken; one sentence or byte more fails with 10002")
    func limits() throws {
        var sentences = (0..<WyomingGrammar.sentenceCountMax).map { "sentence \($0)" }
        _ = try WyomingGrammar(sentences: sentences)
        sentences.append("more")
        #expect(throws: ApusError(.frameTooLarge)) { try WyomingGrammar(sentences: sentences) }
        let long = String(repeating: "a", count: WyomingGrammar.sentenceByteCountMax)
        _ = try WyomingGrammar(sentences: [long])
        #expect(throws: ApusError(.frameTooLarge)) { try WyomingGrammar(sentences: [long + "a"]) }
        let count = WyomingGrammar.byteCountMax / (WyomingGrammar.sentenceByteCountMax + 4)
        _ = try WyomingGrammar(sentences: Array(repeating: long, count: count))
        #expect(throws: ApusError(.frameTooLarge)) {
            try WyomingGrammar(sentences: Array(repeating: long, count: count + 1))
        }
    }

    @Test("All sentences in JSGF are a part of the grammar and of its hash, and have a bound")
    func jsgf() throws {
        let jsgf = "#JSGF V1.0;\ngrammar apus;\npublic <sentence> = a | b [c];\n"
        let grammar = try WyomingGrammar(sentences: ["b c", "a"], jsgf: jsgf)
        // printf 'a\nb c\n\n#JSGF V1.0;\ngrammar apus;\npublic <sentence> = a | b [c];\n' | sha256sum
        #expect(grammar.hash.hasPrefix("e769fd9ffe4b21ee"), "\(grammar.hash)")
        #expect(grammar.withoutSentences.jsgf == nil && grammar.withoutSentences.hash == grammar.hash)
        let event = WyomingMessage.transcribe(.init(grammar: grammar)).event
        guard case .transcribe(let read) = try WyomingMessage(event) else {
            Issue.record("no transcribe")
            return
        }
        #expect(read.grammar == grammar)
        let other = try WyomingGrammar(sentences: ["b c", "a"])
        #expect(other.hash != grammar.hash)
        let long = String(repeating: "a", count: WyomingGrammar.jsgfByteCountMax)
        _ = try WyomingGrammar(sentences: ["a"], jsgf: long)
        #expect(throws: ApusError(.frameTooLarge)) { try WyomingGrammar(sentences: ["a"], jsgf: long + "a") }
    }

    @Test("A grammar of 20,000 sentences of 30 bytes, with the longest JSGF, fits in an event")
    func large() throws {
        let sentences = (10_000..<10_000 + WyomingGrammar.sentenceCountMax).map { "turn lamp \($0) on in the hall" }
        #expect(sentences[0].utf8.count == 30)
        let line = "<sentence> = turn lamp on | turn lamp off;\n"
        let jsgf = String(repeating: line, count: WyomingGrammar.jsgfByteCountMax / line.utf8.count)
        let grammar = try WyomingGrammar(sentences: sentences, jsgf: jsgf)
        var decoder = WyomingDecoder()
        decoder.append(try WyomingSamples.bytes(.transcribe(.init(grammar: grammar))))
        let event = try #require(try decoder.next())
        #expect(try WyomingMessage(event) == .transcribe(.init(grammar: grammar)))
    }
}

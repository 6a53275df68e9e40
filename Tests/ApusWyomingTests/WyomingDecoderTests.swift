import ApusCore
import ApusTestKit
import ApusWyoming
import NIOCore
import Testing

@Suite("Wyoming events (VA)")
struct WyomingDecoderTests {
    private func decode(_ bytes: ByteBuffer) throws -> WyomingEvent? {
        var decoder = WyomingDecoder()
        decoder.append(bytes)
        return try decoder.next()
    }

    @Test("Events are read the same whole, glued, byte by byte and cut; no bit flip traps")
    func verifier() throws {
        let samples = try WyomingSamples.messages.map { (try WyomingSamples.bytes($0), $0.event) }
        // A third of them at a time: each bit of all of them is flipped.
        for start in stride(from: 0, to: samples.count, by: 6) {
            let part = Array(samples[start..<min(start + 6, samples.count)])
            try DecoderVerifier.verifyStream(
                part, heldByteCountMax: 8192, make: { WyomingDecoder() }, append: { $0.append($1) },
                next: { try $0.next() }, heldByteCount: { $0.heldByteCount })
        }
    }

    @Test("Data of the line and data behind it are joined; the latter wins")
    func merge() throws {
        let event = try decode(
            WyomingSamples.bytes(
                #"{"type":"x","data":{"a":1,"b":2},"data_length":13,"payload_length":2,"later":[]}"#,
                #"{"b":3,"c":4}"# + "\r\n"))
        #expect(
            event
                == WyomingEvent(
                    type: "x",
                    data: [("a", "1"), ("b", "3"), ("c", "4")].map { .init(name: $0.0, value: .number($0.1)) },
                    payload: ByteBuffer(string: "\r\n")))
    }

    @Test(
        "A null length, null data, spaces and a carriage return are taken",
        arguments: [
            #"{"type":"x","data":null,"data_length":null,"payload_length":0}"#, #" { "type" : "x" } "#,
            #"{"type":"x"}"# + "\r",
        ])
    func lenient(line: String) throws {
        #expect(try decode(WyomingSamples.bytes(line)) == WyomingEvent(type: "x"))
    }

    @Test(
        "What is no event fails with 10001, and again when it is asked again",
        arguments: [
            "", "{", "[]", "1", "null", #""x""#, "GET / HTTP/1.1", "{}", #"{"type":1}"#, #"{"type":""}"#,
            #"{"type":"x","data":[]}"#, #"{"type":"x","data_length":-1}"#, #"{"type":"x","payload_length":-1}"#,
            #"{"type":"x","data_length":"3"}"#, #"{"type":"x","payload_length":1.5}"#,
            #"{"type":"x","payload_length":1e99}"#, #"{"type":"x","type":"y"}"#, #"{"type":"x"} {"#,
            #"{"type":"x","data_length":2}"# + "\n[]", #"{"type":"x","data_length":3}"# + "\n{}}",
            #"{"type":"x","data_length":1}"# + "\n{}", "\u{0}", #"{"type":"\#(String(repeating: "x", count: 65))"}"#,
        ])
    func malformed(text: String) {
        var decoder = WyomingDecoder()
        decoder.append(ByteBuffer(string: text + "\n"))
        #expect(throws: ApusError(.malformed)) { try decoder.next() }
        decoder.append(WyomingSamples.bytes(#"{"type":"x"}"#))
        #expect(throws: ApusError(.malformed)) { try decoder.next() }
        #expect(decoder.heldByteCount == 0)
    }

    @Test("Bytes that are no UTF-8 fail with 10001")
    func notUnicode() {
        var bytes = ByteBuffer(string: #"{"type":""#)
        bytes.writeBytes([0xc3, 0x28])
        bytes.writeString("\"}\n")
        #expect(throws: ApusError(.malformed)) { try decode(bytes) }
    }

    @Test("A line that nests too deep fails with 10001", arguments: [("[", "]"), (#"{"a":"#, "}")])
    func nesting(open: String, close: String) throws {
        func line(_ depth: Int) -> ByteBuffer {
            // The event and its data are two objects of the depth.
            let value = String(repeating: open, count: depth - 2) + "1" + String(repeating: close, count: depth - 2)
            return WyomingSamples.bytes(#"{"type":"x","data":{"a":\#(value)}}"#)
        }
        #expect(try decode(line(WyomingEvent.depthMax)) != nil)
        #expect(throws: ApusError(.malformed)) { try decode(line(WyomingEvent.depthMax + 1)) }
        #expect(throws: ApusError(.malformed)) { try decode(line(15_000 / open.utf8.count)) }
    }

    @Test("The longest line is taken; one byte more fails with 10002, before its end")
    func lineLimit() throws {
        let frame = #"{"type":"x","a":""}"#.utf8.count
        let value = String(repeating: "a", count: WyomingEvent.headerByteCountMax - frame)
        #expect(try decode(WyomingSamples.bytes(#"{"type":"x","a":"\#(value)"}"#)) == WyomingEvent(type: "x"))
        #expect(throws: ApusError(.frameTooLarge)) {
            try decode(WyomingSamples.bytes(#"{"type":"x","a":"\#(value)a"}"#))
        }
        #expect(throws: ApusError(.frameTooLarge)) {
            try decode(ByteBuffer(repeating: 0x20, count: WyomingEvent.headerByteCountMax + 1))
        }
    }

    @Test(
        "A length over its limit fails with 10002 as soon as the line is there",
        arguments: [
            ("data_length", WyomingEvent.dataByteCountMax), ("payload_length", WyomingEvent.payloadByteCountMax),
        ])
    func lengthLimit(name: String, limit: Int) throws {
        #expect(try decode(WyomingSamples.bytes(#"{"type":"x","\#(name)":\#(limit)}"#)) == nil)
        for count in ["\(limit + 1)", "4294967296", "9223372036854775807"] {
            #expect(throws: ApusError(.frameTooLarge)) {
                try decode(WyomingSamples.bytes(#"{"type":"x","\#(name)":\#(count)}"#))
            }
        }
    }

    @Test("The largest event is written and read; a larger one is not written")
    func largest() throws {
        let text = String(repeating: "a", count: WyomingEvent.dataByteCountMax - #"{"a":""}"#.utf8.count)
        var event = WyomingEvent(
            type: "x", data: [.init(name: "a", value: .string(text))],
            payload: ByteBuffer(repeating: 7, count: WyomingEvent.payloadByteCountMax))
        var bytes = ByteBuffer()
        try event.encode(into: &bytes)
        #expect(try decode(bytes) == event)
        event.payload.writeInteger(UInt8(1))
        var nothing = ByteBuffer()
        #expect(throws: ApusError(.frameTooLarge)) { try event.encode(into: &nothing) }
        event.payload = ByteBuffer()
        event.data[0].value = .string(text + "a")
        #expect(throws: ApusError(.frameTooLarge)) { try event.encode(into: &nothing) }
        #expect(nothing.readableBytes == 0)
    }

    @Test("Random bytes, and events with random changes, are refused or read, with the same result in pieces")
    func random() throws {
        var random = SeededRandom(seed: 11)
        let samples = try WyomingSamples.messages.map { Array(try WyomingSamples.bytes($0).readableBytesView) }
        for _ in 0..<3000 {
            var bytes: [UInt8] = []
            if Bool.random(using: &random) {
                bytes = (0..<Int.random(in: 0...64, using: &random)).map { _ in .random(in: 0...255, using: &random) }
            } else {
                for _ in 0..<3 { bytes += samples.randomElement(using: &random) ?? [] }
                for _ in 0..<4 {
                    let index = Int.random(in: bytes.indices, using: &random)
                    switch Int.random(in: 0..<3, using: &random) {
                    case 0: bytes[index] = .random(in: 0...255, using: &random)
                    case 1: bytes.remove(at: index)
                    default: bytes.insert(UInt8(ascii: "9"), at: index)
                    }
                }
            }
            #expect(outcome(bytes, step: bytes.count + 1) == outcome(bytes, step: 5))
        }
    }

    /// The events and the code of the error.
    private func outcome(_ bytes: [UInt8], step: Int) -> Outcome {
        var decoder = WyomingDecoder()
        var outcome = Outcome()
        do {
            for start in stride(from: 0, to: bytes.count, by: step) {
                decoder.append(ByteBuffer(bytes: bytes[start..<min(start + step, bytes.count)]))
                while let event = try decoder.next() {
                    outcome.events.append(event)
                    _ = try? WyomingMessage(event)
                }
            }
        } catch { outcome.error = error }
        return outcome
    }

    private struct Outcome: Equatable {
        var events: [WyomingEvent] = []
        var error: ApusError?
    }

    @Test("A line that comes byte by byte is searched once")
    func slowLine() throws {
        let text = String(repeating: "a", count: WyomingEvent.headerByteCountMax - 100)
        var decoder = WyomingDecoder()
        let start = MonotonicTime.now()
        for byte in #"{"type":"x","a":"\#(text)"}"#.utf8 {
            decoder.append(ByteBuffer(integer: byte))
            _ = try decoder.next()
        }
        decoder.append(ByteBuffer(string: "\n"))
        #expect(try decoder.next() == WyomingEvent(type: "x"))
        // Searching from the front each time reads 2 GiB, some seconds.
        #expect(MonotonicTime.now() < start + .seconds(1))
    }
}

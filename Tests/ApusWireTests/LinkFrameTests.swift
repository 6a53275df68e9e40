import ApusCore
import ApusTestKit
import ApusWire
import NIOCore
import Testing

@Suite("Link frames (D3)")
struct LinkFrameTests {
    private static let frames: [LinkFrame] = [
        LinkFrame(kind: .hello, payload: ByteBuffer(string: "hello")),
        LinkFrame(kind: .ping),
        LinkFrame(
            kind: .request, flags: [.traced], method: 7, correlation: 0xffff_ffff,
            payload: ByteBuffer(repeating: 1, count: 25)),
        LinkFrame(kind: .media, correlation: 3, payload: ByteBuffer(repeating: 0xff, count: 40)),
        LinkFrame(kind: FrameKind(rawValue: 0xee), flags: FrameFlags(rawValue: 0xff), method: .max),
    ]

    private func encoded(_ frame: LinkFrame) -> ByteBuffer {
        var buffer = ByteBuffer()
        frame.encode(into: &buffer)
        return buffer
    }

    @Test("Frames are read the same whole, glued, byte by byte and cut; no bit flip traps or holds more than the limit")
    func verifier() throws {
        try DecoderVerifier.verifyStream(
            Self.frames.map { (encoded($0), $0) }, heldByteCountMax: 4 + 64 + 256,
            make: { LinkFrameDecoder(lengthMax: 64) }, append: { $0.append($1) },
            next: { try $0.next() }, heldByteCount: { $0.bufferedByteCount })
    }

    @Test("A length over the limit fails with 10002 as soon as its four bytes are there")
    func oversized() {
        var decoder = LinkFrameDecoder(lengthMax: 64)
        decoder.append(ByteBuffer(bytes: [0xff, 0xff, 0xff]))
        #expect(throws: Never.self) { try decoder.next() }
        decoder.append(ByteBuffer(bytes: [0xff]))
        #expect(throws: ApusError(.frameTooLarge)) { try decoder.next() }
    }

    @Test("The longest frame of the limit is taken, one byte more is not", arguments: [(56, true), (57, false)])
    func limit(payloadByteCount: Int, isTaken: Bool) throws {
        var decoder = LinkFrameDecoder(lengthMax: 64)
        decoder.append(encoded(LinkFrame(kind: .tell, payload: ByteBuffer(repeating: 0, count: payloadByteCount))))
        if isTaken {
            #expect(try decoder.next()?.payload.readableBytes == payloadByteCount)
        } else {
            #expect(throws: ApusError(.frameTooLarge)) { try decoder.next() }
        }
    }

    @Test("A length shorter than the header fails with 10001", arguments: 0..<UInt32(LinkFrame.lengthMin))
    func tooShort(length: UInt32) {
        var decoder = LinkFrameDecoder(lengthMax: 64)
        decoder.append(ByteBuffer(integer: length))
        #expect(throws: ApusError(.malformed)) { try decoder.next() }
    }

    @Test("A trace context is written before the payload, and taken off it; a frame without one has no byte more")
    func trace() throws {
        let trace = try #require(TraceContext(traceHigh: 1, traceLow: .max, span: 3, isSampled: true))
        var payload = ByteBuffer()
        trace.encode(into: &payload)
        #expect(payload.readableBytes == LinkFrame.traceByteCount)
        payload.writeString("rest")
        var frame = LinkFrame(kind: .request, flags: [.traced, .timed], payload: payload)
        #expect(try frame.trace() == trace)
        #expect(try frame.takeTrace() == trace)
        #expect(frame.flags == .timed && String(buffer: frame.payload) == "rest")
        #expect(try frame.takeTrace() == nil)
    }

    @Test("A trace context that is cut, or has an id of 0, fails with 10001")
    func brokenTrace() {
        for length in 0..<LinkFrame.traceByteCount {
            let frame = LinkFrame(kind: .request, flags: .traced, payload: ByteBuffer(repeating: 1, count: length))
            #expect(throws: ApusError(.malformed)) { try frame.trace() }
        }
        for zeros in [0..<16, 16..<24] {
            var bytes = [UInt8](repeating: 1, count: LinkFrame.traceByteCount)
            for index in zeros { bytes[index] = 0 }
            let frame = LinkFrame(kind: .request, flags: .traced, payload: ByteBuffer(bytes: bytes))
            #expect(throws: ApusError(.malformed)) { try frame.trace() }
        }
    }

    @Test("Bytes that no frame was made of are handed on to the next decoder")
    func takeBuffered() throws {
        var decoder = LinkFrameDecoder(lengthMax: 64)
        var bytes = encoded(Self.frames[0])
        bytes.writeBytes([0, 0])
        decoder.append(bytes)
        #expect(try decoder.next() == Self.frames[0])
        #expect(decoder.takeBuffered().readableBytes == 2)
        #expect(decoder.bufferedByteCount == 0)
    }
}

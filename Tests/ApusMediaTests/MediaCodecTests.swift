import ApusCore
import ApusMedia
import ApusTestKit
import NIOCore
import Testing

@Suite("Media frames and track configurations on the wire (D7, IV-C9)")
struct MediaCodecTests {
    private static let frames: [MediaFrame] = [
        MediaFrame(
            header: MediaHeader(position: FramePosition(epoch: 0, sequence: 0), ptsMicroseconds: 0),
            payload: ByteBuffer()),
        MediaFrame(
            header: MediaHeader(
                term: .max, position: FramePosition(epoch: .max, sequence: MediaHeader.sequenceMax),
                ptsMicroseconds: -MediaHeader.ptsMicrosecondsMax,
                dtsDeltaMicroseconds: -MediaHeader.dtsDeltaMicrosecondsMax, captureMilliseconds: .max,
                flags: [.key, .discardable], track: 255, rendition: 255),
            payload: ByteBuffer(repeating: 9, count: 33)),
    ]
    private static let configurations: [TrackConfiguration] = [
        TrackConfiguration(
            codec: .h264, trackCount: 2, first: 1920, second: 1080, third: 25_000, extraData: [1, 2, 3]),
        TrackConfiguration(codec: .opus, trackCount: 0, first: .max, second: .max, third: .max, extraData: []),
    ]

    @Test("A media frame is read as written; no cut or bit flip traps or reads beyond it", arguments: frames)
    func mediaFrame(frame: MediaFrame) throws {
        var buffer = ByteBuffer()
        frame.encode(into: &buffer)
        #expect(buffer.readableBytes == MediaHeader.byteCount + frame.payload.readableBytes)
        try DecoderVerifier.verifyMessage((buffer, frame)) { try MediaFrame(decoding: $0) }
    }

    @Test("A configuration is read as written; no cut or bit flip traps or reads beyond it", arguments: configurations)
    func configuration(value: TrackConfiguration) throws {
        var buffer = ByteBuffer()
        value.encode(into: &buffer)
        try DecoderVerifier.verifyMessage((buffer, value)) { try TrackConfiguration(decoding: $0) }
    }

    @Test("A media frame of another version is refused with 10003")
    func version() {
        var buffer = ByteBuffer()
        Self.frames[0].encode(into: &buffer)
        buffer.setInteger(UInt8(9), at: MediaHeader.byteCount - 1)
        #expect(throws: ApusError(.versionUnsupported)) { try MediaFrame(decoding: buffer) }
    }

    @Test("A payload over 4 MiB is refused with 10001")
    func oversized() {
        var frame = Self.frames[0]
        frame.payload = ByteBuffer(repeating: 0, count: MediaFrame.payloadByteCountMax + 1)
        var buffer = ByteBuffer()
        frame.encode(into: &buffer)
        #expect(throws: ApusError(.malformed)) { try MediaFrame(decoding: buffer) }
    }

    @Test("A configuration with more extra bytes than the bound is refused with 10001")
    func extraBytes() {
        var value = Self.configurations[0]
        value.extraData = Array(repeating: 0, count: TrackConfiguration.extraByteCountMax + 1)
        var buffer = ByteBuffer()
        value.encode(into: &buffer)
        #expect(throws: ApusError(.malformed)) { try TrackConfiguration(decoding: buffer) }
    }

    @Test("A relay's copy keeps the payload, and stamping or repeating one copy leaves the others alone (D7)")
    func relayFrame() throws {
        var bytes = ByteBuffer()
        var original = Self.frames[1]
        original.header.track = TrackConfiguration.trackCountMax - 1
        original.encode(into: &bytes)
        var relayed = try RelayFrame(copying: bytes) { count, buffer in
            buffer.writeRepeatingByte(0, count: RelayFrame.linkHeaderByteCount)
            #expect(count == bytes.readableBytes)
        }
        let copy = relayed
        relayed.stamp(term: 77)
        let repeated = relayed.repeated()
        #expect(relayed.term == 77)
        #expect(copy.term == .max)
        #expect(repeated.flags.contains(.repeated))
        var decoded = repeated.encoded
        decoded.moveReaderIndex(forwardBy: RelayFrame.linkHeaderByteCount)
        let frame = try MediaFrame(decoding: decoded)
        #expect(frame.header.flags == [.key, .discardable, .repeated])
        #expect(frame.payload == Self.frames[1].payload)
        #expect(!relayed.flags.contains(.repeated))
    }
}

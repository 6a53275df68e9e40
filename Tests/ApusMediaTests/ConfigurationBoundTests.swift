import ApusCore
import ApusMedia
import NIOCore
import Testing

@Suite("What a relay keeps of configurations (D13, IV-C9)")
struct ConfigurationBoundTests {
    private func relayed(_ header: MediaHeader, _ payload: ByteBuffer) throws(ApusError) -> RelayFrame {
        var buffer = ByteBuffer()
        MediaFrame(header: header, payload: payload).encode(into: &buffer)
        return try RelayFrame(copying: buffer) { _, head in
            head.writeRepeatingByte(0, count: RelayFrame.linkHeaderByteCount)
        }
    }

    private func configuration(extra: Int = 3) -> ByteBuffer {
        var payload = ByteBuffer()
        TrackConfiguration(
            codec: .h264, trackCount: 2, first: 1, second: 1, third: 1, extraData: Array(repeating: 7, count: extra)
        ).encode(into: &payload)
        return payload
    }

    private func header(_ flags: MediaFlags, track: UInt8 = 0) -> MediaHeader {
        MediaHeader(position: at(0), ptsMicroseconds: 0, flags: flags, track: track)
    }

    @Test("A configuration that cannot be read is refused with 10001, however long it is", arguments: [0, 5, 4 << 20])
    func unreadable(byteCount: Int) {
        #expect(throws: ApusError(.malformed)) {
            try relayed(header(.configuration), ByteBuffer(repeating: 1, count: byteCount))
        }
    }

    @Test("A frame of a ninth track, and one that only calls itself repeated, is refused with 10001")
    func tracks() throws {
        #expect(throws: ApusError(.malformed)) {
            try relayed(header(.configuration, track: TrackConfiguration.trackCountMax), configuration())
        }
        #expect(throws: ApusError(.malformed)) {
            try relayed(header([], track: 255), ByteBuffer(repeating: 1, count: 9))
        }
        #expect(throws: ApusError(.malformed)) { try relayed(header(.repeated), configuration()) }
        _ = try relayed(header([.configuration, .repeated], track: 7), configuration())
        _ = try relayed(header(.key, track: 7), ByteBuffer(repeating: 1, count: 9))
    }

    @Test("Configurations count as bytes of the ring, and are all that stays of a ring without room")
    func counted() throws {
        var ring = FrameRing(limits: FrameRingLimits(byteCountMax: 256 << 10))
        let size = TrackConfiguration.extraByteCountMax
        for track in 0..<TrackConfiguration.trackCountMax {
            var frame = try relayed(header(.configuration, track: track), configuration(extra: size))
            frame.position.sequence = UInt64(track)
            #expect(ring.append(frame) == .appended)
        }
        #expect(ring.heldByteCount <= 256 << 10)
        for sequence in UInt64(8)..<200 {
            #expect(ring.append(relayFrame(sequence, byteCount: 10_000)) == .appended)
            #expect(ring.heldByteCount <= 256 << 10)
        }
        #expect(ring.heldByteCount > 200 << 10)
        ring.limit(byteCountMax: 0)
        #expect(ring.last == at(199) && ring.isEmpty)
        #expect(ring.heldByteCount < 8 * (size + 200))
        // The bound of the moment goes, and the ring grows again to its own.
        ring.limit(byteCountMax: .max)
        #expect(ring.byteCountMax == 256 << 10)
    }

    @Test("A viewer of a ring that was made shorter goes on at a key frame and hears how much it lost")
    func shortened() throws {
        var fanOut = FanOutStateMachine(ring: FrameRing())
        for frame in ApusMediaTests.stream(0..<20, keys: [2]) { fanOut.append(frame) }
        let viewer = fanOut.add(.viewer, after: at(3))
        fanOut.limitRing(byteCountMax: 0)
        let early = fanOut.nextBatch(for: viewer)
        #expect(early?.skippedCount == nil)
        fanOut.limitRing(byteCountMax: .max)
        for sequence in UInt64(20)..<30 { fanOut.append(relayFrame(sequence, flags: sequence == 25 ? .key : [])) }
        let batch = fanOut.nextBatch(for: viewer)
        #expect(batch?.skippedCount == 21)
    }
}

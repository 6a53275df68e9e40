import ApusCore
import ApusMedia
import NIOCore
import Testing

@Suite("Pictures that are larger than a frame (D7)")
struct FrameJoinerTests {
    private static let max = MediaFrame.payloadByteCountMax

    /// The parts of a payload as a publisher sends them.
    private func parts(
        _ payload: ByteBuffer, from sequence: UInt64, flags: MediaFlags = .key, track: UInt8 = 0
    ) throws -> [MediaFrame] {
        let parts = try #require(FrameJoiner.split(payload))
        return parts.enumerated().map { index, part in
            let header = MediaHeader(
                position: FramePosition(epoch: 3, sequence: sequence + UInt64(index)), ptsMicroseconds: 40_000,
                flags: FrameJoiner.flags(flags, ofPart: index, of: parts.count), track: track)
            return MediaFrame(header: header, payload: part)
        }
    }

    private func payload(_ count: Int) -> ByteBuffer {
        var bytes = ByteBuffer(repeating: 5, count: count)
        for index in stride(from: 0, to: count, by: 65_521) { bytes.setInteger(UInt8(index / 65_521 % 251), at: index) }
        return bytes
    }

    @Test(
        "What was split is joined, and each part may be sent",
        arguments: [1, max, max + 1, 5 << 20, MediaFrame.joinedByteCountMax])
    func roundTrip(count: Int) throws {
        let whole = payload(count)
        let frames = try parts(whole, from: 9)
        #expect(frames.count == (count > Self.max ? 2 : 1))
        var (joiner, joined) = (FrameJoiner(), [MediaFrame]())
        for frame in frames {
            var encoded = ByteBuffer()
            frame.encode(into: &encoded)
            if let frame = joiner.add(try MediaFrame(decoding: encoded)) { joined.append(frame) }
        }
        #expect(joined.map(\.payload) == [whole] && joiner.framesDropped == 0)
        let header = try #require(joined.first).header
        #expect(header.flags.contains(.key) && !header.flags.contains(.continued))
        #expect(header.position.sequence == 9 + UInt64(frames.count) - 1)
        #expect(frames.dropFirst().allSatisfy { !$0.header.flags.contains(.key) }, "a viewer starts at the first part")
    }

    @Test("A payload beyond the largest picture is not split")
    func tooLarge() {
        #expect(FrameJoiner.split(ByteBuffer(repeating: 1, count: MediaFrame.joinedByteCountMax + 1)) == nil)
    }

    @Test("A picture without one of its parts is dropped, and what follows is not", arguments: [0, 1])
    func missing(part: Int) throws {
        var joiner = FrameJoiner()
        var frames = try parts(payload(Self.max + 5), from: 0)
        frames.remove(at: part)
        frames += try parts(payload(10), from: 2, flags: [])
        frames += try parts(payload(Self.max + 7), from: 3)
        let joined = frames.compactMap { joiner.add($0)?.payload.readableBytes }
        #expect(joined == [10, Self.max + 7])
        #expect(joiner.framesDropped == 1)
    }

    @Test("Configurations that are repeated at a join do not disturb it; another epoch does")
    func others() throws {
        var joiner = FrameJoiner()
        var maker = FrameMaker()
        let frames = try parts(payload(Self.max + 5), from: 0)
        var repeated = maker.configuration(0, FrameMaker.video(.h264))
        repeated.header.flags.insert(.repeated)
        let joined = [frames[0], repeated, frames[1]].compactMap { joiner.add($0) }
        #expect(joined.first == repeated && joined.map(\.payload.readableBytes).last == Self.max + 5)
        var late = frames[1]
        late.header.position.epoch = 4
        let others = [frames[0], late].compactMap { joiner.add($0) }
        #expect(others.isEmpty && joiner.framesDropped == 1)
    }

    @Test("Any flags and numbers are bounded, and never a crash", arguments: 0..<UInt64(20))
    func anything(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        var joiner = FrameJoiner()
        let large = ByteBuffer(repeating: 1, count: 3 << 20)
        for sequence in 0..<60 as Range<UInt64> {
            let header = MediaHeader(
                position: FramePosition(epoch: 1, sequence: sequence + UInt64.random(in: 0...1, using: &random)),
                ptsMicroseconds: 0, flags: MediaFlags(rawValue: UInt8.random(in: 0...(.max), using: &random)),
                track: UInt8.random(in: 0...1, using: &random))
            let joined = joiner.add(MediaFrame(header: header, payload: large))
            #expect(joined.map { $0.payload.readableBytes <= MediaFrame.joinedByteCountMax } ?? true)
        }
    }

    @Test("A track has ended once the others' configurations count fewer")
    func endedTracks() {
        var (maker, configurations) = (FrameMaker(), TrackConfigurations())
        let changes = [
            maker.configuration(0, FrameMaker.video(.h264, count: 2)),
            maker.configuration(1, FrameMaker.sound(.g711a)), maker.configuration(1, FrameMaker.sound(.g711a)),
        ].map { configurations.put($0) }
        #expect(changes == [true, true, false] && configurations.all.map(\.header.track) == [0, 1])
        let hasChanged = configurations.put(maker.configuration(0, FrameMaker.video(.h264, count: 1)))
        #expect(hasChanged)
        #expect(configurations.all.map(\.header.track) == [0])
    }

    @Test("A viewer that joins after a track has ended does not receive its configuration")
    func ring() throws {
        var (maker, ring) = (FrameMaker(), FrameRing())
        func append(_ frame: MediaFrame) throws {
            var payload = ByteBuffer()
            frame.encode(into: &payload)
            _ = ring.append(
                try RelayFrame(copying: payload) { _, buffer in
                    buffer.writeRepeatingByte(0, count: RelayFrame.linkHeaderByteCount)
                })
        }
        try append(maker.configuration(0, FrameMaker.video(.h264, count: 2)))
        try append(maker.configuration(1, FrameMaker.sound(.g711a)))
        #expect(ring.configurations(before: ring.endIndex).count == 2)
        try append(maker.configuration(0, FrameMaker.video(.h264, width: 320, count: 1)))
        #expect(ring.configurations(before: ring.endIndex).map(\.track) == [0])
    }
}

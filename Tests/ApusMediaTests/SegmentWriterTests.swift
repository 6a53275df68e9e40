import ApusCore
import ApusMedia
import NIOCore
import Testing

@Suite("Segments of a recording (IV-E2)")
struct SegmentWriterTests {
    private static let start: Int64 = 1_790_000_000_123_456

    @Test("A segment has every payload at its own time, which does not begin at 0, and its index is exact")
    func times() throws {
        var maker = SegmentMaker(seed: 1)
        let (segment, frames) = try maker.segment(from: Self.start, seconds: 6)
        let read = try ReadFragments(segment.bytes)
        #expect(read.boxes.map(\.type).prefix(3) == ["ftyp", "moov", "sidx"] && read.boxes.last?.type == "uuid")
        for (id, track) in [(1, 0), (2, 1)] as [(UInt32, UInt8)] {
            let (samples, sent) = (read.samples.filter { $0.track == id }, frames.filter { $0.track == track })
            #expect(samples.map(\.decode) == sent.map(\.decodeMicroseconds))
            #expect(
                samples.map(\.presentation)
                    == sent.map { $0.decodeMicroseconds + Int64($0.compositionMicroseconds) })
            #expect(samples.map(\.payload) == sent.map { Array($0.payload.readableBytesView) })
            #expect(samples.allSatisfy { $0.duration == (track == 0 ? 40_000 : 20_000) && $0.entry == 1 })
        }
        #expect(read.samples.filter { $0.track == 1 && $0.isSync }.count == 6)
        // The index: one entry for each second, which fill the place of the fragments.
        #expect(read.sequences == [1, 2, 3, 4, 5, 6])
        #expect(read.index.map(\.duration) == Array(repeating: 1_000_000, count: 6))
        #expect(read.index.allSatisfy(\.startsWithSync) && read.indexTimescale == 1_000_000)
        #expect(read.indexStart == Self.start + 80_000)
        let media = segment.footer.mediaRange
        #expect(read.indexEnd + read.index.reduce(0) { $0 + $1.byteCount } == media.upperBound)
        #expect(read.boxes("moof").map(\.offset) == segment.footer.fragments.map(\.offset))
        #expect(read.boxes("sidx")[0].offset == media.lowerBound && read.boxes("uuid")[0].offset == media.upperBound)
        let head = try SegmentWriter.initialization(maker.tracks)
        #expect(segment.bytes.getSlice(at: 0, length: segment.footer.initByteCount) == head)
    }

    @Test("The footer is read from the end of the object, and has every frame's place, flags and times")
    func footer() throws {
        var maker = SegmentMaker(seed: 2)
        maker.sequence = 12_345
        let (segment, frames) = try maker.segment(from: Self.start, seconds: 3, end: .gap)
        let bytes = Array(segment.bytes.readableBytesView)
        let count = try #require(
            SegmentFooter.byteCount(trailer: Array(bytes.suffix(SegmentFooter.trailerByteCount))))
        let footer = try SegmentFooter(decoding: Array(bytes.suffix(count)), objectByteCount: bytes.count)
        #expect(footer == segment.footer)
        let description = try maker.description(sequence: 1)
        #expect(footer.end == .gap && footer.description == description)
        #expect(footer.first == frames.first?.position && footer.last == frames.last?.position)
        #expect(footer.startMicroseconds == Self.start + 5_000 && footer.endMicroseconds == Self.start + 3_080_000)
        for (found, frame) in zip(footer.frames, frames) {
            #expect(found.position == frame.position && found.track == frame.track)
            #expect(found.decodeMicroseconds == frame.decodeMicroseconds && found.flags == frame.flags)
            #expect(found.compositionMicroseconds == frame.compositionMicroseconds)
            #expect(Array(bytes[found.range]) == Array(frame.payload.readableBytesView))
        }
        try footer.check(segment.bytes)
        // In a segment of a usual length the part that does not grow is small.
        let (long, longFrames) = try maker.segment(from: Self.start, seconds: 12, end: .gap)
        let longCount = try #require(
            SegmentFooter.byteCount(
                trailer: Array(long.bytes.readableBytesView.suffix(SegmentFooter.trailerByteCount))))
        #expect(Double(longCount) / Double(longFrames.count) < 6, "\(longCount) bytes for \(longFrames.count) frames")
        // One changed bit of a payload is found.
        var changed = segment.bytes
        let place = try #require(footer.frames.first { !$0.range.isEmpty }).range.lowerBound
        changed.setInteger(bytes[place] ^ 1, at: place)
        #expect(throws: ApusError(.malformed)) { try footer.check(changed) }
    }

    @Test("The same frames give the same bytes")
    func deterministic() throws {
        var (first, second) = (SegmentMaker(seed: 3), SegmentMaker(seed: 3))
        #expect(
            try first.segment(from: 0, seconds: 2).segment.bytes == second.segment(from: 0, seconds: 2).segment.bytes)
    }

    @Test("A pause of any length is in the file as it is: no distance is shortened")
    func distances() throws {
        var maker = SegmentMaker(seed: 4)
        maker.tracks = [SegmentTrack(number: 0, configuration: FrameMaker.video(.h264))]
        // 45 s, 30 minutes, 2 hours, 3 days: the last two exceed the 32 bits of a duration.
        let steps: [Int64] = [40_000, 45_000_000, 1_800_000_000, 7_200_000_000, 259_200_000_000, 40_000]
        var (time, times) = (Self.start, [Self.start])
        for step in steps {
            time += step
            times.append(time)
        }
        var writer = try SegmentWriter(try maker.description())
        for time in times { try writer.add(maker.frame(0, at: time, flags: .key, maker.payload())) }
        let segment = try writer.finish(until: [0: time + 7_000_000], end: .continues)
        let read = try ReadFragments(segment.bytes)
        #expect(read.samples.map(\.decode) == times)
        #expect(
            read.samples.map(\.duration)
                == [40_000, 45_000_000, 1_800_000_000, Int64(UInt32.max), Int64(UInt32.max), 40_000, 7_000_000])
        #expect(segment.footer.durationMicroseconds == time - Self.start + 7_000_000)
    }

    @Test("A decode time that goes back keeps its presentation time, and the file's decode times do not go back")
    func back() throws {
        var maker = SegmentMaker(seed: 5)
        maker.tracks = [SegmentTrack(number: 0, configuration: FrameMaker.video(.h264))]
        var writer = try SegmentWriter(try maker.description())
        let times: [Int64] = [1_000_000, 1_040_000, 1_020_000, 1_080_000]
        for time in times {
            try writer.add(maker.frame(0, at: time, composition: 40_000, flags: .key, maker.payload()))
        }
        let segment = try writer.finish(end: .clock)
        let read = try ReadFragments(segment.bytes)
        #expect(read.samples.map(\.decode) == [1_000_000, 1_040_000, 1_040_000, 1_080_000])
        #expect(read.samples.map(\.presentation) == times.map { $0 + 40_000 })
        #expect(segment.footer.frames.map(\.decodeMicroseconds) == times)
    }

    @Test(
        "A group of pictures without end is cut into fragments after 4 s or 4 MiB, which claim no key at their start"
    )
    func longGroup() throws {
        var maker = SegmentMaker(seed: 6)
        maker.tracks = [SegmentTrack(number: 0, configuration: FrameMaker.video(.h264))]
        var writer = try SegmentWriter(try maker.description())
        for index in 0..<250 {
            let frame = maker.frame(0, at: Int64(index) * 40_000, flags: index == 0 ? .key : [], maker.payload(9...9))
            try writer.add(frame)
        }
        var read = try ReadFragments(try writer.finish(end: .continues).bytes)
        #expect(read.index.map(\.duration) == [4_000_000, 4_000_000, 2_000_000])
        #expect(read.index.map(\.startsWithSync) == [true, false, false])
        writer = try SegmentWriter(try maker.description())
        for index in 0..<10 {
            try writer.add(
                maker.frame(
                    0, at: Int64(index), flags: index == 0 ? .key : [], ByteBuffer(repeating: 1, count: 1 << 20)))
        }
        read = try ReadFragments(try writer.finish(end: .continues).bytes)
        #expect(read.boxes("moof").count == 3)
    }

    @Test(
        "Each codec of the other writer has its sample entry here",
        arguments: [Codec.h264, .h265, .aac, .opus, .g711a, .g711u, .amrNarrow, .amrWide])
    func codecs(_ codec: Codec) throws {
        var maker = SegmentMaker(seed: 7)
        var configuration = codec.isVideo ? FrameMaker.video(codec) : FrameMaker.sound(codec, count: 1)
        if codec == .aac { configuration.extraData = [0x15, 0x88] }
        maker.tracks = [SegmentTrack(number: 4, configuration: configuration)]
        var writer = try SegmentWriter(try maker.description())
        for index in 0..<50 { try writer.add(maker.frame(4, at: Int64(index) * 20_000, flags: .key, maker.payload())) }
        let segment = try writer.finish(end: .stopped)
        let read = try ReadFragments(segment.bytes)
        #expect(read.samples.count == 50 && read.samples.allSatisfy { $0.isSync && $0.track == 1 })
        let types: [Codec: String] = [
            .h264: "avc1", .h265: "hev1", .aac: "mp4a", .opus: "Opus", .g711a: "alaw", .g711u: "ulaw",
            .amrNarrow: "samr", .amrWide: "sawb",
        ]
        #expect(ReadMP4(segment.bytes).entries[1]?.map(\.type) == [types[codec] ?? ""])
    }

    @Test("What cannot be in the segment is refused, and what was added before is written")
    func refusals() throws {
        var maker = SegmentMaker(seed: 8)
        var limits = SegmentWriter.Limits()
        limits.frameCountMax = 3
        var writer = try SegmentWriter(try maker.description(), limits: limits)
        let first = maker.frame(0, at: 0, flags: .key, maker.payload())
        try writer.add(first)
        var other = maker.frame(0, at: 0, maker.payload())
        other.position.epoch += 1
        for wrong in [
            first, maker.frame(9, at: 0, maker.payload()), maker.frame(0, at: -1, maker.payload()), other,
            maker.frame(0, at: 0, composition: .max, maker.payload()),
            maker.frame(0, at: SegmentDescription.microsecondsMax + 1, maker.payload()),
        ] {
            #expect(throws: ApusError(.badParameter)) { try writer.add(wrong) }
        }
        try writer.add(maker.frame(1, at: 0, maker.payload()))
        try writer.add(maker.frame(0, at: 0, maker.payload()))
        let fourth = maker.frame(0, at: 0, maker.payload())
        #expect(throws: ApusError(.frameTooLarge)) { try writer.add(fourth) }
        #expect(try ReadFragments(writer.finish(end: .limit).bytes).samples.count == 3)
        let empty = try SegmentWriter(try maker.description())
        #expect(throws: ApusError(.mediaUnreadable)) { try empty.finish(end: .stopped) }
        let long = try maker.description(label: [UInt8](repeating: 1, count: 513))
        #expect(throws: ApusError(.badParameter)) { try SegmentWriter(long) }
        maker.tracks[0].configuration.extraData = []
        let bare = try maker.description()
        #expect(throws: ApusError(.mediaUnreadable)) { try SegmentWriter(bare) }
        maker.tracks = [maker.tracks[1], maker.tracks[1]]
        let twice = try maker.description()
        #expect(throws: ApusError(.badParameter)) { try SegmentWriter(twice) }
    }

    @Test("Sound that begins later, ends sooner or is alone keeps its times")
    func soundAlone() throws {
        var maker = SegmentMaker(seed: 9)
        var writer = try SegmentWriter(try maker.description())
        for index in 0..<100 {
            let time = Self.start + Int64(index) * 40_000
            try writer.add(maker.frame(0, at: time, flags: index % 25 == 0 ? .key : [], maker.payload()))
            if (30..<60).contains(index) { try writer.add(maker.frame(1, at: time + 1_000, maker.payload())) }
        }
        let read = try ReadFragments(try writer.finish(end: .continues).bytes)
        let sound = read.samples.filter { $0.track == 2 }
        #expect(sound.map(\.decode) == (30..<60).map { Self.start + $0 * 40_000 + 1_000 })
        #expect(read.index.count == 4)
        writer = try SegmentWriter(try maker.description())
        for index in 0..<100 {
            try writer.add(maker.frame(1, at: Self.start + Int64(index) * 20_000, maker.payload()))
        }
        let alone = try ReadFragments(try writer.finish(end: .continues).bytes)
        #expect(alone.samples.count == 100 && alone.index.map(\.duration) == [1_000_000, 1_000_000])
        #expect(alone.index.allSatisfy(\.startsWithSync) && alone.indexStart == Self.start)
    }
}

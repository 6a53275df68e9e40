import ApusCore
import ApusMedia
import ApusRecordings
import NIOCore
import Testing

@Suite("Recordings: cutting a stream into segments (issue 45, IV-E4)")
struct RecordingCutterTests {
    private static func cut(_ frames: [RecordedFrame], from head: RecordingHead? = nil) -> [CutSegment] {
        var cutter = RecordingCutter(label: "home/cam/0", from: head)
        for frame in frames { cutter.add(frame) }
        _ = cutter.finish(.stopped)
        return cutter.takeFinished()
    }

    private static func media(_ segments: [CutSegment]) -> [[UInt8]] {
        segments.flatMap { $0.frames.map { Array($0.payload.readableBytesView) } }
    }

    @Test("Each frame is in one segment, in order; segments end for the reasons that they have", arguments: 0..<150)
    func everyFrame(seed: UInt64) throws {
        var stream = RecordedStream(seed: seed)
        stream.faults = .init(
            gaps: seed % 2 == 1, epochs: seed % 3 == 1, configurations: seed % 5 == 1, pauses: seed % 7 == 1,
            clockSteps: seed % 11 == 1)
        stream.hasSound = seed % 4 != 2
        stream.add(groups: 40)
        if seed % 2 == 0 { stream.end() }
        let segments = Self.cut(stream.frames)
        #expect(Self.media(segments) == stream.media.map { Array($0.frame.payload.readableBytesView) })
        #expect(segments.flatMap(\.gaps) == stream.missing.filter { gap in
            // What is missing behind the last segment is noted with the next one.
            segments.contains { ($0.range.epoch, $0.range.last) > (gap.epoch, gap.first) }
        })
        for (segment, next) in zip(segments, segments.dropFirst()) {
            #expect((segment.range.epoch, segment.range.last) < (next.range.epoch, next.range.first))
            let isRun = segment.description.run == next.description.run
            #expect(isRun == (segment.end == .continues), "\(segment.end)")
            if isRun {
                #expect(segment.description.tracks == next.description.tracks)
                #expect(segment.range.last + 1 == next.range.first)
                #expect(next.frames.first { $0.track == 0 }?.flags.contains(.key) == true)
            }
        }
        for segment in segments {
            // Each can be written.
            var writer = try SegmentWriter(segment.description)
            for frame in segment.frames { try writer.add(frame) }
            let written = try writer.finish(until: segment.next, end: segment.end)
            #expect(written.footer.durationMicroseconds < 62_000_000)
        }
        if seed % 2 == 0 { #expect(segments.last?.isEnded == true) }
    }

    @Test("A node that goes on at a head cuts what the first one would have cut", arguments: 0..<60)
    func goesOn(seed: UInt64) throws {
        var stream = RecordedStream(seed: seed)
        stream.faults = .init(gaps: true, epochs: true, configurations: seed % 3 == 0, pauses: true)
        stream.add(groups: 30)
        let whole = Self.cut(stream.frames)
        var head: RecordingHead?
        for segment in whole.dropLast() {
            let footer = try Self.footer(segment)
            let sealed = SealedSegment(
                cut: segment, footer: footer, object: "x", byteCount: 1, place: .behind(head?.position), days: 0)
            let new: RecordingHead = try #require(RecordingIndex.head(head, with: sealed, of: Self.channel))
            head = new
            let position = new.position
            // The second node has frames from some key frame on, or has just those behind the head.
            let rest = stream.frames.filter { $0.frame.header.position > position }
            let other = Self.cut(rest, from: head)
            let expected = whole.filter {
                FramePosition(epoch: $0.range.epoch, sequence: $0.range.first) > position
            }
            #expect(other.map(\.range) == expected.map(\.range))
            #expect(Self.media(other) == Self.media(expected))
            if segment.end == .continues {
                #expect(other.first?.description.run == segment.description.run)
                #expect(other.first?.description.sequence == expected.first?.description.sequence)
            }
        }
    }

    private static let channel = RecordedChannel(
        account: AccountID(unchecked: "home"), device: DeviceID(unchecked: "cam"), source: 0)

    private static func footer(_ segment: CutSegment) throws -> SegmentFooter {
        var writer = try SegmentWriter(segment.description)
        for frame in segment.frames { try writer.add(frame) }
        return try writer.finish(until: segment.next, end: segment.end).footer
    }

    @Test("A picture in parts is one frame, also where the parts are read in two turns")
    func parts() throws {
        let big = ByteBuffer(repeating: 7, count: MediaFrame.payloadByteCountMax + 1000)
        let parts = try #require(FrameJoiner.split(big))
        var stream = RecordedStream(seed: 1)
        stream.add(groups: 1)
        var frames = stream.frames
        let start = try #require(frames.last?.frame.header.position.sequence) + 1
        for (index, part) in parts.enumerated() {
            let header = MediaHeader(
                position: FramePosition(epoch: 1, sequence: start + UInt64(index)), ptsMicroseconds: 9_100_000,
                flags: FrameJoiner.flags([], ofPart: index, of: parts.count), track: 0)
            frames.append(
                RecordedFrame(
                    configurations: [], frame: MediaFrame(header: header, payload: part),
                    receivedMicroseconds: stream.wall))
        }
        // Without the last part, the segment ends before the first one, so that another node reads all parts.
        let without = Self.cut(Array(frames.dropLast()))
        #expect(without.last?.range.last == start - 1)
        let whole = Self.cut(frames)
        #expect(whole.last?.frames.last?.payload == big)
        #expect(whole.last?.range.last == start + UInt64(parts.count) - 1)
    }

    @Test("Repeated frames and frames of the past have no effect")
    func repeated() {
        var stream = RecordedStream(seed: 9)
        stream.add(groups: 8)
        let twice = stream.frames.flatMap { [$0, $0] }
        #expect(Self.cut(twice).map(\.range) == Self.cut(stream.frames).map(\.range))
    }

    @Test("A stream without video is cut by its length")
    func soundOnly() {
        var frames: [RecordedFrame] = []
        let sound = SegmentTrack(
            number: 0,
            configuration: TrackConfiguration(
                codec: .opus, trackCount: 1, first: 48_000, second: 1, third: 960, extraData: []))
        for index in 0..<3_000 {
            let header = MediaHeader(
                position: FramePosition(epoch: 1, sequence: UInt64(index)), ptsMicroseconds: Int64(index) * 20_000,
                flags: .key)
            frames.append(
                RecordedFrame(
                    configurations: index == 0 ? [sound] : [],
                    frame: MediaFrame(header: header, payload: ByteBuffer(bytes: [1, 2, 3])),
                    receivedMicroseconds: 1_700_000_000_000_000 + Int64(index) * 20_000))
        }
        let segments = Self.cut(frames)
        #expect(segments.map(\.frames.count) == [500, 500, 500, 500, 500, 500])
        #expect(Set(segments.map(\.description.run)).count == 1)
    }
}

@Suite("Recordings: the time of a run")
struct RecordingClockTests {
    @Test("A burst of five seconds of the past does not move the time of what follows by more than a frame")
    func burst() {
        let live: Int64 = 1_700_000_000_000_000
        // Pictures of the five seconds before the connection arrive within 100 ms.
        var clock = RecordingClock(pts: 0, received: live)
        for index in 0..<125 { clock.observe(pts: Int64(index) * 40_000, received: live + Int64(index) * 800) }
        for index in 125..<250 {
            clock.observe(pts: Int64(index) * 40_000, received: live + Int64(index - 125) * 40_000 + 2_000)
        }
        // The picture of pts 5 s was taken when it arrived, live.
        #expect(abs(clock.offset + 5_000_000 - live) <= 40_000)
    }

    @Test("A device whose clock is 100 ppm wrong stays within 40 ms of UTC for a day, each way", arguments: [100, -100])
    func drift(ppm: Int64) {
        var clock = RecordingClock(pts: 0, received: 1_700_000_000_000_000)
        var random = SeededRandom(seed: 5)
        var worst: Int64 = 0
        for index in 0..<86_400 {
            let pts = Int64(index) * 1_000_000
            let real = 1_700_000_000_000_000 + pts + pts / 1_000_000 * ppm
            clock.observe(pts: pts, received: real + Int64.random(in: 1_000...20_000, using: &random))
            if index % 10 == 9 { clock.endSegment(duration: 10_000_000) }
            worst = max(worst, abs(clock.offset + pts - real))
        }
        #expect(worst <= 40_000, "\(worst) µs")
        #expect(!clock.hasStepped)
    }

    @Test("A step that lasts begins another run, and late frames do not", arguments: [7_200_000_000, -3_600_000_000])
    func step(by step: Int64) {
        var clock = RecordingClock(pts: 0, received: 1_700_000_000_000_000)
        var pts: Int64 = 0
        func feed(_ clock: inout RecordingClock, seconds: Int, moved: Int64) {
            for _ in 0..<seconds {
                clock.observe(pts: pts, received: 1_700_000_000_000_000 + pts + moved)
                pts += 1_000_000
            }
            clock.endSegment(duration: Int64(seconds) * 1_000_000)
        }
        feed(&clock, seconds: 10, moved: 0)
        let before = clock.offset
        // Half a minute of a stalled network: one segment late, the next one on time.
        feed(&clock, seconds: 10, moved: 8_000_000)
        feed(&clock, seconds: 10, moved: 0)
        #expect(!clock.hasStepped)
        #expect(clock.offset == before)
        feed(&clock, seconds: 10, moved: step)
        #expect(!clock.hasStepped)
        feed(&clock, seconds: 10, moved: step)
        #expect(clock.hasStepped)
    }
}

import ApusCore
import ApusMedia
import NIOCore
import Testing

@Suite("Recordings tell the time, and a file has the formats of its head (D10, IV-C12)")
struct MP4FormatTests {
    private func at(_ milliseconds: Int64) -> MonotonicTime { .zero + .seconds(100) + .milliseconds(milliseconds) }

    /// Writes frames of one video track at these times, and returns the durations in milliseconds.
    private func durations(
        _ times: [Int64], arrivals: [Int64]? = nil, endsWith next: Int64? = nil, end: Int64? = nil
    ) throws -> [Int64] {
        var (maker, writer, output) = (FrameMaker(), FragmentedMP4Writer(), ByteBuffer())
        output.writeImmutableBuffer(try writer.write(maker.configuration(0, FrameMaker.video(.h264))))
        for (index, time) in times.enumerated() {
            output.writeImmutableBuffer(
                try writer.write(
                    maker.frame(0, milliseconds: time, flags: .key), arrival: arrivals.map { at($0[index]) })
            )
        }
        let last = next.map { maker.frame(0, milliseconds: $0, flags: .key) }
        output.writeImmutableBuffer(try writer.finish(until: last, arrival: end.map(at)))
        return try #require(ReadMP4(output).samples[1]).map { $0.duration / 1000 }
    }

    @Test("A pause between two pictures is in the file, also one of 45 s or of half an hour")
    func pauses() throws {
        #expect(try durations([0, 40, 80, 7080, 52_080, 1_852_080]) == [40, 40, 7000, 45_000, 1_800_000, 30_000])
        #expect(try durations([0, 40, 45_040], arrivals: [0, 40, 45_040])[1] == 45_000)
    }

    @Test("A step that arrives sooner than it says is a jump of the clock; one that arrives at its time is a pause")
    func jumps() throws {
        #expect(try durations([0, 40, 7_200_040, 7_200_080], arrivals: [0, 40, 80, 120])[1] == 40)
        #expect(try durations([0, 40, 7_200_040, 7_200_080], arrivals: [0, 40, 2_000, 2_040])[1] == 1960)
        // Without times of arrival, more than an hour.
        #expect(try durations([0, 40, 3_700_040])[1] == 40)
        // A clock that goes back.
        #expect(try durations([1000, 1040, 0, 40], arrivals: [0, 40, 80, 120]) == [40, 40, 40, 40])
    }

    @Test("A pause of two hours that arrived as one is a gap between fragments: a duration has 32 bits")
    func hours() throws {
        var (maker, writer, output) = (FrameMaker(), FragmentedMP4Writer(), ByteBuffer())
        output.writeImmutableBuffer(try writer.write(maker.configuration(0, FrameMaker.video(.h264))))
        for time: Int64 in [0, 40, 7_200_040, 7_200_080] {
            output.writeImmutableBuffer(
                try writer.write(maker.frame(0, milliseconds: time, flags: .key), arrival: at(time)))
        }
        output.writeImmutableBuffer(try writer.finish())
        let samples = try #require(ReadMP4(output).samples[1])
        #expect(samples.map { $0.time / 1000 } == [0, 40, 7_200_040, 7_200_080])
    }

    @Test("The last picture lasts until the next file begins")
    func continued() throws {
        #expect(try durations([0, 7000, 14_000], endsWith: 23_000) == [7000, 7000, 9000])
        #expect(try durations([0, 7000]) == [7000, 7000])
        #expect(
            try durations([0, 7000], arrivals: [0, 7000], end: 9000) == [7000, 2000], "it ends when the recording does")
    }

    @Test("A publisher that was away leaves its absence in the file")
    func away() throws {
        var (maker, writer, output) = (FrameMaker(), FragmentedMP4Writer(), ByteBuffer())
        output.writeImmutableBuffer(try writer.write(maker.configuration(0, FrameMaker.video(.h264))))
        for (epoch, time) in [(1, 0), (1, 40), (2, 60_000), (2, 60_040)] as [(UInt32, Int64)] {
            maker.epoch = epoch
            output.writeImmutableBuffer(
                try writer.write(maker.frame(0, milliseconds: time % 60_000, flags: .key), arrival: at(time)))
        }
        output.writeImmutableBuffer(try writer.finish())
        let times = try #require(ReadMP4(output).samples[1]).map { $0.time / 1000 }
        #expect(times == [0, 40, 60_000, 60_040])
    }

    @Test("Another size, codec, sound or number of tracks is not taken; the same format and rate is")
    func takes() throws {
        var (maker, writer) = (FrameMaker(), FragmentedMP4Writer())
        let video = FrameMaker.video(.h264, count: 2)
        for frame in [
            maker.configuration(0, video), maker.configuration(1, FrameMaker.sound(.g711a)),
            maker.frame(0, milliseconds: 0, flags: .key),
        ] {
            #expect(writer.takes(frame))
            _ = try writer.write(frame)
        }
        var other = video
        other.third = 30_000
        let same = [maker.configuration(0, video), maker.configuration(0, other)]
        #expect(same.allSatisfy(writer.takes))
        for (track, configuration) in [
            (0, FrameMaker.video(.h265, count: 2)), (0, FrameMaker.video(.h264, width: 320, count: 2)),
            (0, FrameMaker.video(.h264, count: 1)), (1, FrameMaker.sound(.g711u)),
            (2, FrameMaker.sound(.g711a, count: 3)),
        ] as [(UInt8, TrackConfiguration)] {
            let frame = maker.configuration(track, configuration)
            #expect(!writer.takes(frame), "\(configuration)")
        }
        // If it is written anyway, no frame of another format lands in the track.
        _ = try writer.write(maker.configuration(0, FrameMaker.video(.h265, count: 2)))
        _ = try writer.write(maker.frame(0, milliseconds: 40, flags: .key))
        #expect(writer.frameCount == 1 && writer.framesOmitted == 1)
    }

    @Test("A planned file has an entry for each size and a track for each codec, and every frame is in its own")
    func planned() throws {
        let formats: [(track: UInt8, configuration: TrackConfiguration)] = [
            (0, FrameMaker.video(.h264)), (0, FrameMaker.video(.h264, width: 320)), (0, FrameMaker.video(.h265)),
        ]
        var (maker, output) = (FrameMaker(), ByteBuffer())
        var writer = FragmentedMP4Writer(formats: formats)
        for (number, index) in [0, 1, 2, 0].enumerated() {
            let start = Int64(number) * 1000
            var frames = [maker.configuration(0, formats[index].configuration)]
            // A picture that needs one of the other format is left out.
            if number > 0 { frames.append(maker.frame(0, milliseconds: start)) }
            for step in 0..<3 {
                frames.append(maker.frame(0, milliseconds: start + Int64(step) * 300, flags: step == 0 ? .key : []))
            }
            for frame in frames { output.writeImmutableBuffer(try writer.write(frame)) }
        }
        output.writeImmutableBuffer(try writer.finish())
        let read = ReadMP4(output)
        #expect(
            read.entries[1]?.map(\.width) == [640, 320] && read.entries[1]?.allSatisfy { $0.type == "avc1" } == true)
        #expect(read.entries[2] == [ReadMP4.Entry(type: "hev1", width: 640, height: 320)])
        #expect(read.samples[1]?.map(\.entry) == [1, 1, 1, 2, 2, 2, 1, 1, 1])
        #expect(read.samples[1]?.map { $0.time / 1000 } == [0, 300, 600, 1000, 1300, 1600, 3000, 3300, 3600])
        #expect(read.samples[2]?.map { $0.time / 1000 } == [2000, 2300, 2600])
        #expect(writer.frameCount == 12 && writer.framesOmitted == 3)
    }
}

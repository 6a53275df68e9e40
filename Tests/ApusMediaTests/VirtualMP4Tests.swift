import ApusCore
import ApusMedia
import NIOCore
import Synchronization
import Testing

@Suite("One MP4 of many segments, produced range by range")
struct VirtualMP4Tests {
    private static let start: Int64 = 1_790_000_000_000_000

    /// Segments, and a file of them whose objects are in memory.
    private struct Export {
        var segments: [Segment] = []
        var parts: [VirtualMP4.Part] = []

        mutating func add(_ segment: Segment, shift: Int64 = 0) {
            segments.append(segment)
            let footer = segment.footer
            parts.append(
                VirtualMP4.Part(
                    tracks: footer.description.tracks, mediaRange: footer.mediaRange,
                    startMicroseconds: footer.startMicroseconds + shift,
                    durationMicroseconds: footer.durationMicroseconds, shiftMicroseconds: shift))
        }

        func bytes(_ file: VirtualMP4, _ range: Range<Int>) async throws -> ByteBuffer {
            var output = ByteBuffer()
            while output.readableBytes < range.count {
                let rest = range.lowerBound + output.readableBytes..<range.upperBound
                output.writeImmutableBuffer(
                    try await file.bytes(rest) { part, wanted throws(ApusError) in
                        guard let slice = segments[part].bytes.getSlice(at: wanted.lowerBound, length: wanted.count)
                        else { throw ApusError(.storageFailed) }
                        return slice
                    })
            }
            return output
        }
    }

    private func export(seed: UInt64, count: Int = 5) throws -> Export {
        var (maker, export) = (SegmentMaker(seed: seed), Export())
        for index in 0..<count {
            // A pause of ten minutes after the third.
            let pause: Int64 = index >= 3 ? 600_000_000 : 0
            export.add(try maker.segment(from: Self.start + Int64(index) * 2_000_000 + pause, seconds: 2).segment)
        }
        return export
    }

    @Test("The file has every sample of its segments at its time, and its index leads to each segment")
    func whole() async throws {
        let export = try export(seed: 30)
        let file = try VirtualMP4(export.parts)
        let bytes = try await export.bytes(file, 0..<file.byteCount)
        #expect(bytes.readableBytes == file.byteCount)
        let read = try ReadFragments(bytes)
        let stored = try export.segments.flatMap { try ReadFragments($0.bytes).samples }
        #expect(read.samples.map(\.payload) == stored.map(\.payload))
        let origin = try #require(stored.map(\.presentation).min()) - 2_000_000
        #expect(read.samples.map(\.decode) == stored.map { $0.decode - origin })
        #expect(read.samples.map(\.presentation) == stored.map { $0.presentation - origin })
        #expect(read.boxes("sidx").count == 1 && read.boxes("free").count == 5)
        #expect(read.index.map(\.byteCount) == export.parts.map(\.mediaRange.count))
        #expect(read.index.map(\.duration) == [2_000_000, 2_000_000, 602_000_000, 2_000_000, 2_075_000])
        #expect(read.indexEnd + read.index.reduce(0) { $0 + $1.byteCount } == file.byteCount)
        #expect(zip(read.sequences, read.sequences.dropFirst()).allSatisfy { $0 < $1 })
    }

    @Test(
        "Every range is the slice of the whole file, and reads little more than it has",
        arguments: [UInt64(31), 32, 33])
    func ranges(seed: UInt64) async throws {
        let export = try export(seed: seed)
        let file = try VirtualMP4(export.parts)
        let whole = try await export.bytes(file, 0..<file.byteCount)
        var generator = SeededRandom(seed: seed)
        var ranges: [Range<Int>] = [0..<0, 0..<1, file.byteCount - 1..<file.byteCount, file.byteCount..<file.byteCount]
        for _ in 0..<400 {
            let start = Int.random(in: 0..<file.byteCount, using: &generator)
            let longest = [1, 20, 3_000, file.byteCount].randomElement(using: &generator) ?? 1
            ranges.append(start..<min(file.byteCount, start + .random(in: 1...longest, using: &generator)))
        }
        // Around each place that is changed.
        for box in try ReadFragments(whole).boxes("moof") {
            for offset in box.offset - 2..<box.offset + 80 { ranges.append(offset..<offset + 3) }
        }
        for range in ranges {
            let count = Atomic<Int>(0)
            let bytes = try await file.bytes(range) { part, wanted throws(ApusError) in
                count.add(wanted.count, ordering: .relaxed)
                return export.segments[part].bytes.getSlice(at: wanted.lowerBound, length: wanted.count) ?? ByteBuffer()
            }
            #expect(bytes == whole.getSlice(at: range.lowerBound, length: range.count), "\(range)")
            #expect(count.load(ordering: .relaxed) <= range.count + 5 * 4096)
        }
    }

    @Test("Runs with other sizes, codecs and tracks are in one file, each sample with its own entry")
    func formats() async throws {
        var export = Export()
        let wide = SegmentTrack(number: 0, configuration: FrameMaker.video(.h264))
        let small = SegmentTrack(number: 0, configuration: FrameMaker.video(.h264, width: 320))
        let other = SegmentTrack(number: 0, configuration: FrameMaker.video(.h265))
        let sound = SegmentTrack(number: 1, configuration: FrameMaker.sound(.g711a))
        for (index, tracks) in [[wide, sound], [small], [sound, other], [wide, sound]].enumerated() {
            var maker = SegmentMaker(seed: UInt64(40 + index))
            maker.tracks = tracks
            var writer = try SegmentWriter(try maker.description())
            for step in 0..<20 {
                for track in tracks {
                    // Run-relative times, as a sealer may have them.
                    let payload = ByteBuffer(bytes: [UInt8(index), track.number, UInt8(step)])
                    try writer.add(maker.frame(track.number, at: Int64(step) * 40_000, flags: .key, payload))
                }
            }
            export.add(try writer.finish(end: .configuration), shift: Self.start + Int64(index) * 5_000_000)
        }
        let file = try VirtualMP4(export.parts)
        let bytes = try await export.bytes(file, 0..<file.byteCount)
        let entries = ReadMP4(bytes).entries
        #expect(entries[1]?.map(\.width) == [640, 320] && entries[2]?.map(\.type) == ["alaw"])
        #expect(entries[3]?.map(\.type) == ["hev1"] && entries.count == 3)
        for sample in try ReadFragments(bytes).samples {
            let (index, number) = (Int(sample.payload[0]), sample.payload[1])
            #expect(sample.track == (number == 1 ? 2 : index == 2 ? 3 : 1))
            #expect(sample.entry == (number == 0 && index == 1 ? 2 : 1))
            #expect(sample.decode == 2_000_000 + Int64(index) * 5_000_000 + Int64(sample.payload[2]) * 40_000)
        }
    }

    @Test("Some fragments of a segment are a part, and a pause of days is in the index in milliseconds")
    func narrowed() async throws {
        var (maker, export) = (SegmentMaker(seed: 50), Export())
        export.add(try maker.segment(from: Self.start, seconds: 6).segment)
        export.add(try maker.segment(from: Self.start + 200_000_000_000, seconds: 2).segment)
        let footer = export.segments[0].footer
        let wanted = footer.fragments[2...4]
        export.parts[0].mediaRange = wanted[2].offset..<wanted[4].range.upperBound
        export.parts[0].fragmentOffsets = wanted.map(\.offset)
        export.parts[0].startMicroseconds = try #require(
            wanted.flatMap { footer.frames[$0.frames] }.map(\.presentationMicroseconds).min())
        let file = try VirtualMP4(export.parts, from: export.parts[0].startMicroseconds + 700_000)
        let bytes = try await export.bytes(file, 0..<file.byteCount)
        let read = try ReadFragments(bytes)
        #expect(read.samples.count == (3 + 2) * 75 && read.samples.map(\.presentation).min() == 2_000_000)
        #expect(read.indexTimescale == 1000 && read.index.map(\.duration).first == 199_998_000)
        // The edit list begins 0.7 s later than the samples.
        let edit = try #require(bytes.readableBytesView.firstRange(of: Array("elst".utf8)))
        #expect(bytes.getInteger(at: edit.upperBound + 16, as: Int64.self) == 2_700_000)
        for start in stride(from: 0, to: file.byteCount, by: 997) {
            let range = start..<min(start + 500, file.byteCount)
            #expect(try await export.bytes(file, range) == bytes.getSlice(at: range.lowerBound, length: range.count))
        }
    }

    @Test("An object that is no segment is refused with 10001, and one that is too short with 10021")
    func damaged() async throws {
        let export = try export(seed: 60, count: 1)
        let file = try VirtualMP4(export.parts)
        let media = export.parts[0].mediaRange
        var generator = SeededRandom(seed: 61)
        let headEnd = media.lowerBound + 200
        for round in 0..<2_000 {
            var object = export.segments[0].bytes
            for _ in 0..<3 {
                let place = Int.random(in: media.lowerBound..<headEnd, using: &generator)
                object.setInteger(UInt8.random(in: 0...255, using: &generator), at: place)
            }
            let changed = object
            do throws(ApusError) {
                let bytes = try await file.bytes(0..<file.byteCount) { _, wanted throws(ApusError) in
                    changed.getSlice(at: wanted.lowerBound, length: wanted.count) ?? ByteBuffer()
                }
                #expect(bytes.readableBytes == file.byteCount)
            } catch {
                #expect(error.code == .malformed, "round \(round): \(error)")
            }
        }
        await #expect(throws: ApusError(.storageFailed)) {
            try await file.bytes(0..<file.byteCount) { _, _ throws(ApusError) in ByteBuffer(bytes: [1]) }
        }
    }

    @Test("What cannot be a file is refused")
    func refusals() async throws {
        var export = try export(seed: 70, count: 1)
        #expect(throws: ApusError(.badParameter)) { try VirtualMP4([]) }
        let many = [VirtualMP4.Part](repeating: export.parts[0], count: VirtualMP4.partCountMax + 1)
        #expect(throws: ApusError(.frameTooLarge)) { try VirtualMP4(many) }
        let file = try VirtualMP4(export.parts)
        for range in [-1..<2, 0..<file.byteCount + 1] {
            await #expect(throws: ApusError(.badParameter)) {
                try await file.bytes(range) { _, _ throws(ApusError) in ByteBuffer() }
            }
        }
        export.parts[0].mediaRange = 5..<5
        #expect(throws: ApusError(.badParameter)) { try VirtualMP4(export.parts) }
    }
}

import ApusCore
import ApusCrypto
import ApusMedia
import NIOCore
import Testing

@Suite("Footers of segments: damage is refused with 10001, whatever it is")
struct SegmentFooterTests {
    private struct Footer {
        var bytes: [UInt8]
        var objectByteCount: Int
        var value: SegmentFooter

        init(_ segment: Segment) throws {
            let object = Array(segment.bytes.readableBytesView)
            objectByteCount = object.count
            let count = try #require(
                SegmentFooter.byteCount(trailer: Array(object.suffix(SegmentFooter.trailerByteCount))))
            bytes = Array(object.suffix(count))
            value = segment.footer
        }
    }

    private func expectDamaged(_ bytes: [UInt8], _ objectByteCount: Int, _ comment: @autoclosure () -> String) {
        do throws(ApusError) {
            _ = try SegmentFooter(decoding: bytes, objectByteCount: objectByteCount)
            Issue.record("a damaged footer was taken: \(comment())")
        } catch {
            #expect(error.code == .malformed || error.code == .versionUnsupported, "\(error): \(comment())")
        }
    }

    @Test("5,000 random changes, cuts and insertions are refused, each of them")
    func mutations() throws {
        var maker = SegmentMaker(seed: 20)
        let footer = try Footer(maker.segment(from: 1_790_000_000_000_000, seconds: 2).segment)
        var generator = SeededRandom(seed: 21)
        for round in 0..<5_000 {
            var bytes = footer.bytes
            var object = footer.objectByteCount
            switch Int.random(in: 0..<5, using: &generator) {
            case 0:
                bytes[Int.random(in: bytes.indices, using: &generator)] ^=
                    1 << UInt8.random(in: 0..<8, using: &generator)
            case 1: bytes.removeFirst(Int.random(in: 1..<bytes.count, using: &generator))
            case 2: bytes.removeLast(Int.random(in: 1..<bytes.count, using: &generator))
            case 3:
                bytes.insert(
                    .random(in: 0...255, using: &generator), at: .random(in: 0...bytes.count, using: &generator))
            default: object += [-1, 1, -16, 1 << 20].randomElement(using: &generator) ?? 1
            }
            expectDamaged(bytes, object, "round \(round)")
        }
    }

    @Test(
        "5,000 random changes with the right checksum never crash the reader, and never give impossible frames"
    )
    func forged() throws {
        var maker = SegmentMaker(seed: 22)
        let footer = try Footer(maker.segment(from: 1_790_000_000_000_000, seconds: 1).segment)
        let end = footer.bytes.count - 32
        var generator = SeededRandom(seed: 23)
        var takenCount = 0
        for _ in 0..<5_000 {
            var bytes = footer.bytes
            for _ in 0..<Int.random(in: 1...4, using: &generator) {
                let extremes: [UInt8] = [0, 1, 0x7f, 0x80, 0xfe, 0xff]
                let value =
                    Bool.random(using: &generator)
                    ? UInt8.random(in: 0...255, using: &generator) : extremes.randomElement(using: &generator) ?? 0
                bytes[Int.random(in: 24..<end, using: &generator)] = value
            }
            bytes.replaceSubrange(end..<end + 16, with: SHA256.hash(data: Array(bytes[..<end])).prefix(16))
            guard let found = try? SegmentFooter(decoding: bytes, objectByteCount: footer.objectByteCount) else {
                continue
            }
            takenCount += 1
            #expect(found.frames.allSatisfy { found.mediaRange.contains($0.range.lowerBound) })
            #expect(found.frames.allSatisfy { $0.range.upperBound <= found.mediaRange.upperBound })
            #expect(found.fragments.map(\.frames.count).reduce(0, +) == found.frames.count)
        }
        // Digests, the label, the anchor and flags of frames may have any value.
        #expect(takenCount > 50)
    }

    @Test("Whole, truncated at each byte, and with one bit changed at each byte", arguments: [UInt64(24), 25])
    func everywhere(seed: UInt64) throws {
        var maker = SegmentMaker(seed: seed)
        maker.tracks = [SegmentTrack(number: 7, configuration: FrameMaker.video(.h265))]
        var writer = try SegmentWriter(try maker.description())
        for index in 0..<5 { try writer.add(maker.frame(7, at: Int64(index) * 33_333, flags: .key, maker.payload())) }
        let footer = try Footer(try writer.finish(end: .stopped))
        #expect(try SegmentFooter(decoding: footer.bytes, objectByteCount: footer.objectByteCount) == footer.value)
        for index in footer.bytes.indices {
            expectDamaged(Array(footer.bytes[..<index]), footer.objectByteCount, "cut at \(index)")
            var bytes = footer.bytes
            bytes[index] ^= 0x10
            expectDamaged(bytes, footer.objectByteCount, "changed at \(index)")
        }
    }

    @Test("Random segments are read as they were written", arguments: UInt64(0)..<60)
    func random(seed: UInt64) throws {
        var maker = SegmentMaker(seed: seed)
        var generator = SeededRandom(seed: seed &+ 1_000)
        let count = Int.random(in: 1...8, using: &generator)
        maker.tracks = (0..<count).map { index in
            let number = UInt8(index * 31)
            return Bool.random(using: &generator)
                ? SegmentTrack(number: number, configuration: FrameMaker.video(.h264))
                : SegmentTrack(number: number, configuration: FrameMaker.sound(.opus))
        }
        maker.sequence = UInt64.random(in: 0...WireNumber.sequenceMax - 100_000, using: &generator)
        var time = Int64.random(in: 1_000_000_000...SegmentDescription.microsecondsMax / 2, using: &generator)
        var writer = try SegmentWriter(try maker.description(label: []))
        var sent: [SegmentFrame] = []
        for _ in 0..<Int.random(in: 1...300, using: &generator) {
            time += Int64.random(in: -50_000...120_000, using: &generator)
            if Int.random(in: 0..<40, using: &generator) == 0 {
                time += .random(in: 0...5_000_000_000, using: &generator)
            }
            if Bool.random(using: &generator) { maker.sequence += UInt64.random(in: 0...300, using: &generator) }
            let track = maker.tracks.randomElement(using: &generator)?.number ?? 0
            let composition =
                Bool.random(using: &generator) ? Int32.random(in: -60_000_000...60_000_000, using: &generator) : 0
            let flags = MediaFlags(rawValue: .random(in: 0...255, using: &generator))
            let frame = maker.frame(track, at: time, composition: composition, flags: flags, maker.payload(0...90))
            try writer.add(frame)
            sent.append(frame)
        }
        let end = SegmentEnd.allCases.randomElement(using: &generator) ?? .continues
        let footer = try Footer(try writer.finish(end: end))
        let found = try SegmentFooter(decoding: footer.bytes, objectByteCount: footer.objectByteCount)
        #expect(found == footer.value && found.end == end)
        #expect(found.frames.map(\.position) == sent.map(\.position))
        #expect(found.frames.map(\.decodeMicroseconds) == sent.map(\.decodeMicroseconds))
        #expect(found.frames.map(\.compositionMicroseconds) == sent.map(\.compositionMicroseconds))
        #expect(found.frames.map(\.flags) == sent.map { $0.flags.intersection([.key, .discardable]) })
        #expect(found.frames.map(\.range.count) == sent.map(\.payload.readableBytes))
        #expect(found.startMicroseconds == sent.map { $0.decodeMicroseconds + Int64($0.compositionMicroseconds) }.min())
    }

    @Test("A trailer is found by its name, and its size is bounded")
    func trailer() {
        let magic = Array("ApusSegment1".utf8)
        #expect(SegmentFooter.byteCount(trailer: magic + [0, 0, 1, 0]) == 256)
        for wrong in [[], magic, magic + [0, 0, 0, 15], magic + [0, 64, 0, 1], magic + [255, 255, 255, 255]] {
            #expect(SegmentFooter.byteCount(trailer: wrong) == nil)
        }
        #expect(SegmentFooter.byteCount(trailer: Array("ApusSegment2".utf8) + [0, 0, 1, 0]) == nil)
    }
}

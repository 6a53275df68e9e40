import ApusCore
import ApusMedia
import NIOCore
import Testing

/// What a test reads of a fragmented MP4, from its boxes alone: the oracle of the writers.
struct ReadFragments {
    struct Box: Equatable {
        var type: String
        var offset: Int
        var byteCount: Int
    }
    struct Sample: Hashable {
        var track: UInt32
        /// The sample entry.
        var entry: UInt32
        var decode: Int64
        var duration: Int64
        var presentation: Int64
        var isSync: Bool
        var payload: [UInt8]
    }
    struct IndexEntry: Equatable {
        var byteCount: Int
        var duration: Int64
        var startsWithSync: Bool
    }

    /// The boxes of the file.
    var boxes: [Box] = []
    var samples: [Sample] = []
    var sequences: [UInt32] = []
    /// Of the first `sidx`.
    var indexStart: Int64 = 0
    var indexTimescale: UInt32 = 0
    var indexEnd = 0
    var index: [IndexEntry] = []
    private let bytes: ByteBuffer

    init(_ bytes: ByteBuffer) throws {
        self.bytes = bytes
        boxes = try Self.boxes(bytes, 0..<bytes.readableBytes)
        for box in boxes {
            switch box.type {
            case "sidx" where index.isEmpty: readIndex(box)
            case "moof": try readFragment(box)
            default: break
            }
        }
    }

    func boxes(_ type: String) -> [Box] { boxes.filter { $0.type == type } }

    private static func boxes(_ bytes: ByteBuffer, _ range: Range<Int>) throws -> [Box] {
        var (found, offset) = ([Box](), range.lowerBound)
        while offset < range.upperBound {
            guard let size = bytes.getInteger(at: offset, as: UInt32.self).map(Int.init), size >= 8,
                offset + size <= range.upperBound, let type = bytes.getString(at: offset + 4, length: 4)
            else { throw ApusError(.malformed, "no box at \(offset)") }
            found.append(Box(type: type, offset: offset, byteCount: size))
            offset += size
        }
        return found
    }

    private func number<Value: FixedWidthInteger>(_ offset: Int, _: Value.Type) -> Value {
        bytes.getInteger(at: offset, as: Value.self) ?? 0
    }

    private mutating func readIndex(_ box: Box) {
        indexTimescale = number(box.offset + 16, UInt32.self)
        indexStart = number(box.offset + 20, Int64.self)
        indexEnd = box.offset + box.byteCount
        let count = Int(number(box.offset + 38, UInt16.self))
        for entry in 0..<count {
            let place = box.offset + 40 + entry * 12
            index.append(
                IndexEntry(
                    byteCount: Int(number(place, UInt32.self)), duration: Int64(number(place + 4, UInt32.self)),
                    startsWithSync: number(place + 8, UInt32.self) == 0x9000_0000))
        }
    }

    private mutating func readFragment(_ moof: Box) throws {
        for box in try Self.boxes(bytes, moof.offset + 8..<moof.offset + moof.byteCount) {
            if box.type == "mfhd" { sequences.append(number(box.offset + 12, UInt32.self)) }
            if box.type == "traf" { try readTrack(box, moof: moof) }
        }
    }

    private mutating func readTrack(_ traf: Box, moof: Box) throws {
        var (track, entry, time) = (UInt32(0), UInt32(1), Int64(0))
        for box in try Self.boxes(bytes, traf.offset + 8..<traf.offset + traf.byteCount) {
            switch box.type {
            case "tfhd":
                track = number(box.offset + 12, UInt32.self)
                if number(box.offset + 8, UInt32.self) & 2 != 0 { entry = number(box.offset + 16, UInt32.self) }
            case "tfdt": time = number(box.offset + 12, Int64.self)
            case "trun":
                let count = Int(number(box.offset + 12, UInt32.self))
                var place = moof.offset + Int(number(box.offset + 16, UInt32.self))
                for sample in 0..<count {
                    let offset = box.offset + 20 + sample * 16
                    let (duration, size) = (number(offset, UInt32.self), Int(number(offset + 4, UInt32.self)))
                    let payload = bytes.getBytes(at: place, length: size)
                    guard let payload else { throw ApusError(.malformed, "a sample is behind the end") }
                    samples.append(
                        Sample(
                            track: track, entry: entry, decode: time, duration: Int64(duration),
                            presentation: time + Int64(number(offset + 12, Int32.self)),
                            isSync: number(offset + 8, UInt32.self) == 0x0200_0000, payload: payload))
                    place += size
                    time += Int64(duration)
                }
            default: break
            }
        }
    }
}

/// Makes segments of made-up frames.
struct SegmentMaker {
    var generator: SeededRandom
    var sequence: UInt64 = 0
    var epoch: UInt32 = 3
    var tracks = [
        SegmentTrack(number: 0, configuration: FrameMaker.video(.h264, count: 2)),
        SegmentTrack(number: 1, configuration: FrameMaker.sound(.g711a)),
    ]
    var fragment: UInt32 = 1

    init(seed: UInt64) { generator = SeededRandom(seed: seed) }

    func description(label: [UInt8] = Array("home/cam".utf8), sequence: UInt32? = nil) throws -> SegmentDescription {
        let run = try #require(SegmentRunID(bytes: Array(0..<16)))
        return SegmentDescription(
            label: label, run: run, anchorMicroseconds: 1_700_000_000_000_000, tracks: tracks,
            sequence: sequence ?? fragment)
    }

    mutating func payload(_ range: ClosedRange<Int> = 0...400) -> ByteBuffer {
        let count = Int.random(in: range, using: &generator)
        return ByteBuffer(bytes: (0..<count).map { _ in UInt8.random(in: 0...255, using: &generator) })
    }

    mutating func frame(
        _ track: UInt8, at microseconds: Int64, composition: Int32 = 0, flags: MediaFlags = [], _ payload: ByteBuffer
    ) -> SegmentFrame {
        defer { sequence += 1 }
        return SegmentFrame(
            track: track, position: FramePosition(epoch: epoch, sequence: sequence), decodeMicroseconds: microseconds,
            compositionMicroseconds: composition, flags: flags, payload: payload)
    }

    /// Video at 25 frames a second with two B-frames between others and a key frame each second, and sound of 20 ms.
    mutating func frames(from start: Int64, seconds: Int) -> [SegmentFrame] {
        var times: [(time: Int64, track: UInt8, index: Int)] = []
        for index in 0..<seconds * 25 { times.append((start + Int64(index) * 40_000, 0, index)) }
        for index in 0..<seconds * 50 { times.append((start + 5_000 + Int64(index) * 20_000, 1, index)) }
        return times.sorted { ($0.time, $0.track) < ($1.time, $1.track) }.map { time, track, index in
            guard track == 0 else { return frame(1, at: time, payload(160...160)) }
            // I P B B P B B …: the offsets of two frames of delay.
            let isKey = index % 25 == 0
            let composition: Int32 = isKey ? 80_000 : index % 25 % 3 == 1 ? 160_000 : 40_000
            return frame(0, at: time, composition: composition, flags: isKey ? .key : [], payload())
        }
    }

    mutating func segment(
        from start: Int64, seconds: Int, until next: [UInt8: Int64] = [:], end: SegmentEnd = .continues
    ) throws -> (segment: Segment, frames: [SegmentFrame]) {
        let frames = frames(from: start, seconds: seconds)
        var writer = try SegmentWriter(try description())
        for frame in frames { try writer.add(frame) }
        let segment = try writer.finish(until: next, end: end)
        fragment += UInt32(segment.footer.fragments.count)
        return (segment, frames)
    }
}

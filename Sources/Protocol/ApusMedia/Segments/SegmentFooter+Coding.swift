package import ApusCore
import ApusCrypto
import Foundation
import NIOCore

/// The flags of a frame in a footer. The low three bits are the index of its track.
private enum FrameCode {
    static let track: UInt8 = 7
    static let key: UInt8 = 8
    static let discardable: UInt8 = 16
    /// The frame has a composition offset.
    static let composition: UInt8 = 32
    /// The position is not the one after the frame before.
    static let gap: UInt8 = 64
    static let reserved: UInt8 = 128
}

/// The times of a track, of which the next frame's is written as a difference.
private struct TrackClock {
    var time: Int64
    var step: Int64 = 0
}

extension SegmentFooter {
    // MARK: Encoding

    /// Appends the footer's box.
    func encode(into output: inout ByteBuffer) {
        let start = output.writerIndex
        output.writeInteger(UInt32(0))
        output.writeStaticString("uuid")
        output.writeBytes(Self.boxType)
        output.writeMultipleIntegers(Self.version, end.rawValue, UInt16(0))
        output.writeBytes(description.run.bytes)
        output.writeMultipleIntegers(description.anchorMicroseconds, startMicroseconds, durationMicroseconds)
        output.writeMultipleIntegers(first.epoch, first.sequence, last.sequence, description.sequence)
        output.writeMultipleIntegers(
            UInt32(initByteCount), UInt32(mediaRange.lowerBound), UInt32(mediaRange.upperBound))
        output.writeBytes(payloadDigest)
        output.writeInteger(UInt16(description.label.count))
        output.writeBytes(description.label)
        output.writeInteger(UInt8(description.tracks.count))
        for track in description.tracks {
            var configuration = ByteBuffer()
            track.configuration.encode(into: &configuration)
            output.writeMultipleIntegers(track.number, UInt16(configuration.readableBytes))
            output.writeImmutableBuffer(configuration)
        }
        output.writeMultipleIntegers(UInt32(fragments.count), UInt32(frames.count))
        for fragment in fragments {
            output.writeVarint(UInt64(fragment.headByteCount))
            output.writeVarint(UInt64(fragment.frames.count))
        }
        encodeFrames(into: &output)
        let count = output.writerIndex - start + Self.checkByteCount + Self.trailerByteCount
        output.setInteger(UInt32(count), at: start)
        let check = output.getSlice(at: start, length: output.writerIndex - start).map(Self.check) ?? []
        output.writeBytes(check)
        output.writeBytes(Self.trailerMagic)
        output.writeInteger(UInt32(count))
    }

    private func encodeFrames(into output: inout ByteBuffer) {
        let indexes = Dictionary(
            uniqueKeysWithValues: description.tracks.enumerated().map { ($0.element.number, UInt8($0.offset)) })
        var clocks = [TrackClock](repeating: TrackClock(time: startMicroseconds), count: description.tracks.count)
        var expected = first.sequence
        for frame in frames {
            guard let index = indexes[frame.track] else { continue }
            let hasComposition = frame.compositionMicroseconds != 0
            let isNext = frame.position.sequence == expected
            var code = index
            if frame.flags.contains(.key) { code |= FrameCode.key }
            if frame.flags.contains(.discardable) { code |= FrameCode.discardable }
            if hasComposition { code |= FrameCode.composition }
            if !isNext { code |= FrameCode.gap }
            output.writeInteger(code)
            output.writeVarint(UInt64(frame.range.count))
            let step = frame.decodeMicroseconds - clocks[Int(index)].time
            output.writeSignedVarint(step - clocks[Int(index)].step)
            clocks[Int(index)] = TrackClock(time: frame.decodeMicroseconds, step: step)
            if hasComposition { output.writeSignedVarint(Int64(frame.compositionMicroseconds)) }
            if !isNext { output.writeVarint(frame.position.sequence - expected) }
            expected = frame.position.sequence + 1
        }
    }

    private static func check(_ bytes: ByteBuffer) -> [UInt8] {
        Array(bytes.withUnsafeReadableBytes { SHA256.hash(data: $0) }.prefix(checkByteCount))
    }

    // MARK: Decoding

    /// The size of the footer of an object, from the object's last ``trailerByteCount`` bytes; nil if they are no
    /// trailer.
    package static func byteCount(trailer: [UInt8]) -> Int? {
        guard trailer.count == trailerByteCount, trailer.starts(with: trailerMagic) else { return nil }
        let count = trailer.suffix(4).reduce(0) { $0 << 8 | Int($1) }
        return (trailerByteCount...byteCountMax).contains(count) ? count : nil
    }

    /// Decodes the footer of an object.
    ///
    /// - Parameters:
    ///   - bytes: the end of the object, from the footer's first byte on (``byteCount(trailer:)``).
    ///   - objectByteCount: the size of the object.
    /// - Throws: 10001 if the footer is damaged, or is not of an object of this size; 10003 if its version is unknown.
    package init(decoding bytes: [UInt8], objectByteCount: Int) throws(ApusError) {
        let (count, checked) = (bytes.count, bytes.count - Self.trailerByteCount - Self.checkByteCount)
        guard checked > 0, count <= objectByteCount,
            Self.byteCount(trailer: Array(bytes.suffix(Self.trailerByteCount))) == count
        else { throw Self.damaged("it has no trailer") }
        var reader = FooterReader(ByteBuffer(bytes: bytes[..<checked]))
        guard Self.check(reader.bytes) == Array(bytes[checked..<checked + Self.checkByteCount]) else {
            throw Self.damaged("its checksum is wrong")
        }
        guard try reader.integer(UInt32.self) == UInt32(count), try reader.bytes(4) == Array("uuid".utf8),
            try reader.bytes(Self.boxType.count) == Self.boxType
        else { throw Self.damaged("it is another box") }
        let version = try reader.integer(UInt8.self)
        guard version == Self.version else {
            throw ApusError(.versionUnsupported, "segment footers of version \(version) are not supported")
        }
        self = try Self.decode(&reader, footerOffset: objectByteCount - count)
        guard reader.bytes.readableBytes == 0 else { throw Self.damaged("it is longer than its content") }
    }

    static func damaged(_ reason: String) -> ApusError {
        ApusError(.malformed, "the segment's footer is damaged: \(reason)")
    }

    private static func decode(_ reader: inout FooterReader, footerOffset: Int) throws(ApusError) -> SegmentFooter {
        guard let end = SegmentEnd(rawValue: try reader.integer()), try reader.integer(UInt16.self) == 0,
            let run = SegmentRunID(bytes: try reader.bytes(SegmentRunID.byteCount))
        else { throw damaged("its head is not valid") }
        let (anchor, start) = (try reader.time(), try reader.time())
        let duration = try reader.time()
        let epoch: UInt32 = try reader.integer()
        let (first, last) = (try reader.sequence(), try reader.sequence())
        let sequence: UInt32 = try reader.integer()
        let initByteCount = Int(try reader.integer(UInt32.self))
        let mediaStart = Int(try reader.integer(UInt32.self))
        let mediaEnd = Int(try reader.integer(UInt32.self))
        guard duration >= 0, first <= last, initByteCount == mediaStart, mediaStart < mediaEnd, mediaEnd == footerOffset
        else { throw damaged("its numbers contradict one another") }
        let digest = try reader.bytes(digestByteCount)
        let label = try reader.bytes(Int(try reader.integer(UInt16.self)))
        let tracks = try decodeTracks(&reader)
        let description = SegmentDescription(
            label: label, run: run, anchorMicroseconds: anchor, tracks: tracks, sequence: sequence)
        do throws(ApusError) { try description.check() } catch { throw damaged(error.message) }
        let fragmentCount = Int(try reader.integer(UInt32.self))
        let frameCount = Int(try reader.integer(UInt32.self))
        // Each has at least two bytes, so that a number cannot make this reserve more than the footer has.
        guard (1...frameCountMax).contains(frameCount), (1...frameCount).contains(fragmentCount),
            (frameCount + fragmentCount) * 2 <= reader.bytes.readableBytes
        else { throw damaged("it has too many frames") }
        var footer = SegmentFooter(
            description: description, end: end, startMicroseconds: start, durationMicroseconds: duration,
            payloadDigest: digest, initByteCount: initByteCount, mediaRange: mediaStart..<mediaEnd, fragments: [],
            frames: [])
        let lengths = try decodeFragments(&reader, count: fragmentCount, frameCount: frameCount)
        let position = FramePosition(epoch: epoch, sequence: first)
        try footer.decodeFrames(&reader, count: frameCount, first: position)
        guard footer.last.sequence == last, footer.frames.map(\.presentationMicroseconds).min() == start else {
            throw damaged("its frames are not those of its head")
        }
        try footer.place(lengths)
        return footer
    }

    private static func decodeTracks(_ reader: inout FooterReader) throws(ApusError) -> [SegmentTrack] {
        let count = try reader.integer(UInt8.self)
        guard count <= TrackConfiguration.trackCountMax else { throw damaged("it has too many tracks") }
        var tracks: [SegmentTrack] = []
        for _ in 0..<count {
            let number: UInt8 = try reader.integer()
            let bytes = try reader.bytes(Int(try reader.integer(UInt16.self)))
            tracks.append(
                SegmentTrack(number: number, configuration: try TrackConfiguration(decoding: ByteBuffer(bytes: bytes))))
        }
        return tracks
    }

    /// The sizes of the fragments' heads and their numbers of frames.
    private static func decodeFragments(
        _ reader: inout FooterReader, count: Int, frameCount: Int
    ) throws(ApusError) -> [(headByteCount: Int, frameCount: Int)] {
        var (fragments, sum) = ([(headByteCount: Int, frameCount: Int)](), 0)
        for _ in 0..<count {
            let head = try reader.count(max: byteCountMax)
            let frames = try reader.count(max: frameCount - sum)
            guard head >= 8, frames > 0 else { throw damaged("a fragment is empty") }
            sum += frames
            fragments.append((head, frames))
        }
        guard sum == frameCount else { throw damaged("its fragments have not all frames") }
        return fragments
    }

    /// Reads the frames. Their ranges begin at 0 until ``place(_:)``.
    private mutating func decodeFrames(
        _ reader: inout FooterReader, count: Int, first: FramePosition
    ) throws(ApusError) {
        let tracks = description.tracks.map(\.number)
        var clocks = [TrackClock](repeating: TrackClock(time: startMicroseconds), count: tracks.count)
        var expected = first.sequence
        frames.reserveCapacity(count)
        for _ in 0..<count {
            let code: UInt8 = try reader.integer()
            let index = Int(code & FrameCode.track)
            guard code & FrameCode.reserved == 0, index < tracks.count else {
                throw Self.damaged("a frame's track is unknown")
            }
            let byteCount = try reader.count(max: MediaFrame.joinedByteCountMax)
            let change = try reader.signed(max: SegmentDescription.microsecondsMax * 4)
            let step = clocks[index].step + change
            // At most 2⁵⁷ + 2⁵⁸: no sum overflows.
            guard step.magnitude <= UInt64(SegmentDescription.microsecondsMax) * 2 else {
                throw Self.damaged("a time is out of bounds")
            }
            let time = clocks[index].time + step
            guard (0...SegmentDescription.microsecondsMax).contains(time) else {
                throw Self.damaged("a time is out of bounds")
            }
            clocks[index] = TrackClock(time: time, step: step)
            let composition =
                code & FrameCode.composition == 0 ? 0 : try reader.signed(max: Int64(Int32.max))
            let gap = code & FrameCode.gap == 0 ? 0 : try reader.count(max: Int(WireNumber.sequenceMax))
            let (sequence, isBeyond) = expected.addingReportingOverflow(UInt64(gap))
            guard !isBeyond, sequence <= WireNumber.sequenceMax else {
                throw Self.damaged("a position is out of bounds")
            }
            expected = sequence + 1
            var flags: MediaFlags = code & FrameCode.key != 0 ? [.key] : []
            if code & FrameCode.discardable != 0 { flags.insert(.discardable) }
            frames.append(
                Frame(
                    track: tracks[index], position: FramePosition(epoch: first.epoch, sequence: sequence),
                    decodeMicroseconds: time, compositionMicroseconds: Int32(composition), flags: flags,
                    range: 0..<byteCount))
        }
    }

    /// Gives the fragments and frames their places in the object: a fragment has the payloads of one track after those
    /// of another, in the order of the tracks.
    ///
    /// - Throws: 10001 if they do not fill ``mediaRange``.
    mutating func place(_ lengths: [(headByteCount: Int, frameCount: Int)]) throws(ApusError) {
        var offset = mediaRange.lowerBound + MP4Boxes.indexByteCount(entries: lengths.count)
        var firstFrame = 0
        fragments = []
        fragments.reserveCapacity(lengths.count)
        for (headByteCount, frameCount) in lengths {
            let range = firstFrame..<firstFrame + frameCount
            var place = offset + headByteCount + 8
            for track in description.tracks {
                for index in range where frames[index].track == track.number {
                    let count = frames[index].range.count
                    frames[index].range = place..<place + count
                    place += count
                }
            }
            fragments.append(
                Fragment(offset: offset, byteCount: place - offset, headByteCount: headByteCount, frames: range))
            offset = place
            firstFrame = range.upperBound
        }
        guard offset == mediaRange.upperBound else { throw Self.damaged("its frames do not fill the object") }
    }
}

/// Reads the fields of a footer with their bounds. Every failure is 10001.
private struct FooterReader {
    var bytes: ByteBuffer

    init(_ bytes: ByteBuffer) { self.bytes = bytes }

    mutating func integer<Value: FixedWidthInteger>(_: Value.Type = Value.self) throws(ApusError) -> Value {
        guard let value = bytes.readInteger(as: Value.self) else { throw SegmentFooter.damaged("it is truncated") }
        return value
    }

    mutating func bytes(_ count: Int) throws(ApusError) -> [UInt8] {
        guard let value = bytes.readBytes(length: count) else { throw SegmentFooter.damaged("it is truncated") }
        return value
    }

    mutating func time() throws(ApusError) -> Int64 {
        let value: Int64 = try integer()
        guard value.magnitude <= UInt64(SegmentDescription.microsecondsMax) * 2 else {
            throw SegmentFooter.damaged("a time is out of bounds")
        }
        return value
    }

    mutating func sequence() throws(ApusError) -> UInt64 {
        let value: UInt64 = try integer()
        guard value <= WireNumber.sequenceMax else { throw SegmentFooter.damaged("a position is out of bounds") }
        return value
    }

    mutating func varint() throws(ApusError) -> UInt64 {
        guard let value = bytes.readVarint() else { throw SegmentFooter.damaged("a number is not valid") }
        return value
    }

    mutating func count(max: Int) throws(ApusError) -> Int {
        let value = try varint()
        guard value <= UInt64(max) else { throw SegmentFooter.damaged("a number is out of bounds") }
        return Int(value)
    }

    mutating func signed(max: Int64) throws(ApusError) -> Int64 {
        let value = try varint()
        let signed = Int64(bitPattern: value >> 1) ^ -Int64(bitPattern: value & 1)
        guard signed.magnitude <= UInt64(max) else { throw SegmentFooter.damaged("a number is out of bounds") }
        return signed
    }
}

extension ByteBuffer {
    /// Writes a number in groups of seven bits, the lowest first.
    fileprivate mutating func writeVarint(_ value: UInt64) {
        var rest = value
        while rest > 0x7f {
            writeInteger(UInt8(truncatingIfNeeded: rest) | 0x80)
            rest >>= 7
        }
        writeInteger(UInt8(rest))
    }

    /// Small numbers of either sign are short.
    fileprivate mutating func writeSignedVarint(_ value: Int64) {
        writeVarint(UInt64(bitPattern: value << 1 ^ value >> 63))
    }

    /// Nil if it is truncated, longer than 64 bits, or longer than it needs to be.
    fileprivate mutating func readVarint() -> UInt64? {
        var (value, shift) = (UInt64(0), UInt64(0))
        while let byte = readInteger(as: UInt8.self) {
            guard shift < 63 || byte <= 1 else { return nil }
            value |= UInt64(byte & 0x7f) << shift
            if byte < 0x80 { return byte == 0 && shift > 0 ? nil : value }
            shift += 7
            guard shift < 64 else { return nil }
        }
        return nil
    }
}

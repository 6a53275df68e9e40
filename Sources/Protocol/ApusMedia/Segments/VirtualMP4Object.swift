import ApusCore
import NIOCore

/// The object of one part of a virtual file, and the changes that its fragments need.
struct VirtualMP4Object: Sendable {
    typealias Read = @Sendable (_ part: Int, _ range: Range<Int>) async throws(ApusError) -> ByteBuffer

    /// New bytes at an offset of the object.
    struct Patch: Equatable {
        var offset: Int
        var bytes: [UInt8]
    }

    /// What is read of a fragment's head at first. It has the heads of a hundred frames.
    private static let headGuess = 2048
    /// The largest head of a fragment.
    private static let headByteCountMax = 1 << 20
    /// The most fragments of a segment.
    private static let fragmentCountMax = SegmentFooter.frameCountMax
    /// How the numbers of a part's fragments begin: each part has room for so many.
    private static let fragmentsPerPart: UInt32 = 1 << 15

    let file: VirtualMP4
    let index: Int

    private var part: VirtualMP4.Part { file.parts[index] }

    /// The bytes of a range of the object, changed.
    func bytes(_ range: Range<Int>, read: Read) async throws(ApusError) -> ByteBuffer {
        var bytes = try await Self.exactly(range, of: index, read)
        let window = Window(start: range.lowerBound, bytes: bytes, index: index)
        var patches: [Patch] = []
        let offsets: [Int]
        if let known = part.fragmentOffsets {
            offsets = known
        } else {
            let index = try await readIndex(window, read)
            offsets = index.offsets
            // The index of the file is the first one. A player would mistake this one for it.
            patches.append(Patch(offset: part.mediaRange.lowerBound + 4, bytes: Array("free".utf8)))
        }
        guard offsets.allSatisfy(part.mediaRange.contains) else { throw Self.malformed }
        for (number, offset) in offsets.enumerated() {
            let end = number + 1 < offsets.count ? offsets[number + 1] : part.mediaRange.upperBound
            guard offset < range.upperBound, end > range.lowerBound else { continue }
            let head = try await readHead(offset, end: end, window, read)
            if offset + head.readableBytes <= range.lowerBound { continue }
            patches += try self.patches(head, at: offset, number: UInt32(number))
        }
        for patch in patches { apply(patch, to: &bytes, start: range.lowerBound) }
        return bytes
    }

    private static let malformed = ApusError(.malformed, "the object is not a segment of a recording")

    private func apply(_ patch: Patch, to bytes: inout ByteBuffer, start: Int) {
        for (index, byte) in patch.bytes.enumerated() {
            let place = patch.offset + index - start
            if place >= 0, place < bytes.readableBytes { bytes.setInteger(byte, at: bytes.readerIndex + place) }
        }
    }

    // MARK: Reading

    /// What was read anyway, so that heads within it are not read again.
    private struct Window {
        var start: Int
        var bytes: ByteBuffer
        var index: Int

        func bytes(_ range: Range<Int>, _ read: Read) async throws(ApusError) -> ByteBuffer {
            if range.lowerBound >= start, range.upperBound <= start + bytes.readableBytes,
                let slice = bytes.getSlice(at: bytes.readerIndex + range.lowerBound - start, length: range.count)
            {
                return slice
            }
            return try await VirtualMP4Object.exactly(range, of: index, read)
        }
    }

    private static func exactly(_ range: Range<Int>, of index: Int, _ read: Read) async throws(ApusError) -> ByteBuffer
    {
        let bytes = try await read(index, range)
        guard bytes.readableBytes == range.count else {
            throw ApusError(.storageFailed, "an object of the recording is shorter than the index says")
        }
        return bytes
    }

    /// The offsets of the fragments, from the segment's `sidx`.
    private func readIndex(_ window: Window, _ read: Read) async throws(ApusError) -> (offsets: [Int], end: Int) {
        let media = part.mediaRange
        let guess = min(media.count, Self.headGuess)
        let start = media.lowerBound
        var bytes = try await window.bytes(start..<start + guess, read)
        guard let size = bytes.getInteger(at: bytes.readerIndex, as: UInt32.self).map(Int.init),
            size >= MP4Boxes.indexByteCount(entries: 1), size <= media.count,
            bytes.getString(at: bytes.readerIndex + 4, length: 4)?.isExactly("sidx") == true,
            let count = bytes.getInteger(at: bytes.readerIndex + 38, as: UInt16.self).map(Int.init),
            size == MP4Boxes.indexByteCount(entries: count), count <= Self.fragmentCountMax
        else { throw Self.malformed }
        if size > guess { bytes = try await window.bytes(start..<start + size, read) }
        var (offsets, offset) = ([Int](), start + size)
        for entry in 0..<count {
            guard let length = bytes.getInteger(at: bytes.readerIndex + 40 + entry * 12, as: UInt32.self) else {
                throw Self.malformed
            }
            offsets.append(offset)
            offset += Int(length & 0x7fff_ffff)
        }
        guard offset == media.upperBound else { throw Self.malformed }
        return (offsets, offset)
    }

    /// The `moof` at an offset.
    private func readHead(_ offset: Int, end: Int, _ window: Window, _ read: Read) async throws(ApusError) -> ByteBuffer
    {
        let guess = min(end - offset, Self.headGuess)
        let bytes = try await window.bytes(offset..<offset + guess, read)
        guard let size = bytes.getInteger(at: bytes.readerIndex, as: UInt32.self).map(Int.init), size >= 8,
            size <= min(end - offset, Self.headByteCountMax),
            bytes.getString(at: bytes.readerIndex + 4, length: 4)?.isExactly("moof") == true
        else { throw Self.malformed }
        if size > guess { return try await window.bytes(offset..<offset + size, read) }
        guard let head = bytes.getSlice(at: bytes.readerIndex, length: size) else { throw Self.malformed }
        return head
    }

    // MARK: Changes

    /// The changes of a fragment's head.
    ///
    /// - Parameter number: of the fragment in its part.
    func patches(_ head: ByteBuffer, at offset: Int, number: UInt32) throws(ApusError) -> [Patch] {
        var patches: [Patch] = []
        let sequence = UInt32(truncatingIfNeeded: index) &* Self.fragmentsPerPart &+ number &+ 1
        for box in try Self.boxes(of: head, in: 8..<head.readableBytes) {
            if box.type.isExactly("mfhd") {
                guard box.content.count == 8 else { throw Self.malformed }
                patches.append(Patch(offset: offset + box.content.lowerBound + 4, bytes: Self.bytes(sequence)))
            } else if box.type.isExactly("traf") {
                patches += try trackPatches(head, box.content, at: offset)
            }
        }
        return patches
    }

    private func trackPatches(_ head: ByteBuffer, _ range: Range<Int>, at offset: Int) throws(ApusError) -> [Patch] {
        var patches: [Patch] = []
        for box in try Self.boxes(of: head, in: range) {
            let place = box.content.lowerBound
            if box.type.isExactly("tfhd") {
                guard box.content.count == 12,
                    let track = head.getInteger(at: head.readerIndex + place + 4, as: UInt32.self),
                    track > 0, Int(track) <= file.places[index].count
                else { throw Self.malformed }
                let found = file.places[index][Int(track) - 1]
                patches.append(
                    Patch(offset: offset + place + 4, bytes: Self.bytes(found.track) + Self.bytes(found.entry)))
            } else if box.type.isExactly("tfdt") {
                guard box.content.count == 12,
                    let time = head.getInteger(at: head.readerIndex + place + 4, as: Int64.self)
                else { throw Self.malformed }
                let moved = time.addingReportingOverflow(part.shiftMicroseconds - file.origin)
                guard !moved.overflow else { throw Self.malformed }
                patches.append(Patch(offset: offset + place + 4, bytes: Self.bytes(max(0, moved.partialValue))))
            }
        }
        return patches
    }

    /// The boxes within a range, with the ranges of their contents.
    private static func boxes(
        of bytes: ByteBuffer, in range: Range<Int>
    ) throws(ApusError) -> [(type: String, content: Range<Int>)] {
        var (found, offset) = ([(type: String, content: Range<Int>)](), range.lowerBound)
        while offset < range.upperBound {
            guard let size = bytes.getInteger(at: bytes.readerIndex + offset, as: UInt32.self).map(Int.init), size >= 8,
                size <= range.upperBound - offset,
                let type = bytes.getString(at: bytes.readerIndex + offset + 4, length: 4)
            else { throw malformed }
            found.append((type, offset + 8..<offset + size))
            offset += size
        }
        return found
    }

    private static func bytes(_ value: some FixedWidthInteger) -> [UInt8] {
        withUnsafeBytes(of: value.bigEndian) { Array($0) }
    }
}

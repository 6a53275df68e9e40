package import ApusCore
package import NIOCore

/// One MP4 file of a stretch of recordings, made of their segments without copying them.
///
/// The file is a head (`ftyp`, `moov`, `sidx`), which is made here, and the fragments of the segments, of which a few
/// fields are changed on the way: times that count from the start of the file, the numbers of fragments, tracks and
/// sample entries. None of these changes a length. So the size is known from the index alone, any range can be produced
/// by reading that range and the heads of its fragments, and two servers produce the same bytes.
///
/// The `sidx` has an entry for each segment, so that a player seeks without reading what is between. A pause between
/// two segments is in the file: the time stands still there. An edit list hides what precedes the requested start.
///
/// Pure value but for ``bytes(_:read:)``, which reads through its closure.
package struct VirtualMP4: Sendable {
    /// A segment, or some of its fragments.
    package struct Part: Sendable, Hashable {
        /// The tracks of the segment (``SegmentDescription/tracks``).
        package var tracks: [SegmentTrack]
        /// The bytes of the segment's object: ``SegmentFooter/mediaRange``, or from the first byte of one fragment to
        /// the last of another.
        package var mediaRange: Range<Int>
        /// Where the fragments of ``mediaRange`` begin in the object. Nil: the `sidx` says it, with which the range
        /// begins.
        package var fragmentOffsets: [Int]?
        /// The earliest presentation time, in microseconds on a time line that all parts have in common.
        package var startMicroseconds: Int64
        /// To the end of the last frame.
        package var durationMicroseconds: Int64
        /// The common time line's time minus the one of the object.
        package var shiftMicroseconds: Int64

        package init(
            tracks: [SegmentTrack], mediaRange: Range<Int>, fragmentOffsets: [Int]? = nil, startMicroseconds: Int64,
            durationMicroseconds: Int64, shiftMicroseconds: Int64 = 0
        ) {
            self.tracks = tracks
            self.mediaRange = mediaRange
            self.fragmentOffsets = fragmentOffsets
            self.startMicroseconds = startMicroseconds
            self.durationMicroseconds = durationMicroseconds
            self.shiftMicroseconds = shiftMicroseconds
        }
    }

    /// Where the tracks of a part are in the file: the number of the track and its sample entry, both from 1 on.
    struct Place: Sendable, Hashable {
        var track: UInt32
        var entry: UInt32
    }

    /// The most parts.
    package static let partCountMax = MP4Boxes.indexEntryCountMax
    /// The most bytes of one call of ``bytes(_:read:)``.
    package static let readByteCountMax = 8 << 20
    /// Before the first presentation time, in microseconds: room for decode times that precede it.
    static let margin: Int64 = 2_000_000
    /// A longer distance, in microseconds, has no room in an index with ticks of a microsecond.
    private static let fineDistanceMax = Int64(UInt32.max)

    /// The size of the file.
    package let byteCount: Int
    let parts: [Part]
    /// `ftyp`, `moov` and `sidx`.
    let head: ByteBuffer
    /// For each part the places of its tracks, in their order.
    let places: [[Place]]
    /// Where each part begins in the file.
    let offsets: [Int]
    /// The time of the common time line that is 0 in the file.
    let origin: Int64

    /// - Parameters:
    ///   - parts: in the order of their times.
    ///   - start: the presentation time at which a player begins, if it is behind the first part's start.
    /// - Throws: 21031 if there is no part or a part's numbers are not valid, 10002 if there are more than
    ///   ``partCountMax`` or more than 256 formats, 10026 if a decoder needs a record that its configuration does not
    ///   have.
    package init(_ parts: [Part], from start: Int64? = nil) throws(ApusError) {
        guard let first = parts.first else { throw ApusError(.badParameter, "there is no recording of this time") }
        guard parts.count <= Self.partCountMax else {
            throw ApusError(.frameTooLarge, "a file has at most \(Self.partCountMax) segments")
        }
        for part in parts {
            let isSized = !part.mediaRange.isEmpty && part.mediaRange.count < 1 << 31 && part.mediaRange.lowerBound >= 0
            let times = [part.startMicroseconds, part.durationMicroseconds, part.shiftMicroseconds]
            guard isSized, times.allSatisfy({ $0.magnitude <= UInt64(SegmentDescription.microsecondsMax) * 2 }),
                (1...Int(TrackConfiguration.trackCountMax)).contains(part.tracks.count)
            else { throw ApusError(.badParameter, "a part of the file is not valid") }
        }
        self.parts = parts
        origin = first.startMicroseconds - Self.margin
        let (formats, places) = try Self.place(parts)
        self.places = places
        var head = ByteBuffer()
        let begin = max(start ?? first.startMicroseconds, first.startMicroseconds) - origin
        try MP4Boxes.writeHead(
            formats, timescale: FragmentedMP4Writer.timescale, start: begin, into: &head)
        Self.writeIndex(parts, formats, origin: origin, into: &head)
        self.head = head
        var (offsets, offset) = ([Int](), head.readableBytes)
        for part in parts {
            offsets.append(offset)
            offset += part.mediaRange.count
        }
        (self.offsets, byteCount) = (offsets, offset)
    }

    /// The tracks of the file: one for each number and codec, with an entry for each format.
    private static func place(
        _ parts: [Part]
    ) throws(ApusError) -> (formats: [[TrackConfiguration]], places: [[Place]]) {
        struct Key: Hashable { var number: UInt8, codec: Codec }
        var (formats, indexes, places) = ([[TrackConfiguration]](), [Key: Int](), [[Place]]())
        var known: [[SegmentTrack]: [Place]] = [:]
        for part in parts {
            // Parts of one run have the same tracks.
            if let found = known[part.tracks] {
                places.append(found)
                continue
            }
            var found: [Place] = []
            for track in part.tracks {
                let key = Key(number: track.number, codec: track.configuration.codec)
                let index = indexes[key] ?? formats.count
                if index == formats.count {
                    formats.append([])
                    indexes[key] = index
                }
                let entry = formats[index].firstIndex { $0.hasSameFormat(as: track.configuration) }
                if entry == nil { formats[index].append(track.configuration) }
                found.append(
                    Place(track: UInt32(index + 1), entry: UInt32((entry ?? formats[index].count - 1) + 1)))
            }
            known[part.tracks] = found
            places.append(found)
            guard formats.joined().count <= FragmentedMP4Writer.formatCountMax else {
                throw ApusError(
                    .frameTooLarge, "a file has at most \(FragmentedMP4Writer.formatCountMax) formats")
            }
        }
        return (formats, places)
    }

    private static func writeIndex(
        _ parts: [Part], _ formats: [[TrackConfiguration]], origin: Int64, into output: inout ByteBuffer
    ) {
        let last = parts[parts.count - 1]
        let times = parts.map { $0.startMicroseconds - origin }
        let ends = times.dropFirst() + [times[times.count - 1] + max(0, last.durationMicroseconds)]
        let isFine = zip(times, ends).allSatisfy { $1 - $0 <= fineDistanceMax }
        // With ticks of a millisecond a distance has 49 days.
        let divisor: Int64 = isFine ? 1 : 1000
        let entries = zip(parts, zip(times, ends)).map { part, range in
            MP4Boxes.IndexEntry(
                byteCount: part.mediaRange.count, duration: max(0, range.1 / divisor - range.0 / divisor),
                startsWithSync: true)
        }
        let reference = formats.firstIndex { $0[0].codec.isVideo } ?? 0
        MP4Boxes.writeIndex(
            track: UInt32(reference + 1), timescale: FragmentedMP4Writer.timescale / UInt32(divisor),
            start: times[0] / divisor, entries, into: &output)
    }

    // MARK: Bytes

    /// Produces bytes of the file.
    ///
    /// - Parameters:
    ///   - range: within the file. At most ``readByteCountMax`` bytes of it are produced; the rest needs further calls.
    ///   - read: gives exactly the bytes of a range of a part's object, by the part's index. In addition to the range
    ///     itself it is asked for the heads of fragments: some KiB each.
    /// - Throws: 21031 if the range is not within the file, 10001 if an object is not a segment, and what `read`
    ///   throws.
    package func bytes(
        _ range: Range<Int>, read: @Sendable (_ part: Int, _ range: Range<Int>) async throws(ApusError) -> ByteBuffer
    ) async throws(ApusError) -> ByteBuffer {
        guard range.lowerBound >= 0, range.upperBound <= byteCount else {
            throw ApusError(.badParameter, "the range is not within the file's \(byteCount) bytes")
        }
        let range = range.prefix(Self.readByteCountMax)
        var output = ByteBuffer()
        output.reserveCapacity(range.count)
        let inHead = range.clamped(to: 0..<head.readableBytes)
        if let slice = head.getSlice(at: inHead.lowerBound, length: inHead.count) { output.writeImmutableBuffer(slice) }
        var index = firstPart(behind: range.lowerBound)
        while index < parts.count, offsets[index] < range.upperBound {
            let (part, offset) = (parts[index], offsets[index])
            let wanted = range.clamped(to: offset..<offset + part.mediaRange.count)
            if !wanted.isEmpty {
                let start = wanted.lowerBound - offset + part.mediaRange.lowerBound
                let object = VirtualMP4Object(file: self, index: index)
                output.writeImmutableBuffer(try await object.bytes(start..<start + wanted.count, read: read))
            }
            index += 1
        }
        return output
    }

    /// The part that has this byte of the file; the first one for a byte of the head.
    private func firstPart(behind byte: Int) -> Int {
        var (low, high) = (0, parts.count)
        while high - low > 1 {
            let middle = (low + high) / 2
            if offsets[middle] <= byte { low = middle } else { high = middle }
        }
        return low
    }
}

extension Range<Int> {
    fileprivate func prefix(_ count: Int) -> Self { lowerBound..<Swift.min(upperBound, lowerBound + count) }
}

package import ApusCore
import ApusCrypto
import Foundation
package import NIOCore

/// A segment: the bytes of its object, and what an index keeps of it.
package struct Segment: Sendable {
    /// The whole object: `ftyp`, `moov`, `sidx`, fragments, footer. Any player opens it.
    package var bytes: ByteBuffer
    package var footer: SegmentFooter
}

/// Writes one segment of a recording as a self-contained fragmented MP4 (ISO/IEC 14496-12 §8.8, §8.16): frames in,
/// bytes out, no I/O.
///
/// ``FragmentedMP4Writer`` writes a file from its time 0 on and closes gaps. A segment has the times of its frames:
/// each fragment's `tfdt` is the decode time of its first sample, however long the distance to the previous one. The
/// same frames give the same bytes.
///
/// A player needs decode times that do not go back. A frame whose decode time is below the previous one of its track
/// gets that one in the file, and keeps its presentation time, up to 35 minutes. Its footer entry has the decode time
/// that the writer was given.
///
/// Pure value. It holds the payloads without a copy until ``finish(until:end:)``.
package struct SegmentWriter: Sendable {
    /// The bounds of a segment and of its fragments.
    package struct Limits: Sendable, Hashable {
        /// A fragment begins at the first key frame after this time, and after four times of it at any frame.
        package var fragmentDuration: Duration = .seconds(1)
        /// A fragment of this size is ended.
        package var fragmentByteCountMax = 4 << 20
        /// The most frames, at most ``SegmentFooter/frameCountMax``.
        package var frameCountMax = SegmentFooter.frameCountMax
        /// The most bytes of payloads.
        package var byteCountMax = 128 << 20

        package init() {}
    }

    /// How many times the fragment duration a fragment without key frames lasts.
    private static let durationFactor: Int64 = 4
    private static let timescale = FragmentedMP4Writer.timescale

    private let description: SegmentDescription
    private let limits: Limits
    private let head: ByteBuffer
    private let indexes: [UInt8: Int]
    /// The index of the first track with video; nil without video.
    private let video: Int?
    private var frames: [SegmentFrame] = []
    private var tracks: [Int] = []
    /// The bytes of the payloads so far.
    package private(set) var byteCount = 0

    /// - Throws: 21031 if the description exceeds a bound; 10026 if a decoder needs a record that its configuration
    ///   does not have.
    package init(_ description: SegmentDescription, limits: Limits = Limits()) throws(ApusError) {
        try description.check()
        head = try Self.initialization(description.tracks)
        (self.description, self.limits) = (description, limits)
        indexes = Dictionary(
            uniqueKeysWithValues: description.tracks.enumerated().map { ($0.element.number, $0.offset) })
        video = description.tracks.firstIndex { $0.configuration.codec.isVideo }
    }

    /// `ftyp` and `moov` of segments with these tracks: their first bytes.
    ///
    /// - Throws: 10026 if a decoder needs a record that its configuration does not have.
    package static func initialization(_ tracks: [SegmentTrack]) throws(ApusError) -> ByteBuffer {
        var output = ByteBuffer()
        try MP4Boxes.writeHead(tracks.map { [$0.configuration] }, timescale: timescale, into: &output)
        return output
    }

    /// The frames so far.
    package var frameCount: Int { frames.count }

    /// Adds the next frame of the stream.
    ///
    /// - Throws: 21031 if the track is not one of the segment, the position is not above the last one or of another
    ///   epoch, or a time is out of bounds; 10002 if the segment is full.
    package mutating func add(_ frame: SegmentFrame) throws(ApusError) {
        guard let track = indexes[frame.track] else {
            throw ApusError(.badParameter, "the segment has no track \(frame.track)")
        }
        if let last = frames.last?.position {
            guard frame.position.epoch == last.epoch, frame.position > last else {
                throw ApusError(.badParameter, "the position \(frame.position) does not follow \(last)")
            }
        }
        guard (0...SegmentDescription.microsecondsMax).contains(frame.decodeMicroseconds),
            frame.compositionMicroseconds.magnitude <= UInt32(MediaHeader.dtsDeltaMicrosecondsMax),
            frame.position.sequence <= MediaHeader.sequenceMax
        else { throw ApusError(.badParameter, "the times of a frame are out of bounds") }
        let count = frame.payload.readableBytes
        guard frames.count < min(limits.frameCountMax, SegmentFooter.frameCountMax),
            count <= MediaFrame.joinedByteCountMax, count <= limits.byteCountMax - byteCount
        else { throw ApusError(.frameTooLarge, "the segment is full") }
        frames.append(frame)
        tracks.append(track)
        byteCount += count
    }

    /// Writes the segment.
    ///
    /// - Parameters:
    ///   - next: the decode time of each track's first frame in the next segment of the run, where it is known: the
    ///     track's last frame lasts until then. Otherwise it lasts as long as the previous one.
    ///   - end: why the segment ends.
    /// - Throws: 10026 if there is no frame.
    package consuming func finish(until next: [UInt8: Int64] = [:], end: SegmentEnd) throws(ApusError) -> Segment {
        guard !frames.isEmpty else { throw ApusError(.mediaUnreadable, "the segment has no frame") }
        let timing = SegmentTiming(frames, tracks: tracks, description: description, until: next)
        let fragments = cut(timing)
        var footer = SegmentFooter(
            description: description, end: end, startMicroseconds: timing.start,
            durationMicroseconds: timing.end - timing.start, payloadDigest: digest(),
            initByteCount: head.readableBytes, mediaRange: 0..<0, fragments: [], frames: footerFrames())
        let heads = fragments.map(headByteCount)
        let mediaCount = zip(fragments, heads).reduce(MP4Boxes.indexByteCount(entries: fragments.count)) {
            $0 + $1.1 + 8 + bytes(of: $1.0)
        }
        footer.mediaRange = head.readableBytes..<head.readableBytes + mediaCount
        try footer.place(zip(heads, fragments).map { ($0, $1.count) })
        var output = ByteBuffer()
        output.reserveCapacity(footer.mediaRange.upperBound + 512 + frames.count * 12)
        output.writeImmutableBuffer(head)
        writeIndex(footer, timing, into: &output)
        for (number, fragment) in fragments.enumerated() {
            MP4Boxes.writeFragment(
                trackFragments(fragment, timing), sequence: description.sequence &+ UInt32(number), into: &output)
        }
        assert(output.writerIndex == footer.mediaRange.upperBound)
        footer.encode(into: &output)
        return Segment(bytes: output, footer: footer)
    }

    // MARK: Fragments

    /// The frames of each fragment.
    private func cut(_ timing: SegmentTiming) -> [Range<Int>] {
        let duration = limits.fragmentDuration.nanoseconds / 1000
        let lead = lead
        var (fragments, first, count) = ([Range<Int>](), 0, 0)
        /// The decode time at which the fragment began, of the track that decides.
        var start = timing.decode[0]
        for index in frames.indices.dropFirst() {
            count += frames[index - 1].payload.readableBytes
            let length = timing.decode[index] - start
            let isDue = length >= duration && isStart(index, lead) || length >= duration * Self.durationFactor
            // After a distance that no duration can have, the next fragment says when it begins.
            guard isDue || count >= limits.fragmentByteCountMax || timing.isBehindGap[index] else { continue }
            fragments.append(first..<index)
            (first, count, start) = (index, 0, timing.decode[index])
        }
        return fragments + [first..<frames.count]
    }

    /// The track with video, if the segment has frames of it.
    private var lead: Int? { video.flatMap { tracks.contains($0) ? $0 : nil } }

    /// True if a player can start at this frame.
    ///
    /// - Parameter lead: ``lead``.
    private func isStart(_ index: Int, _ lead: Int?) -> Bool {
        guard let lead else { return true }
        return tracks[index] == lead && frames[index].flags.contains(.key)
    }

    private func bytes(of fragment: Range<Int>) -> Int {
        frames[fragment].reduce(0) { $0 + $1.payload.readableBytes }
    }

    /// The size of a fragment's `moof`.
    private func headByteCount(_ fragment: Range<Int>) -> Int {
        let trackCount = Set(tracks[fragment]).count
        return MP4Boxes.fragmentHeadByteCount(trackCount: trackCount, sampleCount: fragment.count)
    }

    private func trackFragments(_ fragment: Range<Int>, _ timing: SegmentTiming) -> [MP4Boxes.TrackFragment] {
        var found = description.tracks.indices.map {
            MP4Boxes.TrackFragment(id: UInt32($0 + 1), entry: 1, time: 0, samples: [])
        }
        for index in fragment {
            let (track, frame) = (tracks[index], frames[index])
            if found[track].samples.isEmpty { found[track].time = timing.decode[index] }
            let composition = frame.presentationMicroseconds - timing.decode[index]
            found[track].samples.append(
                MP4Boxes.Sample(
                    payload: frame.payload, duration: timing.duration[index],
                    composition: Int32(clamping: composition),
                    isSync: !description.tracks[track].configuration.codec.isVideo || frame.flags.contains(.key)))
        }
        return found
    }

    // MARK: Index and footer

    private func writeIndex(_ footer: SegmentFooter, _ timing: SegmentTiming, into output: inout ByteBuffer) {
        let reference = lead ?? tracks[0]
        /// The earliest presentation time of the fragment; nil if it has no frame of the track.
        func start(_ fragment: SegmentFooter.Fragment) -> Int64? {
            fragment.frames.lazy.filter { tracks[$0] == reference }.map { frames[$0].presentationMicroseconds }.min()
        }
        // A fragment without a frame of the track begins where the previous one does.
        var starts: [Int64] = []
        for fragment in footer.fragments { starts.append(start(fragment) ?? starts.last ?? timing.start) }
        let ends = starts.dropFirst() + [timing.end]
        let entries = zip(footer.fragments, zip(starts, ends)).map { fragment, times in
            MP4Boxes.IndexEntry(
                byteCount: fragment.byteCount, duration: max(0, times.1 - times.0),
                startsWithSync: footer.startsWithKey(fragment))
        }
        MP4Boxes.writeIndex(
            track: UInt32(reference + 1), timescale: Self.timescale, start: starts[0], entries, into: &output)
    }

    private func footerFrames() -> [SegmentFooter.Frame] {
        frames.map { frame in
            SegmentFooter.Frame(
                track: frame.track, position: frame.position, decodeMicroseconds: frame.decodeMicroseconds,
                compositionMicroseconds: frame.compositionMicroseconds,
                flags: frame.flags.intersection(SegmentFrame.flagsKept), range: 0..<frame.payload.readableBytes)
        }
    }

    private func digest() -> [UInt8] {
        var hash = SHA256()
        for frame in frames { frame.payload.withUnsafeReadableBytes { hash.update(data: $0) } }
        return hash.finalize()
    }
}

/// The times of a segment's samples in its file.
struct SegmentTiming: Sendable {
    /// Of each frame: its decode time in the file, not below the previous one of its track.
    var decode: [Int64]
    /// Until the next frame of the track.
    var duration: [UInt32]
    /// The distance to the frame before on the track does not fit into that one's duration.
    var isBehindGap: [Bool]
    /// The earliest presentation time.
    var start: Int64
    /// The end of the last frame, in presentation time.
    var end: Int64

    /// - Parameters:
    ///   - tracks: the index in the description's tracks of each frame.
    ///   - next: the decode time of the next frame of tracks behind the segment.
    init(_ frames: [SegmentFrame], tracks: [Int], description: SegmentDescription, until next: [UInt8: Int64]) {
        decode = frames.map(\.decodeMicroseconds)
        duration = [UInt32](repeating: 0, count: frames.count)
        isBehindGap = [Bool](repeating: false, count: frames.count)
        start = frames.map(\.presentationMicroseconds).min() ?? 0
        end = start
        var last = [Int?](repeating: nil, count: description.tracks.count)
        var steps = description.tracks.map(\.configuration.usualStepMicroseconds)
        for (index, track) in tracks.enumerated() {
            if let before = last[track] {
                decode[index] = max(decode[index], decode[before])
                let step = decode[index] - decode[before]
                duration[before] = UInt32(clamping: step)
                isBehindGap[index] = step > Int64(UInt32.max)
                if step > 0 { steps[track] = step }
            }
            last[track] = index
        }
        for case let (track, index?) in last.enumerated() {
            let until = next[description.tracks[track].number].map { $0 - decode[index] }
            duration[index] = UInt32(clamping: max(0, until ?? steps[track]))
        }
        for (index, frame) in frames.enumerated() {
            end = max(end, frame.presentationMicroseconds + Int64(duration[index]))
        }
    }
}

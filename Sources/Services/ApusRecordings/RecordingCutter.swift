import ApusCore
package import ApusMedia
import Foundation
import NIOCore

/// A frame of a channel as the log has it.
package struct RecordedFrame: Sendable {
    /// The configurations that are valid from this frame on: of every key frame, and of the first of some frames that a
    /// node logs at once.
    package var configurations: [SegmentTrack]
    package var frame: MediaFrame
    /// When it arrived, in microseconds of UTC by the cluster's clock.
    package var receivedMicroseconds: Int64

    package init(configurations: [SegmentTrack], frame: MediaFrame, receivedMicroseconds: Int64) {
        (self.configurations, self.frame) = (configurations, frame)
        self.receivedMicroseconds = receivedMicroseconds
    }
}

/// Frames of one epoch, both ends included.
package struct RecordedRange: Sendable, Hashable {
    package var epoch: UInt32
    package var first: UInt64
    package var last: UInt64

    package init(epoch: UInt32, first: UInt64, last: UInt64) {
        (self.epoch, self.first, self.last) = (epoch, first, last)
    }
}

/// The frames of one segment, before it is written.
package struct CutSegment: Sendable {
    package var description: SegmentDescription
    package var frames: [SegmentFrame]
    package var end: SegmentEnd
    /// The positions that the segment covers, also those of configurations.
    package var range: RecordedRange
    /// What is missing before it.
    package var gaps: [RecordedRange]
    /// The decode time of the next frame of a track, where it is known.
    package var next: [UInt8: Int64]
    /// The publisher ended the epoch with it.
    package var isEnded: Bool
    /// UTC less the publisher's time for the next segment of the run, in microseconds.
    package var clockMicroseconds: Int64
    /// The publisher's time at time 0 of the run.
    package var baseMicroseconds: Int64
    /// The number of the run's next fragment.
    package var nextFragment: UInt32
}

/// Cuts the frames of a channel into segments: at a key frame when a segment is long enough, and wherever a decoder or
/// a time line cannot go on: another epoch, other configurations, missing frames, a pause, a step of the clock.
///
/// Two nodes that begin at the same frame with the same frames cut the same segments.
///
/// Pure value. It holds the frames of one segment (``Limits``).
package struct RecordingCutter: Sendable {
    package struct Limits: Sendable, Hashable {
        /// A segment ends at the first key frame after this time; without video, at the first frame.
        package var duration = Duration.seconds(10)
        /// A segment of this length ends at any frame.
        package var durationMax = Duration.seconds(60)
        /// The bytes of payloads with which a segment ends at any frame.
        package var byteCountMax = 64 << 20
        package var frameCountMax = SegmentFooter.frameCountMax

        package init() {}
    }

    /// A longer distance between two frames of a track is a pause, in microseconds.
    package static let pauseMin: Int64 = 10_000_000
    /// By how much the distance of two frames may differ from that of their arrivals before it is a step of the clock,
    /// if it is also this long.
    private static let jumpMin: Int64 = 2_000_000
    /// A decode time that goes back further is a step of the clock.
    private static let backMax: Int64 = 1_000_000
    /// The time of a run's first frame on its time line: room for frames of other tracks that are before it.
    private static let lead: Int64 = 2_000_000

    private struct Run: Sendable {
        var id: SegmentRunID
        var tracks: [SegmentTrack]
        var base: Int64
        var fragment: UInt32
    }

    private let label: String
    private let limits: Limits
    private var joiner = FrameJoiner()
    private var clock: RecordingClock?
    private var run: Run?
    private var tracks: [SegmentTrack] = []
    /// The position of the last frame that came.
    private var seen: FramePosition?
    private var hasEnded = false
    private var lastOfTracks: [UInt8: (decode: Int64, received: Int64)] = [:]
    // The open segment.
    private var frames: [SegmentFrame] = []
    private var byteCount = 0
    private var range: RecordedRange?
    private var gaps: [RecordedRange] = []
    private var finished: [CutSegment] = []
    /// Frames without a configuration of their track, or with times that no run can have.
    package private(set) var framesDropped: UInt64 = 0

    /// - Parameters:
    ///   - label: of the segments: what they belong to.
    ///   - head: where the recording goes on; nil: at the first frame that comes.
    package init(label: String, from head: RecordingHead?, limits: Limits = Limits()) {
        (self.label, self.limits) = (label, limits)
        guard let head else { return }
        seen = FramePosition(epoch: head.epoch, sequence: head.sequence)
        hasEnded = head.ended
        guard !head.ended else { return }
        tracks = head.run.tracks.compactMap { SegmentTrack($0) }
        if !head.clockEnded { clock = RecordingClock(offset: head.clockUs) }
        guard !head.runEnded, let id = SegmentRunID(bytes: Array(head.run.id)) else { return }
        run = Run(id: id, tracks: tracks, base: head.runBaseUs, fragment: head.fragment)
    }

    /// The segments that are complete, once.
    package mutating func takeFinished() -> [CutSegment] {
        defer { finished = [] }
        return finished
    }

    /// Ends the open segment here.
    ///
    /// - Returns: what came after the last segment and needs none, such as configurations and the end of an epoch.
    package mutating func finish(_ end: SegmentEnd) -> RecordedRange? {
        close(end)
        return range
    }

    /// True if the publisher ended the epoch, and nothing came after that.
    package var isEnded: Bool { hasEnded }

    /// The position after which frames are missing here: the last one that came.
    package var position: FramePosition? { seen }

    /// Notes the configurations of a frame that is not to be recorded itself.
    package mutating func prepare(_ input: RecordedFrame) {
        adopt(input.configurations)
        guard input.frame.header.flags.contains(.configuration) else { return }
        if let configuration = try? TrackConfiguration(decoding: input.frame.payload) {
            adopt([SegmentTrack(number: input.frame.header.track, configuration: configuration)])
        }
    }

    /// Adds the next frame. One that came before has no effect.
    package mutating func add(_ input: RecordedFrame) {
        let header = input.frame.header
        guard follows(header.position) else { return }
        seen = header.position
        hasEnded = false
        prepare(input)
        if header.flags.contains(.configuration) { return cover(header.position) }
        let isLast = header.flags.contains(.endOfEpoch)
        if isLast, input.frame.payload.readableBytes == 0 {
            cover(header.position)
            return end()
        }
        // The positions of a picture's parts are covered with the last one.
        guard let frame = joiner.add(input.frame) else { return }
        place(frame, input.receivedMicroseconds)
        if isLast { end() }
    }

    private mutating func end() {
        hasEnded = true
        close(.stopped)
        run = nil
        clock = nil
    }

    /// Notes what is missing before a position. False if it is not behind the last one.
    private mutating func follows(_ position: FramePosition) -> Bool {
        guard let seen else {
            // Another node may have recorded what precedes the first frame here.
            noteMissing(behind: 0, before: position)
            return true
        }
        guard position > seen else { return false }
        if position.epoch != seen.epoch {
            close(.epoch)
            if !hasEnded {
                gaps.append(RecordedRange(epoch: seen.epoch, first: seen.sequence + 1, last: MediaHeader.sequenceMax))
            }
            noteMissing(behind: seen.epoch, before: position)
            (run, clock, tracks, lastOfTracks, joiner) = (nil, nil, [], [:], FrameJoiner())
            begin(at: position)
        } else if position.sequence > seen.sequence + 1 {
            close(.gap)
            gaps.append(
                RecordedRange(epoch: seen.epoch, first: seen.sequence + 1, last: position.sequence - 1))
            (run, joiner) = (nil, FrameJoiner())
            begin(at: position)
        }
        return true
    }

    /// Notes whole epochs behind one, the last few of them, and the beginning of the position's own.
    private mutating func noteMissing(behind epoch: UInt32, before position: FramePosition) {
        let first = max(epoch + 1, position.epoch - min(position.epoch, Self.epochsMissingMax))
        for missing in min(first, position.epoch)..<position.epoch {
            gaps.append(RecordedRange(epoch: missing, first: 0, last: MediaHeader.sequenceMax))
        }
        if position.sequence > 0 {
            gaps.append(RecordedRange(epoch: position.epoch, first: 0, last: position.sequence - 1))
        }
    }
    /// The whole epochs that one gap may have.
    private static let epochsMissingMax: UInt32 = 8

    /// Nothing before this position is covered by the next segment.
    private mutating func begin(at position: FramePosition) { (range, nextToCover) = (nil, position.sequence) }

    private mutating func adopt(_ configurations: [SegmentTrack]) {
        for new in configurations {
            if let index = tracks.firstIndex(where: { $0.number == new.number }) {
                guard !tracks[index].configuration.hasSameFormat(as: new.configuration) else { continue }
                close(.configuration)
                run = nil
                tracks[index] = new
            } else if tracks.count < Int(TrackConfiguration.trackCountMax) {
                close(.configuration)
                run = nil
                tracks.append(new)
            }
        }
    }

    private mutating func place(_ frame: MediaFrame, _ received: Int64) {
        let header = frame.header
        guard let track = tracks.first(where: { $0.number == header.track }) else {
            framesDropped += 1
            return cover(header.position)
        }
        let decode = header.ptsMicroseconds &+ Int64(header.dtsDeltaMicroseconds)
        checkTime(decode, received, of: header.track)
        let isVideo = track.configuration.codec.isVideo
        if isDue(decode, isStart: !hasVideo || isVideo && header.flags.contains(.key)) {
            let next = run.map { decode - $0.base }
            close(.continues, next: next.map { [header.track: $0] } ?? [:])
        }
        if clock?.hasStepped ?? false { (run, clock) = (nil, nil) }
        if clock == nil { clock = RecordingClock(pts: header.ptsMicroseconds, received: received) }
        clock?.observe(pts: header.ptsMicroseconds, received: received)
        var current = run ?? makeRun(header.position, decode)
        if decode < current.base {
            close(.clock)
            current = makeRun(header.position, decode)
        }
        run = current
        frames.append(SegmentFrame(frame, shiftMicroseconds: -current.base))
        byteCount += frame.payload.readableBytes
        lastOfTracks[header.track] = (decode, received)
        cover(header.position)
    }

    private var hasVideo: Bool { tracks.contains { $0.configuration.codec.isVideo } }

    /// Ends the run before a frame whose distance to the previous one of its track is a pause or a step of the clock.
    private mutating func checkTime(_ decode: Int64, _ received: Int64, of track: UInt8) {
        guard let last = lastOfTracks[track] else { return }
        let (distance, arrival) = (decode &- last.decode, received &- last.received)
        let isStep = distance < -Self.backMax || distance > Self.jumpMin && distance > arrival + Self.jumpMin
        guard isStep || distance >= Self.pauseMin else { return }
        close(isStep ? .clock : .gap)
        // The frames of the other tracks have the same distance, which ends the run once.
        (run, lastOfTracks) = (nil, [:])
        if isStep { clock = nil }
    }

    private func isDue(_ decode: Int64, isStart: Bool) -> Bool {
        guard let first = frames.first, let run else { return false }
        let length = decode - run.base - first.decodeMicroseconds
        if length >= limits.durationMax.nanoseconds / 1000 { return true }
        if byteCount >= limits.byteCountMax || frames.count >= limits.frameCountMax { return true }
        return isStart && length >= limits.duration.nanoseconds / 1000
    }

    private func makeRun(_ position: FramePosition, _ decode: Int64) -> Run {
        Run(
            id: SegmentRunID(of: "\(label) \(position.epoch) \(position.sequence)"), tracks: tracks,
            base: decode - Self.lead, fragment: 1)
    }

    private mutating func cover(_ position: FramePosition) {
        // Where parts of a picture came before, the range begins with the first one.
        let first = range?.first ?? nextToCover ?? position.sequence
        range = RecordedRange(epoch: position.epoch, first: min(first, position.sequence), last: position.sequence)
        nextToCover = position.sequence + 1
    }
    private var nextToCover: UInt64?

    private mutating func close(_ end: SegmentEnd, next: [UInt8: Int64] = [:]) {
        guard !frames.isEmpty, let run, let range, var clock else { return }
        let length = (frames.last?.decodeMicroseconds ?? 0) - frames[0].decodeMicroseconds
        let anchor = clock.offset &+ run.base
        clock.endSegment(duration: length)
        self.clock = clock
        let end = end == .continues && clock.hasStepped ? .clock : end
        let fragment = run.fragment &+ UInt32(frames.count)
        finished.append(
            CutSegment(
                description: SegmentDescription(
                    label: Array(label.utf8), run: run.id, anchorMicroseconds: anchor, tracks: run.tracks,
                    sequence: run.fragment),
                frames: frames, end: end, range: range, gaps: gaps, next: next, isEnded: hasEnded,
                clockMicroseconds: clock.offset, baseMicroseconds: run.base, nextFragment: fragment))
        self.run?.fragment = fragment
        (frames, byteCount, gaps) = ([], 0, [])
        self.range = nil
    }
}

extension SegmentTrack {
    /// The track in a record; nil if it cannot be decoded.
    init?(_ stored: RecordingTrack) {
        guard let number = UInt8(exactly: stored.number),
            let configuration = try? TrackConfiguration(decoding: ByteBuffer(bytes: stored.configuration))
        else { return nil }
        self.init(number: number, configuration: configuration)
    }
}

extension RecordingTrack {
    init(_ track: SegmentTrack) {
        self.init()
        number = UInt32(track.number)
        var bytes = ByteBuffer()
        track.configuration.encode(into: &bytes)
        configuration = Data(bytes.readableBytesView)
    }
}

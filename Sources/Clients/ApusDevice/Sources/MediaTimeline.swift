import ApusMedia

/// Maps the times of an input to a time line that starts near 0 and never goes back, over loops, jumps and reconnects.
/// All times are in microseconds.
///
/// Cameras and files wrap, jump and restart their clocks. Receivers must not be affected (media pitfall 4: "non
/// monotonically increasing dts" is the most common report). A damaged file may have any times. Those that no input can
/// have count as missing, and the time line stays within ``lineMax``, so no sum overflows. Pure value: no clock inside.
package struct MediaTimeline: Sendable {
    /// A frame's position on the time line.
    package struct Place: Sendable, Equatable {
        package var pts: Int64
        package var dts: Int64

        package init(pts: Int64, dts: Int64) {
            self.pts = pts
            self.dts = dts
        }
    }

    /// A larger step of a track's decode time is a jump of its clock, not a pause.
    package static let jumpMax: Int64 = 5_000_000
    /// The largest time that is mapped, in either direction: 71 years. It leaves room below the largest time of a frame
    /// (``MediaHeader/ptsMicrosecondsMax``).
    package static let lineMax: Int64 = MediaHeader.ptsMicrosecondsMax / 2
    /// A longer duration of a frame counts as 0: one day.
    package static let durationMax: Int64 = 86_400_000_000

    private struct Track: Sendable {
        var lastInput: Int64?
        var lastLine: Int64?
        var duration: Int64 = 0
    }

    /// A larger step forward is a jump too.
    private let pauseMax: Int64
    private var tracks: [Track]
    /// The time line minus the input's time; nil until the next frame sets it.
    private var offset: Int64?
    /// The position of the next frame if there is no offset.
    private var restart: Int64 = 0
    /// The latest end of a frame on the time line.
    package private(set) var end: Int64 = 0

    /// - Parameter pauseMax: the longest step forward that is a pause, in microseconds. An input whose clock jumps has
    ///   the default.
    package init(trackCount: Int, pauseMax: Int64 = Self.jumpMax) {
        self.pauseMax = max(pauseMax, Self.jumpMax)
        tracks = Array(repeating: Track(), count: trackCount)
    }

    /// A time of an input; nil if it is beyond the bounds of a frame, so the input is damaged.
    package static func plausible(_ time: Int64?) -> Int64? {
        guard let time, time.magnitude <= UInt64(MediaHeader.ptsMicrosecondsMax) else { return nil }
        return time
    }

    private static func clamped(_ time: Int64) -> Int64 { min(max(time, -lineMax), lineMax) }

    /// Starts the input again right after the end of the time line: a file's next pass.
    ///
    /// - Parameter firstPts: the presentation time at which the input starts.
    package mutating func beginPass(firstPts: Int64) {
        offset = end - (Self.plausible(firstPts) ?? 0)
        for index in tracks.indices { tracks[index].lastInput = nil }
    }

    /// Starts the input again after a gap: a camera that was away for a while.
    ///
    /// - Parameters:
    ///   - gap: the time from the end of the line to the next frame, in microseconds.
    ///   - trackCount: the number of the input's tracks from now on; nil if it has not changed. A track that is missing
    ///     keeps its last time, so that its times do not go back when it returns.
    package mutating func resume(after gap: Int64, trackCount: Int? = nil) {
        restart = Self.clamped(end + Self.clamped(max(gap, 0)))
        offset = nil
        while let trackCount, tracks.count < trackCount { tracks.append(Track()) }
        for index in tracks.indices { tracks[index].lastInput = nil }
    }

    /// Maps one frame. A missing decode time is derived from the previous frame. A missing presentation time is the
    /// decode time.
    package mutating func place(track index: Int, pts: Int64?, dts: Int64?, duration: Int64) -> Place {
        var track = tracks[index]
        defer { tracks[index] = track }
        let (pts, dts) = (Self.plausible(pts), Self.plausible(dts))
        let input = dts ?? pts ?? (track.lastInput.map { $0 + track.duration } ?? 0)
        // A frame cannot say that it is shown so much later or earlier than it is decoded.
        let inputPts = pts.flatMap { abs($0 - input) <= Self.delayMax ? $0 : nil } ?? input
        if offset == nil { offset = restart - inputPts }
        let isJump = track.lastInput.map { input - $0 > pauseMax || $0 - input > Self.jumpMax } ?? false
        if isJump, let lastLine = track.lastLine {
            offset = lastLine + max(track.duration, 1) - input
        }
        let base = offset ?? 0
        let inputLine = Self.clamped(input + base)
        // Matroska has no decode times, and libav has none for the first frames after a seek. The frame's step from the
        // previous one is used instead, so that B frames keep their delay.
        var line = dts == nil ? min(inputLine, (track.lastLine ?? inputLine) + max(track.duration, 1)) : inputLine
        // After a pause there is nothing to reorder.
        if inputLine - line > Self.reorderMax { line = inputLine }
        var place = Place(pts: Self.clamped(inputPts + base), dts: line)
        if let last = track.lastLine, place.dts <= last { place.dts = last + 1 }
        place.pts = max(place.pts, place.dts)
        track.lastInput = place.dts - base
        track.lastLine = place.dts
        track.duration = (0...Self.durationMax).contains(duration) ? duration : 0
        end = max(end, Self.clamped(place.pts + track.duration))
        return place
    }

    /// The longest delay of B frames, in microseconds.
    private static let reorderMax: Int64 = 1_000_000
    private static let delayMax = Int64(MediaHeader.dtsDeltaMicrosecondsMax)
}

/// Puts the times of an input on one line that starts near 0 and never goes back, over loops, jumps
/// and reconnects. All times are microseconds.
///
/// Cameras and files wrap, jump and restart their clocks; receivers must not see it (media pitfall 4:
/// "non monotonically increasing dts" is the most common report). Pure: no clock inside.
package struct MediaTimeline: Sendable {
    /// Where a frame stands on the line.
    package struct Place: Sendable, Equatable {
        package var pts: Int64
        package var dts: Int64

        package init(pts: Int64, dts: Int64) {
            self.pts = pts
            self.dts = dts
        }
    }

    /// A step of a track's decode time beyond this is a jump of its clock, not a pause.
    package static let jumpMax: Int64 = 5_000_000

    private struct Track: Sendable {
        var lastInput: Int64?
        var lastLine: Int64?
        var duration: Int64 = 0
    }

    private var tracks: [Track]
    /// Line less input; nil until the next frame sets it.
    private var offset: Int64?
    /// Where the next frame without an offset goes.
    private var restart: Int64 = 0
    /// The latest end of a frame on the line.
    package private(set) var end: Int64 = 0

    package init(trackCount: Int) {
        tracks = Array(repeating: Track(), count: trackCount)
    }

    /// Starts the input anew right behind what the line holds: a file's next pass.
    ///
    /// - Parameter firstPts: the presentation time at which the input starts.
    package mutating func beginPass(firstPts: Int64) {
        offset = end - firstPts
        for index in tracks.indices { tracks[index].lastInput = nil }
    }

    /// Starts the input anew at a later place of the line: a camera that was away for a while.
    package mutating func resume(after gap: Int64) {
        restart = end + max(gap, 0)
        offset = nil
        for index in tracks.indices { tracks[index].lastInput = nil }
    }

    /// Places one frame. A missing decode time follows the frame before; a missing presentation time
    /// is the decode time.
    package mutating func place(track index: Int, pts: Int64?, dts: Int64?, duration: Int64) -> Place {
        var track = tracks[index]
        defer { tracks[index] = track }
        let input = dts ?? pts ?? (track.lastInput.map { $0 + track.duration } ?? 0)
        let inputPts = pts ?? input
        if offset == nil { offset = restart - inputPts }
        if let last = track.lastInput, abs(input - last) > Self.jumpMax, let lastLine = track.lastLine {
            offset = lastLine + max(track.duration, 1) - input
        }
        let base = offset ?? 0
        // Matroska has no decode times, and libav knows none for the first frames after a seek: the
        // frame's step from the one before stands in, so that B frames keep their room.
        let line =
            dts == nil ? min(input + base, (track.lastLine ?? input + base) + max(track.duration, 1)) : input + base
        var place = Place(pts: inputPts + base, dts: line)
        if let last = track.lastLine, place.dts <= last { place.dts = last + 1 }
        place.pts = max(place.pts, place.dts)
        track.lastInput = place.dts - base
        track.lastLine = place.dts
        track.duration = duration
        end = max(end, place.pts + max(duration, 0))
        return place
    }
}

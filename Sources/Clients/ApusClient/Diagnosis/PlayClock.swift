import ApusCore
import ApusMedia

/// The presentation times of a play session: gaps, the distance of sound and pictures, and the time until frames are
/// rendered (IV-G5 to IV-G7).
///
/// Pure. Bounded by the tracks, and by ``pendingMax`` and ``samplesMax``.
struct PlayClock: Sendable {
    /// Frames whose rendering may follow.
    private static let pendingMax = 256
    /// The newest times until frames were rendered, of which the median is made.
    private static let samplesMax = 128
    /// Two tracks are compared if their frames came within this time.
    private static let momentMax = Duration.milliseconds(500)

    private struct Track {
        var configuration: TrackConfiguration
        /// Decode time of the newest frame, in microseconds.
        var lastDTS: Int64?
        /// The usual distance of two frames; nil: not known yet.
        var step: Int64?
        var newest: (pts: Int64, at: MonotonicTime)?
    }

    private var tracks: [UInt8: Track] = [:]
    private var pending: [(isPicture: Bool, pts: Int64, at: MonotonicTime)] = []
    private var nextPending = 0
    private var samples: [Int64] = []
    private var nextSample = 0

    /// In the order of the tracks' numbers.
    var codecs: [Codec] { tracks.sorted { $0.key < $1.key }.map(\.value.configuration.codec) }

    func isPicture(_ track: UInt8) -> Bool { tracks[track]?.configuration.codec.isVideo ?? true }

    mutating func configured(_ track: UInt8, _ configuration: TrackConfiguration) {
        guard track < TrackConfiguration.trackCountMax else { return }
        if tracks[track]?.configuration == configuration { return }
        tracks[track] = Track(configuration: configuration, step: configuration.stepMicroseconds)
    }

    /// Returns true if frames are missing before this one: it is more than one and a half steps later than the one
    /// before. The next step is learned from frames where the header does not say it.
    mutating func received(_ header: MediaHeader, now: MonotonicTime) -> Bool {
        let entry = (isPicture: isPicture(header.track), pts: header.ptsMicroseconds, at: now)
        if pending.count < Self.pendingMax { pending.append(entry) } else { pending[nextPending] = entry }
        nextPending = (nextPending + 1) % Self.pendingMax
        guard var track = tracks[header.track] else { return false }
        defer { tracks[header.track] = track }
        track.newest = (header.ptsMicroseconds, now)
        let dts = header.ptsMicroseconds &+ Int64(header.dtsDeltaMicroseconds)
        defer { track.lastDTS = dts }
        guard let last = track.lastDTS, dts > last else { return false }
        let step = dts - last
        guard let usual = track.step else {
            track.step = step
            return false
        }
        // Without a rate in the header the shortest distance is that of two frames.
        if track.configuration.stepMicroseconds == nil { track.step = min(usual, step) }
        return step > usual + usual / 2
    }

    /// Presentation time of sound minus that of pictures at the same moment, in microseconds; nil without either.
    var skewMicroseconds: Int64? {
        let newest = tracks.values.compactMap { track in
            track.newest.map { (isPicture: track.configuration.codec.isVideo, pts: $0.pts, at: $0.at) }
        }
        guard let sound = newest.first(where: { !$0.isPicture }), let picture = newest.first(where: \.isPicture) else {
            return nil
        }
        let apart = sound.at - picture.at
        guard abs(apart.nanoseconds) < Self.momentMax.nanoseconds else { return nil }
        return sound.pts &- picture.pts &- apart.nanoseconds / 1000
    }

    /// A frame was rendered. Returns the time since it was received (Td); nil if it is not among the newest.
    mutating func rendered(_ pts: Int64, isPicture: Bool, now: MonotonicTime) -> Duration? {
        guard let entry = pending.last(where: { $0.isPicture == isPicture && $0.pts == pts }) else { return nil }
        let time = now - entry.at
        let sample = max(0, time.nanoseconds / 1_000_000)
        if samples.count < Self.samplesMax { samples.append(sample) } else { samples[nextSample] = sample }
        nextSample = (nextSample + 1) % Self.samplesMax
        return time
    }

    /// Median, and the distance between the tenth and the ninetieth percentile, in milliseconds; 0 without frames.
    var renderDelays: (median: UInt32, spread: UInt32) {
        guard !samples.isEmpty else { return (0, 0) }
        let sorted = samples.sorted()
        func percentile(_ share: Int) -> Int64 { sorted[(sorted.count - 1) * share / 100] }
        return (UInt32(clamping: percentile(50)), UInt32(clamping: percentile(90) - percentile(10)))
    }
}

extension TrackConfiguration {
    /// The distance between two frames according to the header, in microseconds; nil: it does not say.
    fileprivate var stepMicroseconds: Int64? {
        guard third > 0 else { return nil }
        if codec.isVideo { return 1_000_000_000 / Int64(third) }
        return sampleRate > 0 ? Int64(third) * 1_000_000 / Int64(sampleRate) : nil
    }
}

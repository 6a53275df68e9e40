public import ApusCore
public import NIOCore

/// Writes fragmented MP4 (ISO/IEC 14496-12 §8.8) without re-encoding: frames in, bytes out, no I/O (D10).
///
/// The file starts with `ftyp` and `moov` once every track's configuration is known. After that each fragment is one
/// `moof` and `mdat` with about ``Limits/fragmentDuration`` of media. A file that is cut off behind any fragment is
/// readable up to there, so a recorder that is killed loses one fragment.
///
/// A frame's duration is the distance to its track's next frame, so a frame waits for its successor. The last frame has
/// the duration of the one before. Decode times are the running sum of the durations. A position of a later epoch
/// continues right after what is written. A configuration that changes within a file cannot be written to the head. It
/// is written into the stream: a further fragment has the new parameter sets before the next key frame, as `avc3` and
/// `hev1` allow.
public struct FragmentedMP4Writer: Sendable {
    /// The size of a fragment, and the most that waits for the head.
    public struct Limits: Sendable, Hashable {
        public var fragmentDuration: Duration = .milliseconds(200)
        /// A fragment of this size is written at once.
        public var fragmentByteCountMax = 4 << 20
        /// The most frames that wait until every configuration is known. Beyond it the head is written with the known
        /// tracks.
        public var waitingCountMax = 512
        public init() {}
    }

    /// Ticks a second of every track.
    static let timescale: UInt32 = 1_000_000
    /// A longer distance is a jump of the clock, not a pause. The time line then continues with the usual distance.
    static let stepMax: Int64 = 30_000_000

    struct Sample {
        var payload: ByteBuffer
        var duration: UInt32
        /// Presentation time minus decode time.
        var composition: Int32
        var isSync: Bool
    }

    struct Track {
        let number: UInt8
        let configuration: TrackConfiguration
        /// Decode time of the next fragment's first sample, in ticks.
        var time: Int64 = 0
        var hasStarted = false
        var pending: MediaFrame?
        var samples: [Sample] = []
        var lastStep: Int64
        /// Parameter sets of a later configuration, to be written before the next key frame.
        var prefix: ByteBuffer?
        var current: TrackConfiguration

        var sampleDuration: Int64 { samples.reduce(0) { $0 + Int64($1.duration) } }
        var usualStep: Int64 {
            if configuration.codec.isVideo {
                return configuration.third > 0 ? 1_000_000_000 / Int64(configuration.third) : 40_000
            }
            guard configuration.third > 0, configuration.sampleRate > 0 else { return 20_000 }
            return Int64(configuration.third) * 1_000_000 / Int64(configuration.sampleRate)
        }
    }

    private let limits: Limits
    private var tracks: [Track] = []
    private var waiting: [MediaFrame] = []
    private var hasHead = false
    private var hasKey = false
    private var epoch: UInt32?
    /// The presentation time that corresponds to 0 in the file, for this epoch.
    private var origin: Int64?
    private var sequence: UInt32 = 0
    /// Frames that are in the file or will be.
    public private(set) var frameCount = 0
    /// Frames that were omitted: before the first key frame, or of a track that came too late.
    public private(set) var framesOmitted = 0

    public init(limits: Limits = Limits()) { self.limits = limits }

    /// Writes one frame of the stream. Frames must come in the stream's order, with the configurations.
    ///
    /// - Returns: bytes to append to the file; often none.
    /// - Throws: 10001 if a configuration cannot be parsed, 10026 if it cannot be written as MP4.
    public mutating func write(_ frame: MediaFrame) throws(ApusError) -> ByteBuffer {
        var output = ByteBuffer()
        if frame.header.flags.contains(.configuration) {
            try configure(frame)
        } else if !hasHead {
            // Without a configuration nothing can be written. The oldest frame is dropped.
            if waiting.count >= limits.waitingCountMax {
                waiting.removeFirst()
                framesOmitted += 1
            }
            waiting.append(frame)
        } else {
            add(frame)
        }
        if !hasHead, isHeadComplete { try writeHead(&output) }
        if hasHead, isFragmentDue { writeFragment(&output) }
        return output
    }

    /// Ends the file. Returns the remaining bytes.
    ///
    /// - Throws: 10026 if no configuration ever came.
    public mutating func finish() throws(ApusError) -> ByteBuffer {
        var output = ByteBuffer()
        if !hasHead {
            guard !tracks.isEmpty else {
                throw ApusError(.mediaUnreadable, "nothing was recorded: the stream's configuration never came")
            }
            try writeHead(&output)
        }
        for index in tracks.indices { close(&tracks[index], step: nil) }
        writeFragment(&output)
        return output
    }

    /// True if the configuration of every announced track is known.
    private var isHeadComplete: Bool {
        guard let count = tracks.map({ Int($0.configuration.trackCount) }).max() else { return false }
        return tracks.count >= count && !waiting.isEmpty || waiting.count >= limits.waitingCountMax
    }

    private mutating func configure(_ frame: MediaFrame) throws(ApusError) {
        let configuration = try TrackConfiguration(decoding: frame.payload)
        if let index = tracks.firstIndex(where: { $0.number == frame.header.track }) {
            guard tracks[index].current != configuration else { return }
            tracks[index].current = configuration
            tracks[index].prefix = Self.inBand(configuration)
        } else if !hasHead {
            var track = Track(
                number: frame.header.track, configuration: configuration, lastStep: 0, current: configuration)
            track.lastStep = track.usualStep
            tracks.append(track)
        }
    }

    /// The parameter sets of a record, as length-prefixed units for the stream.
    private static func inBand(_ configuration: TrackConfiguration) -> ByteBuffer? {
        guard let sets = ParameterSets(record: configuration.extraData, codec: configuration.codec) else { return nil }
        var buffer = ByteBuffer()
        for unit in sets.all {
            buffer.writeInteger(UInt32(unit.count))
            buffer.writeBytes(unit)
        }
        return buffer
    }

    private mutating func writeHead(_ output: inout ByteBuffer) throws(ApusError) {
        tracks.sort { $0.number < $1.number }
        try MP4Boxes.writeHead(tracks.map(\.configuration), timescale: Self.timescale, into: &output)
        hasHead = true
        let frames = waiting
        waiting = []
        for frame in frames { add(frame) }
    }

    // MARK: - Frames

    private mutating func add(_ frame: MediaFrame) {
        guard let index = tracks.firstIndex(where: { $0.number == frame.header.track }) else {
            framesOmitted += 1
            return
        }
        let isVideo = tracks[index].configuration.codec.isVideo
        let isKey = frame.header.flags.contains(.key)
        // A new publisher's stream is also decodable only from its first key frame.
        if frame.header.position.epoch != epoch { hasKey = false }
        if !hasKey, tracks.contains(where: { $0.configuration.codec.isVideo }) {
            guard isVideo, isKey else {
                framesOmitted += 1
                return
            }
            hasKey = true
        }
        if frame.header.position.epoch != epoch { begin(epoch: frame.header.position.epoch, at: frame.header) }
        frameCount += 1
        var frame = frame
        if isKey, isVideo, var prefix = tracks[index].prefix {
            prefix.writeImmutableBuffer(frame.payload)
            frame.payload = prefix
            tracks[index].prefix = nil
        }
        if !tracks[index].hasStarted {
            tracks[index].hasStarted = true
            tracks[index].time = max(0, frame.decodeTime - (origin ?? 0))
            tracks[index].pending = frame
            return
        }
        if let pending = tracks[index].pending {
            close(&tracks[index], step: frame.decodeTime - pending.decodeTime)
        }
        tracks[index].pending = frame
    }

    /// Starts an epoch. Its first frame is placed at the end of the longest track.
    private mutating func begin(epoch: UInt32, at header: MediaHeader) {
        defer { self.epoch = epoch }
        let decodeTime = header.ptsMicroseconds + Int64(header.dtsDeltaMicroseconds)
        guard self.epoch != nil else {
            origin = decodeTime
            return
        }
        for index in tracks.indices { close(&tracks[index], step: nil) }
        let end = tracks.map { $0.time + $0.sampleDuration }.max() ?? 0
        origin = decodeTime - end
        for index in tracks.indices where tracks[index].hasStarted {
            // The last sample of a shorter track lasts until the new epoch starts, at most 71 minutes.
            let short = end - (tracks[index].time + tracks[index].sampleDuration)
            if let last = tracks[index].samples.indices.last {
                let duration = Int64(tracks[index].samples[last].duration) + short
                tracks[index].samples[last].duration = UInt32(clamping: duration)
            } else {
                tracks[index].time += short
            }
        }
    }

    /// Makes the waiting frame a sample with a duration of `step` microseconds, or the usual duration.
    private func close(_ track: inout Track, step: Int64?) {
        guard let frame = track.pending else { return }
        var length = step ?? track.lastStep
        if length <= 0 || length > Self.stepMax { length = track.usualStep } else { track.lastStep = length }
        track.pending = nil
        track.samples.append(
            Sample(
                payload: frame.payload, duration: UInt32(clamping: length),
                composition: -frame.header.dtsDeltaMicroseconds,
                isSync: !track.configuration.codec.isVideo || frame.header.flags.contains(.key)))
    }

    private var isFragmentDue: Bool {
        let longest = tracks.map(\.sampleDuration).max() ?? 0
        if Duration.microseconds(longest) >= limits.fragmentDuration { return true }
        let bytes = tracks.reduce(0) { $0 + $1.samples.reduce(0) { $0 + $1.payload.readableBytes } }
        return bytes >= limits.fragmentByteCountMax
    }

    private mutating func writeFragment(_ output: inout ByteBuffer) {
        guard tracks.contains(where: { !$0.samples.isEmpty }) else { return }
        sequence += 1
        MP4Boxes.writeFragment(tracks, sequence: sequence, into: &output)
        for index in tracks.indices {
            tracks[index].time += tracks[index].sampleDuration
            tracks[index].samples.removeAll(keepingCapacity: true)
        }
    }
}

extension MediaFrame {
    /// Decode time, in microseconds of the publisher's clock.
    fileprivate var decodeTime: Int64 { header.ptsMicroseconds + Int64(header.dtsDeltaMicroseconds) }
}

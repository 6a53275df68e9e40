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
/// continues right after what is written, and after the time that has passed since, where it is known.
///
/// The head cannot change, so a file holds the formats that it has (``takes(_:)``): a stream with another size, codec
/// or track continues in the next file. Where the whole stream is known before, as with a stored message, the head has
/// all of its formats: one sample entry for each of a track's codec, and a further track for another codec.
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
    /// Up to this distance, in microseconds, a frame's times are believed: nothing came for so long. A longer distance
    /// is a jump of the publisher's clock if the frames arrived within half of it. The time line then continues with
    /// the time between the arrivals.
    static let stepBelieved: Int64 = 30_000_000
    /// A longer distance, in microseconds, is a jump if the times of arrival are unknown. The time line then continues
    /// with the usual distance.
    static let stepMax: Int64 = 3_600_000_000

    struct Track {
        let number: UInt8
        /// The sample entries, all of one codec.
        var formats: [TrackConfiguration]
        /// The entry of the waiting frame and of the samples.
        var format = 0
        /// The entry of the next frame.
        var nextFormat = 0
        /// Decode time of the next fragment's first sample, in ticks.
        var time: Int64 = 0
        var hasStarted = false
        var pending: (frame: MediaFrame, arrival: MonotonicTime?)?
        var samples: [MP4Boxes.Sample] = []
        var lastStep: Int64

        init(number: UInt8, format: TrackConfiguration) {
            (self.number, formats, lastStep) = (number, [format], 0)
            lastStep = usualStep
        }

        var configuration: TrackConfiguration { formats[format] }
        var isVideo: Bool { formats[0].codec.isVideo }
        var sampleDuration: Int64 { samples.reduce(0) { $0 + Int64($1.duration) } }
        var usualStep: Int64 { configuration.usualStepMicroseconds }
    }

    private let limits: Limits
    private var tracks: [Track] = []
    /// The index in ``tracks`` of the format that each track of the stream has now.
    private var current: [UInt8: Int] = [:]
    /// The number of the stream's tracks, as its configurations say.
    private var trackCount = 0
    private var waiting: [(frame: MediaFrame, arrival: MonotonicTime?)] = []
    private var hasHead = false
    /// The head has the formats of a whole stream.
    private let isPlanned: Bool
    private var hasKey = false
    private var epoch: UInt32?
    /// When the last frame arrived.
    private var lastArrival: MonotonicTime?
    /// The presentation time that corresponds to 0 in the file, for this epoch.
    private var origin: Int64?
    private var sequence: UInt32 = 0
    /// Frames that are in the file or will be.
    public private(set) var frameCount = 0
    /// Frames that were omitted: before the first key frame, or of a track or a format that the file does not have.
    public private(set) var framesOmitted = 0

    public init(limits: Limits = Limits()) {
        self.limits = limits
        isPlanned = false
    }

    /// Makes a writer of a stream whose formats are all known.
    ///
    /// - Parameter formats: the configurations of the stream with the numbers of their tracks, in their order. Those
    ///   beyond ``formatCountMax`` are ignored, and the frames with them omitted.
    public init(limits: Limits = Limits(), formats: [(track: UInt8, configuration: TrackConfiguration)]) {
        self.limits = limits
        isPlanned = true
        for (number, format) in formats.prefix(Self.formatCountMax) where MP4Boxes.canHold(format) {
            guard
                let index = tracks.firstIndex(where: {
                    $0.number == number && $0.formats[0].codec == format.codec
                })
            else {
                tracks.append(Track(number: number, format: format))
                continue
            }
            guard !tracks[index].formats.contains(where: { $0.hasSameFormat(as: format) }) else { continue }
            tracks[index].formats.append(format)
        }
        tracks.sort { $0.number < $1.number }
    }

    /// The most formats of a planned file.
    public static let formatCountMax = 256

    /// The length of what is written and waits for its fragment, in microseconds, up to the start of the last frame.
    public var lengthMicroseconds: Int64 { tracks.map { $0.time + $0.sampleDuration }.max() ?? 0 }

    /// False for a configuration that the file cannot hold: the stream has another format or another number of tracks.
    /// Such a stream continues in another file, from its next key frame on.
    public func takes(_ frame: MediaFrame) -> Bool {
        guard hasHead, frame.header.flags.contains(.configuration),
            let configuration = try? TrackConfiguration(decoding: frame.payload)
        else { return true }
        guard let (track, format) = position(of: configuration, track: frame.header.track) else { return false }
        return isPlanned || tracks[track].formats[format].trackCount == configuration.trackCount
    }

    /// Where the file has a format.
    private func position(of configuration: TrackConfiguration, track: UInt8) -> (track: Int, format: Int)? {
        for (index, known) in tracks.enumerated() where known.number == track {
            if let format = known.formats.firstIndex(where: { $0.hasSameFormat(as: configuration) }) {
                return (index, format)
            }
        }
        return nil
    }

    /// Writes one frame of the stream. Frames must come in the stream's order, with the configurations.
    ///
    /// - Parameter arrival: when the frame came from its publisher, if it is known. It decides whether a long distance
    ///   between two frames is a pause.
    /// - Returns: bytes to append to the file; often none.
    /// - Throws: 10001 if a configuration cannot be parsed, 10026 if it cannot be written as MP4.
    public mutating func write(_ frame: MediaFrame, arrival: MonotonicTime? = nil) throws(ApusError) -> ByteBuffer {
        var output = ByteBuffer()
        if frame.header.flags.contains(.configuration) {
            try configure(frame, &output)
        } else if !hasHead {
            // Without a configuration nothing can be written. The oldest frame is dropped.
            if waiting.count >= limits.waitingCountMax {
                waiting.removeFirst()
                framesOmitted += 1
            }
            waiting.append((frame, arrival))
        } else {
            add(frame, arrival, &output)
        }
        if !hasHead, isHeadComplete { try writeHead(&output) }
        if hasHead, isFragmentDue { writeFragment(&output) }
        return output
    }

    /// Ends the file. Returns the remaining bytes.
    ///
    /// - Parameters:
    ///   - next: the frame with which the next file begins. The last frame of its track lasts until then. Nil: the last
    ///     frames have the usual duration, and do not last longer than until `arrival`.
    ///   - arrival: when that frame arrived, or when the recording ends.
    /// - Throws: 10026 if no configuration ever came.
    public mutating func finish(
        until next: MediaFrame? = nil, arrival: MonotonicTime? = nil
    ) throws(ApusError) -> ByteBuffer {
        var output = ByteBuffer()
        if !hasHead {
            guard !tracks.isEmpty else {
                throw ApusError(.mediaUnreadable, "nothing was recorded: the stream's configuration never came")
            }
            try writeHead(&output)
        }
        for index in tracks.indices {
            let isOfTrack = next.map { current[$0.header.track] == index && $0.header.position.epoch == epoch } ?? false
            close(index, until: isOfTrack ? next : nil, isOfTrack || next == nil ? arrival : nil, &output)
        }
        writeFragment(&output)
        return output
    }

    /// True if the configuration of every announced track is known.
    private var isHeadComplete: Bool {
        if isPlanned { return !waiting.isEmpty && !tracks.isEmpty }
        guard !tracks.isEmpty else { return false }
        return tracks.count >= trackCount && !waiting.isEmpty || waiting.count >= limits.waitingCountMax
    }

    private mutating func configure(_ frame: MediaFrame, _ output: inout ByteBuffer) throws(ApusError) {
        let configuration = try TrackConfiguration(decoding: frame.payload)
        let number = frame.header.track
        if isPlanned || hasHead {
            // What the file does not have is omitted.
            let found = position(of: configuration, track: number)
            if let before = current[number], before != found?.track {
                close(before, until: nil, nil, &output)
                if tracks[before].isVideo { hasKey = false }
            }
            current[number] = found?.track
            if let (index, format) = found { tracks[index].nextFormat = format }
            return
        }
        trackCount = Int(configuration.trackCount)
        if position(of: configuration, track: number) == nil, tracks.contains(where: { $0.number == number }) {
            framesOmitted += waiting.count { $0.frame.header.track == number }
            waiting.removeAll { $0.frame.header.track == number }
        }
        tracks.removeAll { track in
            track.number == number || TrackConfigurations.hasEnded(track.number, after: configuration, of: number)
        }
        tracks.append(Track(number: number, format: configuration))
    }

    private mutating func writeHead(_ output: inout ByteBuffer) throws(ApusError) {
        tracks.sort { $0.number < $1.number }
        if !isPlanned { for (index, track) in tracks.enumerated() { current[track.number] = index } }
        try MP4Boxes.writeHead(tracks.map(\.formats), timescale: Self.timescale, into: &output)
        hasHead = true
        let frames = waiting
        waiting = []
        for (frame, arrival) in frames { add(frame, arrival, &output) }
    }

    // MARK: - Frames

    private mutating func add(_ frame: MediaFrame, _ arrival: MonotonicTime?, _ output: inout ByteBuffer) {
        guard let index = current[frame.header.track] else {
            framesOmitted += 1
            return
        }
        let isVideo = tracks[index].isVideo
        let isKey = frame.header.flags.contains(.key)
        // A new publisher's stream, and another format, are also decodable only from their first key frame.
        if frame.header.position.epoch != epoch || isVideo && tracks[index].nextFormat != tracks[index].format {
            hasKey = false
        }
        if !hasKey, current.values.contains(where: { tracks[$0].isVideo }) {
            guard isVideo, isKey else {
                framesOmitted += 1
                return
            }
            hasKey = true
        }
        if frame.header.position.epoch != epoch { begin(frame, arrival, &output) }
        lastArrival = arrival
        frameCount += 1
        let isResumed = tracks[index].hasStarted && tracks[index].pending == nil
        close(index, until: frame, arrival, &output)
        if isResumed { resume(index, with: frame, &output) }
        if tracks[index].nextFormat != tracks[index].format {
            // The samples of a fragment have one entry.
            writeFragment(&output)
            tracks[index].format = tracks[index].nextFormat
        }
        if !tracks[index].hasStarted {
            tracks[index].hasStarted = true
            tracks[index].time = max(0, frame.decodeTime - (origin ?? 0))
        }
        tracks[index].pending = (frame, arrival)
    }

    /// Continues a track that had ended: another codec was sent, or the publisher was away.
    private mutating func resume(_ index: Int, with frame: MediaFrame, _ output: inout ByteBuffer) {
        writeFragment(&output)
        let time = frame.decodeTime - (origin ?? 0)
        if time > tracks[index].time, time - tracks[index].time <= Self.stepMax { tracks[index].time = time }
    }

    /// Starts an epoch. Its first frame is placed at the end of the longest track, or later if the stream was away.
    private mutating func begin(_ frame: MediaFrame, _ arrival: MonotonicTime?, _ output: inout ByteBuffer) {
        defer { epoch = frame.header.position.epoch }
        guard epoch != nil else {
            origin = frame.decodeTime
            return
        }
        for index in tracks.indices { close(index, until: nil, nil, &output) }
        var end = lengthMicroseconds
        if let arrival, let lastArrival {
            end += max(0, (arrival - lastArrival).nanoseconds / 1000 - (tracks.map(\.lastStep).max() ?? 0))
        }
        origin = frame.decodeTime - end
        // The last sample of a shorter track lasts until the new epoch starts, at most 71 minutes.
        for index in tracks.indices {
            guard let last = tracks[index].samples.indices.last else { continue }
            let short = end - (tracks[index].time + tracks[index].sampleDuration)
            let duration = Int64(tracks[index].samples[last].duration) + short
            tracks[index].samples[last].duration = UInt32(clamping: duration)
        }
        writeFragment(&output)
        for index in tracks.indices where tracks[index].hasStarted { tracks[index].time = end }
    }

    /// Makes the waiting frame of a track a sample that lasts until the track's next frame, or for the usual duration.
    private mutating func close(
        _ index: Int, until next: MediaFrame?, _ arrival: MonotonicTime?, _ output: inout ByteBuffer
    ) {
        guard let (frame, came) = tracks[index].pending else { return }
        tracks[index].pending = nil
        var length = next.map { $0.decodeTime - frame.decodeTime } ?? tracks[index].lastStep
        let passed = arrival.flatMap { arrival in came.map { (arrival - $0).nanoseconds / 1000 } }
        if length <= 0 {
            length = tracks[index].usualStep
        } else if next == nil {
            length = min(length, max(passed ?? length, tracks[index].usualStep))
        } else if let passed, length > Self.stepBelieved, passed < length / 2 {
            length = max(passed, tracks[index].usualStep)
        } else if passed == nil, length > Self.stepMax {
            length = tracks[index].usualStep
        } else {
            tracks[index].lastStep = min(length, Self.stepBelieved)
        }
        tracks[index].samples.append(
            MP4Boxes.Sample(
                payload: frame.payload, duration: UInt32(clamping: length),
                composition: -frame.header.dtsDeltaMicroseconds,
                isSync: !tracks[index].isVideo || frame.header.flags.contains(.key)))
        guard length > Int64(UInt32.max) else { return }
        // A duration has 32 bits. The next fragment says when it begins.
        writeFragment(&output)
        tracks[index].time += length - Int64(UInt32.max)
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
        let fragments = tracks.enumerated().map { index, track in
            MP4Boxes.TrackFragment(
                id: UInt32(index + 1), entry: track.format > 0 ? UInt32(track.format + 1) : nil, time: track.time,
                samples: track.samples)
        }
        MP4Boxes.writeFragment(fragments, sequence: sequence, into: &output)
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

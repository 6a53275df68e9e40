import ApusCore
import DequeModule
public import NIOCore

/// A frame in a relay: the fields that the relay uses, and the bytes for every receiver.
public struct RelayFrame: Sendable {
    public var position: FramePosition
    public var ptsMicroseconds: Int64
    public var flags: MediaFlags
    public var track: UInt8
    /// The whole link frame, header and payload. It is the same for every receiver at this node.
    public var encoded: ByteBuffer

    public init(
        position: FramePosition, ptsMicroseconds: Int64, flags: MediaFlags, track: UInt8, encoded: ByteBuffer
    ) {
        self.position = position
        self.ptsMicroseconds = ptsMicroseconds
        self.flags = flags
        self.track = track
        self.encoded = encoded
    }
}

/// The limits of a relay's ring (D13).
public struct FrameRingLimits: Sendable, Hashable {
    /// The most bytes that a channel holds. It takes precedence over the other limits. Key `channels.ring_bytes_max`.
    public var byteCountMax: Int
    /// The media held before the last key frame, by presentation time. Key `channels.ring_duration`.
    public var duration: Duration
    /// The most frames that a channel holds. Key `channels.ring_frames_max`.
    public var frameCountMax: Int

    public init(byteCountMax: Int = 8 << 20, duration: Duration = .seconds(10), frameCountMax: Int = 4096) {
        self.byteCountMax = byteCountMax
        self.duration = duration
        self.frameCountMax = frameCountMax
    }
}

/// The last frames of a channel, in order, with what a viewer needs to start at once (D7).
///
/// Every frame has an index that only grows, so a viewer is a cursor. The held frames are dense: within an epoch no
/// number is missing, and a newer epoch continues with its first frame. If an upstream relay omitted some, the frames
/// before them are forgotten. The oldest frames are removed first: those that are older than
/// ``FrameRingLimits/duration`` and before the last key frame, and any frame if bytes or frames are over their limit.
public struct FrameRing: Sendable {
    /// The result of an append.
    public enum Appended: Sendable, Hashable {
        case appended
        /// A duplicate, which is ignored.
        case duplicate
        /// Frames before it are missing. It is ignored. The number is the expected one.
        case gap(expected: UInt64)
        /// It belongs to an epoch that has ended, and is ignored.
        case stale
    }

    /// The index at which a receiver resumes that has everything up to some position.
    public enum Resumption: Sendable, Hashable {
        /// At this index. The frame may not have arrived yet.
        case at(UInt64)
        /// The ring no longer holds the next frame. The count is the number of lost frames of the epoch, or nil if the
        /// epoch itself is gone.
        case lost(count: UInt64?)
    }

    public let limits: FrameRingLimits
    /// The current limit on the bytes, at most that of ``limits``; see ``limit(byteCountMax:)``.
    public private(set) var byteCountMax: Int
    private var frames = Deque<RelayFrame>()
    /// The index of the oldest frame held.
    public private(set) var firstIndex: UInt64 = 0
    /// Bytes of all frames held.
    public private(set) var byteCount = 0
    /// The newest frame's position. It stays when the limits empty the ring.
    public private(set) var last: FramePosition?
    private var keyIndex: UInt64?
    /// The newest configuration of each track of this epoch, by track. The index is nil if it was not among the frames
    /// but repeated at the start of a join.
    private var configurations: [(index: UInt64?, codec: Codec?, frame: RelayFrame)] = []

    /// The size of ``configurations``, whether they are among the frames or not: at most 16 KiB per track.
    private var configurationByteCount = 0

    public init(limits: FrameRingLimits = FrameRingLimits()) {
        self.limits = limits
        byteCountMax = limits.byteCountMax
    }

    /// The bytes that the ring retains. A configuration that is also among the frames counts twice.
    public var heldByteCount: Int { byteCount + configurationByteCount }

    /// Sets the limit on the bytes. It is lower while the node's rings together are near their limit. Below ``limits``
    /// it applies to the newest frame too: a frame that is larger is not kept, and receivers continue after it.
    public mutating func limit(byteCountMax: Int) {
        self.byteCountMax = min(max(0, byteCountMax), limits.byteCountMax)
        trim()
    }

    /// The index that the next frame will get.
    public var endIndex: UInt64 { firstIndex + UInt64(frames.count) }
    public var isEmpty: Bool { frames.isEmpty }
    /// The oldest position held.
    public var oldest: FramePosition? { frames.first?.position }

    /// The frame at an index from ``firstIndex`` up to, not including, ``endIndex``.
    public subscript(index: UInt64) -> RelayFrame { frames[Int(index - firstIndex)] }

    /// The sequence number that continues an epoch without a gap; nil if the epoch is not the ring's.
    public func next(in epoch: UInt32) -> UInt64? {
        guard let last, last.epoch == epoch else { return nil }
        return last.sequence + 1
    }

    /// Appends the next frame.
    ///
    /// - Parameter allowingGap: true if the sender omits frames on purpose. Otherwise only a dense sequence is
    ///   accepted. The first frame of an epoch may have any number.
    public mutating func append(_ frame: RelayFrame, allowingGap: Bool = false) -> Appended {
        if let last {
            if frame.position.epoch < last.epoch { return .stale }
            if frame.position.epoch == last.epoch {
                if frame.position.sequence <= last.sequence { return .duplicate }
                if frame.position.sequence > last.sequence + 1 {
                    guard allowingGap else { return .gap(expected: last.sequence + 1) }
                    forgetFrames()
                }
            } else {
                forgetConfigurations(before: frame.position.epoch)
                // The epoch's first frames are missing, so what is held does not lead to this frame.
                if frame.position.sequence > 0 { forgetFrames() }
            }
        }
        let index = endIndex
        if frame.flags.contains(.configuration) {
            keep(configuration: frame, at: index)
        } else if frame.flags.contains(.key), isStart(frame) {
            keyIndex = index
        } else if frame.flags.contains(.endOfEpoch) {
            // A stream that ended is not a live picture. New receivers wait for the next publisher.
            keyIndex = nil
        }
        frames.append(frame)
        byteCount += frame.encoded.readableBytes
        last = frame.position
        trim()
        return .appended
    }

    /// Adds a configuration that an upstream relay repeated at the start of a join.
    public mutating func adopt(repeated frame: RelayFrame) {
        if let last, last.epoch != frame.position.epoch {
            guard frame.position.epoch > last.epoch else { return }
            forgetConfigurations(before: frame.position.epoch)
        }
        keep(configuration: frame, at: nil)
        trim()
    }

    /// A new epoch has its own tracks. Configurations that were repeated before its first frame stay.
    private mutating func forgetConfigurations(before epoch: UInt32) {
        configurations.removeAll { $0.frame.position.epoch < epoch }
        countConfigurations()
        keyIndex = nil
    }

    /// The start of a receiver of the live picture: the last key frame, or the configurations right before it. Nil
    /// until there is a key frame.
    public var liveIndex: UInt64? {
        guard var index = keyIndex, index >= firstIndex else { return nil }
        while index > firstIndex, self[index - 1].flags.contains(.configuration) { index -= 1 }
        return index
    }

    /// The position of the key frame at which the live picture starts; nil until there is one.
    public var livePosition: FramePosition? {
        guard let keyIndex, keyIndex >= firstIndex else { return nil }
        return self[keyIndex].position
    }

    /// The configurations for a receiver that starts at an index and has none yet.
    public func configurations(before index: UInt64) -> [RelayFrame] {
        configurations.filter { $0.index.map { $0 < index || $0 < firstIndex } ?? true }.map(\.frame)
    }

    /// The index at which a receiver resumes that has everything up to and including `position`.
    public func resume(after position: FramePosition) -> Resumption {
        guard let last, let oldest else { return .at(endIndex) }
        if position >= last { return .at(endIndex) }
        if position.epoch == oldest.epoch {
            guard position.sequence + 1 >= oldest.sequence else {
                return .lost(count: oldest.sequence - position.sequence - 1)
            }
        } else if position < oldest {
            let isWholeEpoch = oldest.epoch > position.epoch && oldest.sequence == 0
            return isWholeEpoch ? .at(firstIndex) : .lost(count: nil)
        }
        return .at(firstIndex + UInt64(frames.partitioningIndex { $0.position > position }))
    }

    private mutating func keep(configuration frame: RelayFrame, at index: UInt64?) {
        var payload = frame.encoded
        payload.moveReaderIndex(forwardBy: min(RelayFrame.payloadOffset, payload.readableBytes))
        let configuration = try? TrackConfiguration(decoding: payload)
        configurations.removeAll { known in
            let hasEnded = configuration.map {
                TrackConfigurations.hasEnded(known.frame.track, after: $0, of: frame.track)
            }
            return known.frame.track == frame.track || hasEnded ?? false
        }
        // Frames of tracks from `TrackConfiguration.trackCountMax` on are refused where they are decoded.
        configurations.append((index, configuration?.codec, frame))
        configurations.sort { $0.frame.track < $1.frame.track }
        countConfigurations()
    }

    private mutating func countConfigurations() {
        configurationByteCount = configurations.reduce(0) { $0 + $1.frame.encoded.readableBytes }
    }

    /// True if a receiver can start at this key frame: a key frame of video, or of any track if there is no video.
    package func isStart(_ frame: RelayFrame) -> Bool {
        hasVideo ? isVideo(track: frame.track) : true
    }

    /// Empties the ring. The indexes continue.
    private mutating func forgetFrames() {
        firstIndex = endIndex
        frames.removeAll()
        byteCount = 0
        keyIndex = nil
    }

    private mutating func trim() {
        let durationMax = limits.duration.nanoseconds / 1000
        let newest = frames.last?.ptsMicroseconds ?? 0
        while let first = frames.first {
            let isOver = heldByteCount > byteCountMax || frames.count > limits.frameCountMax
            let isTooLarge = byteCountMax < limits.byteCountMax && byteCount > byteCountMax
            let isOld = newest - first.ptsMicroseconds > durationMax || first.position.epoch != last?.epoch
            let isBeforeStart = liveIndex.map { firstIndex < $0 } ?? false
            guard (isOver && frames.count > 1) || isTooLarge || (isOld && isBeforeStart) else { return }
            byteCount -= first.encoded.readableBytes
            frames.removeFirst()
            firstIndex += 1
        }
    }
}

extension Deque {
    /// The first offset whose element satisfies a predicate that is false for a prefix, then true.
    fileprivate func partitioningIndex(where belongsInSecond: (Element) -> Bool) -> Int {
        var low = 0
        var high = count
        while low < high {
            let middle = (low + high) / 2
            if belongsInSecond(self[middle]) { high = middle } else { low = middle + 1 }
        }
        return low
    }
}

extension FrameRing {
    /// The codecs of this epoch's tracks, by their numbers, without those whose configuration cannot be decoded.
    package var codecs: [Codec] { configurations.compactMap(\.codec) }

    /// True if a track of this epoch is video.
    public var hasVideo: Bool { configurations.contains { $0.codec?.isVideo ?? false } }

    /// True if this track of this epoch is video.
    public func isVideo(track: UInt8) -> Bool {
        configurations.contains { $0.frame.track == track && $0.codec?.isVideo ?? false }
    }
}

import ApusCore
import ApusMedia
import NIOCore

/// The frames that wait to be written, by channel.
///
/// Frames that are being written count until the write has ended. A pure value.
struct LogQueue {
    /// What a frame costs beside its content, in bytes.
    static let frameOverhead = 64

    private(set) var byteCount = 0
    private var byteCounts: [ExactText: Int] = [:]
    private var channels: [ExactText: [LoggedFrame]] = [:]

    var isEmpty: Bool { channels.isEmpty }
    var channelCount: Int { byteCounts.count }

    func has(_ channel: ExactText) -> Bool { byteCounts[channel] != nil }

    /// - Returns: how many of the frames were refused.
    mutating func append(_ channel: ExactText, _ frames: [LoggedFrame], _ limits: RecordingLogLimits) -> Int {
        var own = byteCounts[channel] ?? 0
        var accepted: [LoggedFrame] = []
        for frame in frames {
            let count = Self.cost(frame)
            guard frame.content.readableBytes <= limits.frameByteCountMax,
                byteCount + count <= limits.waitingByteCountMax, own + count <= limits.channelWaitingByteCountMax
            else { continue }
            byteCount += count
            own += count
            accepted.append(frame)
        }
        if !accepted.isEmpty {
            channels[channel, default: []] += accepted
            byteCounts[channel] = own
        }
        return frames.count - accepted.count
    }

    /// Takes all frames to write them, in the order of the channels' names.
    ///
    /// They count until ``written(_:_:)`` or ``remove(_:)``.
    mutating func take() -> [LogBatch.Channel] {
        defer { channels = [:] }
        return channels.sorted { $0.key < $1.key }.map { LogBatch.Channel(name: $0.key, frames: $0.value, next: 0) }
    }

    /// These frames do not count any more.
    mutating func written(_ channel: ExactText, _ frames: ArraySlice<LoggedFrame>) {
        let count = frames.reduce(0) { $0 + Self.cost($1) }
        byteCount -= count
        let left = (byteCounts[channel] ?? 0) - count
        byteCounts[channel] = left > 0 ? left : nil
    }

    /// Frames that were taken wait again, before those that came in the meantime.
    mutating func putBack(_ batch: [LogBatch.Channel]) {
        var all: [ExactText: [LoggedFrame]] = [:]
        for channel in batch where channel.next < channel.frames.count {
            all[channel.name] = Array(channel.frames[channel.next...])
        }
        for (name, frames) in channels { all[name, default: []] += frames }
        channels = all
    }

    /// Gives up the frames of a channel that are not being written.
    mutating func remove(_ channel: ExactText) {
        guard let frames = channels.removeValue(forKey: channel) else { return }
        written(channel, frames[...])
    }

    private static func cost(_ frame: LoggedFrame) -> Int { frame.content.readableBytes + frameOverhead }
}

/// What one write writes. A copy of it is what to put back if the rest fails.
struct LogBatch {
    struct Channel {
        var name: ExactText
        var frames: [LoggedFrame]
        /// The first frame that is not in a group.
        var next: Int
    }

    var channels: [Channel]
    var releases: [(channel: ExactText, release: LogRelease)]
    /// The first channel with frames that are not in a group.
    var nextChannel = 0

    var hasFrames: Bool { nextChannel < channels.count }
    var isEmpty: Bool { !hasFrames && releases.isEmpty }
}

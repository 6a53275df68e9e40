import ApusChannels
import ApusCore
import ApusMedia
import ApusRecordingLog
import NIOCore

/// Brings the frames of one channel from its tap to the node's log.
///
/// Concurrency model: confined to the task of the service.
final class ChannelRecorder {
    let recorded: RecordedChannel
    /// The name of the channel in the log.
    let name: String
    private let tap: FrameTap
    private var configurations: [SegmentTrack] = []
    private var epoch: UInt32?
    /// The next frame gets the configurations: the first one of each turn does, and each key frame.
    private var wantsConfigurations = true
    /// When the last frame came.
    private(set) var lastFrameAt = MonotonicTime.now()
    /// When the account of the device was compared with that of the plan.
    var checkedAt = MonotonicTime.now()

    init(_ recorded: RecordedChannel, _ tap: FrameTap) {
        (self.recorded, self.tap, name) = (recorded, tap, recorded.description)
    }

    func close() { tap.close() }

    /// The frames since the last call, as the log has them, and how many the channel did not hold any more.
    ///
    /// - Parameter wall: the cluster's clock, in microseconds of UTC.
    func take(wall: Int64) -> (frames: [LoggedFrame], lost: UInt64) {
        let tapped = tap.take()
        var logged: [LoggedFrame] = []
        logged.reserveCapacity(tapped.frames.count)
        wantsConfigurations = true
        for frame in tapped.frames {
            note(frame)
            guard !frame.flags.contains(.repeated) else { continue }
            let isStart = frame.flags.contains(.key) && !frame.flags.contains(.configuration)
            let isFull = (isStart || wantsConfigurations) && !configurations.isEmpty
            logged.append(
                LoggedFrame(
                    position: frame.position, receivedMicroseconds: wall,
                    content: RecordedFrame.encode(frame.content, configurations: isFull ? configurations : [])))
            if isFull { wantsConfigurations = false }
        }
        if !logged.isEmpty { lastFrameAt = .now() }
        return (logged, tapped.lostCount)
    }

    /// Keeps the newest configuration of each track of the epoch.
    private func note(_ frame: RelayFrame) {
        if frame.position.epoch != epoch {
            (epoch, configurations) = (frame.position.epoch, [])
        }
        guard frame.flags.contains(.configuration),
            let configuration = try? TrackConfiguration(decoding: frame.payload)
        else { return }
        let track = SegmentTrack(number: frame.track, configuration: configuration)
        configurations.removeAll { $0.number == track.number }
        configurations.append(track)
        configurations.sort { $0.number < $1.number }
    }
}

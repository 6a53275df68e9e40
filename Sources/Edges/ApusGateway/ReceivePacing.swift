package import ApusCore
package import ApusMedia
package import ApusTransport
package import NIOCore

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The number of bytes in a publisher's socket that justify a wake-up: the size of the smallest recent video frame.
/// Audio waits for the next video frame anyway (`channels.audio_hold`), so bytes before it may wait in the kernel. If
/// video frames are as small as audio's, or there is no video, every byte justifies a wake-up.
/// Pure: confined to its owner.
package struct WakeThreshold: Sendable {
    /// The number of video frames that are considered: at least this many, and at most twice as many.
    package static let windowFrameCount = 32
    /// The maximum. A larger frame is read as it arrives.
    package static let byteCountMax = 8 << 10

    private struct Window: Sendable {
        var smallestVideo = Int.max
        var largestOther = 0
    }

    private var videoTracks: [UInt8] = []
    private var previous: Window?
    private var current = Window()
    private var videoCount = 0

    package init() {}

    /// Notes a frame from the publisher.
    package mutating func received(_ frame: RelayFrame) {
        if frame.flags.contains(.configuration) { return noteTrack(frame) }
        let byteCount = frame.encoded.readableBytes
        guard videoTracks.contains(frame.track) else {
            current.largestOther = max(current.largestOther, byteCount)
            return
        }
        current.smallestVideo = min(current.smallestVideo, byteCount)
        videoCount += 1
        guard videoCount == Self.windowFrameCount else { return }
        previous = current
        current = Window()
        videoCount = 0
    }

    private mutating func noteTrack(_ frame: RelayFrame) {
        videoTracks.removeAll { $0 == frame.track }
        var payload = frame.encoded
        payload.moveReaderIndex(forwardBy: min(RelayFrame.payloadOffset, payload.readableBytes))
        guard let configuration = try? TrackConfiguration(decoding: payload), configuration.codec.isVideo else {
            return
        }
        videoTracks.append(frame.track)
    }

    /// The number of bytes that must be in the socket before the node wakes; 1 until a window of frames was seen.
    package var byteCount: Int {
        guard let previous else { return 1 }
        let smallest = min(previous.smallestVideo, current.smallestVideo)
        let other = max(previous.largestOther, current.largestOther)
        guard other > 0, smallest > other else { return 1 }
        return min(smallest, Self.byteCountMax)
    }
}

/// Lets the kernel collect a camera's bytes until its next video frame has arrived (SO_RCVLOWAT, socket(7)). A video
/// frame and the audio before it then cost one wake-up in place of three, each of which costs some 200 µs with cold
/// caches (docs/decisions/5). No byte waits for longer than `hold`, including requests on the same connection.
///
/// Concurrency model: confined to the connection's event loop.
package final class ReceivePacing: @unchecked Sendable {  // SAFETY: confined to the event loop.
    private let channel: any Channel
    private let hold: Duration
    private var threshold = WakeThreshold()
    /// The current value of the socket's option.
    private var lowWater = 1
    private var deadline: LoopDeadline?

    package init(channel: any Channel, clock: LoopClock, hold: Duration) {
        self.channel = channel
        self.hold = hold
        deadline = clock.deadline { [weak self] in self?.setLowWater(1) }
    }

    /// Notes a frame that was read.
    package func received(_ frame: RelayFrame) { threshold.received(frame) }

    /// Notes that all bytes in the socket were read.
    package func readComplete(now: MonotonicTime) {
        let wanted = threshold.byteCount
        setLowWater(wanted)
        if wanted > 1 { deadline?.set(now + hold) } else { deadline?.clear() }
    }

    /// Stops pacing: every byte wakes the node again.
    package func stop() {
        deadline?.clear()
        setLowWater(1)
    }

    private func setLowWater(_ byteCount: Int) {
        guard byteCount != lowWater else { return }
        lowWater = byteCount
        try? channel.syncOptions?.setOption(Self.lowWaterOption, value: byteCount)
    }
    private static let lowWaterOption = ChannelOptions.Types.SocketOption(
        level: .socket, name: NIOBSDSocket.Option(rawValue: SO_RCVLOWAT))
}

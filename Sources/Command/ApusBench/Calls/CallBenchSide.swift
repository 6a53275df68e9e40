import ApusClient
import ApusCore
import ApusMedia
import NIOCore

/// One side of a call with media: it sends a frame at once, and notes when the first one of the other side arrives.
final class CallBenchSide: Sendable {
    /// A key frame of a small picture.
    private static let frameByteCount = 4000
    private static let timeMax = TimeAmount.seconds(10)

    private let publisher: Publisher
    private let player: Player
    private let first: AsyncStream<MonotonicTime>

    init(_ session: ClientSession, _ call: String) {
        let (first, feed) = AsyncStream<MonotonicTime>.makeStream(bufferingPolicy: .bufferingOldest(1))
        self.first = first
        publisher = Publisher(session: session, call: call)
        player = Player(session: session, call: call, onFrame: { _ in feed.yield(.now()) })
        publisher.start()
        player.start()
        publisher.send(
            track: 0, ptsMicroseconds: 0, dtsDeltaMicroseconds: 0, flags: .key,
            payload: ByteBuffer(repeating: 1, count: Self.frameByteCount))
        session.eventLoop.scheduleTask(in: Self.timeMax) { feed.finish() }
    }

    /// - Throws: 10005 if there is none in ten seconds.
    func firstFrame() async throws(ApusError) -> MonotonicTime {
        for await time in first { return time }
        throw ApusError(.deadlineExceeded)
    }

    func stop() {
        publisher.stop()
        player.stop()
    }
}

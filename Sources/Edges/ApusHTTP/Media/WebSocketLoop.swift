import ApusCore
import ApusListener
import ApusTransport
import NIOCore
import Synchronization

/// The WebSockets of one event loop of the channels: their keepalives, and the messages that they share.
///
/// Concurrency model: confined to ``eventLoop``, except ``count``.
final class WebSocketLoop: @unchecked Sendable {  // SAFETY: confined to `eventLoop`.
    let eventLoop: any EventLoop
    /// The number of WebSockets here.
    let count = Atomic(0)
    let clock: LoopClock
    private var ports: [WebSocketPort?] = []
    private var keepalives: KeepaliveClock
    private lazy var nextLook = clock.deadline { [weak self] in self?.look() }
    /// The last frames, and the message that they became. While the frames are kept, no others have their address.
    private var last = (frames: ByteBuffer(), message: ByteBuffer())

    /// A message without content, for clients that play a silent stream.
    static let alive = WebSocketPort.message("{\"alive\":{}}")

    init(_ clock: LoopClock, streamKeepalive: Duration) {
        (self.clock, eventLoop) = (clock, clock.eventLoop)
        keepalives = KeepaliveClock(keepalive: streamKeepalive)
    }

    func add(_ port: WebSocketPort) -> Int {
        let slot = keepalives.add(now: .now())
        if slot == ports.count { ports.append(nil) }
        ports[slot] = port
        count.add(1, ordering: .relaxed)
        return slot
    }

    func remove(_ slot: Int) {
        ports[slot] = nil
        keepalives.remove(slot)
        count.subtract(1, ordering: .relaxed)
    }

    func setStreams(_ slot: Int, isStreaming: Bool, isPlaying: Bool) {
        keepalives.setStreams(slot, isStreaming: isStreaming, isPlaying: isPlaying)
        let due = MonotonicTime.now() + keepalives.keepalive
        if isStreaming, nextLook.time.map({ $0 > due }) ?? true { nextLook.set(due) }
    }

    /// Notes that bytes were sent to a WebSocket. If all that play were sent some at this moment, the next check is
    /// postponed: a stream of frames causes no wake-ups between frames.
    func sent(_ slot: Int, now: MonotonicTime) {
        guard keepalives.sent(slot, now: now), let time = keepalives.nextLook(now: now) else { return }
        if nextLook.time.map({ $0 < time }) ?? true { nextLook.set(time) }
    }

    private func look() {
        let now = MonotonicTime.now()
        for slot in keepalives.silent(now: now) where now - keepalives.lastSent(slot) >= keepalives.silenceMin {
            ports[slot]?.keepAlive()
        }
        if let time = keepalives.nextLook(now: now) { nextLook.set(time) } else { nextLook.clear() }
    }

    /// Frames as a binary message (RFC 6455 §5.2). All viewers of a channel receive the same bytes one after the other,
    /// so one message serves them: messages of a server have no mask (§5.1).
    func message(of frames: ByteBuffer) -> ByteBuffer {
        let isSame = last.frames.withUnsafeReadableBytes { old in
            frames.withUnsafeReadableBytes { old.baseAddress == $0.baseAddress && old.count == $0.count }
        }
        guard !isSame else { return last.message }
        var message = WebSocketPort.header(0x82, frames.readableBytes, room: frames.readableBytes)
        message.writeImmutableBuffer(frames)
        last = (frames, message)
        return message
    }
}

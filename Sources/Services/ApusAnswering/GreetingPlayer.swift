import ApusChannels
import ApusCore
import ApusMedia
import ApusWire
import NIOCore
import Synchronization

/// Plays a greeting to a caller: it publishes the channel of the other side, at the pace of its frames.
///
/// It begins when the caller does, so that a caller on a long path does not miss its beginning. After the death of a
/// node the next recorder's player goes on where the greeting would be by now, with the next key frame.
///
/// Concurrency model: confined to the event loop, except ``init(_:_:open:)``, ``start(elapsed:)`` and ``stop()``.
final class GreetingPlayer: PublisherSink, @unchecked Sendable {  // SAFETY: confined to the event loop.
    let eventLoop: any EventLoop
    private let frames: [MediaFrame]
    /// The presentation time of the first frame that is no configuration, in microseconds.
    private let firstUs: Int64
    private let open: Open
    private var elapsed = Duration.zero
    private var isStarted = false
    private var handle: PublishHandle?
    private var isStopped = false
    /// What was sent, for a new primary.
    private var sent: [MediaFrame] = []
    private var next = 0
    private var run: (stream: StreamNumber, epoch: UInt32, first: UInt64)?
    private var openedAt = MonotonicTime.zero

    private static let tick = TimeAmount.milliseconds(20)

    /// Opens the channel that the caller plays.
    typealias Open = @Sendable (GreetingPlayer, @escaping @Sendable (Result<PublishHandle, ApusError>) -> Void) -> Void

    init(_ frames: [MediaFrame], _ eventLoop: any EventLoop, open: @escaping Open) {
        (self.frames, self.eventLoop, self.open) = (frames, eventLoop, open)
        firstUs = frames.first { !$0.header.flags.contains(.configuration) }?.header.ptsMicroseconds ?? 0
    }

    /// A second call has no effect.
    ///
    /// - Parameter elapsed: how long the greeting would have been played by now.
    func start(elapsed: Duration) {
        eventLoop.execute { [self] in
            guard !isStarted, !isStopped else { return }
            (isStarted, self.elapsed) = (true, elapsed)
            open(self) { [self] result in
                guard case .success(let opened) = result else { return }
                guard !isStopped else { return opened.close() }
                handle = opened
            }
        }
    }

    func stop() {
        eventLoop.execute { [self] in
            isStopped = true
            handle?.close()
            handle = nil
        }
    }

    func publishOpened(_ stream: StreamNumber, epoch: UInt32, next first: UInt64, isProtected: Bool) {
        run = (stream, epoch, first)
        openedAt = .now()
        skip()
        play()
    }

    func publishAcknowledged(_ stream: StreamNumber, epoch: UInt32, next: UInt64) {}

    func publishResume(_ stream: StreamNumber, epoch: UInt32, next sequence: UInt64) {
        guard let run else { return }
        self.run = (stream, epoch, run.first)
        let first = Int(clamping: sequence > run.first ? sequence - run.first : 0)
        send(Array(sent.dropFirst(first)), from: first)
    }

    func publishFailed(_ stream: StreamNumber, _ error: ApusError) {
        isStopped = true
        handle = nil
    }

    /// Leaves out what would be over, up to a key frame of the track that has them.
    private func skip() {
        guard elapsed > .zero else { return }
        let due = frames.firstIndex { !$0.header.flags.contains(.configuration) && time(of: $0) >= elapsed }
        let key = due.flatMap { due in frames[due...].firstIndex { $0.header.flags.contains(.key) } }
        let configurations = frames.prefix(key ?? frames.count).filter { $0.header.flags.contains(.configuration) }
        publish(configurations)
        next = key ?? frames.count
    }

    private func time(of frame: MediaFrame) -> Duration { .microseconds(frame.header.ptsMicroseconds - firstUs) }

    private func play() {
        guard !isStopped, next < frames.count else { return }
        let position = MonotonicTime.now() - openedAt + elapsed
        let due = frames[next...].prefix { $0.header.flags.contains(.configuration) || time(of: $0) <= position }
        next += due.count
        publish(Array(due))
        eventLoop.scheduleTask(in: Self.tick) { [self] in play() }
    }

    private func publish(_ frames: [MediaFrame]) {
        guard !frames.isEmpty else { return }
        let first = sent.count
        sent += frames
        send(frames, from: first)
    }

    private func send(_ frames: [MediaFrame], from index: Int) {
        guard let run, let handle else { return }
        var relayed: [RelayFrame] = []
        for (frame, index) in zip(frames, index...) {
            var frame = frame
            frame.header.position = FramePosition(epoch: run.epoch, sequence: run.first + UInt64(index))
            frame.header.term = 0
            var payload = ByteBuffer()
            frame.encode(into: &payload)
            let copy = try? RelayFrame(copying: payload) { byteCount, buffer in
                LinkFrame.encodeHeader(
                    kind: .media, correlation: run.stream, payloadByteCount: byteCount, into: &buffer)
            }
            if let copy { relayed.append(copy) }
        }
        handle.send(relayed)
    }
}

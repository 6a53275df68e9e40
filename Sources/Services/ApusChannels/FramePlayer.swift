package import ApusCore
package import ApusMedia
package import NIOCore

/// Publishes frames of this node to a channel in real time, such as the greeting of an answering machine.
///
/// It stores the frames that it has sent, so that a new primary can get those that it lacks. A player that starts late
/// skips the frames whose time has passed, and begins with the next key frame.
///
/// The frames may come while it plays (``append(_:isLast:)``). When it has played all that there are, its clock stands
/// still until the next ones come, as in a pause.
///
/// Concurrency model: confined to the event loop, except the initializer, ``start(elapsed:)``, ``append(_:isLast:)``,
/// ``pause()``, ``resume()`` and ``stop()``.
package final class FramePlayer: PublisherSink, @unchecked Sendable {  // SAFETY: confined to the event loop.
    package let eventLoop: any EventLoop
    private var frames: [MediaFrame]
    /// No frames are appended any more.
    private var isComplete: Bool
    private let channel: ChannelID
    private let account: AccountID?
    private let service: ChannelService
    /// The presentation time of the first frame that is not a configuration, in microseconds.
    private let firstUs: Int64
    private var elapsed = Duration.zero
    private var isStarted = false
    private var handle: PublishHandle?
    private var isStopped = false
    /// The sent frames, for a new primary.
    private var sent: [MediaFrame] = []
    private var next = 0
    private var run: (stream: StreamNumber, epoch: UInt32, first: UInt64)?
    private var openedAt = MonotonicTime.zero
    private var pausedAt: MonotonicTime?
    /// The time in which it was paused.
    private var pausedTime = Duration.zero

    private static let tick = TimeAmount.milliseconds(20)

    /// - Parameters:
    ///   - frames: in the order of their times, the configurations first. Their positions are not used.
    ///   - isComplete: no others follow.
    ///   - account: the account whose share the channel uses.
    package init(
        _ frames: [MediaFrame], isComplete: Bool = true, to channel: ChannelID, of account: AccountID?,
        at service: ChannelService, on eventLoop: any EventLoop
    ) {
        (self.frames, self.isComplete, self.channel, self.account) = (frames, isComplete, channel, account)
        (self.service, self.eventLoop) = (service, eventLoop)
        firstUs = frames.first { !$0.header.flags.contains(.configuration) }?.header.ptsMicroseconds ?? 0
    }

    /// Starts to play. A second call has no effect.
    ///
    /// - Parameter elapsed: how long the frames should already have been playing.
    package func start(elapsed: Duration) {
        eventLoop.execute { [self] in
            guard !isStarted, !isStopped else { return }
            (isStarted, self.elapsed) = (true, elapsed)
            let offer = PublishOffer(epoch: 0, instance: .random(in: 1...UInt64.max), oldest: 0)
            service.publish(channel, of: account, offer: offer, sink: self) { [self] result in
                guard case .success(let opened) = result else { return }
                guard !isStopped else { return opened.close() }
                handle = opened
            }
        }
    }

    /// Further frames, which follow the others in time. The caller bounds them.
    ///
    /// - Parameter isLast: no others follow.
    package func append(_ more: [MediaFrame], isLast: Bool) {
        eventLoop.execute { [self] in
            guard !isComplete, !isStopped else { return }
            if run != nil, next == frames.count, let first = more.first {
                // What was waited for is not played faster.
                pausedTime = pausedTime + max(.zero, position - time(of: first))
            }
            frames += more
            isComplete = isLast
        }
    }

    /// Sends nothing until ``resume()``.
    package func pause() {
        eventLoop.execute { [self] in
            if pausedAt == nil { pausedAt = .now() }
        }
    }

    /// Goes on with the frame before which it was paused.
    package func resume() {
        eventLoop.execute { [self] in
            guard let pausedAt else { return }
            self.pausedAt = nil
            guard run != nil else { return }
            pausedTime = pausedTime + (.now() - max(pausedAt, openedAt))
        }
    }

    /// The time until the last frame that there is is sent. While it is paused, it does not become shorter.
    package var timeLeft: Duration {
        eventLoop.assertInEventLoop()
        guard let last = frames.last, next < frames.count else { return .zero }
        return max(.zero, time(of: last) - position)
    }

    /// Leaves the channel.
    package func stop() {
        eventLoop.execute { [self] in
            isStopped = true
            handle?.close()
            handle = nil
        }
    }

    package func publishOpened(_ stream: StreamNumber, epoch: UInt32, next first: UInt64, isProtected: Bool) {
        run = (stream, epoch, first)
        openedAt = .now()
        skip()
        play()
    }

    package func publishAcknowledged(_ stream: StreamNumber, epoch: UInt32, next: UInt64) {}

    package func publishResume(_ stream: StreamNumber, epoch: UInt32, next sequence: UInt64) {
        guard let run else { return }
        self.run = (stream, epoch, run.first)
        let first = Int(clamping: sequence > run.first ? sequence - run.first : 0)
        send(Array(sent.dropFirst(first)), from: first)
    }

    package func publishFailed(_ stream: StreamNumber, _ error: ApusError) {
        isStopped = true
        handle = nil
    }

    /// Skips the frames whose time has passed, up to the next key frame, and sends the configurations before it.
    private func skip() {
        guard elapsed > .zero else { return }
        let due = frames.firstIndex { !$0.header.flags.contains(.configuration) && time(of: $0) >= elapsed }
        let key = due.flatMap { due in frames[due...].firstIndex { $0.header.flags.contains(.key) } }
        let configurations = frames.prefix(key ?? frames.count).filter { $0.header.flags.contains(.configuration) }
        publish(configurations)
        next = key ?? frames.count
    }

    private func time(of frame: MediaFrame) -> Duration { .microseconds(frame.header.ptsMicroseconds - firstUs) }

    /// The time of the frames that are due.
    private var position: Duration {
        guard run != nil else { return elapsed }
        return max(pausedAt ?? .now(), openedAt) - openedAt + elapsed - pausedTime
    }

    private func play() {
        guard !isStopped, next < frames.count || !isComplete else { return }
        if pausedAt == nil, next < frames.count {
            let position = position
            let due = frames[next...].prefix { $0.header.flags.contains(.configuration) || time(of: $0) <= position }
            next += due.count
            publish(Array(due))
        }
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
        var placed: [MediaFrame] = []
        for (frame, index) in zip(frames, index...) {
            var frame = frame
            frame.header.position = FramePosition(epoch: run.epoch, sequence: run.first + UInt64(index))
            frame.header.term = 0
            placed.append(frame)
        }
        handle.send(placed)
    }
}

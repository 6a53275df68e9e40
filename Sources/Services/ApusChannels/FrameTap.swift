package import ApusCore
package import ApusMedia
package import NIOCore
import Synchronization

/// Frames that a ``FrameTap`` has received since the last ``FrameTap/take()``, in the order of the channel.
package struct TappedFrames: Sendable {
    package private(set) var frames: [RelayFrame] = []
    /// The sum of their sizes.
    package private(set) var byteCount = 0
    /// The number of frames that the channel no longer held.
    package private(set) var lostCount: UInt64 = 0

    package init() {}

    fileprivate mutating func add(_ batch: FanOutStateMachine.FrameBatch) {
        frames += batch.frames
        byteCount += batch.byteCount
    }

    fileprivate mutating func lose(_ count: UInt64) { lostCount += count }
}

/// A receiver of a channel's frames within this node, such as a recorder. It stores the frames until ``take()``.
///
/// It gets every frame that the channel holds, and remains attached when this or another node becomes the channel's
/// primary. On a node that is neither primary nor standby, the frames come from another node, which may skip some if
/// the link is slow. The tap counts them (``TappedFrames/lostCount``).
///
/// Bounded: it accepts no frames while it holds ``byteCountMax`` bytes. If ``take()`` is called too late, the channel
/// no longer holds the next frames, and only this tap loses them.
///
/// Concurrency model: confined to the event loop, except ``take()`` and ``close()``. A `Mutex` guards the frames.
package final class FrameTap: FrameSink, FrameReceiver, @unchecked Sendable {  // SAFETY: see the concurrency model.
    package let eventLoop: any EventLoop
    /// The size at which the tap accepts no more frames, in bytes. One batch can exceed it.
    package let byteCountMax: Int
    private let state = Mutex(TappedFrames())
    /// Called once, with the first frame.
    private var onFirst: (@Sendable (any EventLoop) -> Void)?
    private var receipt: Receipt?
    private var isClosed = false

    fileprivate init(
        _ eventLoop: any EventLoop, byteCountMax: Int, onFirst: @escaping @Sendable (any EventLoop) -> Void
    ) {
        (self.eventLoop, self.byteCountMax, self.onFirst) = (eventLoop, byteCountMax, onFirst)
    }

    /// Returns the frames since the last call. If the tap was full, the channel may send more.
    package func take() -> TappedFrames {
        let taken = state.withLock { frames in
            defer { frames = TappedFrames() }
            return frames
        }
        if taken.byteCount >= byteCountMax { eventLoop.execute { [self] in receipt?.becameWritable() } }
        return taken
    }

    /// Leaves the channel.
    package func close() {
        eventLoop.execute { [self] in
            isClosed = true
            receipt?.close()
            receipt = nil
        }
    }

    package var need: ReceiverNeed { .recorder }

    fileprivate func opened(_ receipt: Receipt) {
        guard !isClosed else { return receipt.close() }
        self.receipt = receipt
        receipt.open()
    }

    package var isWritable: Bool { state.withLock { $0.byteCount < byteCountMax } }

    package func receive(_ batch: FanOutStateMachine.FrameBatch, now: MonotonicTime) {
        state.withLock { $0.add(batch) }
        onFirst?(eventLoop)
        onFirst = nil
    }

    package func streamChanged(_ stream: StreamNumber, to phase: StreamPhase) {
        if case .skipped(let count) = phase { state.withLock { $0.lose(count) } }
    }
}

extension ChannelService {
    /// Receives a channel's frames within this node.
    ///
    /// - Parameters:
    ///   - after: as in ``play(_:of:sink:after:completion:)``.
    ///   - byteCountMax: as ``FrameTap/byteCountMax``.
    ///   - onFirst: called on the event loop with the first frame.
    /// - Throws: 10007 if the node has no room for another channel of the account.
    package func tap(
        _ channel: ChannelID, of account: AccountID? = nil, after: FramePosition?, on eventLoop: any EventLoop,
        byteCountMax: Int, onFirst: @escaping @Sendable (any EventLoop) -> Void = { _ in }
    ) async throws(ApusError) -> FrameTap {
        let tap = FrameTap(eventLoop, byteCountMax: byteCountMax, onFirst: onFirst)
        let result: Result<FrameTap, ApusError> = await withCheckedContinuation { continuation in
            eventLoop.execute { [self] in
                play(channel, of: account, sink: tap, after: after) { result in
                    if case .success(let receipt) = result { tap.opened(receipt) }
                    continuation.resume(returning: result.map { _ in tap })
                }
            }
        }
        return try result.get()
    }
}

package import ApusCore
package import ApusMedia
import NIOCore
import Synchronization

/// Frames that wait for a thread that writes them to a disk.
///
/// If the disk is too slow and ``byteCountMax`` bytes wait, the newest frames are refused and counted. A frame counts
/// with its payload and ``overhead``.
///
/// Concurrency model: ``put(_:)`` and ``close()`` from any thread, ``take()`` from one.
package final class FrameQueue: Sendable {
    /// A frame, and when it was put.
    package struct Queued: Sendable {
        package var frame: MediaFrame
        package var arrival: MonotonicTime
    }

    private struct State {
        var frames: [Queued] = []
        var byteCount = 0
        var isClosed = false
        var framesLost: UInt64 = 0
    }

    /// What a frame takes beside its payload, in bytes.
    private static let overhead = 256
    private let byteCountMax: Int
    private let state = Mutex(State())
    private let signal = Signal()

    package init(byteCountMax: Int) { self.byteCountMax = byteCountMax }

    /// Frames that were refused, or that nobody takes any more.
    package var framesLost: UInt64 { state.withLock { $0.framesLost } }

    /// Adds a frame. Returns at once.
    package func put(_ frame: MediaFrame) {
        let (bytes, arrival) = (frame.payload.readableBytes + Self.overhead, MonotonicTime.now())
        let isTaken = state.withLock { state in
            guard !state.isClosed, state.byteCount + bytes <= byteCountMax else {
                state.framesLost += 1
                return false
            }
            state.frames.append(Queued(frame: frame, arrival: arrival))
            state.byteCount += bytes
            return true
        }
        if isTaken { signal.wake() }
    }

    /// No more frames are taken.
    package func close() {
        state.withLock { $0.isClosed = true }
        signal.wake()
    }

    /// Drops what waits, and everything that follows.
    package func fail() {
        state.withLock { state in
            state.framesLost += UInt64(state.frames.count)
            (state.frames, state.byteCount, state.isClosed) = ([], 0, true)
        }
    }

    /// Waits for frames, or the end.
    ///
    /// - Returns: what waits, and whether anything can follow.
    package func take() -> (frames: [Queued], isClosed: Bool) {
        signal.wait()
        return state.withLock { state in
            defer { (state.frames, state.byteCount) = ([], 0) }
            return (state.frames, state.isClosed)
        }
    }
}

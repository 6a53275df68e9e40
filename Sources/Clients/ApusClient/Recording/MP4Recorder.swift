public import ApusCore
public import ApusMedia
import ApusThreads
import DequeModule
import Glibc
import NIOCore
import Synchronization

/// Records a player's frames into a fragmented MP4 file, without re-encoding.
///
/// Each fragment is written with `write(2)`, so after `kill -9` the file is readable up to its last fragment (D10). A
/// thread of the recorder writes; ``write(_:)`` costs a lock. If the disk is too slow and more than
/// ``queueByteCountMax`` bytes wait, the newest frames are dropped and counted in ``framesLost``.
///
/// Concurrency model: every method may be called from any thread. Frames keep the order of the calls.
public final class MP4Recorder: Sendable {
    /// The most payload bytes that wait for the disk.
    public static let queueByteCountMax = 256 << 20

    private struct State {
        var frames = Deque<MediaFrame>()
        var byteCount = 0
        var isClosed = false
        var framesLost: UInt64 = 0
        var framesRecorded = 0
        var failure: ApusError?
    }

    private let path: String
    private let file: Int32
    private let state = Mutex(State())
    private let signal = Signal()
    private let thread = Mutex<OSThread?>(nil)

    /// Creates the file, or empties it.
    ///
    /// - Throws: 10021 if it cannot be written; 10018 if there is no thread.
    public init(path: String, limits: FragmentedMP4Writer.Limits = .init()) throws(ApusError) {
        self.path = path
        file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0o644)
        guard file >= 0 else {
            throw ApusError(
                .storageFailed,
                "the recording \(path) cannot be written: \(String(cString: strerror(errno))); "
                    + "check the folder and its permissions"
            )
        }
        let started = try OSThread(name: "apus-recorder") { [self] in run(FragmentedMP4Writer(limits: limits)) }
        thread.withLock { $0 = started }
    }

    /// The number of frames in the file, once ``finish()`` has returned.
    public var framesRecorded: Int { state.withLock { $0.framesRecorded } }
    /// Frames that were dropped because of a slow or full disk.
    public var framesLost: UInt64 { state.withLock { $0.framesLost } }
    /// The error that stopped the recording, if any: 10021, or 10026 for a stream that MP4 cannot hold.
    public var failure: ApusError? { state.withLock { $0.failure } }

    /// Adds a frame from a player, including repeated configurations. Returns at once.
    public func write(_ frame: MediaFrame) {
        let bytes = frame.payload.readableBytes
        let isTaken = state.withLock { state in
            guard !state.isClosed, state.failure == nil, state.byteCount + bytes <= Self.queueByteCountMax else {
                state.framesLost += 1
                return false
            }
            state.frames.append(frame)
            state.byteCount += bytes
            return true
        }
        if isTaken { signal.wake() }
    }

    /// Writes the remaining frames, ends the file and closes it. Blocks until that is done.
    ///
    /// - Returns: the number of frames in the file.
    /// - Throws: 10021 if the disk is full or failed; 10026 if nothing could be recorded.
    @discardableResult
    public func finish() throws(ApusError) -> Int {
        state.withLock { $0.isClosed = true }
        signal.wake()
        thread.withLock { $0.take() }?.join()
        if let failure { throw failure }
        return framesRecorded
    }

    private func run(_ initial: consuming FragmentedMP4Writer) {
        var writer = initial
        defer { close(file) }
        while true {
            signal.wait()
            let (batch, isClosed) = state.withLock { state in
                defer {
                    state.frames = Deque()
                    state.byteCount = 0
                }
                return (state.frames, state.isClosed)
            }
            do throws(ApusError) {
                for frame in batch { try put(writer.write(frame)) }
                if isClosed {
                    try put(writer.finish())
                    let count = writer.frameCount
                    return state.withLock { $0.framesRecorded = count }
                }
            } catch {
                state.withLock { state in
                    state.failure = error
                    state.framesLost += UInt64(state.frames.count)
                    state.frames = Deque()
                }
                return
            }
        }
    }

    private func put(_ bytes: ByteBuffer) throws(ApusError) {
        guard bytes.readableBytes > 0, let number = writeAll(file, Array(bytes.readableBytesView)) else { return }
        let advice = number == ENOSPC ? "; the disk is full: make room or record elsewhere" : ""
        throw ApusError(
            .storageFailed, "the recording \(path) cannot be written: \(String(cString: strerror(number)))\(advice)")
    }
}

public import ApusCore
public import ApusMedia
import ApusThreads
import Glibc
package import NIOCore
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
        var framesRecorded = 0
        var failure: ApusError?
    }

    private let path: String
    private let file: Int32
    private let queue = FrameQueue(byteCountMax: MP4Recorder.queueByteCountMax)
    private let state = Mutex(State())
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
    public var framesLost: UInt64 { queue.framesLost }
    /// The error that stopped the recording, if any: 10021, or 10026 for a stream that MP4 cannot hold.
    public var failure: ApusError? { state.withLock { $0.failure } }

    /// Adds a frame from a player, including repeated configurations. Returns at once.
    public func write(_ frame: MediaFrame) { queue.put(frame) }

    /// Writes the remaining frames, ends the file and closes it. Blocks until that is done.
    ///
    /// - Returns: the number of frames in the file.
    /// - Throws: 10021 if the disk is full or failed; 10026 if nothing could be recorded.
    @discardableResult
    public func finish() throws(ApusError) -> Int {
        queue.close()
        thread.withLock { $0.take() }?.join()
        if let failure { throw failure }
        return framesRecorded
    }

    private func run(_ initial: consuming FragmentedMP4Writer) {
        var writer = initial
        defer { close(file) }
        do throws(ApusError) {
            while true {
                let (frames, isClosed) = queue.take()
                for frame in frames { try put(writer.write(frame)) }
                guard isClosed else { continue }
                try put(writer.finish())
                let count = writer.frameCount
                return state.withLock { $0.framesRecorded = count }
            }
        } catch {
            state.withLock { $0.failure = error }
            queue.fail()
        }
    }

    private func put(_ bytes: ByteBuffer) throws(ApusError) {
        guard let number = Self.append(bytes, to: file) else { return }
        throw Self.unwritable(path, number)
    }

    /// - Returns: nil, or the errno that stopped it.
    package static func append(_ bytes: ByteBuffer, to file: Int32) -> Int32? {
        bytes.readableBytes > 0 ? writeAll(file, Array(bytes.readableBytesView)) : nil
    }

    /// 10021: the file of a recording cannot be written.
    package static func unwritable(_ path: String, _ number: Int32) -> ApusError {
        let advice = number == ENOSPC ? "; the disk is full: make room or record elsewhere" : ""
        return ApusError(
            .storageFailed, "the recording \(path) cannot be written: \(String(cString: strerror(number)))\(advice)")
    }
}

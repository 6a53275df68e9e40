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
/// A file holds one format of each track. A stream that changes its size, its codec or its tracks continues in another
/// file beside the first one, from its next key frame on: after `NAME.mp4` come `NAME-2.mp4`, `NAME-3.mp4` and so on.
/// Numbers of files that exist are not used. See ``paths``.
///
/// Concurrency model: every method may be called from any thread. Frames keep the order of the calls.
public final class MP4Recorder: Sendable {
    /// The most payload bytes that wait for the disk.
    public static let queueByteCountMax = 256 << 20

    /// The most files of one recording. A stream that changes more often ends it with 10026.
    public static let fileCountMax = 1000

    private struct State {
        var framesRecorded = 0
        var paths: [String]
        var failure: ApusError?
    }

    private let limits: FragmentedMP4Writer.Limits
    private let queue = FrameQueue(byteCountMax: MP4Recorder.queueByteCountMax)
    private let state: Mutex<State>
    private let thread = Mutex<OSThread?>(nil)

    /// Creates the file, or empties it.
    ///
    /// - Throws: 10021 if it cannot be written; 10018 if there is no thread.
    public init(path: String, limits: FragmentedMP4Writer.Limits = .init()) throws(ApusError) {
        self.limits = limits
        state = Mutex(State(paths: [path]))
        let file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0o644)
        guard file >= 0 else {
            throw ApusError(
                .storageFailed,
                "the recording \(path) cannot be written: \(String(cString: strerror(errno))); "
                    + "check the folder and its permissions"
            )
        }
        let started = try OSThread(name: "apus-recorder") { [self] in run(File(path: path, handle: file)) }
        thread.withLock { $0 = started }
    }

    /// The files of the recording, in their order.
    public var paths: [String] { state.withLock { $0.paths } }
    /// The number of frames in the files, once ``finish()`` has returned.
    public var framesRecorded: Int { state.withLock { $0.framesRecorded } }
    /// Frames that were dropped because of a slow or full disk.
    public var framesLost: UInt64 { queue.framesLost }
    /// The error that stopped the recording, if any: 10021, or 10026 for a stream that MP4 cannot hold.
    public var failure: ApusError? { state.withLock { $0.failure } }

    /// Adds a frame from a player, including repeated configurations. Returns at once.
    public func write(_ frame: MediaFrame) { queue.put(frame) }

    /// Writes the remaining frames, ends the last file and closes it. Blocks until that is done.
    ///
    /// - Returns: the number of frames in the files.
    /// - Throws: 10021 if the disk is full or failed; 10026 if nothing could be recorded.
    @discardableResult
    public func finish() throws(ApusError) -> Int {
        queue.close()
        thread.withLock { $0.take() }?.join()
        if let failure { throw failure }
        return framesRecorded
    }

    /// The file that is being written.
    private struct File {
        var path: String
        var handle: Int32
    }

    private func run(_ first: File) {
        var file = first
        defer { close(file.handle) }
        do throws(ApusError) {
            var (writer, configurations) = (FragmentedMP4Writer(limits: limits), TrackConfigurations())
            var count = 0
            while true {
                let (frames, isClosed) = queue.take()
                for queued in frames {
                    configurations.put(queued.frame)
                    if !writer.takes(queued.frame) {
                        try put(writer.finish(), in: file)
                        count += writer.frameCount
                        try goOn(&file, isEmpty: writer.frameCount == 0)
                        writer = FragmentedMP4Writer(limits: limits)
                        for known in configurations.all { try put(writer.write(known), in: file) }
                    }
                    try put(writer.write(queued.frame, arrival: queued.arrival), in: file)
                }
                guard isClosed else { continue }
                try put(writer.finish(arrival: .now()), in: file)
                count += writer.frameCount
                return state.withLock { $0.framesRecorded = count }
            }
        } catch {
            state.withLock { $0.failure = error }
            queue.fail()
        }
    }

    /// Begins the next file. A file without frames is emptied and used again.
    private func goOn(_ file: inout File, isEmpty: Bool) throws(ApusError) {
        if isEmpty, ftruncate(file.handle, 0) == 0, lseek(file.handle, 0, SEEK_SET) == 0 { return }
        let (first, count) = state.withLock { ($0.paths[0], $0.paths.count) }
        guard count < Self.fileCountMax else {
            throw ApusError(
                .mediaUnreadable, "the stream changed its format \(count) times; the recording \(first) ends here")
        }
        let suffix = first.hasSuffix(".mp4") ? ".mp4" : ""
        for number in (count + 1)..<(count + 1 + Self.fileCountMax) {
            let path = "\(first.dropLast(suffix.count))-\(number)\(suffix)"
            let handle = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0o644)
            guard handle >= 0 else {
                if errno == EEXIST { continue }
                throw Self.unwritable(path, errno)
            }
            close(file.handle)
            file = File(path: path, handle: handle)
            return state.withLock { $0.paths.append(path) }
        }
        throw Self.unwritable(first, EEXIST)
    }

    private func put(_ bytes: ByteBuffer, in file: File) throws(ApusError) {
        guard let number = Self.append(bytes, to: file.handle) else { return }
        throw Self.unwritable(file.path, number)
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

import ApusClient
public import ApusCore
package import ApusMedia
import ApusThreads
import Foundation
import Glibc
import Logging
import NIOCore
import Synchronization

/// Writes the frames of one source into the files of a ``RecordingFolder``.
///
/// A file holds one format of each track. A camera that changes its size, its codec or its tracks continues in the next
/// file, from its next key frame on, at most one each ``changeInterval``.
///
/// Concurrency model: ``write(_:)`` from one thread at a time, and returns at once; a thread of the writer writes.
/// ``finish()`` waits for it.
public final class RecordingWriter: Sendable {
    private let folder: RecordingFolder
    private let source: UInt16
    private let queue = FrameQueue(byteCountMax: RecordingWriter.queueByteCountMax)
    private let thread = Mutex<OSThread?>(nil)

    /// Payload bytes that wait for the disk; beyond them frames are not recorded.
    public static let queueByteCountMax = 32 << 20
    /// The shortest time between two files with different formats. A camera that changes more often is not recorded in
    /// between, so that it cannot fill the folder with files.
    public static let changeInterval = Duration.seconds(1)
    /// A clock that differs by more from the times of the frames was set.
    private static let clockStepMax: Int64 = 1000

    /// - Parameter source: its number; two writers of one folder have different ones.
    /// - Throws: 10018 if there is no thread.
    public init(_ folder: RecordingFolder, source: UInt16 = 0) throws(ApusError) {
        (self.folder, self.source) = (folder, source)
        let started = try OSThread(name: "apus-recordings") { [self] in run() }
        thread.withLock { $0 = started }
    }

    /// Frames that were not recorded because the disk is too slow.
    public var framesLost: UInt64 { queue.framesLost }

    /// - Parameter frame: a configuration, or a frame with the wall clock at its capture.
    package func write(_ frame: MediaFrame) { queue.put(frame) }

    /// Ends the last file, and returns once that is done.
    package func finish() async {
        queue.close()
        let thread = thread.withLock { $0.take() }
        _ = try? await BlockingWork.run { () throws(ApusError) in thread?.join() }
    }

    // MARK: - On the writer's thread

    private struct Open {
        var file: RecordingIndex.File
        var handle: Int32
        var writer: FragmentedMP4Writer
        /// The presentation time of the first frame, in microseconds.
        var first: Int64
        /// The stream has a format that this file does not have.
        var isOutdated = false
        /// The errno of a write that failed.
        var number: Int32?
    }

    private struct Progress {
        var open: Open?
        var configurations = TrackConfigurations()
        /// When the last file began whose format the one before did not have.
        var changed = MonotonicTime.zero
        /// The presentation time and the clock of the last file's start.
        var last: (pts: Int64, clock: Int64)?
        /// The last file began later by the clock than by the times of its frames.
        var wasLate = false
        var pausedUntil = MonotonicTime.zero

        /// When a file begins: the times of the frames are steadier than the clock, which decides after it was set.
        ///
        /// Frames that come late, such as after the process was stopped, look like a clock that was set forward. They
        /// have their own times, and the clock decides if the next file is late too.
        mutating func start(at clock: Int64, _ pts: Int64) -> Int64 {
            guard let last else { return clock }
            let expected = last.clock + (pts - last.pts) / 1000
            let late = clock - expected
            let keeps = abs(late) <= RecordingWriter.clockStepMax || late > 0 && !wasLate
            wasLate = keeps && late > RecordingWriter.clockStepMax
            return keeps ? expected : clock
        }
    }

    private func run() {
        var progress = Progress()
        while true {
            let (frames, isClosed) = queue.take()
            for queued in frames { record(queued, &progress) }
            if isClosed {
                end(&progress)
                return
            }
        }
    }

    private func record(_ queued: FrameQueue.Queued, _ progress: inout Progress) {
        let frame = queued.frame
        if frame.header.flags.contains(.configuration) {
            progress.configurations.put(frame)
            if progress.open?.writer.takes(frame) == false { progress.open?.isOutdated = true }
        } else if frame.header.flags.contains(.key) {
            begin(queued, &progress)
        }
        guard var open = progress.open, !open.isOutdated else { return }
        progress.open = nil
        do throws(ApusError) {
            try append(open.writer.write(frame, arrival: queued.arrival), to: &open)
            progress.open = open
        } catch {
            progress.open = open
            failed(error, &progress)
        }
    }

    /// Begins a file with a key frame, if there is none, it is long enough, or it does not have the stream's format.
    private func begin(_ queued: FrameQueue.Queued, _ progress: inout Progress) {
        let frame = queued.frame
        let pts = frame.header.ptsMicroseconds
        if let open = progress.open {
            let isLong = pts - open.first >= folder.limits.fileDuration.microseconds || pts < open.first
            guard isLong || open.isOutdated else { return }
            if open.isOutdated {
                guard queued.arrival - progress.changed >= Self.changeInterval else { return }
                progress.changed = queued.arrival
            }
            end(&progress, until: open.isOutdated ? nil : queued)
        }
        guard MonotonicTime.now() >= progress.pausedUntil else { return }
        let clock = Self.time(frame.header.captureMilliseconds, near: Date().milliseconds)
        let start = progress.start(at: clock, pts)
        progress.last = (pts, start)
        do throws(ApusError) {
            folder.makeRoom(for: 0)
            var file = RecordingIndex.File(start: start, end: start, byteCount: 0, isOpen: true)
            let handle = try create(&file)
            var open = Open(file: file, handle: handle, writer: FragmentedMP4Writer(), first: pts)
            folder.put(file, of: source)
            for configuration in progress.configurations.all {
                do throws(ApusError) {
                    try append(open.writer.write(configuration), to: &open)
                } catch {
                    progress.open = open
                    throw error
                }
            }
            progress.open = open
        } catch {
            failed(error, &progress)
        }
    }

    /// The time of a capture, of which a frame has the lower half.
    private static func time(_ capture: UInt32, near now: Int64) -> Int64 {
        now + Int64(Int32(truncatingIfNeeded: capture &- UInt32(truncatingIfNeeded: now)))
    }

    /// - Parameter file: receives another start if there is a file of this one, such as after the clock was set.
    private func create(_ file: inout RecordingIndex.File) throws(ApusError) -> Int32 {
        while true {
            while folder.hasFile(of: source, startingAt: file.start) { file.start += 1 }
            file.end = file.start
            let path = folder.path(of: source, file)
            let handle = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0o600)
            if handle >= 0 { return handle }
            switch errno {
            case EEXIST: file.start += 1
            case ENOSPC where folder.removeOldest(): continue
            default: throw MP4Recorder.unwritable(path, errno)
            }
        }
    }

    private func append(_ bytes: ByteBuffer, to open: inout Open) throws(ApusError) {
        guard bytes.readableBytes > 0 else { return }
        if let number = MP4Recorder.append(bytes, to: open.handle) {
            open.number = number
            throw MP4Recorder.unwritable(folder.path(of: source, open.file), number)
        }
        open.file.byteCount += Int64(bytes.readableBytes)
        open.file.end = max(open.file.end, open.file.start + open.writer.lengthMicroseconds / 1000)
        folder.put(open.file, of: source)
        folder.makeRoom(for: 0)
    }

    /// Ends the file, if there is one.
    ///
    /// - Parameter next: the frame with which the next file begins. This one lasts until then.
    private func end(_ progress: inout Progress, until next: FrameQueue.Queued? = nil) {
        guard var open = progress.open else { return }
        progress.open = nil
        do throws(ApusError) {
            try append(open.writer.finish(until: next?.frame, arrival: next?.arrival ?? .now()), to: &open)
        } catch {
            report(error)
        }
        close(open)
    }

    private func close(_ open: Open) {
        Glibc.close(open.handle)
        var file = open.file
        let path = folder.path(of: source, file)
        guard file.byteCount > 0 else {
            unlink(path)
            return folder.forget(file, of: source)
        }
        file.isOpen = false
        // Who opens the earlier name in between fails, and asks for the last one.
        guard rename(path, folder.path(of: source, file)) == 0 else {
            // It is found again at the next start.
            return folder.forget(file, of: source)
        }
        folder.put(file, of: source)
    }

    /// The file is given up. On a full disk the oldest one is removed, and the next key frame begins another.
    private func failed(_ error: ApusError, _ progress: inout Progress) {
        report(error)
        let isFull = progress.open?.number == ENOSPC
        if let open = progress.open { close(open) }
        progress.open = nil
        if !isFull || !folder.removeOldest() { progress.pausedUntil = .now() + folder.limits.retryInterval }
    }

    private func report(_ error: ApusError) {
        folder.log.error("A recording cannot be written", metadata: Logger.facts(of: error))
    }
}

extension Duration {
    fileprivate var microseconds: Int64 { nanoseconds / 1000 }
}

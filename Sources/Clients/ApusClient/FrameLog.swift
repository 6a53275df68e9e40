public import ApusCore
import ApusCrypto
public import ApusMedia
import ApusThreads
import DequeModule
import Glibc
import NIOCore
import Synchronization

/// Writes one JSON line per frame, to compare the frames that were sent with those that arrived.
///
/// A line: `{"seq":0,"epoch":1,"track":0,"pts_us":0,"key":true,"bytes":812,"sha256":"…","at_ns":…}`. `bytes` and
/// `sha256` (lower-case hex) are those of the payload; `at_ns` is `CLOCK_MONOTONIC`.
///
/// A thread of the log hashes and writes, so ``append(_:at:)`` costs a lock and never waits for a disk. Lines are
/// written with `write(2)`, without a buffer in the process, so a written line survives `kill -9`. Beyond ``Limits``
/// the newest frame's line is dropped and counted in ``linesLost``: the log never delays the frames.
///
/// Concurrency model: every method may be called from any thread. Lines keep the order of the calls.
public final class FrameLog: Sendable {
    /// The limits of what waits for the log's thread.
    public struct Limits: Sendable, Hashable {
        /// The most frames that wait.
        public var frameCountMax = 65_536
        /// The most payload bytes that wait.
        public var byteCountMax = 256 << 20
        public init() {}
    }

    private struct Entry {
        let frame: MediaFrame
        let time: MonotonicTime
    }
    private struct State {
        var entries = Deque<Entry>()
        var byteCount = 0
        var isClosed = false
        var linesLost: UInt64 = 0
        var failure: ApusError?
    }

    private let limits: Limits
    private let state = Mutex(State())
    private let signal = Signal()
    private let file: Int32
    private let thread = Mutex<OSThread?>(nil)

    /// Creates the file, or empties it.
    ///
    /// - Throws: 10021 if the file cannot be written; 10018 if there is no thread.
    public init(path: String, limits: Limits = Limits()) throws(ApusError) {
        self.limits = limits
        file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0o644)
        guard file >= 0 else {
            throw ApusError(
                .storageFailed, "the frame log \(path) cannot be written: \(String(cString: strerror(errno)))")
        }
        let started = try OSThread(name: "apus-frame-log") { [self] in run() }
        thread.withLock { $0 = started }
    }

    /// Lines that were dropped because of ``Limits`` or a disk failure.
    public var linesLost: UInt64 { state.withLock { $0.linesLost } }
    /// The error that stopped the writing (10021), if any.
    public var failure: ApusError? { state.withLock { $0.failure } }

    /// Adds a frame's line. Returns at once.
    ///
    /// - Parameters:
    ///   - frame: the frame, with its payload.
    ///   - time: the time at which the frame was sent or arrived.
    public func append(_ frame: MediaFrame, at time: MonotonicTime = .now()) {
        let bytes = frame.payload.readableBytes
        let isTaken = state.withLock { state in
            guard !state.isClosed, state.failure == nil, state.entries.count < limits.frameCountMax,
                state.byteCount + bytes <= limits.byteCountMax
            else {
                state.linesLost += 1
                return false
            }
            state.entries.append(Entry(frame: frame, time: time))
            state.byteCount += bytes
            return true
        }
        if isTaken { signal.wake() }
    }

    /// Writes the remaining lines and closes the file. Blocks until that is done.
    public func close() {
        state.withLock { $0.isClosed = true }
        signal.wake()
        thread.withLock { $0.take() }?.join()
    }

    private func run() {
        var bytes: [UInt8] = []
        while true {
            signal.wait()
            while true {
                let (batch, isClosed) = state.withLock { state in
                    defer { state.byteCount = 0 }
                    return (exchange(&state.entries, with: Deque()), state.isClosed)
                }
                if batch.isEmpty {
                    if isClosed {
                        Glibc.close(file)
                        return
                    }
                    break
                }
                write(batch, &bytes)
            }
        }
    }

    /// Writes a batch, with one write per ``writeByteCount`` bytes.
    private func write(_ batch: Deque<Entry>, _ bytes: inout [UInt8]) {
        for (index, entry) in batch.enumerated() {
            Self.appendLine(entry.frame, at: entry.time, to: &bytes)
            guard bytes.count >= Self.writeByteCount || index == batch.count - 1 else { continue }
            if let number = writeAll(file, bytes) {
                state.withLock { state in
                    state.failure = ApusError(
                        .storageFailed, "the frame log cannot be written: \(String(cString: strerror(number)))")
                    state.linesLost += UInt64(batch.count)
                }
                bytes.removeAll(keepingCapacity: true)
                return
            }
            bytes.removeAll(keepingCapacity: true)
        }
    }
    /// The number of bytes after which a batch is written.
    private static let writeByteCount = 16 << 10

    /// Appends a frame's line, with its line feed.
    static func appendLine(_ frame: MediaFrame, at time: MonotonicTime, to bytes: inout [UInt8]) {
        let header = frame.header
        bytes.append(contentsOf: "{\"seq\":\(header.position.sequence),\"epoch\":\(header.position.epoch)".utf8)
        bytes.append(contentsOf: ",\"track\":\(header.track),\"pts_us\":\(header.ptsMicroseconds),\"key\":".utf8)
        bytes.append(contentsOf: (header.flags.contains(.key) ? "true" : "false").utf8)
        bytes.append(contentsOf: ",\"bytes\":\(frame.payload.readableBytes),\"sha256\":\"".utf8)
        var hash = SHA256()
        // SAFETY: the pointer is used only inside the closure, which the buffer outlives.
        frame.payload.withUnsafeReadableBytes { hash.update(data: $0) }
        Hexadecimal.append(hash.finalize(), to: &bytes)
        bytes.append(contentsOf: "\",\"at_ns\":\(time.nanoseconds)}\n".utf8)
    }
}

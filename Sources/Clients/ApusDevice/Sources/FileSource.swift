import ApusClient
import ApusCore
import ApusMedia
import ApusThreads
import Glibc
public import Logging
import NIOCore

/// Sends a file at real-time pace, in a loop, like a camera.
///
/// H.264 or H.265 video with AAC, Opus, G.711, AMR or MP3 audio, from any container that libavformat reads. Frames keep
/// their bytes if the container has the form that the cluster uses (MP4, Matroska). Others (MPEG-TS, raw streams) are
/// converted to it. Times continue across loops. A raw stream without times that has B frames is sent in decode order.
///
/// Concurrency model: see ``MediaSource``.
public final class FileSource: MediaSource {
    private let path: String
    private let loops: Bool
    private let isPaced: Bool
    private let log: Logger
    private let thread = SourceThread()

    /// - Parameters:
    ///   - loops: true: start again at the file's end; false: deliver `.ended` there.
    ///   - isPaced: true: wait for each frame's time; false: deliver frames as fast as they are accepted.
    public init(path: String, loops: Bool = true, isPaced: Bool = true, log: Logger) {
        self.path = path
        self.loops = loops
        self.isPaced = isPaced
        self.log = log
    }

    public func start(_ deliver: @escaping @Sendable (SourceEvent) -> Void) {
        thread.start(name: "apus-file", onEnd: SourceEvent.end(deliver)) { [self] interrupt throws(ApusError) in
            try Self.check(path: path)
            try run(interrupt, deliver)
        }
    }

    public func stop() { thread.stop() }

    private func run(_ interrupt: LibAVInterrupt, _ deliver: (SourceEvent) -> Void) throws(ApusError) {
        let reader = try FileReader(path: path, loops: loops, interrupt: interrupt)
        for omission in reader.omissions {
            log.warning("A track is ignored", metadata: [LogKey.path: "\(path)", LogKey.reason: "\(omission)"])
        }
        for (index, configuration) in try reader.configurations().enumerated() {
            deliver(.configuration(track: UInt8(index), configuration))
        }
        var first: (line: Int64, clock: MonotonicTime)?
        while let frame = try reader.next() {
            let start = first ?? (frame.dts, .now())
            first = start
            if isPaced {
                let due = start.clock + .microseconds(frame.dts - start.line)
                guard due.sleep(unless: { thread.isStopped }) else { return }
            } else if thread.isStopped {
                return
            }
            frame.deliver(to: deliver)
        }
    }

    /// Checks the path, to report problems more clearly than libav does.
    ///
    /// - Throws: 10026.
    static func check(path: String) throws(ApusError) {
        var facts = stat()
        guard stat(path, &facts) == 0 else {
            let number = errno
            if number == ENOENT {
                throw ApusError(.mediaUnreadable, "the file \(path) does not exist; check the path")
            }
            throw ApusError(
                .mediaUnreadable, "the file \(path) cannot be reached: \(String(cString: strerror(number)))")
        }
        guard facts.st_mode & S_IFMT != S_IFDIR else {
            throw ApusError(.mediaUnreadable, "\(path) is a directory; give the path of a media file")
        }
        guard facts.st_mode & S_IFMT == S_IFREG else {
            throw ApusError(.mediaUnreadable, "\(path) is not a regular file; give the path of a media file")
        }
        guard facts.st_size > 0 else {
            throw ApusError(.mediaUnreadable, "the file \(path) is empty; give a file with H.264 or H.265 video")
        }
        guard access(path, R_OK) == 0 else {
            throw ApusError(
                .mediaUnreadable,
                "the file \(path) cannot be read: \(String(cString: strerror(errno))); check its permissions")
        }
    }
}

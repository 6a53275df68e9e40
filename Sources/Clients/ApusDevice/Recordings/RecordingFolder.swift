public import ApusClient
public import ApusCore
import ApusMedia
public import Foundation
public import Logging
import Synchronization

/// Recordings of a device in a folder, as MP4 files of a minute, bounded in their size (IV-C5, docs/recordings.md).
///
/// A file is `SOURCE-START-LENGTH.mp4`, in milliseconds, and `SOURCE-START.mp4` while it is written. After `kill -9` it
/// is readable up to its last fragment, and kept. A full disk removes the oldest file; a disk that cannot be written is
/// tried again after ten seconds. The stream of the camera goes on in any case.
///
/// Concurrency model: any thread.
public final class RecordingFolder: RecordingStore {
    /// The bounds of a folder.
    public struct Limits: Sendable, Hashable {
        /// The most bytes of all files; the oldest are removed first.
        public var byteCountMax: Int64 = 4 << 30
        /// How long a file becomes, until the next key frame.
        public var fileDuration: Duration = .seconds(60)
        /// The wait before a disk that cannot be written is tried again.
        public var retryInterval: Duration = .seconds(10)
        public init() {}
    }

    let path: String
    let limits: Limits
    let log: Logger
    private let index = Mutex(RecordingIndex())

    /// Opens a folder, or makes it.
    ///
    /// - Throws: 10021 if it cannot be made or read.
    public init(path: String, limits: Limits = Limits(), log: Logger) throws(ApusError) {
        (self.path, self.limits, self.log) = (path, limits, log)
        do {
            try FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: true)
            for name in try FileManager.default.contentsOfDirectory(atPath: path) { adopt(name) }
        } catch {
            throw ApusError(.storageFailed, "the folder of recordings \(path) cannot be used: \(error)")
        }
    }

    /// The bytes of all files.
    public var byteCount: Int64 { index.withLock { $0.byteCount } }

    // MARK: - RecordingStore

    public func recordings(of source: UInt16, from: Date, to: Date, limit: Int) -> [Recording] {
        let (from, to) = (from.milliseconds, to.milliseconds)
        guard from <= to else { return [] }
        return index.withLock { $0.recordings(of: source, from...to, limit: limit) }.map { Recording(milliseconds: $0) }
    }

    public func reader(
        of source: UInt16, in recording: Recording, at time: Date
    ) throws(ApusError) -> any RecordingReader {
        try FolderReader(self, source: source, in: recording, at: time.milliseconds)
    }

    public func erase(before time: Date) {
        while let (_, file) = index.withLock(\.oldest), !file.isOpen, file.end <= time.milliseconds, removeOldest() {}
    }

    func file(of source: UInt16, at time: Int64) -> RecordingIndex.File? {
        index.withLock { $0.file(of: source, at: time) }
    }

    func hasFile(of source: UInt16, startingAt start: Int64) -> Bool {
        index.withLock { $0.hasFile(of: source, startingAt: start) }
    }

    func file(of source: UInt16, after file: RecordingIndex.File) -> RecordingIndex.File? {
        index.withLock { $0.file(of: source, after: file) }
    }

    // MARK: - Files

    static func name(of source: UInt16, _ file: RecordingIndex.File) -> String {
        file.isOpen ? "\(source)-\(file.start).mp4" : "\(source)-\(file.start)-\(file.end - file.start).mp4"
    }

    func path(of source: UInt16, _ file: RecordingIndex.File) -> String { "\(path)/\(Self.name(of: source, file))" }

    /// Where the file is; its writer may have given it its last name meanwhile.
    func openPath(of source: UInt16, _ file: RecordingIndex.File) -> String {
        path(of: source, index.withLock { $0.file(of: source, at: file.start) } ?? file)
    }

    func put(_ file: RecordingIndex.File, of source: UInt16) { index.withLock { $0.put(file, of: source) } }

    func forget(_ file: RecordingIndex.File, of source: UInt16) {
        index.withLock { $0.remove(start: file.start, of: source) }
    }

    /// Removes the oldest files until this many more bytes are within the limit.
    func makeRoom(for more: Int64) {
        while index.withLock({ $0.byteCount + more > limits.byteCountMax }), removeOldest() {}
    }

    /// - Returns: false if there is none, or it cannot be removed.
    func removeOldest() -> Bool {
        guard let (source, file) = index.withLock(\.oldest) else { return false }
        let path = path(of: source, file)
        guard unlink(path) == 0 || errno == ENOENT else {
            log.error("A recording cannot be removed", metadata: [LogKey.path: "\(path)", "apus.errno": "\(errno)"])
            return false
        }
        forget(file, of: source)
        return true
    }

    /// Notes a file that is there at the start.
    private func adopt(_ name: String) {
        guard name.hasSuffix(".mp4") else { return }
        let parts = name.dropLast(4).split(separator: "-", omittingEmptySubsequences: false)
        guard (2...3).contains(parts.count), let source = UInt16(parts[0]), let start = Int64(parts[1]),
            (0...PlaybackMessages.timeMax).contains(start)
        else { return }
        let path = "\(path)/\(name)"
        let size = (try? FileManager.default.attributesOfItem(atPath: path)[.size] as? Int64) ?? 0
        var file = RecordingIndex.File(start: start, end: start, byteCount: size)
        if parts.count == 3 {
            guard let length = Int64(parts[2]), (0...Self.lengthMax).contains(length) else { return }
            file.end = start + length
        } else {
            // Its writer was killed.
            guard let length = try? FolderReader.length(ofFile: path) else {
                return log.warning("A recording cannot be read", metadata: [LogKey.path: "\(path)"])
            }
            // The times of a damaged file may be centuries apart.
            file.end = start + min(length, Self.lengthMax)
            let last = self.path(of: source, file)
            guard rename(path, last) == 0 else {
                return log.warning("A recording cannot be renamed", metadata: [LogKey.path: "\(path)"])
            }
        }
        put(file, of: source)
    }

    /// A day: no file is longer.
    private static let lengthMax: Int64 = 86_400_000
}

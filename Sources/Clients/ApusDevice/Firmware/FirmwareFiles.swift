import ApusContract
package import ApusCore
import ApusCrypto
import Foundation

/// The files of an update in a device's directory: the part of the image that is loaded, and what the device has to
/// know of it after a restart (IV-E1).
///
/// The part has at most the size of the manifest. The other file has less than ``stateByteCountMax`` bytes, and is
/// replaced as a whole. After a power cut the part may have bytes that were not written: then the image does not have
/// its hash, and is loaded again.
///
/// Concurrency model: one task at a time; the functions block for as long as the disk takes.
package struct FirmwareFiles: Sendable {
    /// What is known of the update that was begun last.
    package struct State: Codable, Sendable, Hashable {
        /// The manifest. A part of another one is of no use.
        package var manifest: String
        /// Attempts that have failed.
        package var attempts = 0
        /// The installation had begun. If the device does not run the version at its next start, it has failed.
        package var isInstalling = false

        package init(manifest: String) { self.manifest = manifest }
    }

    /// The longest file of a state.
    static let stateByteCountMax = 4096
    /// The bytes that are read at once.
    private static let pieceByteCount = 256 << 10

    private let directory: String
    /// The image, as far as it is loaded.
    package var part: String { "\(directory)/firmware.part" }
    private var stateFile: String { "\(directory)/firmware.json" }

    /// Creates the directory if it is missing.
    /// - Throws: 10021 if it cannot be created.
    package init(directory: String) throws(ApusError) {
        self.directory = directory
        do {
            try FileManager.default.createDirectory(atPath: directory, withIntermediateDirectories: true)
        } catch {
            throw ApusError(.storageFailed, "the directory \(directory) cannot be used: \(error.localizedDescription)")
        }
    }

    /// Nil if there is none, or it cannot be read.
    package func state() -> State? {
        guard let file = FileHandle(forReadingAtPath: stateFile),
            let data = try? file.read(upToCount: Self.stateByteCountMax)
        else { return nil }
        return try? JSONDecoder().decode(State.self, from: data)
    }

    /// Replaces the state; nil removes it. On the disk on return.
    /// - Throws: 10021 if it cannot be written.
    package func save(_ state: State?) throws(ApusError) {
        guard let state else {
            guard unlink(stateFile) == 0 || errno == ENOENT else { throw Self.failure(stateFile) }
            return
        }
        guard let data = try? JSONEncoder().encode(state) else { throw ApusError(.internalFailure) }
        let new = stateFile + ".new"
        let file = open(new, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0o600)
        guard file >= 0 else { throw Self.failure(new) }
        defer { close(file) }
        try Self.write(Array(data), to: file, at: 0, new)
        guard fsync(file) == 0, rename(new, stateFile) == 0 else { throw Self.failure(stateFile) }
    }

    /// The bytes of the image that are loaded. A part that is longer than the image is removed.
    package func loaded(of size: UInt64) -> UInt64 {
        var info = stat()
        guard stat(part, &info) == 0, info.st_size >= 0 else { return 0 }
        guard UInt64(info.st_size) <= size else {
            removePart()
            return 0
        }
        return UInt64(info.st_size)
    }

    /// Writes bytes of the image.
    ///
    /// - Parameter isSynced: return once they are on the disk.
    /// - Throws: 10021 if they cannot be written, such as on a full disk.
    package func write(_ bytes: [UInt8], at offset: UInt64, isSynced: Bool) throws(ApusError) {
        let file = open(part, O_WRONLY | O_CREAT | O_CLOEXEC, 0o600)
        guard file >= 0 else { throw Self.failure(part) }
        defer { close(file) }
        try Self.write(bytes, to: file, at: offset, part)
        guard !isSynced || fdatasync(file) == 0 else { throw Self.failure(part) }
    }

    package func removePart() { unlink(part) }

    /// The SHA-256 of what is loaded, in lower-case hexadecimal.
    /// - Throws: 10021 if it cannot be read.
    package func hash() throws(ApusError) -> String {
        let file = open(part, O_RDONLY | O_CLOEXEC)
        guard file >= 0 else { throw Self.failure(part) }
        defer { close(file) }
        var hash = SHA256()
        var piece = [UInt8](repeating: 0, count: Self.pieceByteCount)
        while true {
            let count = piece.withUnsafeMutableBytes { read(file, $0.baseAddress, $0.count) }
            if count < 0, errno == EINTR { continue }
            guard count >= 0 else { throw Self.failure(part) }
            guard count > 0 else { return Hexadecimal.text(hash.finalize()) }
            hash.update(data: piece[..<count])
        }
    }

    private static func write(
        _ bytes: [UInt8], to file: Int32, at offset: UInt64, _ path: String
    ) throws(ApusError) {
        var (rest, position) = (bytes[...], off_t(offset))
        while !rest.isEmpty {
            let count = rest.withUnsafeBytes { pwrite(file, $0.baseAddress, $0.count, position) }
            if count < 0, errno == EINTR { continue }
            guard count > 0 else { throw failure(path) }
            rest = rest.dropFirst(count)
            position += off_t(count)
        }
    }

    private static func failure(_ path: String) -> ApusError {
        ApusError(.storageFailed, "the file \(path) cannot be used: \(String(cString: strerror(errno)))")
    }
}

import ApusCore
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// File operations of ``DirectoryBlobStore``. All of them block, and throw 10021 with the path.
enum BlobFile {
    static func makeFolder(_ path: String) throws(ApusError) {
        if mkdir(path, 0o700) == 0 {
            try sync(URL(fileURLWithPath: path).deletingLastPathComponent().path)
        } else if errno != EEXIST {
            throw failure(path, "cannot be created")
        }
    }

    /// Reads a file; nil if there is none. A file over the limit is cut to one byte more than the limit, so it does not
    /// match its name.
    static func read(_ path: String, byteCountMax: Int) throws(ApusError) -> [UInt8]? {
        let descriptor = open(path, O_RDONLY | O_CLOEXEC)
        guard descriptor >= 0 else {
            guard errno == ENOENT else { throw failure(path, "cannot be opened") }
            return nil
        }
        defer { close(descriptor) }
        var status = stat()
        guard fstat(descriptor, &status) == 0 else { throw failure(path, "cannot be read") }
        let byteCount = min(Int(status.st_size), byteCountMax + 1)
        var isRead = true
        let content = [UInt8](unsafeUninitializedCapacity: byteCount) { buffer, count in
            // SAFETY: `read` writes at most the rest of the buffer, and `count` is what it wrote.
            while count < byteCount {
                let part = Foundation.read(descriptor, buffer.baseAddress.map { $0 + count }, byteCount - count)
                if part < 0, errno == EINTR { continue }
                guard part > 0 else {
                    isRead = part == 0
                    return
                }
                count += part
            }
        }
        guard isRead else { throw failure(path, "cannot be read") }
        return content
    }

    /// Writes a temporary file, syncs it and renames it. Leaves nothing if that fails.
    static func write(_ content: [UInt8], to path: String, by partial: String) throws(ApusError) {
        let descriptor = open(partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0o600)
        guard descriptor >= 0 else { throw failure(partial, "cannot be created") }
        do throws(ApusError) {
            defer { close(descriptor) }
            var rest = content[...]
            while !rest.isEmpty {
                let count = rest.withUnsafeBytes { Foundation.write(descriptor, $0.baseAddress, $0.count) }
                if count < 0, errno == EINTR { continue }
                guard count > 0 else { throw failure(partial, "cannot be written") }
                rest = rest.dropFirst(count)
            }
            guard fsync(descriptor) == 0 else { throw failure(partial, "cannot be synced") }
            guard rename(partial, path) == 0 else { throw failure(path, "cannot be created") }
        } catch {
            unlink(partial)
            throw error
        }
    }

    /// Removes a file. Returns the number of its bytes; 0 if there was none.
    static func remove(_ path: String) throws(ApusError) -> Int {
        var status = stat()
        guard lstat(path, &status) == 0, unlink(path) == 0 else {
            guard errno == ENOENT else { throw failure(path, "cannot be removed") }
            return 0
        }
        return Int(status.st_size)
    }

    static func sync(_ path: String) throws(ApusError) {
        let descriptor = open(path, O_RDONLY | O_CLOEXEC)
        guard descriptor >= 0 else { throw failure(path, "cannot be opened") }
        defer { close(descriptor) }
        guard fsync(descriptor) == 0 else { throw failure(path, "cannot be synced") }
    }

    /// Empty if the folder does not exist.
    static func names(of folder: String) throws(ApusError) -> [String] {
        do {
            return try FileManager.default.contentsOfDirectory(atPath: folder)
        } catch {
            guard access(folder, F_OK) != 0 else { throw failure(folder, "cannot be read") }
            return []
        }
    }

    static func byteCount(of folder: String) throws(ApusError) -> Int {
        var (sum, status) = (0, stat())
        for name in try names(of: folder) where lstat("\(folder)/\(name)", &status) == 0 { sum += Int(status.st_size) }
        return sum
    }

    static func removeAll(of folder: String, olderThan seconds: Double) {
        let limit = Date().timeIntervalSince1970 - seconds
        var status = stat()
        for name in (try? names(of: folder)) ?? [] {
            let path = "\(folder)/\(name)"
            if lstat(path, &status) == 0, Double(status.st_mtim.tv_sec) < limit { unlink(path) }
        }
    }

    private static func failure(_ path: String, _ what: String) -> ApusError {
        ApusError(.storageFailed, "\(path) \(what): \(String(cString: strerror(errno)))")
    }
}

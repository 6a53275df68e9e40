package import ApusCore
package import NIOCore

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The file operations of a log of recordings. Tests make each of them fail.
///
/// All block; the log calls them on its own threads. Any thread may call them.
package protocol LogFiles: Sendable {
    /// Creates a folder. It is no error if it exists.
    func makeFolder(_ path: String) throws(FileFailure)
    /// Creates a file if it does not exist, opens and locks it (flock(2)). Fails with `EWOULDBLOCK` if a process has it
    /// locked. The lock ends when the descriptor is closed.
    func lock(_ path: String) throws(FileFailure) -> CInt
    func list(_ folder: String) throws(FileFailure) -> [String]
    /// Creates a file that must not exist, with room for so many bytes on the disk (posix_fallocate(3)), all zero. Its
    /// size and its name are durable when this returns. A file that failed is removed.
    func make(_ path: String, byteCount: Int) throws(FileFailure) -> CInt
    /// Opens an existing file to read and write.
    func open(_ path: String) throws(FileFailure) -> CInt
    func byteCount(_ file: CInt, of path: String) throws(FileFailure) -> Int
    /// Writes the readable bytes at an offset.
    func write(_ bytes: ByteBuffer, to file: CInt, at offset: Int, of path: String) throws(FileFailure)
    /// Makes the content of a file durable (fdatasync(2)).
    func sync(_ file: CInt, of path: String) throws(FileFailure)
    /// At most so many bytes from the offset, fewer only at the file's end.
    func read(_ file: CInt, at offset: Int, countMax: Int, of path: String) throws(FileFailure) -> [UInt8]
    func close(_ file: CInt)
    func remove(_ path: String) throws(FileFailure)
}

/// The file system of this machine.
package struct SystemLogFiles: LogFiles {
    package init() {}

    package func makeFolder(_ path: String) throws(FileFailure) {
        guard mkdir(path, 0o700) != 0 else { return try Self.syncFolder(of: path) }
        guard errno == EEXIST else { throw FileFailure(path, errno) }
    }

    package func lock(_ path: String) throws(FileFailure) -> CInt {
        var file = Glibc.open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
        if file < 0, errno == EROFS { file = Glibc.open(path, O_RDONLY | O_CLOEXEC) }
        guard file >= 0 else { throw FileFailure(path, errno) }
        guard flock(file, LOCK_EX | LOCK_NB) == 0 else {
            let number = errno
            _ = Glibc.close(file)
            throw FileFailure(path, number)
        }
        return file
    }

    package func list(_ folder: String) throws(FileFailure) -> [String] {
        guard let stream = opendir(folder) else { throw FileFailure(folder, errno) }
        defer { closedir(stream) }
        var names: [String] = []
        while true {
            errno = 0
            guard let entry = readdir(stream) else {
                guard errno == 0 else { throw FileFailure(folder, errno) }
                return names
            }
            let offset = MemoryLayout<dirent>.offset(of: \dirent.d_name) ?? 19
            // SAFETY: the entry is valid until the next call for this stream, and its name ends with a zero. It is read
            // in place: the type has 256 bytes, but the memory may end after the zero.
            let name = UnsafeRawPointer(entry).advanced(by: offset).withMemoryRebound(to: CChar.self, capacity: 1) {
                String(cString: $0)
            }
            if name != ".", name != ".." { names.append(name) }
        }
    }

    package func make(_ path: String, byteCount: Int) throws(FileFailure) -> CInt {
        let file = Glibc.open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0o600)
        guard file >= 0 else { throw FileFailure(path, errno) }
        do throws(FileFailure) {
            let number = posix_fallocate(file, 0, off_t(byteCount))
            guard number == 0 else { throw FileFailure(path, number) }
            guard fsync(file) == 0 else { throw FileFailure(path, errno) }
            try Self.syncFolder(of: path)
        } catch {
            _ = Glibc.close(file)
            unlink(path)
            throw error
        }
        return file
    }

    package func open(_ path: String) throws(FileFailure) -> CInt {
        var file = Glibc.open(path, O_RDWR | O_CLOEXEC)
        // What is on a read-only file system can be read.
        if file < 0, errno == EROFS { file = Glibc.open(path, O_RDONLY | O_CLOEXEC) }
        guard file >= 0 else { throw FileFailure(path, errno) }
        return file
    }

    package func byteCount(_ file: CInt, of path: String) throws(FileFailure) -> Int {
        var status = stat()
        guard fstat(file, &status) == 0 else { throw FileFailure(path, errno) }
        return Int(status.st_size)
    }

    package func write(_ bytes: ByteBuffer, to file: CInt, at offset: Int, of path: String) throws(FileFailure) {
        // SAFETY: the kernel reads at most as many bytes as the buffer has.
        let number: CInt = bytes.withUnsafeReadableBytes { bytes in
            var count = 0
            while count < bytes.count {
                let put = pwrite(
                    file, bytes.baseAddress?.advanced(by: count), bytes.count - count, off_t(offset + count))
                if put < 0, errno == EINTR { continue }
                guard put > 0 else { return put == 0 ? EIO : errno }
                count += put
            }
            return 0
        }
        guard number == 0 else { throw FileFailure(path, number) }
    }

    package func sync(_ file: CInt, of path: String) throws(FileFailure) {
        guard fdatasync(file) == 0 else { throw FileFailure(path, errno) }
    }

    package func read(
        _ file: CInt, at offset: Int, countMax: Int, of path: String
    ) throws(FileFailure) -> [UInt8] {
        var number: CInt = 0
        // SAFETY: the kernel writes at most as many bytes as the rest of the buffer has.
        let bytes = [UInt8](unsafeUninitializedCapacity: countMax) { buffer, count in
            while count < countMax {
                let got = pread(file, buffer.baseAddress?.advanced(by: count), countMax - count, off_t(offset + count))
                if got < 0, errno == EINTR { continue }
                if got < 0 { number = errno }
                guard got > 0 else { return }
                count += got
            }
        }
        guard number == 0 else { throw FileFailure(path, number) }
        return bytes
    }

    package func close(_ file: CInt) { _ = Glibc.close(file) }

    package func remove(_ path: String) throws(FileFailure) {
        guard unlink(path) == 0 else { throw FileFailure(path, errno) }
    }

    private static func syncFolder(of path: String) throws(FileFailure) {
        let end = path.lastIndex(of: "/")
        let folder = end.map { String(path[...$0]) } ?? "."
        let file = Glibc.open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        guard file >= 0 else { throw FileFailure(folder, errno) }
        defer { _ = Glibc.close(file) }
        guard fsync(file) == 0 else { throw FileFailure(folder, errno) }
    }
}

/// An open file of a log. It is closed with its last reference, so a read that is in progress keeps it.
final class LogFile: Sendable {
    let path: String
    let descriptor: CInt
    let files: any LogFiles

    init(_ path: String, _ descriptor: CInt, _ files: any LogFiles) {
        (self.path, self.descriptor, self.files) = (path, descriptor, files)
    }

    deinit { files.close(descriptor) }

    func write(_ bytes: ByteBuffer, at offset: Int) throws(FileFailure) {
        try files.write(bytes, to: descriptor, at: offset, of: path)
    }

    func sync() throws(FileFailure) { try files.sync(descriptor, of: path) }

    func read(at offset: Int, countMax: Int) throws(FileFailure) -> [UInt8] {
        try files.read(descriptor, at: offset, countMax: countMax, of: path)
    }
}

package import ApusCore

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// What the file system says of a file.
package struct ObjectFileStatus: Sendable, Equatable {
    package var inode: UInt64
    package var byteCount: Int
    package var modifiedNanoseconds: Int64
    package var isFolder: Bool
}

/// A name in a folder.
package struct ObjectFolderEntry: Sendable, Hashable {
    package var name: String
    package var isFolder: Bool
}

/// The file operations of a directory of objects. Tests make each of them fail.
///
/// All block; the store calls them on its queue. Any thread may call them.
package protocol ObjectFiles: Sendable {
    /// Creates a file that must not exist, and locks it (flock(2)), so that other processes see that it is in use.
    func make(_ path: String) throws(FileFailure) -> CInt
    /// Opens an existing file.
    func open(_ path: String) throws(FileFailure) -> CInt
    func write(_ bytes: [UInt8], to file: CInt, of path: String) throws(FileFailure)
    /// Makes the content of a file durable.
    func sync(_ file: CInt, of path: String) throws(FileFailure)
    /// At most so many bytes from the offset, fewer only at the file's end.
    func read(_ file: CInt, at offset: Int, countMax: Int, of path: String) throws(FileFailure) -> [UInt8]
    func status(_ file: CInt, of path: String) throws(FileFailure) -> ObjectFileStatus
    /// Nil if there is no such file.
    func status(_ path: String) throws(FileFailure) -> ObjectFileStatus?
    func close(_ file: CInt)
    /// Gives a file a second name. Fails with `EEXIST` if the name exists.
    func link(_ path: String, to name: String) throws(FileFailure)
    func remove(_ path: String) throws(FileFailure)
    func makeFolder(_ path: String) throws(FileFailure)
    /// Removes a folder without entries.
    func removeFolder(_ path: String) throws(FileFailure)
    /// Makes the names in a folder durable.
    func syncFolder(_ path: String) throws(FileFailure)
    func list(_ folder: String) throws(FileFailure) -> [ObjectFolderEntry]
    /// True if a process has the file locked.
    func isLocked(_ path: String) throws(FileFailure) -> Bool
}

/// The file system of this machine.
package struct SystemObjectFiles: ObjectFiles {
    /// The offset of the name in a directory entry (readdir(3)).
    private static let nameOffset = MemoryLayout<dirent>.offset(of: \dirent.d_name) ?? 19

    package init() {}

    package func make(_ path: String) throws(FileFailure) -> CInt {
        let file = Glibc.open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0o600)
        guard file >= 0 else { throw FileFailure(path, errno) }
        guard flock(file, LOCK_EX | LOCK_NB) == 0 else {
            defer { _ = Glibc.close(file) }
            throw FileFailure(path, errno)
        }
        return file
    }

    package func open(_ path: String) throws(FileFailure) -> CInt {
        let file = Glibc.open(path, O_RDONLY | O_CLOEXEC)
        guard file >= 0 else { throw FileFailure(path, errno) }
        return file
    }

    package func write(_ bytes: [UInt8], to file: CInt, of path: String) throws(FileFailure) {
        var count = 0
        while count < bytes.count {
            let start = count
            // SAFETY: the kernel reads at most as many bytes as the slice has.
            let put = bytes.withUnsafeBytes { Glibc.write(file, $0.baseAddress?.advanced(by: start), $0.count - start) }
            if put < 0, errno == EINTR { continue }
            guard put >= 0 else { throw FileFailure(path, errno) }
            count += put
        }
    }

    package func sync(_ file: CInt, of path: String) throws(FileFailure) {
        guard fsync(file) == 0 else { throw FileFailure(path, errno) }
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

    package func status(_ file: CInt, of path: String) throws(FileFailure) -> ObjectFileStatus {
        var status = stat()
        guard fstat(file, &status) == 0 else { throw FileFailure(path, errno) }
        return Self.status(status)
    }

    package func status(_ path: String) throws(FileFailure) -> ObjectFileStatus? {
        var status = stat()
        guard lstat(path, &status) != 0 else { return Self.status(status) }
        guard errno == ENOENT || errno == ENOTDIR else { throw FileFailure(path, errno) }
        return nil
    }

    private static func status(_ status: stat) -> ObjectFileStatus {
        ObjectFileStatus(
            inode: UInt64(status.st_ino), byteCount: Int(status.st_size),
            modifiedNanoseconds: Int64(status.st_mtim.tv_sec) &* 1_000_000_000 &+ Int64(status.st_mtim.tv_nsec),
            isFolder: status.st_mode & S_IFMT == S_IFDIR)
    }

    package func close(_ file: CInt) { _ = Glibc.close(file) }

    package func link(_ path: String, to name: String) throws(FileFailure) {
        guard Glibc.link(path, name) == 0 else { throw FileFailure(name, errno) }
    }

    package func remove(_ path: String) throws(FileFailure) {
        guard unlink(path) == 0 else { throw FileFailure(path, errno) }
    }

    package func makeFolder(_ path: String) throws(FileFailure) {
        guard mkdir(path, 0o700) == 0 else { throw FileFailure(path, errno) }
    }

    package func removeFolder(_ path: String) throws(FileFailure) {
        guard rmdir(path) == 0 else { throw FileFailure(path, errno) }
    }

    package func syncFolder(_ path: String) throws(FileFailure) {
        let file = Glibc.open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        guard file >= 0 else { throw FileFailure(path, errno) }
        defer { _ = Glibc.close(file) }
        guard fsync(file) == 0 else { throw FileFailure(path, errno) }
    }

    package func list(_ folder: String) throws(FileFailure) -> [ObjectFolderEntry] {
        guard let stream = opendir(folder) else { throw FileFailure(folder, errno) }
        defer { closedir(stream) }
        var entries: [ObjectFolderEntry] = []
        while true {
            errno = 0
            guard let entry = readdir(stream) else {
                guard errno == 0 else { throw FileFailure(folder, errno) }
                return entries
            }
            // SAFETY: the entry is valid until the next call for this stream, and its name ends with a zero. It is read
            // in place: the type has 256 bytes, but the memory may end after the zero.
            let name = UnsafeRawPointer(entry).advanced(by: Self.nameOffset).withMemoryRebound(
                to: CChar.self, capacity: 1
            ) { String(cString: $0) }
            guard name != ".", name != ".." else { continue }
            entries.append(ObjectFolderEntry(name: name, isFolder: Int32(entry.pointee.d_type) == Int32(DT_DIR)))
        }
    }

    package func isLocked(_ path: String) throws(FileFailure) -> Bool {
        let file = try open(path)
        defer { _ = Glibc.close(file) }
        guard flock(file, LOCK_EX | LOCK_NB) != 0 else { return false }
        guard errno == EWOULDBLOCK else { throw FileFailure(path, errno) }
        return true
    }
}

package import ApusCore
import ApusListener

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The file operations of the ownership store. Tests can simulate a power cut between any two of them.
///
/// All block; the store calls them on a thread of its own. Any thread may call them.
package protocol StoreFiles: Sendable {
    /// The names in a directory, read at one moment.
    func list(_ directory: String) throws(FileFailure) -> StoreDirectory
    /// Reads a whole file. A file above the limit fails with `EFBIG`.
    func read(_ path: String, byteCountMax: Int) throws(FileFailure) -> [UInt8]
    /// Identifies a version of a file. It changes when the file is replaced or written.
    func mark(_ path: String) throws(FileFailure) -> FileMark
    /// Creates a file that must not exist, writes it, and syncs its content. Its name is not durable yet.
    func write(_ bytes: [UInt8], to path: String) throws(FileFailure)
    /// Gives a file a second name. Fails with `EEXIST` if the name is taken (link(2)).
    func link(_ path: String, to name: String) throws(FileFailure)
    /// Renames a file or a directory; a file of the new name is replaced.
    func rename(_ path: String, to name: String) throws(FileFailure)
    func remove(_ path: String) throws(FileFailure)
    /// Creates a directory, without its parents. Fails with `EEXIST` if the name is taken.
    func makeDirectory(_ path: String) throws(FileFailure)
    /// Makes the names in a directory durable (fsync(2)).
    func syncDirectory(_ path: String) throws(FileFailure)
}

/// The contents of a directory at one moment.
package struct StoreDirectory: Sendable, Equatable {
    /// Differs if another directory has taken the path.
    package var inode: UInt64
    package var names: [String]

    package init(inode: UInt64, names: [String]) {
        self.inode = inode
        self.names = names
    }
}

/// The identity of a file and the time of its last change.
package struct FileMark: Sendable, Equatable {
    package var inode: UInt64
    /// Its names, in all directories.
    package var linkCount: Int
    package var byteCount: Int
    package var modifiedNanoseconds: Int64
    package var changedNanoseconds: Int64

    package init(
        inode: UInt64, linkCount: Int, byteCount: Int, modifiedNanoseconds: Int64, changedNanoseconds: Int64
    ) {
        self.inode = inode
        self.linkCount = linkCount
        self.byteCount = byteCount
        self.modifiedNanoseconds = modifiedNanoseconds
        self.changedNanoseconds = changedNanoseconds
    }
}

/// The file system of this machine.
///
/// It has reserved descriptors, so a node at its limit of open files can still read and swap.
package struct SystemStoreFiles: StoreFiles {
    /// The offset of the name in a directory entry (readdir(3)).
    private static let nameOffset = MemoryLayout<dirent>.offset(of: \dirent.d_name) ?? 19

    private let reserve = ReservedDescriptors()

    package init() {}

    package func list(_ directory: String) throws(FileFailure) -> StoreDirectory {
        let file = opened(directory, O_RDONLY | O_DIRECTORY)
        defer { reserve.refill() }
        guard file >= 0 else { throw FileFailure(directory, errno) }
        guard let stream = fdopendir(file) else {
            defer { close(file) }
            throw FileFailure(directory, errno)
        }
        defer { closedir(stream) }
        var status = stat()
        guard fstat(dirfd(stream), &status) == 0 else { throw FileFailure(directory, errno) }
        var names: [String] = []
        while true {
            errno = 0
            guard let entry = readdir(stream) else {
                guard errno == 0 else { throw FileFailure(directory, errno) }
                return StoreDirectory(inode: UInt64(status.st_ino), names: names)
            }
            // SAFETY: the entry is valid until the next call for this stream, and its name ends with a zero. It is read
            // in place: the type has 256 bytes, but the memory may end after the zero.
            let name = UnsafeRawPointer(entry).advanced(by: Self.nameOffset).withMemoryRebound(
                to: CChar.self, capacity: 1
            ) { String(cString: $0) }
            if name != ".", name != ".." { names.append(name) }
        }
    }

    package func read(_ path: String, byteCountMax: Int) throws(FileFailure) -> [UInt8] {
        try withFile(path, O_RDONLY) { file throws(FileFailure) in
            var bytes = [UInt8](repeating: 0, count: byteCountMax + 1)
            var count = 0
            while count < bytes.count {
                let start = count
                // SAFETY: the kernel writes at most as many bytes as the slice has.
                let got = bytes.withUnsafeMutableBytes { buffer in
                    Glibc.read(file, buffer.baseAddress?.advanced(by: start), buffer.count - start)
                }
                if got < 0, errno == EINTR { continue }
                guard got >= 0 else { throw FileFailure(path, errno) }
                guard got > 0 else { break }
                count += got
            }
            guard count <= byteCountMax else { throw FileFailure(path, EFBIG) }
            bytes.removeSubrange(count...)
            return bytes
        }
    }

    package func mark(_ path: String) throws(FileFailure) -> FileMark {
        var status = stat()
        guard stat(path, &status) == 0 else { throw FileFailure(path, errno) }
        return FileMark(
            inode: UInt64(status.st_ino), linkCount: Int(status.st_nlink), byteCount: Int(status.st_size),
            modifiedNanoseconds: Self.nanoseconds(status.st_mtim), changedNanoseconds: Self.nanoseconds(status.st_ctim))
    }

    package func write(_ bytes: [UInt8], to path: String) throws(FileFailure) {
        try withFile(path, O_WRONLY | O_CREAT | O_EXCL) { file throws(FileFailure) in
            var count = 0
            while count < bytes.count {
                let start = count
                // SAFETY: the kernel reads at most as many bytes as the slice has.
                let put = bytes.withUnsafeBytes { buffer in
                    Glibc.write(file, buffer.baseAddress?.advanced(by: start), buffer.count - start)
                }
                if put < 0, errno == EINTR { continue }
                guard put >= 0 else { throw FileFailure(path, errno) }
                count += put
            }
            // A failed sync of earlier writes is reported on this descriptor (fsync(2)).
            guard fsync(file) == 0 else { throw FileFailure(path, errno) }
        }
    }

    package func link(_ path: String, to name: String) throws(FileFailure) {
        guard Glibc.link(path, name) == 0 else { throw FileFailure(name, errno) }
    }

    package func rename(_ path: String, to name: String) throws(FileFailure) {
        guard Glibc.rename(path, name) == 0 else { throw FileFailure(path, errno) }
    }

    package func remove(_ path: String) throws(FileFailure) {
        guard unlink(path) == 0 else { throw FileFailure(path, errno) }
    }

    package func makeDirectory(_ path: String) throws(FileFailure) {
        guard mkdir(path, 0o700) == 0 else { throw FileFailure(path, errno) }
    }

    package func syncDirectory(_ path: String) throws(FileFailure) {
        try withFile(path, O_RDONLY | O_DIRECTORY) { file throws(FileFailure) in
            guard fsync(file) == 0 else { throw FileFailure(path, errno) }
        }
    }

    private func withFile<Value>(
        _ path: String, _ flags: CInt, _ body: (CInt) throws(FileFailure) -> Value
    ) throws(FileFailure) -> Value {
        let file = opened(path, flags)
        defer { reserve.refill() }
        guard file >= 0 else { throw FileFailure(path, errno) }
        defer { close(file) }
        return try body(file)
    }

    /// Releases a reserved descriptor if the process or the system has none left.
    private func opened(_ path: String, _ flags: CInt) -> CInt {
        while true {
            let file = open(path, flags | O_CLOEXEC, 0o600)
            guard file < 0, errno == EMFILE || errno == ENFILE, reserve.release() else { return file }
        }
    }

    private static func nanoseconds(_ time: timespec) -> Int64 {
        Int64(time.tv_sec) &* 1_000_000_000 &+ Int64(time.tv_nsec)
    }
}

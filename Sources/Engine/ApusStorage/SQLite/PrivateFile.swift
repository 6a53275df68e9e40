#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// A database file that only its own user may read: it contains accounts and devices.
///
/// The file is never opened at its own path: closing it there would release the locks of every connection of this
/// process to it (fcntl(2), "record locks").
enum PrivateFile {
    /// Creates an empty file with mode 0600 if there is none, and sets that mode on an existing one and its log. SQLite
    /// gives its further files the mode of the database.
    ///
    /// Errors are left to SQLite, which meets them when it opens the file.
    static func make(_ path: String) {
        let new = "\(path).new-\(getpid())-\(UInt64.random(in: .min ... .max))"
        let descriptor = open(new, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0o600)
        if descriptor >= 0 {
            close(descriptor)
            give(new, toOwnerOf: path)
            // Fails if there is a file already, which stays.
            _ = link(new, path)
            unlink(new)
        }
        for file in [path, path + "-wal", path + "-shm"] { chmod(file, 0o600) }
    }

    /// Changes the owner of a file that root created to the owner of the database, or else of the directory. Otherwise
    /// a node that runs as that user could not open it after an operator's command.
    static func give(_ path: String, toOwnerOf database: String) {
        guard geteuid() == 0 else { return }
        let folder = database.lastIndex(of: "/").map { String(database[..<$0]) } ?? "."
        var status = stat()
        guard stat(database, &status) == 0 || stat(folder.isEmpty ? "/" : folder, &status) == 0 else { return }
        chown(path, status.st_uid, status.st_gid)
    }
}

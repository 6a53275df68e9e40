#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// A database that only its own user reads: it has accounts and devices in it.
///
/// The file is never opened at its own path: closing it there would end the locks of every connection that this process
/// has to it (fcntl(2), "record locks").
enum PrivateFile {
    /// Makes an empty file with mode 0600 if there is none, and gives one that is there, with the log beside it,
    /// that mode. SQLite gives its further files the mode of the database.
    ///
    /// Errors are left to SQLite, which meets them when it opens the file.
    static func make(_ path: String) {
        let new = "\(path).new-\(getpid())-\(UInt64.random(in: .min ... .max))"
        let descriptor = open(new, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0o600)
        if descriptor >= 0 {
            close(descriptor)
            give(new, toOwnerOf: path)
            // Fails where there is a file already, which stays.
            _ = link(new, path)
            unlink(new)
        }
        for file in [path, path + "-wal", path + "-shm"] { chmod(file, 0o600) }
    }

    /// Gives a file that root made to the user whose database it belongs to, else to that of the directory: a node that
    /// runs as that user could not open it after an operator's command.
    static func give(_ path: String, toOwnerOf database: String) {
        guard geteuid() == 0 else { return }
        let folder = database.lastIndex(of: "/").map { String(database[..<$0]) } ?? "."
        var status = stat()
        guard stat(database, &status) == 0 || stat(folder.isEmpty ? "/" : folder, &status) == 0 else { return }
        chown(path, status.st_uid, status.st_gid)
    }
}

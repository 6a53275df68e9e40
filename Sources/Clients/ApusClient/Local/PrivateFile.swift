import Glibc

/// Files with secrets.
package enum PrivateFile {
    /// Creates a file that only this user may read, from its first byte on.
    ///
    /// - Returns: false if it exists already or cannot be written.
    package static func create(_ path: String, _ bytes: [UInt8]) -> Bool {
        let descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0o600)
        guard descriptor >= 0 else { return false }
        let count = write(descriptor, bytes, bytes.count)
        guard close(descriptor) == 0, count == bytes.count else {
            unlink(path)
            return false
        }
        return true
    }
}

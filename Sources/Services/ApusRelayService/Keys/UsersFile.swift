import ApusConfiguration
package import ApusCore
import ApusTraversal
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The file of a relay's static users (`relay.users_file`), as operators edit it.
/// Lines of other users and comments stay unchanged. The file is replaced atomically, so a relay that reads it at the
/// same time sees the old or the new content. Concurrent edits wait for each other. A new file is readable only by its
/// owner. An existing one keeps its owner, its group and the group's read permission, so that a relay of another user
/// can still read it.
package struct UsersFile: Sendable {
    /// How long an edit waits for other edits.
    private static let lockTimeout = Duration.seconds(30)

    package let path: String
    package let realm: String

    package init(path: String, realm: String) {
        self.path = path
        self.realm = realm
    }

    /// The users; none if there is no file yet.
    /// - Throws: 10021 if the file cannot be read, 10022 with the line if it is not valid.
    package func names() throws(ApusError) -> [String] { try parsed(text()).names }

    /// Sets a user's password. Returns true if the user is new.
    /// - Throws: 10021 if the file cannot be read or written, or other edits take too long; 10022 if the file or the
    ///   name is not valid.
    @discardableResult
    package func set(_ name: String, password: String) throws(ApusError) -> Bool {
        guard StaticUsers.isName(name),
            let line = StaticUsers.line(name: name, realm: realm, password: password)
        else {
            throw ApusError(
                .configurationInvalid,
                "a name is 1 to \(StaticUsers.nameByteCountMax) visible bytes without a colon, a password is not "
                    + "empty, and neither has control characters")
        }
        let lock = try takeLock()
        defer { close(lock) }
        let before = try text()
        let isNew = try !parsed(before).names.contains(name)
        var lines = Self.lines(before).filter { !Self.isOf(name, $0) }
        lines.append(line)
        try write(lines)
        return isNew
    }

    /// Removes a user. Returns false if there was none.
    /// - Throws: 10021 if the file cannot be read or written, or other edits take too long; 10022 if the file is not
    ///   valid.
    package func remove(_ name: String) throws(ApusError) -> Bool {
        let lock = try takeLock()
        defer { close(lock) }
        let before = try text()
        guard try parsed(before).names.contains(name) else { return false }
        try write(Self.lines(before).filter { !Self.isOf(name, $0) })
        return true
    }

    /// The target of a symbolic link is written, not the link.
    private var target: String { URL(fileURLWithPath: path).resolvingSymlinksInPath().path }

    /// Excludes other edits until the descriptor is closed, even if this process crashes. The folder is locked, because
    /// an edit replaces the file.
    private func takeLock() throws(ApusError) -> CInt {
        let folder = URL(fileURLWithPath: target).deletingLastPathComponent().path
        let descriptor = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
        guard descriptor >= 0 else {
            throw ApusError(
                .storageFailed,
                "the folder \(folder) of the relay's users cannot be opened: \(String(cString: strerror(errno)))")
        }
        let deadline = MonotonicTime.now() + Self.lockTimeout
        while flock(descriptor, LOCK_EX | LOCK_NB) != 0 {
            guard errno == EWOULDBLOCK || errno == EINTR, MonotonicTime.now() < deadline else {
                close(descriptor)
                throw ApusError(.storageFailed, "another command is editing the relay's users \(path)")
            }
            usleep(10_000)
        }
        return descriptor
    }

    private func parsed(_ text: String) throws(ApusError) -> StaticUsers {
        try StaticUsers(text, source: path, realm: realm)
    }

    private static func isOf(_ name: String, _ line: String) -> Bool { line.hasPrefix("\(name):") }

    private static func lines(_ text: String) -> [String] {
        // Split as in ``StaticUsers``: CR LF is one line end too.
        var lines = text.split(omittingEmptySubsequences: false, whereSeparator: \.isNewline).map { String($0) }
        while lines.last?.isEmpty == true { lines.removeLast() }
        return lines
    }

    private func text() throws(ApusError) -> String {
        guard FileManager.default.fileExists(atPath: path) else { return "" }
        guard let text = try? String(contentsOfFile: path, encoding: .utf8) else {
            throw ApusError(.storageFailed, "the relay's users \(path) cannot be read")
        }
        return text
    }

    private func write(_ lines: [String]) throws(ApusError) {
        let path = target
        let fresh = "\(path).new-\(getpid())"
        let text = lines.map { $0 + "\n" }.joined()
        guard Self.make(fresh, like: path, text), rename(fresh, path) == 0 else {
            unlink(fresh)
            throw ApusError(
                .storageFailed, "the relay's users \(path) cannot be written, or its owner and group cannot be kept")
        }
    }

    /// Creates a file that only its owner can access from the start, with the owner and group of `old` if that exists.
    /// Returns false if it cannot be written.
    private static func make(_ path: String, like old: String, _ text: String) -> Bool {
        unlink(path)
        let descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0o600)
        guard descriptor >= 0 else { return false }
        let handle = FileHandle(fileDescriptor: descriptor, closeOnDealloc: true)
        var (before, made) = (stat(), stat())
        if stat(old, &before) == 0 {
            guard fstat(descriptor, &made) == 0 else { return false }
            let isOthers = before.st_uid != made.st_uid || before.st_gid != made.st_gid
            guard !isOthers || fchown(descriptor, before.st_uid, before.st_gid) == 0,
                fchmod(descriptor, 0o600 | before.st_mode & 0o040) == 0
            else { return false }
        }
        do {
            try handle.write(contentsOf: Data(text.utf8))
            try handle.synchronize()
            try handle.close()
            return true
        } catch {
            return false
        }
    }
}

package import ApusCore
import ApusTraversal
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The file of a relay's static users (`relay.users_file`), as operators edit it.
///
/// Lines of other users and remarks stay as they are. It is written anew beside itself and then put in its place, so
/// that a relay that reads it meanwhile sees the one or the other. Edits at one time wait for each other. A new file is
/// readable by its owner alone; one that is there keeps owner and group, and what the group may read, so that a relay
/// of another user reads it on.
package struct UsersFile: Sendable {
    /// How long an edit waits for others.
    private static let lockTimeout = Duration.seconds(30)

    package let path: String
    package let realm: String

    package init(path: String, realm: String) {
        self.path = path
        self.realm = realm
    }

    /// The users; none where there is no file yet.
    ///
    /// - Throws: 10021 where the file cannot be read, 10022 with the line where it is not valid.
    package func names() throws(ApusError) -> [String] { try parsed(text()).names }

    /// Gives a user this password; true where the user is new.
    ///
    /// - Throws: 10021 where the file cannot be read or written, or others edit it for too long; 10022 where it, or the
    ///   name, is not valid.
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

    /// Takes a user out; false where there was none.
    ///
    /// - Throws: 10021 where the file cannot be read or written, or others edit it for too long; 10022 where it is not
    ///   valid.
    package func remove(_ name: String) throws(ApusError) -> Bool {
        let lock = try takeLock()
        defer { close(lock) }
        let before = try text()
        guard try parsed(before).names.contains(name) else { return false }
        try write(Self.lines(before).filter { !Self.isOf(name, $0) })
        return true
    }

    /// Where a link stands, the file that it leads to is written.
    private var target: String { URL(fileURLWithPath: path).resolvingSymlinksInPath().path }

    /// Keeps other edits out until the descriptor is closed, however this process ends. The folder is locked, since an
    /// edit puts another file in the place of the one that is there.
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
                throw ApusError(.storageFailed, "another command edits the relay's users \(path)")
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
        // As ``StaticUsers`` reads them: CR LF is one end too.
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
                .storageFailed, "the relay's users \(path) cannot be written, or not as a file of its owner and group")
        }
    }

    /// Makes a file that is its owner's alone from its first moment on, and belongs to whom another one does if that is
    /// there; false where it cannot be written.
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

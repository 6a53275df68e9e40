import Glibc

/// A disk of its own, in memory, for as long as this exists.
package final class TestDisk {
    /// Whether this process may make one.
    package static let canBeMade = getuid() == 0 && TestDisk(byteCount: 1 << 20).isMounted

    package let path: String
    package let isMounted: Bool
    private let folder = Folder()

    package init(byteCount: Int) {
        path = folder.path
        isMounted = mount("tmpfs", path, "tmpfs", 0, "size=\(byteCount)") == 0
    }

    /// Takes all the room that is left.
    ///
    /// - Returns: false if that fails.
    package func fill(_ file: String) -> Bool {
        var status = statvfs()
        guard statvfs(path, &status) == 0 else { return false }
        let descriptor = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0o600)
        defer { close(descriptor) }
        return posix_fallocate(descriptor, 0, off_t(status.f_bavail * UInt(status.f_frsize))) == 0
    }

    package func remount(isReadOnly: Bool) -> Bool {
        let flags = UInt(MS_REMOUNT) | (isReadOnly ? UInt(MS_RDONLY) : 0)
        return mount("tmpfs", path, "tmpfs", flags, nil) == 0
    }

    deinit { if isMounted { umount2(path, Int32(MNT_DETACH)) } }
}

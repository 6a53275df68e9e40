#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// A file operation that the system refused.
package struct FileFailure: Error, Sendable {
    package var path: String
    /// errno(3).
    package var number: CInt

    package init(_ path: String, _ number: CInt) {
        self.path = path
        self.number = number
    }

    /// True if there is no room, on the disk or in the quota.
    package var isFull: Bool { number == ENOSPC || number == EDQUOT }

    /// The error with ``advice``: 10041 if there is no room, 10021 otherwise.
    package var error: ApusError { ApusError(isFull ? .storageFull : .storageFailed, advice) }

    /// A message for people: what is wrong and what to do.
    package var advice: String {
        switch number {
        case ENOSPC, EDQUOT: "\(path) cannot be written: the disk is full; make room"
        case EROFS: "\(path) cannot be written: its file system is read-only; mount it writable"
        case EACCES, EPERM: "\(path) cannot be used; check its owner and permissions"
        case EIO: "\(path) cannot be read or written: the disk fails; check the system's log"
        case EMFILE, ENFILE: "\(path) cannot be opened: no file descriptor is free; raise the limit of open files"
        case ENOENT, ENOTDIR: "\(path) does not exist; check that its directory exists"
        default: "\(path) cannot be used: \(String(cString: strerror(number)))"
        }
    }
}

import ApusCore
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// A file with credentials. Its permissions are checked when it is read.
struct PrivateFile: Sendable {
    let text: String
    /// True if every user of the machine may read it.
    let isReadableByAll: Bool

    /// - Parameter what: the file's purpose, for the error.
    /// - Throws: 10022 if it cannot be read or is not text, or if its group or others may write it: they could then
    ///   impersonate its users.
    init(_ path: String, what: String) throws(ApusError) {
        let descriptor = open(path, O_RDONLY | O_CLOEXEC)
        guard descriptor >= 0 else {
            throw ApusError(
                .configurationInvalid, "the relay's \(what) \(path) cannot be read: \(String(cString: strerror(errno)))"
            )
        }
        let handle = FileHandle(fileDescriptor: descriptor, closeOnDealloc: true)
        var facts = stat()
        // A pipe or a device has no stored content that others could read later.
        let isFile = fstat(descriptor, &facts) == 0 && facts.st_mode & S_IFMT == S_IFREG
        guard !isFile || facts.st_mode & 0o022 == 0 else {
            throw ApusError(
                .configurationInvalid,
                "the relay's \(what) \(path) can be written by others than its owner: chmod go-w \(path)")
        }
        let data = try? handle.readToEnd() ?? Data()
        guard let text = data.flatMap({ String(data: $0, encoding: .utf8) }) else {
            throw ApusError(.configurationInvalid, "the relay's \(what) \(path) cannot be read")
        }
        self.text = text
        isReadableByAll = isFile && facts.st_mode & 0o004 != 0
    }
}

import ApusCore
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Changes the wall clock of a process with libfaketime (Debian's package `faketime`). The monotonic clock is
/// unchanged.
enum ClockFault {
    /// The library's path; nil if it is not installed.
    static var library: String? {
        let root = "/usr/lib"
        let folders = (try? FileManager.default.contentsOfDirectory(atPath: root)) ?? []
        return folders.sorted().map { "\(root)/\($0)/faketime/libfaketimeMT.so.1" }.first {
            FileManager.default.fileExists(atPath: $0)
        }
    }

    /// The environment variables of a process with another clock.
    /// - Parameter offset: in libfaketime's notation: `-1h`, `+2h`.
    /// - Throws: 10022 if libfaketime is missing.
    static func environment(_ offset: String) throws(ApusError) -> [String: String] {
        guard let library else {
            throw ApusError(.configurationInvalid, "libfaketime is missing: install the package faketime")
        }
        return [
            "LD_PRELOAD": library, "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1",
        ]
    }

    /// Executes a program with another clock. The library changes the environment of the first program into which it is
    /// loaded, and a Swift program whose environment has moved does not find its arguments.
    static let launcher = ["/bin/bash", "-c", "exec -a apus \"$0\" \"$@\""]

    /// Removes the library's remains of a process.
    static func clean(_ pid: pid_t) {
        for name in ["faketime_shm_\(pid)", "sem.faketime_sem_\(pid)"] {
            try? FileManager.default.removeItem(atPath: "/dev/shm/\(name)")
        }
    }
}

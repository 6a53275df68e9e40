import ApusCore
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Another wall clock for a process: libfaketime (Debian's package `faketime`), with the monotonic clock left alone.
enum ClockFault {
    /// The library; nil where it is not installed.
    static var library: String? {
        let root = "/usr/lib"
        let folders = (try? FileManager.default.contentsOfDirectory(atPath: root)) ?? []
        return folders.sorted().map { "\(root)/\($0)/faketime/libfaketimeMT.so.1" }.first {
            FileManager.default.fileExists(atPath: $0)
        }
    }

    /// Variables for a process whose clock differs.
    ///
    /// - Parameter offset: as libfaketime takes it: `-1h`, `+2h`.
    /// - Throws: 10022 where libfaketime is missing.
    static func environment(_ offset: String) throws(ApusError) -> [String: String] {
        guard let library else {
            throw ApusError(.configurationInvalid, "libfaketime is missing: install the package faketime")
        }
        return [
            "LD_PRELOAD": library, "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1",
        ]
    }

    /// What executes a program whose clock differs. The library changes the environment of the first program that it is
    /// loaded into, and a Swift program whose environment has moved does not find its arguments.
    static let launcher = ["/bin/bash", "-c", "exec -a apus \"$0\" \"$@\""]

    /// Removes what the library left of a process.
    static func clean(_ pid: pid_t) {
        for name in ["faketime_shm_\(pid)", "sem.faketime_sem_\(pid)"] {
            try? FileManager.default.removeItem(atPath: "/dev/shm/\(name)")
        }
    }
}

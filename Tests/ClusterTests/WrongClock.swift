import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// A node of a cluster that runs again with another wall clock, by way of Debian's faketime(1). The monotonic clock is
/// right.
final class WrongClock {
    static let faketime = "/usr/bin/faketime"
    static var isInstalled: Bool { FileManager.default.isExecutableFile(atPath: faketime) }

    private let process = Process()
    private let pidFile: String

    /// Kills the node, and starts it with the offset, such as `+2h`.
    init(_ cluster: Cluster, node: Int, offset: String) throws {
        pidFile = cluster.file("wrong-\(node).pid")
        let killed = try cluster.run("cluster", "kill", "\(node)")
        guard killed.status == 0 else { throw CocoaError(.executableLoad, userInfo: ["output": killed.all]) }
        // The node alone, not the command that starts it: that would wait by the wrong clock.
        process.executableURL = URL(fileURLWithPath: Self.faketime)
        let script =
            "echo $$ >'\(pidFile)'; exec '\(Cluster.apus)' node --config '\(cluster.file("n\(node).yaml"))'"
        process.arguments = ["-m", "--exclude-monotonic", "-f", offset, "sh", "-c", script]
        process.standardError = FileHandle.nullDevice
        try process.run()
    }

    func end() {
        let pid = pid_t(Cluster.text(pidFile).trimmingCharacters(in: .whitespacesAndNewlines))
        if let pid { kill(pid, SIGKILL) }
        process.waitUntilExit()
    }
}

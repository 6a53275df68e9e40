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
    /// The file from which a clock that can step has its offset.
    private let offsetFile: String

    /// Kills the node, and starts it with the offset, such as `+2h`.
    ///
    /// - Parameter canStep: ``step(to:)`` can change the offset later.
    init(_ cluster: Cluster, node: Int, offset: String, canStep: Bool = false) throws {
        pidFile = cluster.file("wrong-\(node).pid")
        offsetFile = cluster.file("wrong-\(node).offset")
        let killed = try cluster.run("cluster", "kill", "\(node)")
        guard killed.status == 0 else { throw CocoaError(.executableLoad, userInfo: ["output": killed.all]) }
        // The node alone, not the command that starts it: that would wait by the wrong clock.
        process.executableURL = URL(fileURLWithPath: canStep ? "/bin/sh" : Self.faketime)
        let script =
            "echo $$ >'\(pidFile)'; exec '\(Cluster.apus)' node --config '\(cluster.file("n\(node).yaml"))'"
        process.arguments = ["-m", "--exclude-monotonic", "-f", offset, "sh", "-c", script]
        if canStep {
            try step(to: offset)
            process.arguments = ["-c", script]
            process.environment = ProcessInfo.processInfo.environment.merging(
                [
                    "LD_PRELOAD": try Self.library(), "FAKETIME_TIMESTAMP_FILE": offsetFile, "FAKETIME_NO_CACHE": "1",
                    "DONT_FAKE_MONOTONIC": "1",
                ]) { $1 }
        }
        process.standardError = FileHandle.nullDevice
        try process.run()
    }

    /// Sets the clock of the running node.
    func step(to offset: String) throws { try Data(offset.utf8).write(to: URL(fileURLWithPath: offsetFile)) }

    /// The library that faketime(1) preloads.
    private static func library() throws -> String {
        let folders = ["x86_64-linux-gnu", "aarch64-linux-gnu"].map { "/usr/lib/\($0)/faketime/libfaketimeMT.so.1" }
        guard let found = folders.first(where: FileManager.default.fileExists) else {
            throw CocoaError(.fileNoSuchFile, userInfo: [NSFilePathErrorKey: folders[0]])
        }
        return found
    }

    func end() {
        let pid = pid_t(Cluster.text(pidFile).trimmingCharacters(in: .whitespacesAndNewlines))
        if let pid { kill(pid, SIGKILL) }
        process.waitUntilExit()
    }
}

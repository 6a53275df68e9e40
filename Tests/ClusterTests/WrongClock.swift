import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// A node of a cluster that runs again with another wall clock, by way of Tests/Tools/wrong_clock.c. All other clocks
/// are right.
final class WrongClock {
    /// Built by scripts/lib/build-tests.sh, beside the binaries.
    static let library =
        URL(fileURLWithPath: Cluster.apus).deletingLastPathComponent().path + "/libapus-wrong-clock.so"
    static var isBuilt: Bool { FileManager.default.fileExists(atPath: library) }

    private let process = Process()
    /// The file from which the node has its offset, in seconds.
    private let offsetFile: String

    /// Kills the node, and starts it with the offset.
    init(_ cluster: Cluster, node: Int, ahead offset: Duration) throws {
        offsetFile = cluster.file("wrong-\(node).offset")
        let killed = try cluster.run("cluster", "kill", "\(node)")
        guard killed.status == 0 else { throw CocoaError(.executableLoad, userInfo: ["output": killed.all]) }
        try step(to: offset)
        // The node alone, not the command that starts it: that would wait by the wrong clock.
        process.executableURL = URL(fileURLWithPath: Cluster.apus)
        process.arguments = ["node", "--config", cluster.file("n\(node).yaml")]
        process.environment = ProcessInfo.processInfo.environment.merging(
            ["LD_PRELOAD": Self.library, "APUS_CLOCK_OFFSET_FILE": offsetFile]) { $1 }
        process.standardError = FileHandle.nullDevice
        try process.run()
    }

    /// Sets the clock of the running node, within 50 ms.
    func step(to offset: Duration) throws {
        try Data("\(offset.components.seconds)".utf8).write(to: URL(fileURLWithPath: offsetFile), options: .atomic)
    }

    func end() {
        kill(process.processIdentifier, SIGKILL)
        process.waitUntilExit()
    }
}

import ApusCore
import ArgumentParser
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// `apus-bench hog`: keeps cores busy for as long as its parent process is running.
/// The process has its own session, like a program in another terminal. The kernel schedules sessions as groups
/// (sched_autogroup), so the hogs do not take the share of the benchmark's session.
/// - Throws: 10018 if the process cannot create a session.
struct BenchHogCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "hog", abstract: "Keep cores busy.", shouldDisplay: false)

    @Option(help: "End with this process.") var parent: Int32
    @Option(help: "Run this number of busy threads.") var threads = 1

    func run() throws {
        // A child of Foundation's Process leads a process group, and a group's leader cannot create a session.
        _ = setpgid(0, getpgid(parent))
        guard setsid() > 0 else { throw ApusError(.internalFailure, "the session cannot be created: error \(errno)") }
        for _ in 1..<max(threads, 1) { Thread.detachNewThread { Self.work(while: { true }) } }
        Self.work { getppid() == parent }
    }

    private static func work(while isWanted: () -> Bool) {
        var value: UInt64 = 1
        while isWanted() {
            for number in 0..<UInt64(10_000_000) { value = value &* 6_364_136_223_846_793_005 &+ number }
        }
        if value == 0 { print(value) }
    }
}

/// Busy threads in another session.
struct BenchHogs {
    private let scope: BenchScope
    private let undo: Int

    /// - Throws: 10018 if the process cannot be started.
    init(_ count: Int, scope: BenchScope) throws {
        self.scope = scope
        guard count > 0 else {
            undo = scope.onEnd {}
            return
        }
        let process = Process()
        process.executableURL = URL(fileURLWithPath: BenchPrograms.own)
        process.arguments = ["hog", "--parent", "\(getpid())", "--threads", "\(count)"]
        process.standardOutput = FileHandle.nullDevice
        try process.run()
        let started = process.processIdentifier
        undo = scope.onEnd { kill(started, SIGKILL) }
    }

    func stop() { scope.end(undo) }
}

import ApusCore
import ArgumentParser
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// `apus-bench hog`: keeps cores busy for as long as the process that started it is there.
///
/// All of it is one session, as a program in another terminal is: what the kernel gives to a session
/// (sched_autogroup) is then not taken from whoever measures.
///
/// - Throws: 10018 where it gets no session.
struct BenchHogCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "hog", abstract: "Keep cores busy.", shouldDisplay: false)

    @Option(help: "The process whose end ends this one.") var parent: Int32
    @Option(help: "Threads that use all the CPU that they get.") var threads = 1

    func run() throws {
        // A child of Foundation's leads a process group, and its leader is refused a session.
        _ = setpgid(0, getpgid(parent))
        guard setsid() > 0 else { throw ApusError(.internalFailure, "no session of its own: error \(errno)") }
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

/// Threads of another session that use all the CPU that they get.
struct BenchHogs {
    private let scope: BenchScope
    private let undo: Int

    /// - Throws: 10018 where the process cannot be started.
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

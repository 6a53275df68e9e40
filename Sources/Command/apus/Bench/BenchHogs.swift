import ApusCore
import ArgumentParser
import Foundation

/// `apus bench hog`: keeps one core busy for as long as the process that started it is there.
struct BenchHogCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "hog", abstract: "Keep one core busy.", shouldDisplay: false)

    @Option(help: "The process whose end ends this one.") var parent: Int32

    func run() throws {
        var value: UInt64 = 1
        while getppid() == parent {
            for number in 0..<UInt64(10_000_000) { value = value &* 6_364_136_223_846_793_005 &+ number }
        }
        if value == 0 { print(value) }
    }
}

/// Processes that use all the CPU that they get.
struct BenchHogs {
    private let scope: BenchScope
    private let undo: Int

    /// - Throws: 10018 where a process cannot be started.
    init(_ count: Int, scope: BenchScope) throws {
        self.scope = scope
        var pids: [pid_t] = []
        defer { for pid in pids.dropFirst(count) { kill(pid, SIGKILL) } }
        for _ in 0..<count {
            let process = Process()
            process.executableURL = URL(fileURLWithPath: NodeProcess.executable)
            process.arguments = ["bench", "hog", "--parent", "\(getpid())"]
            process.standardOutput = FileHandle.nullDevice
            try process.run()
            pids.append(process.processIdentifier)
        }
        let started = pids
        undo = scope.onEnd { for pid in started { kill(pid, SIGKILL) } }
    }

    func stop() { scope.end(undo) }
}

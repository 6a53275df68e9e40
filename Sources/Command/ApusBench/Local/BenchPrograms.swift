import ApusCore
import ApusLocal
import Foundation

/// The programs that benchmarks start.
enum BenchPrograms {
    /// The program `apus`, whose nodes and clients are measured: the file that the environment's `APUS` names, or the
    /// one next to this program.
    /// - Throws: 10022 if there is none.
    static func apus() throws(ApusError) -> String {
        let environment = ProcessInfo.processInfo.environment
        let beside = URL(fileURLWithPath: NodeProcess.executable).deletingLastPathComponent().path + "/apus"
        let path = environment["APUS"].flatMap { $0.isEmpty ? nil : $0 } ?? beside
        guard FileManager.default.isExecutableFile(atPath: path) else {
            throw ApusError(
                .configurationInvalid, "\(path) is missing: build it with `swift build -c release --product apus`")
        }
        return path
    }

    /// `apus-doors`, whose nodes have the example service: the one beside `apus`.
    ///
    /// - Throws: 10022 where there is none.
    static func doors() throws(ApusError) -> String { try beside("apus-doors") }

    /// `apus-registers`, whose nodes have registers: the one beside `apus`.
    ///
    /// - Throws: 10022 if there is none.
    static func registers() throws(ApusError) -> String { try beside("apus-registers") }

    private static func beside(_ product: String) throws(ApusError) -> String {
        let path = URL(fileURLWithPath: try apus()).deletingLastPathComponent().path + "/" + product
        guard FileManager.default.isExecutableFile(atPath: path) else {
            throw ApusError(
                .configurationInvalid, "\(path) is missing: build it with `swift build -c release --product \(product)`"
            )
        }
        return path
    }

    /// Runs a verb on a thread of its own, so that the tasks of a load go on.
    ///
    /// - Throws: as ``FailoverStage/run(_:_:)``.
    static func run(_ program: String, _ arguments: [String]) async throws {
        try await withCheckedThrowingContinuation { (continuation: CheckedContinuation<Void, any Error>) in
            Thread.detachNewThread {
                continuation.resume(with: Result { try FailoverStage.run(program, arguments) })
            }
        }
    }

    /// This program, for the separate processes of a benchmark.
    static var own: String { NodeProcess.executable }

    /// The arguments before a command of a benchmark build: none for `apus-bench`, and `bench` for an `apus` of the
    /// time when the benchmarks were its commands.
    /// - Throws: 10018 if the program cannot be started.
    static func verbs(of executable: String) throws -> [String] {
        let process = Process()
        process.executableURL = URL(fileURLWithPath: executable)
        process.arguments = ["transport-server", "--help"]
        let help = Pipe()
        process.standardOutput = help
        process.standardError = FileHandle.nullDevice
        do {
            try process.run()
        } catch {
            throw ApusError(.internalFailure, "\(executable) cannot be started: \(error.localizedDescription)")
        }
        // A program without this command prints its own help instead.
        let text = String(decoding: (try? help.fileHandleForReading.readToEnd()) ?? Data(), as: UTF8.self)
        process.waitUntilExit()
        return text.contains("--dir") ? [] : ["bench"]
    }
}

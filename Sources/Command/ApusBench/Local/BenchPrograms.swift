import ApusCore
import ApusLocal
import Foundation

/// The programs that measurements start.
enum BenchPrograms {
    /// `apus`, whose nodes and clients are measured: the file that the environment's `APUS` names, or the one beside
    /// this program.
    ///
    /// - Throws: 10022 where there is none.
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
    static func doors() throws(ApusError) -> String {
        let path = URL(fileURLWithPath: try apus()).deletingLastPathComponent().path + "/apus-doors"
        guard FileManager.default.isExecutableFile(atPath: path) else {
            throw ApusError(
                .configurationInvalid, "\(path) is missing: build it with `swift build -c release --product apus-doors`")
        }
        return path
    }

    /// This program, for the parts of a measurement that have processes of their own.
    static var own: String { NodeProcess.executable }

    /// What stands before a verb of a build of the benchmarks: nothing for `apus-bench`, and `bench` for a build of
    /// `apus` from when the benchmarks were verbs of it.
    ///
    /// - Throws: 10018 where the program cannot be started.
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
        // A program that does not have the verb explains itself instead.
        let text = String(decoding: (try? help.fileHandleForReading.readToEnd()) ?? Data(), as: UTF8.self)
        process.waitUntilExit()
        return text.contains("--dir") ? [] : ["bench"]
    }
}

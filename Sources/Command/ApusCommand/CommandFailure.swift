import ApusCore
import ArgumentParser
import Foundation

/// How a verb reports an error: one line on standard error, with its number, and exit code 1.
enum CommandFailure {
    /// Runs a verb's work. Other errors than ``ApusError`` are reported by the parser of the arguments.
    static func reported(_ body: () async throws -> Void) async throws {
        do {
            try await body()
        } catch let error as ApusError {
            FileHandle.standardError.write(Data("apus: \(error.description)\n".utf8))
            throw ExitCode.failure
        }
    }
}

import ApusCore
import ArgumentParser
import Foundation

/// Reports a command's error: one line on standard error with the error's number, and exit code 1.
enum CommandFailure {
    /// Runs a command's work. The argument parser reports errors other than ``ApusError``.
    static func reported(_ body: () async throws -> Void) async throws {
        do {
            try await body()
        } catch let error as ApusError {
            FileHandle.standardError.write(Data("apus: \(error.description)\n".utf8))
            throw ExitCode.failure
        }
    }
}

import ApusCore
import ApusLocal
import ArgumentParser

/// Reports the error that ends a command, and ends the process with its exit code.
enum CommandFailure {
    /// With `--json` an error is one object on standard error, the last line there.
    private struct Report: Encodable {
        struct Failure: Encodable {
            /// The number of the catalogue (docs/reference/errors.md).
            var number: Int32
            /// The name of the catalogue.
            var name: String
            /// What is wrong, for people.
            var message: String
        }
        var error: Failure
    }

    /// Ends the process: with 0 after help, 64 after arguments that are not valid, 1 after another error.
    /// - Parameter arguments: the arguments of the command, which select JSON with `--json`.
    static func exit(_ error: any Error, arguments: [String]) -> Never {
        let code = Apus.exitCode(for: error)
        guard !code.isSuccess, !(error is ExitCode) else {
            let more = ParentHelp.section(for: arguments, help: Apus.fullMessage(for: error))
            guard !more.isEmpty else { Apus.exit(withError: error) }
            Console.say(Apus.fullMessage(for: error) + "\n" + more)
            Apus.exit(withError: code)
        }
        let isJSON = arguments.prefix { $0 != "--" }.contains("--json")
        if isJSON, let line = try? OutputOptions.text(Report(error: failure(error, code))) {
            Console.warn(line)
        } else if let error = error as? ApusError {
            Console.warn("apus: \(error)")
        } else {
            Apus.exit(withError: error)
        }
        Apus.exit(withError: code)
    }

    private static func failure(_ error: any Error, _ code: ExitCode) -> Report.Failure {
        let known =
            error as? ApusError
            ?? ApusError(code == .validationFailure ? .badParameter : .internalFailure, Apus.message(for: error))
        return Report.Failure(number: known.code.number, name: known.code.name, message: known.message)
    }
}

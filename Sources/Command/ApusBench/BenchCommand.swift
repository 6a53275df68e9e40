import ArgumentParser

/// The measurements of `docs/benchmarks.md`; `scripts/bench` builds what they need and calls them.
struct BenchCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "apus-bench", abstract: "Measure Apus on this machine.",
        discussion: """
            Nodes and clients are processes of the program apus in the same folder, or of the one that the environment's
            APUS names.
            """,
        subcommands: [
            BenchTransportCommand.self, BenchTransportServerCommand.self, BenchTransportClientCommand.self,
            BenchEntitiesCommand.self, BenchFailoverCommand.self, BenchRelayFailoverCommand.self,
            BenchSignInCommand.self, BenchFaultsCommand.self, BenchEnduranceCommand.self, BenchHogCommand.self,
            BenchStoreCommand.self, BenchAPICommand.self, BenchBareHTTPCommand.self,
        ])
}

/// What the program `apus-bench` calls.
package enum BenchProgram {
    /// Runs the measurement that the arguments name, and ends the process with its exit code where it fails.
    package static func main() async { await BenchCommand.main() }
}

package import ArgumentParser

/// The benchmarks of `docs/benchmarks.md`. `scripts/bench` builds what they need and runs them.
struct BenchCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "apus-bench", abstract: "Measure Apus on this machine.",
        discussion: """
            Nodes and clients are processes of the program apus in the same folder, or of the program that the
            variable APUS names.
            """,
        subcommands: [
            BenchTransportCommand.self, BenchTransportServerCommand.self, BenchTransportClientCommand.self,
            BenchEntitiesCommand.self, BenchFailoverCommand.self, BenchRelayFailoverCommand.self,
            BenchSignInCommand.self, BenchFaultsCommand.self, BenchEnduranceCommand.self, BenchHogCommand.self,
            BenchClusterFaultsCommand.self, BenchUpgradeCommand.self, BenchStoreCommand.self, BenchAPICommand.self,
            BenchBareHTTPCommand.self, BenchCommandsCommand.self, BenchPropertiesCommand.self, BenchDialogsCommand.self,
            BenchCallsCommand.self,
            BenchCallKillsCommand.self, BenchSessionsCommand.self, BenchStoresCommand.self,
        ])
}

/// The entry point of the program `apus-bench`.
package enum BenchProgram {
    /// The command above all others.
    package static var command: any ParsableCommand.Type { BenchCommand.self }

    /// Runs the benchmark that the arguments name. If it fails, the process ends with its exit code.
    package static func main() async { await BenchCommand.main() }
}

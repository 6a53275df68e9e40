import ArgumentParser

/// The measurements of `docs/benchmarks.md`; `scripts/bench` builds what they need and calls them.
struct BenchCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "bench", abstract: "Measure this installation.",
        subcommands: [
            BenchTransportCommand.self, BenchTransportServerCommand.self, BenchTransportClientCommand.self,
            BenchEntitiesCommand.self, BenchFailoverCommand.self, BenchRelayFailoverCommand.self,
            BenchSignInCommand.self, BenchFaultsCommand.self, BenchEnduranceCommand.self, BenchHogCommand.self,
            BenchStoreCommand.self,
        ])
}

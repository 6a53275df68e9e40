import ArgumentParser

/// The one binary: each verb is a file of its own.
@main
struct Apus: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "apus",
        abstract: "A cluster for cameras and doorbells, and for the apps that watch and talk to them.",
        subcommands: [
            NodeCommand.self, ClusterCommand.self, DeviceCommand.self, WatchCommand.self, DemoCommand.self,
            AdminCommand.self, RelayCommand.self, BenchCommand.self,
        ])
}

package import ApusNode
import ArgumentParser
import Synchronization

/// The program: each verb is a file of its own.
struct Apus: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "apus",
        abstract: "A cluster for cameras and doorbells, and for the apps that watch and talk to them.",
        subcommands: [
            NodeCommand.self, ClusterCommand.self, DeviceCommand.self, WatchCommand.self, DemoCommand.self,
            AdminCommand.self, RelayCommand.self, StatusCommand.self, DrainCommand.self, SessionsCommand.self,
            ChannelsCommand.self, DevicesCommand.self, RevokeCommand.self,
        ])

    @OptionGroup var server: ServerOptions
}

/// What a binary with Apus in it calls: all verbs, and nodes that carry services of the binary's own.
package enum ApusProgram {
    private static let added = Mutex<[any NodeService]>([])

    /// What the nodes of this binary carry beside Apus's own services.
    static var services: [any NodeService] { added.withLock { $0 } }

    /// Runs the verb that the arguments name, and ends the process with its exit code where it fails.
    ///
    /// - Parameter services: of every node that this binary runs. All nodes of a cluster carry the same ones.
    package static func main(services: [any NodeService] = []) async {
        added.withLock { $0 = services }
        await Apus.main()
    }
}

package import ApusClientAPI
import ApusLocal
import ApusNodeConfiguration
import ApusWire
package import ArgumentParser

/// The program. Each command has its own file.
struct Apus: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "apus",
        abstract: "Run a cluster for cameras and doorbells, and for the apps that watch and talk to them.",
        discussion: "`apus --version` prints the program's build and the wire versions that its nodes speak.",
        subcommands: [
            NodeCommand.self, ClusterCommand.self, DeviceCommand.self, WatchCommand.self, RecordingsCommand.self,
            RecordCommand.self, ExportCommand.self, ProtectCommand.self, DemoCommand.self, AdminCommand.self,
            RelayCommand.self, StatusCommand.self, DrainCommand.self,
            UndrainCommand.self, SessionsCommand.self,
            ChannelsCommand.self, DevicesCommand.self, PropertyCommand.self, ActionCommand.self, SendCommand.self,
            CommandsCommand.self, TimersCommand.self, SayCommand.self, SpokenDialogCommand.self,
            SatelliteCommand.self, ConversationCommand.self, VoiceCommand.self,
            ProviderCommand.self, EventsCommand.self, SendServerCommand.self, HooksCommand.self,
            BindCommand.self, UnbindCommand.self, ShareCommand.self, UnshareCommand.self, AcceptCommand.self,
            InvitationsCommand.self, SharesCommand.self, TransferCommand.self, AuthorizeCommand.self, CallCommand.self,
            AnswerCommand.self,
            CallsCommand.self,
            MessagesCommand.self,
            CustomersCommand.self, UsersCommand.self, ProductsCommand.self, FirmwareCommand.self, RevokeCommand.self,
            WhyCommand.self, DiagnoseCommand.self, ChangesCommand.self, CordonCommand.self, UncordonCommand.self,
            WeightCommand.self,
        ])
}

/// `apus --version`. It is no flag of `apus`, which would also take the options of this name that verbs may have.
private struct ProgramVersion: Encodable {
    var build = ProgramBuild.own
    /// The newest wire version that its nodes speak, and the oldest.
    var wire = WireVersion.current
    var wire_oldest = WireVersion.oldest

    /// Prints it. False if the arguments ask for something else.
    static func show(_ arguments: [String]) throws -> Bool {
        let isAsked = arguments.contains("--version") && Set(arguments).isSubset(of: ["--version", "--json"])
        guard isAsked else { return false }
        let version = ProgramVersion()
        guard !arguments.contains("--json") else {
            Console.say(try OutputOptions.text(version))
            return true
        }
        Console.say("apus, build \(version.build), wire versions \(version.wire_oldest) to \(version.wire)")
        return true
    }
}

/// The entry point of a binary with Apus: all commands, and nodes with the binary's own services.
package enum ApusProgram {
    /// The command above all others.
    package static var command: any ParsableCommand.Type { Apus.self }

    /// Runs the command that the arguments name. If it fails, the process ends with its exit code.
    /// - Parameter services: the additional services of every node of this binary. All nodes of a cluster carry the
    ///   same ones.
    package static func main(services: [any NodeService.Type] = []) async {
        ProgramServices.carry(services)
        let arguments = ServerOptions.behindVerb(Array(CommandLine.arguments.dropFirst()))
        do {
            if try ProgramVersion.show(arguments) { return }
            var command = try await Apus.asyncParseAsRoot(arguments)
            if var command = command as? any AsyncParsableCommand {
                try await command.run()
            } else {
                try command.run()
            }
        } catch {
            CommandFailure.exit(error, arguments: arguments)
        }
    }
}

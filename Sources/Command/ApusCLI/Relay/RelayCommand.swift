import ApusCore
import ArgumentParser

/// `apus relay`: a standalone TURN server, credentials for it, and checks of it.
struct RelayCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "relay", abstract: "Relay packets for clients behind NATs (STUN and TURN).",
        subcommands: [
            RelayServeCommand.self, RelayCredentialsCommand.self, RelayCheckCommand.self, RelayStatusCommand.self,
            RelayUserCommand.self, RelaySessionsCommand.self, RelayEndCommand.self, RelayDrainCommand.self,
        ])
}

/// The secret and the realm, as options of several commands.
struct RelaySecretOptions: ParsableArguments {
    @Option(help: "Set the secret of the credentials. Default: APUS_RELAY_SECRET of the environment.")
    var secret: String?

    @Option(help: "Read the secret from this file; - prompts for it.")
    var secretFile: String?

    /// True if the command line has a secret.
    var isGivenHere: Bool { secret != nil || secretFile != nil }

    /// The secret; nil if none was given.
    /// - Throws: 21031 if two are given, 10021 if the file cannot be read.
    func given() throws(ApusError) -> String? {
        try SecretText.given(secret, file: secretFile, variable: "APUS_RELAY_SECRET", name: "secret")
    }

    @Option(help: "Set the realm that clients receive.")
    var realm = "apus"
}

import ApusCore
import ArgumentParser

/// `apus relay`: the TURN server by itself, credentials for it, and whether one works.
struct RelayCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "relay", abstract: "Relay packets for clients behind NATs (STUN and TURN).",
        subcommands: [
            RelayServeCommand.self, RelayCredentialsCommand.self, RelayCheckCommand.self, RelayStatusCommand.self,
            RelayUserCommand.self, RelaySessionsCommand.self, RelayEndCommand.self, RelayDrainCommand.self,
        ])
}

/// The secret and the realm, as every verb of the relay takes them.
struct RelaySecretOptions: ParsableArguments {
    @Option(help: "The secret of the credentials; else the environment's APUS_RELAY_SECRET.")
    var secret: String?

    @Option(help: "The file that the secret is in; - asks for it.")
    var secretFile: String?

    /// True where the command line names a secret.
    var isGivenHere: Bool { secret != nil || secretFile != nil }

    /// The secret; nil where none was given.
    ///
    /// - Throws: 21031 where two are given, 10021 where the file cannot be read.
    func given() throws(ApusError) -> String? {
        try SecretText.given(secret, file: secretFile, variable: "APUS_RELAY_SECRET", name: "secret")
    }

    @Option(help: "The realm that clients are told.")
    var realm = "apus"
}

import ArgumentParser

/// `apus relay`: the TURN server by itself, credentials for it, and whether one works.
struct RelayCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "relay", abstract: "Relay packets for clients behind NATs (STUN and TURN).",
        subcommands: [
            RelayServeCommand.self, RelayCredentialsCommand.self, RelayCheckCommand.self, RelayStatusCommand.self,
        ])
}

/// The secret and the realm, as every verb of the relay takes them.
struct RelaySecretOptions: ParsableArguments {
    @Option(help: "The secret of the credentials; else the environment's APUS_RELAY_SECRET.")
    var secret: String?

    @Option(help: "The realm that clients are told.")
    var realm = "apus"
}

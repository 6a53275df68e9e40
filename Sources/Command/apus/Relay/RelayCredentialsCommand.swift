import ApusTraversal
import ArgumentParser
import Foundation

/// `apus relay credentials`: what a client is configured with, as the JSON that browsers take.
struct RelayCredentialsCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "credentials", abstract: "Print time-limited credentials for the relay as JSON.")

    @OptionGroup var credentials: RelaySecretOptions

    @Option(help: "Who the credentials are for.")
    var user: String

    @Option(help: "Seconds that they are good for.")
    var lifetime: Int64 = 3_600

    @Option(help: "An address of the relay, such as turn:relay.example:3478?transport=udp; may be given again.")
    var url: [String] = ["turn:127.0.0.1:3478?transport=udp", "turn:127.0.0.1:3478?transport=tcp"]

    private struct Servers: Encodable {
        struct Server: Encodable {
            var urls: [String]
            var username: String
            var credential: String
        }
        var iceServers: [Server]
    }

    func run() throws {
        guard let secret = credentials.secret ?? ProcessInfo.processInfo.environment["APUS_RELAY_SECRET"] else {
            throw ValidationError("give --secret, or APUS_RELAY_SECRET in the environment")
        }
        let expiry = Int64(Date().timeIntervalSince1970) + lifetime
        let issued = RelayCredentials(realm: credentials.realm, current: Array(secret.utf8))
            .issue(user: user, expiry: expiry)
        let servers = Servers(
            iceServers: [.init(urls: url, username: issued.username, credential: issued.password)])
        let encoder = JSONEncoder()
        encoder.outputFormatting = [.withoutEscapingSlashes, .sortedKeys]
        Console.say(String(decoding: try encoder.encode(servers), as: UTF8.self))
    }
}

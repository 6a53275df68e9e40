import ApusCore
import ApusLocal
import ArgumentParser
import Foundation

/// `apus relay credentials`: prints the configuration of a client, as JSON for browsers.
struct RelayCredentialsCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "credentials", abstract: "Print time-limited credentials for the relay as JSON.")

    @OptionGroup var options: RelayAccessOptions

    @Option(help: "Issue the credentials for this user.")
    var user: String

    @Option(help: "Set the lifetime of the credentials, in seconds.")
    var lifetime: Int64 = 3_600

    @Option(help: "Use this URL of the relay, such as turn:relay.example:3478?transport=udp; repeatable.")
    var url: [String] = []

    func run() throws {
        let access = try options.access(endpoints: [HostPort(host: "127.0.0.1", port: 3478)])
        let issued = access.issue(user: user, lifetime: lifetime)
        let servers = IceServers([
            .init(urls: url.isEmpty ? access.urls : url, username: issued.username, credential: issued.password)
        ])
        let encoder = JSONEncoder()
        encoder.outputFormatting = [.withoutEscapingSlashes, .sortedKeys]
        Console.say(String(decoding: try encoder.encode(servers), as: UTF8.self))
    }
}

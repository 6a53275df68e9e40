import ApusCore
import ApusLocal
import ArgumentParser

/// `apus relay credentials`: prints the configuration of a client, as JSON for browsers, also without `--json`.
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

    @OptionGroup var output: OutputOptions

    func run() throws {
        let access = try options.access(endpoints: [HostPort(host: "127.0.0.1", port: 3478)])
        let issued = access.issue(user: user, lifetime: lifetime)
        let servers = IceServers([
            .init(urls: url.isEmpty ? access.urls : url, username: issued.username, credential: issued.password)
        ])
        try output.show(servers, [try OutputOptions.text(servers)])
    }
}

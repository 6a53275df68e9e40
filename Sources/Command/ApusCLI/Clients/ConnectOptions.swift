import ApusClient
import ApusContract
import ApusCore
import ApusLocal
import ApusSessions
import ArgumentParser
import Logging
import NIOPosix

/// The endpoints and the credentials of a client command: from a local cluster's folder, or all by options.
struct ConnectOptions: ParsableArguments {
    @Option(help: "Take endpoints, authority and token from this state directory of a local cluster.")
    var dir: String?

    @Option(help: "Connect to this node first, by number or name; for --dir.")
    var node: String?

    @Option(name: .customLong("connect"), help: "Connect to the client endpoint HOST:PORT; repeatable.")
    var endpoints: [String] = []

    @Option(name: .customLong("ca"), help: "Trust the authority in this PEM file.")
    var authority: String?

    @Option(help: "Use this token of `apus admin token`. Default: APUS_TOKEN of the environment.")
    var token: String?

    @Option(help: "Read the token from this file; - prompts for it.")
    var tokenFile: String?

    @Option(
        help: "Log from this level on: trace, debug, info, notice, warning, error.",
        transform: { text in
            guard let level = Logger.Level(rawValue: text) else { throw ValidationError("'\(text)' is not a level.") }
            return level
        })
    var logLevel: Logger.Level = .notice

    /// The default state directory of a local cluster.
    static let defaultDirectory = "~/.apus/local"

    /// The configuration of a session. A token is issued if a local cluster is used.
    /// - Parameter access: the client's access id; for a device, its id.
    /// - Throws: 21031 if options cannot be combined, 10020 if the folder belongs to no local cluster.
    func client(role: Session.Role, access: AccessID, device: DeviceID?) async throws(ApusError) -> ClientConfiguration
    {
        let clientRole: ClientRole = role == .device ? .device : .app
        let token = try SecretText.given(token, file: tokenFile, variable: "APUS_TOKEN", name: "token")
        if !endpoints.isEmpty {
            guard let authority, let token else {
                throw ApusError(
                    .badParameter,
                    "--connect needs --ca FILE and a token: --token-file FILE, APUS_TOKEN or --token TOKEN")
            }
            var parsed: [HostPort] = []
            for endpoint in endpoints {
                guard let value = HostPort(endpoint) else {
                    throw ApusError(.badParameter, "--connect must be HOST:PORT, not '\(endpoint)'")
                }
                parsed.append(value)
            }
            return ClientConfiguration(endpoints: parsed, authorityFile: authority, token: token, role: clientRole)
        }
        let local = try LocalCluster(directory: dir ?? Self.defaultDirectory)
        var known = local.endpoints
        if let node {
            let first = try local.endpoint(of: node)
            known = [first] + known.filter { $0 != first }
        }
        var minted = token
        if minted == nil { minted = try await local.mint(role: role, access: access, device: device) }
        return ClientConfiguration(
            endpoints: known, authorityFile: authority ?? local.authorityFile, token: minted ?? "", role: clientRole)
    }

    /// The command's own logger, to standard error.
    var log: Logger {
        var log = Logger(label: "apus") { EscapingLogHandler(StreamLogHandler.standardError(label: $0)) }
        log.logLevel = logLevel
        return log
    }
}

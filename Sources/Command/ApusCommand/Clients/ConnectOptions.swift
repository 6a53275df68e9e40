import ApusClient
import ApusContract
import ApusCore
import ApusLocal
import ApusSessions
import ArgumentParser
import Logging
import NIOPosix

/// Where a client verb connects, and as whom: a local cluster's folder, or everything by hand.
struct ConnectOptions: ParsableArguments {
    @Option(help: "State directory of a local cluster: doors, authority and a token come from there.")
    var dir: String?

    @Option(help: "With --dir: the node to connect to first, by number or name.")
    var node: String?

    @Option(name: .customLong("connect"), help: "A client door, HOST:PORT; may be given several times.")
    var doors: [String] = []

    @Option(name: .customLong("ca"), help: "PEM file of the authority that signed the doors' certificates.")
    var authority: String?

    @Option(help: "A signed token; `apus admin token` makes one. Else the environment's APUS_TOKEN.")
    var token: String?

    @Option(help: "The file that the token is in; - asks for it.")
    var tokenFile: String?

    @Option(
        help: "Log lines at and above this level: trace, debug, info, notice, warning, error.",
        transform: { text in
            guard let level = Logger.Level(rawValue: text) else { throw ValidationError("'\(text)' is no log level.") }
            return level
        })
    var logLevel: Logger.Level = .notice

    /// The state directory of a local cluster when nothing else is said.
    static let defaultDirectory = "~/.apus/local"

    /// What a session needs. A token is minted where a local cluster is named.
    ///
    /// - Parameter identity: who the client is; for a device its id.
    /// - Throws: 21031 for options that do not go together, 10020 for a folder that is no local cluster's.
    func client(role: Session.Role, access: AccessID, device: DeviceID?) async throws(ApusError) -> ClientConfiguration
    {
        let clientRole: ClientRole = role == .device ? .device : .app
        let token = try SecretText.given(token, file: tokenFile, variable: "APUS_TOKEN", name: "token")
        if !doors.isEmpty {
            guard let authority, let token else {
                throw ApusError(
                    .badParameter,
                    "--connect needs --ca FILE and a token beside it: --token-file FILE, APUS_TOKEN or --token TOKEN")
            }
            var parsed: [HostPort] = []
            for door in doors {
                guard let value = HostPort(door) else {
                    throw ApusError(.badParameter, "--connect wants HOST:PORT, not '\(door)'")
                }
                parsed.append(value)
            }
            return ClientConfiguration(doors: parsed, authorityFile: authority, token: token, role: clientRole)
        }
        let local = try LocalCluster(directory: dir ?? Self.defaultDirectory)
        var known = local.doors
        if let node {
            let first = try local.door(of: node)
            known = [first] + known.filter { $0 != first }
        }
        var minted = token
        if minted == nil { minted = try await local.mint(role: role, access: access, device: device) }
        return ClientConfiguration(
            doors: known, authorityFile: authority ?? local.authorityFile, token: minted ?? "", role: clientRole)
    }

    /// The verb's own logger, to standard error.
    var log: Logger {
        var log = Logger(label: "apus") { EscapingLogHandler(StreamLogHandler.standardError(label: $0)) }
        log.logLevel = logLevel
        return log
    }
}

import ApusCore
import ApusNode
import ApusTraversal
import ArgumentParser
import CoreMetrics
import Foundation
import Logging

/// `apus relay serve`: a TURN server and nothing more, in the foreground, until SIGTERM or SIGINT.
struct RelayServeCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "serve", abstract: "Run a TURN server by itself.",
        discussion: """
            With --config it is set up by a file such as cluster-configs/relay-only.yaml; without, by the other \
            options, which are enough to try it.
            """)

    @Option(help: "The relay's configuration, YAML; cluster-configs/relay-only.yaml is one. Excludes other options.")
    var config: String?

    @OptionGroup var credentials: RelaySecretOptions

    @Option(help: "A file of static users, as `apus relay user` writes it.")
    var users: String?

    @Option(help: "Where clients come, UDP and TCP: ADDRESS:PORT; may be given again. Default 0.0.0.0:3478.")
    var listen: [String] = []

    @Option(help: "The certificates of the TLS and DTLS doors, a PEM file: the relay's, then those that signed it.")
    var certificate: String?

    @Option(help: "The key of --certificate, a PEM file.")
    var privateKey: String?

    @Option(help: "The port of the TLS and DTLS doors, at the addresses of --listen. Default 5349.")
    var tlsPort: Int?

    @Option(help: "The address that relays from here have, one of each family; else that of the first --listen.")
    var relayAddress: [String] = []

    @Option(help: "The public address of this machine before a NAT, PUBLIC or PUBLIC/PRIVATE; may be given again.")
    var external: [String] = []

    @Option(help: "A STUN server, HOST:PORT, that tells the public address at start.")
    var externalFrom: String?

    @Option(help: "Threads that relay, about one for each core. Default 1.")
    var threads: Int?

    @Option(help: "A range that peers may be in although it is special, such as loopback or private.")
    var open: [String] = []

    @Option(help: "Seconds that the shortest lifetime has, 1 to 600; a client must ask for it. Default 600 (RFC 8656).")
    var lifetimeMin: Int?

    @Flag(help: "Let clients of RFC 5766 have channel numbers up to 0x7FFF, as Debian's turnutils_uclient wants.")
    var legacyChannels = false

    @Option(help: "Where operators come for /healthz, /metrics and /v1/status: HOST:PORT. Default: nowhere.")
    var http: String?

    @Option(help: "trace, debug, info, notice, warning or error. Default info.")
    var logLevel: String?

    func validate() throws {
        let isSetHere =
            credentials.isGivenHere || !listen.isEmpty || !relayAddress.isEmpty || threads != nil || !open.isEmpty
            || legacyChannels || http != nil || logLevel != nil || certificate != nil || privateKey != nil
            || tlsPort != nil || lifetimeMin != nil || !external.isEmpty || externalFrom != nil
            || users != nil
        guard config == nil || !isSetHere else {
            throw ValidationError("--config excludes other options; the environment overrides its keys")
        }
        guard external.isEmpty || externalFrom == nil else {
            throw ValidationError("give --external or --external-from, not both")
        }
        guard (certificate == nil) == (privateKey == nil) else {
            throw ValidationError("give --certificate with --private-key")
        }
        guard (1...65_535).contains(tlsPort ?? 5349) else { throw ValidationError("--tls-port must be 1 to 65535") }
        guard (1...600).contains(lifetimeMin ?? 600) else { throw ValidationError("--lifetime-min must be 1 to 600") }
    }

    func run() async throws {
        let plan = try config.map { try Self.plan(file: $0) } ?? self.plan()
        let metrics = PrometheusMetrics()
        MetricsSystem.bootstrap(metrics)
        LoggingSystem.bootstrap { EscapingLogHandler(StreamLogHandler.standardError(label: $0)) }
        var log = Logger(label: "apus.relay")
        log.logLevel = Logger.Level(rawValue: plan.logLevel) ?? .info
        try await RelayNode(
            configuration: plan.relay, keys: plan.keys, door: plan.http, metrics: metrics, log: log,
            read: plan.read
        ).run()
    }

    private struct Plan {
        var relay: RelayConfiguration
        var keys: RelayKeys
        var http: HostPort?
        var logLevel: String
        var read: RelaySource
    }

    private static func plan(file: String) throws -> Plan {
        let node = try RelayNodeConfiguration(file: file)
        return Plan(relay: node.relay, keys: try node.makeRelayKeys(), http: node.http, logLevel: node.logLevel) {
            () throws(ApusError) in
            let node = try RelayNodeConfiguration(file: file)
            return (node.relay, try node.relayKeys())
        }
    }

    private func plan() throws -> Plan {
        guard let secret = try credentials.given() else {
            throw ValidationError("give --secret-file, or APUS_RELAY_SECRET in the environment, or --secret")
        }
        var relay = RelayConfiguration()
        relay.addresses = try (listen.isEmpty ? ["0.0.0.0:3478"] : listen).map { try Self.address($0) }
        relay.relayAddresses =
            try relayAddress.isEmpty
            ? relay.addresses.prefix(1).map(\.host)
            : relayAddress.map { try Self.address($0.contains(":") ? "[\($0)]:0" : "\($0):0") }
        relay.external = try external.map { text in
            guard let external = RelayConfiguration.External(text) else {
                throw ValidationError("\(text) is not PUBLIC or PUBLIC/PRIVATE")
            }
            return external
        }
        relay.externalFrom = try externalFrom.map { try Self.hostPort($0) }
        relay.securePort = UInt16(tlsPort ?? Int(relay.securePort))
        relay.certificateFile = certificate ?? ""
        relay.keyFile = privateKey ?? ""
        relay.lifetimeMin = .seconds(lifetimeMin ?? 600)
        relay.threadCount = threads ?? 1
        relay.realm = credentials.realm
        relay.secret = secret
        relay.usersFile = users ?? ""
        relay.opened = try open.map { try Self.range($0) }
        relay.allocationsPerUserMax = relay.allocationsMax
        relay.quota = .none
        relay.isLegacyChannelAllowed = legacyChannels
        let root = RelayNodeConfiguration.randomRoot()
        let keys = try RelayKeys(root: root, configuration: relay)
        let door = try http.map { try Self.hostPort($0) }
        return Plan(relay: relay, keys: keys, http: door, logLevel: logLevel ?? "info") {
            [relay] () throws(ApusError) in (relay, try RelayKeys(root: root, configuration: relay))
        }
    }

    private static func hostPort(_ text: String) throws -> HostPort {
        guard let pair = HostPort(text) else { throw ValidationError("\(text) is not HOST:PORT") }
        return pair
    }

    private static func address(_ text: String) throws -> TransportAddress {
        guard let pair = HostPort(text), let address = TransportAddress(pair.host, port: UInt16(pair.port)) else {
            throw ValidationError("\(text) is not ADDRESS:PORT")
        }
        return address
    }

    private static func range(_ name: String) throws -> PeerPolicy.Range {
        guard let range = PeerPolicy.Range(rawValue: name) else {
            let names = PeerPolicy.Range.allCases.map(\.rawValue).joined(separator: ", ")
            throw ValidationError("\(name) is no range; they are \(names)")
        }
        return range
    }
}

import ApusConfiguration
import ApusCore
import ApusHTTP
import ApusNodeConfiguration
import ApusRelayNode
import ApusRelayService
import ApusTraversal
import ArgumentParser
import CoreMetrics
import Foundation
import Logging

/// `apus relay serve`: runs a standalone TURN server in the foreground, until SIGTERM or SIGINT.
struct RelayServeCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "serve", abstract: "Run a standalone TURN server.",
        discussion: """
            With --config the relay reads a file such as cluster-configs/relay-only.yaml. Without it, the other \
            options configure it, which is enough to try it.
            """)

    @Option(help: "Read this YAML configuration, such as cluster-configs/relay-only.yaml. Excludes other options.")
    var config: String?

    @OptionGroup var credentials: RelaySecretOptions

    @Option(help: "Read static users from this file, as `apus relay user` writes it.")
    var users: String?

    @Option(help: "Listen for clients at ADDRESS:PORT over UDP and TCP; repeatable. Default 0.0.0.0:3478.")
    var listen: [String] = []

    @Option(help: "Read the TLS and DTLS certificate chain from this PEM file, the relay's certificate first.")
    var certificate: String?

    @Option(help: "Read the key of --certificate from this PEM file.")
    var privateKey: String?

    @Option(help: "Listen for TLS and DTLS at this port of the addresses of --listen. Default 5349.")
    var tlsPort: Int?

    @Option(help: "Relay from this address, one of each family. Default: that of the first --listen.")
    var relayAddress: [String] = []

    @Option(help: "Advertise a public address behind a NAT, PUBLIC or PUBLIC/PRIVATE; repeatable.")
    var external: [String] = []

    @Option(help: "Ask the STUN server at HOST:PORT for the public address at the start.")
    var externalFrom: String?

    @Option(help: "Set the number of relay threads, about one per core. Default 1.")
    var threads: Int?

    @Option(help: "Permit peers in a special range, such as loopback or private.")
    var open: [String] = []

    @Option(help: "Set the shortest lifetime on request, 1 to 600 seconds. Default 600 (RFC 8656).")
    var lifetimeMin: Int?

    @Flag(help: "Permit channel numbers up to 0x7FFF (RFC 5766), which Debian's turnutils_uclient needs.")
    var legacyChannels = false

    @Option(help: "Serve /healthz, /metrics and /v1/status at HOST:PORT. Default: no listener.")
    var http: String?

    @Option(help: "Log from this level on: trace, debug, info, notice, warning or error. Default info.")
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
            throw ValidationError("use --external or --external-from, not both")
        }
        guard (certificate == nil) == (privateKey == nil) else {
            throw ValidationError("--certificate and --private-key are needed together")
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
            configuration: plan.relay, keys: plan.keys, endpoint: plan.http, metrics: metrics, log: log,
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
        let endpoint = try http.map { try Self.hostPort($0) }
        return Plan(relay: relay, keys: keys, http: endpoint, logLevel: logLevel ?? "info") {
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
            throw ValidationError("\(name) is not a range; the ranges are \(names)")
        }
        return range
    }
}

import ApusCore
import ApusRelay
import ApusTraversal
import ArgumentParser
import Foundation
import Logging
import UnixSignals

/// `apus relay serve`: a TURN server and nothing more, in the foreground, until SIGTERM or SIGINT.
struct RelayServeCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(commandName: "serve", abstract: "Run a TURN server by itself.")

    @OptionGroup var credentials: RelaySecretOptions

    @Option(help: "Where clients come, UDP and TCP: ADDRESS:PORT; may be given again.")
    var listen: [String] = ["0.0.0.0:3478"]

    @Option(help: "The address that relays from here have, one of each family; else that of the first --listen.")
    var relayAddress: [String] = []

    @Option(help: "Threads that relay, about one for each core.")
    var threads = 1

    @Option(help: "A range that peers may be in although it is special, such as loopback or private.")
    var open: [String] = []

    @Flag(help: "Let clients of RFC 5766 have channel numbers up to 0x7FFF, as Debian's turnutils_uclient wants.")
    var legacyChannels = false

    @Option(help: "trace, debug, info, notice, warning or error.")
    var logLevel = "info"

    func run() async throws {
        LoggingSystem.bootstrap { StreamLogHandler.standardError(label: $0) }
        var log = Logger(label: "apus.relay")
        log.logLevel = Logger.Level(rawValue: logLevel) ?? .info
        guard let secret = credentials.secret ?? ProcessInfo.processInfo.environment["APUS_RELAY_SECRET"] else {
            throw ValidationError("give --secret, or APUS_RELAY_SECRET in the environment")
        }
        let doors = try listen.map { try Self.address($0) }
        let hosts =
            try relayAddress.isEmpty
            ? doors.prefix(1).map(\.host)
            : relayAddress.map { try Self.address($0.contains(":") ? "[\($0)]:0" : "\($0):0") }
        if hosts.contains(where: { PeerPolicy.range(of: $0) == .unspecified }) {
            throw ValidationError("--listen is a wildcard: give --relay-address, which peers answer to")
        }
        var generator = SystemRandomNumberGenerator()
        var turn = TurnServerConfiguration(
            credentials: RelayCredentials(realm: credentials.realm, current: Array(secret.utf8)),
            nonceKey: (0..<32).map { _ in UInt8.random(in: .min ... .max, using: &generator) })
        let ranges = try Set(open.map { try Self.range($0) })
        turn.peers = PeerPolicy(opened: ranges, own: doors + hosts)
        if legacyChannels { turn.channelNumbers = ChannelDataHeader.legacyChannelNumbers }
        turn.allocationsPerUserMax = turn.allocationsMax
        let server = RelayServer(configuration: turn, addresses: RelayAddresses(hosts: hosts), log: log)
        let control = try RelayControl(
            planeCount: threads,
            configuration: PlaneConfiguration(datagramAddresses: doors, streamAddresses: doors)
        ) { _, _ in server }
        let addresses = doors.map(\.description).joined(separator: " ")
        log.notice("The relay is open.", metadata: [LogKey.address: "\(addresses)", LogKey.count: "\(threads)"])
        if !ranges.isEmpty {
            log.warning(
                "Special ranges are open as peers.",
                metadata: [LogKey.reason: "\(ranges.map(\.rawValue).sorted().joined(separator: " "))"])
        }
        for await _ in await UnixSignalsSequence(trapping: .sigterm, .sigint) { break }
        control.stop()
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

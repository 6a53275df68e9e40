import ApusCore
import ApusLocal
import ApusTraversal
import ArgumentParser
import Foundation

/// `apus relay check`: tests that a relay works, as a health check for operators.
/// Two clients allocate, at one server or at two. Each message is sent from the first through both relays to the second
/// and back.
struct RelayCheckCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "check", abstract: "Allocate twice at a relay and send data through; exit with 0 if it came back.")

    @OptionGroup var options: RelayAccessOptions

    @Option(help: "Use the relay at HOST:PORT; repeat for the second client. Default: from --dir or --config.")
    var server: [String] = []

    @Option(help: "Issue the credentials for this user.")
    var user = "check"

    @Option(help: "Use this issued name, with its password, instead of the secret.")
    var username: String?
    @Option(help: "Set the password of --username. Default: APUS_RELAY_PASSWORD of the environment.")
    var password: String?
    @Option(help: "Read the password from this file; - prompts for it.")
    var passwordFile: String?

    @Option(help: "Connect over udp, tcp, tls or dtls.")
    var transport = "udp"

    @Flag(help: "Connect over TLS, as --transport tls does.")
    var tls = false

    @Option(help: "Trust the authorities in this PEM file. Default: that of --dir, or the system's.")
    var authority: String?

    @Flag(help: "Accept any certificate.")
    var anyCertificate = false

    @Option(help: "Send this number of messages, 1 to 10000.")
    var count = 50

    @Option(help: "Wait this number of milliseconds between messages, 0 to 10000.")
    var interval = 0

    @Option(help: "Set the size of a message, 8 to 1400 bytes.")
    var size = 200

    @Option(help: "Keep the allocations for this number of seconds after the messages, 0 to 3600.")
    var hold = 0

    @Option(help: "Test instead whether clients may send to ADDRESS:PORT; exit with 0 if they may.")
    var peer: String?

    @OptionGroup var output: OutputOptions

    private struct Report: Encodable {
        struct Allocation: Encodable {
            var server: String
            var address: String
        }
        var transport: String
        var allocations: [Allocation]
        var sent: Int
        /// The messages that came back unchanged.
        var returned: Int
        var size_bytes: Int
        var median_ms: Double
        var longest_ms: Double
    }

    private struct PeerReport: Encodable {
        var server: String
        var peer: String
        var permitted: Bool
    }

    /// The share of messages that may be lost in a successful check.
    private static let lossMax = 0.05
    private static let messageTimeout = Duration.seconds(1)
    /// The number of successive lost messages after which the check stops.
    private static let failuresMax = 5

    func validate() throws {
        guard Self.transports.contains(where: { $0.name == transport }) else {
            throw ValidationError("--transport must be udp, tcp, tls or dtls")
        }
        guard !tls || transport == "udp" || transport == "tls" else {
            throw ValidationError("use --tls or --transport, not both")
        }
        guard authority == nil || !anyCertificate else {
            throw ValidationError("use --authority or --any-certificate, not both")
        }
        guard (1...10_000).contains(count) else { throw ValidationError("--count must be 1 to 10000") }
        guard (0...10_000).contains(interval) else { throw ValidationError("--interval must be 0 to 10000") }
        guard (8...1400).contains(size) else { throw ValidationError("--size must be 8 to 1400") }
        guard (0...3600).contains(hold) else { throw ValidationError("--hold must be 0 to 3600") }
        guard server.count <= 2 else { throw ValidationError("give one --server or two") }
        guard username != nil || (password == nil && passwordFile == nil) else {
            throw ValidationError("give --username with --password")
        }
        guard username == nil || !server.isEmpty else { throw ValidationError("give --server with --username") }
    }

    private static let transports: [(name: String, transport: RelayFlow.Transport)] = [
        ("udp", .udp), ("tcp", .tcp), ("tls", .tls), ("dtls", .dtls),
    ]

    func run() throws {
        // libssl writes to a socket with write(2), which raises SIGPIPE if the server has closed the connection.
        signal(SIGPIPE, SIG_IGN)
        let named = Self.transports.first { $0.name == (tls ? "tls" : transport) }
        let way = named?.transport ?? .udp
        let isSecure = way == .tls || way == .dtls
        let endpoints = try server.map { text in
            guard let endpoint = HostPort(text) else { throw ValidationError("\(text) is not HOST:PORT") }
            return endpoint
        }
        let (used, issued, known) = try plan(endpoints, isSecure: isSecure)
        let trusted = anyCertificate ? nil : authority ?? known ?? ""
        guard let first = used.first, let second = used.prefix(2).last else {
            throw ValidationError("give --server HOST:PORT")
        }
        if let peer {
            let probe = try TurnProbe(
                TurnEndpoint(server: first, transport: way, authorityFile: trusted), username: issued.username,
                password: issued.password)
            return try ask(probe, about: peer)
        }
        let probes = try [first, second].map {
            try TurnProbe(
                TurnEndpoint(server: $0, transport: way, authorityFile: trusted), username: issued.username,
                password: issued.password)
        }
        let relayed = try probes.map { try $0.allocate() }
        for (probe, address) in zip(probes, relayed) {
            output.progress("allocated \(address) at \(probe.server) over \(way)")
        }
        try probes[0].bind(relayed[1])
        try probes[1].bind(relayed[0])
        let times = try exchange(probes[0], probes[1])
        if hold > 0 { sleep(UInt32(hold)) }
        for probe in probes { try probe.end() }
        let lost = count - times.count
        let sorted = times.sorted()
        let (median, longest) = (sorted.dropFirst(times.count / 2).first ?? 0, sorted.last ?? 0)
        let facts = "\(times.count) of \(count) messages of \(size) bytes went through both relays and came back"
        guard Double(lost) <= Double(count) * Self.lossMax else {
            throw ApusError(.answerTimedOut, facts)
        }
        let allocations = zip(probes, relayed).map { probe, address in
            Report.Allocation(server: "\(probe.server)", address: "\(address)")
        }
        let report = Report(
            transport: "\(way)", allocations: allocations, sent: count, returned: times.count, size_bytes: size,
            median_ms: median, longest_ms: longest)
        try output.show(
            report,
            ["\(facts); median \(String(format: "%.2f", median)) ms, longest \(String(format: "%.2f", longest)) ms"])
    }

    /// Tests whether the relay permits its clients to send to an address.
    private func ask(_ probe: TurnProbe, about text: String) throws {
        guard let place = HostPort(text), let peer = TransportAddress(place.host, port: UInt16(place.port)) else {
            throw ValidationError("\(text) is not ADDRESS:PORT")
        }
        _ = try probe.allocate()
        do throws(ApusError) {
            try probe.bind(peer)
        } catch {
            try probe.end()
            throw error
        }
        try probe.end()
        try output.show(
            PeerReport(server: "\(probe.server)", peer: "\(peer)", permitted: true),
            ["clients of \(probe.server) may send to \(peer)"])
    }

    /// The endpoints, credentials for them, and the authority of their certificate if it is known.
    private func plan(
        _ endpoints: [HostPort], isSecure: Bool
    ) throws -> ([HostPort], (username: String, password: String), String?) {
        if let username {
            let given = try SecretText.given(
                password, file: passwordFile, variable: "APUS_RELAY_PASSWORD", name: "password")
            guard let given else { throw ValidationError("give --username with --password or --password-file") }
            return (endpoints, (username, given), nil)
        }
        let access = try options.access(endpoints: endpoints)
        let own = isSecure ? access.secureEndpoints : access.endpoints
        return (endpoints.isEmpty ? own : endpoints, access.issue(user: user, lifetime: 600), access.authorityFile)
    }

    /// Sends one message after the other, there and back. Returns the milliseconds of those that came back unchanged.
    private func exchange(_ left: TurnProbe, _ right: TurnProbe) throws -> [Double] {
        var times: [Double] = []
        // A relay that forwards nothing is detected after a few messages.
        var failures = 0
        for number in 0..<count where failures < Self.failuresMax {
            let message = (0..<size).map { UInt8(truncatingIfNeeded: $0 < 8 ? number >> (8 * $0) : number &+ $0) }
            if number > 0, interval > 0 { usleep(UInt32(interval) * 1_000) }
            let start = MonotonicTime.now()
            try left.send(message)
            if try isSeen(message, at: right) {
                try right.send(message)
                if try isSeen(message, at: left) {
                    times.append((MonotonicTime.now() - start).milliseconds)
                    failures = 0
                    continue
                }
            }
            failures += 1
        }
        return times
    }

    /// Waits for one message. Other, late messages are ignored.
    private func isSeen(_ message: [UInt8], at probe: TurnProbe) throws -> Bool {
        let deadline = MonotonicTime.now() + Self.messageTimeout
        while let received = try probe.receive(deadline - MonotonicTime.now()) {
            if received == message { return true }
        }
        return false
    }
}

import ApusTestKit
import Testing

@Suite("coturn's client on this relay (RFC 8656, D8)")
struct UclientTests {
    /// An endpoint of the relay, and how turnutils_uclient is told to come to it.
    enum Endpoint: String, Sendable, CaseIterable {
        case udp, tcp, tls, dtls

        var isSecure: Bool { self == .tls || self == .dtls }
        var options: [String] { (self == .tcp || self == .tls ? ["-t"] : []) + (isSecure ? ["-S"] : []) }
    }

    private static let hasTools = OtherClients.uclient != nil && TestCertificate.canBeMade
    private static let messageCount = 100

    private func relay(_ endpoint: Endpoint, address: String = "127.0.0.1") async throws -> RelayProcess {
        try await RelayProcess(
            address: address, certificate: endpoint.isSecure ? try TestCertificate(addresses: [address]) : nil,
            options: ["--legacy-channels"])
    }

    /// Runs turnutils_uclient, which makes its own credentials from the secret (REST), and expects all messages back.
    private func expectAllBack(
        _ relay: RelayProcess, _ endpoint: Endpoint, _ options: [String], clients: Int = 4
    ) async throws {
        // It checks the certificate, as a client that is worth its name does.
        let trust = relay.certificate.map { ["-E", $0.certificate] } ?? []
        let outcome = try await Outcome.of(
            [
                "turnutils_uclient", "-W", RelayProcess.secret, "-u", "camera", "-p",
                "\(relay.securePort ?? relay.port)", "-m", "\(clients)", "-n", "\(Self.messageCount)", "-l", "171",
                "-z", "5",
            ] + endpoint.options + trust + options + [relay.address])
        let sums = outcome.output.matches(of: /tot_send_msgs=(\d+), tot_recv_msgs=(\d+)/)
        let last = try #require(sums.last, "\(outcome.all) \(relay.log)")
        #expect(Int(last.1) == Self.messageCount * clients, "\(outcome.all)")
        #expect(last.1 == last.2, "\(outcome.all) \(relay.log)")
        #expect(outcome.output.contains("Total lost packets 0 (0.000000%)"), "\(outcome.all)")
        #expect(outcome.status == 0)
        #expect(relay.stop() == 0)
    }

    @Test(
        "All messages to a peer that echoes come back through each endpoint, over channels and by Send indications",
        .enabled(if: hasTools && OtherClients.peer != nil, "Debian's coturn or openssl is not installed"),
        arguments: Endpoint.allCases, [false, true])
    func echo(endpoint: Endpoint, usesSend: Bool) async throws {
        let relay = try await relay(endpoint)
        let port = try FreePort.next(at: relay.address)
        let peer = try Child(["turnutils_peer", "-L", relay.address, "-p", "\(port)"])
        defer { peer.terminate() }
        try await expectAllBack(
            relay, endpoint, (usesSend ? ["-s"] : []) + ["-c", "-e", relay.address, "-r", "\(port)"])
    }

    @Test(
        "All messages from relayed address to relayed address arrive, on ports of a pair that was reserved",
        .enabled(if: hasTools, "Debian's coturn or openssl is not installed"), arguments: Endpoint.allCases)
    func clientToClient(endpoint: Endpoint) async throws {
        try await expectAllBack(try await relay(endpoint), endpoint, ["-y"])
    }

    // Without -P, by which one client of two plays the peer that connects: with coturn's own server as with this one,
    // uclient of coturn 4.6.1 then has half of its messages back over TCP, and over TLS fails before it sends any.
    @Test(
        "Over TCP relaying all messages from relayed address to relayed address arrive, over TCP and TLS (RFC 6062)",
        .enabled(if: hasTools, "Debian's coturn or openssl is not installed"), arguments: [Endpoint.tcp, .tls])
    func tcpRelaying(endpoint: Endpoint) async throws {
        try await expectAllBack(try await relay(endpoint), endpoint, ["-T"])
    }

    @Test(
        "All messages come back through each endpoint over IPv6",
        .enabled(if: hasTools, "Debian's coturn or openssl is not installed"), arguments: Endpoint.allCases)
    func v6(endpoint: Endpoint) async throws {
        try await expectAllBack(try await relay(endpoint, address: "::1"), endpoint, ["-y", "-x", "-c"])
    }
}

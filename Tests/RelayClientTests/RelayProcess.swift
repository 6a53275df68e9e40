import ApusTestKit
import Foundation
import Testing

/// `apus relay serve` in a process of its own, which ends with this value.
final class RelayProcess: Sendable {
    static let secret = "a secret of the tests"

    /// Where clients come, UDP and TCP.
    let address: String
    let port: Int
    /// The port of the TLS and DTLS endpoints, where there are.
    let securePort: Int?
    /// What these endpoints show.
    let certificate: TestCertificate?
    private let child: Child

    /// The binary that was built beside the tests.
    static let apus: String = {
        if let path = ProcessInfo.processInfo.environment["APUS"] { return path }
        let folder = URL(fileURLWithPath: CommandLine.arguments[0]).deletingLastPathComponent().path
        return "\(folder)/apus"
    }()

    /// Starts one and waits until its endpoints are open.
    ///
    /// - Parameters:
    ///   - port: nil for one that is free.
    ///   - certificate: opens the TLS and DTLS endpoints, at 5349 where the port is given and else at one that is free.
    ///   - opened: the special range that its peers are in.
    ///   - options: more of `apus relay serve`.
    ///   - prefix: what runs the command, such as in a network namespace.
    init(
        address: String = "127.0.0.1", port: Int? = nil, certificate: TestCertificate? = nil,
        opened: String = "loopback", options: [String] = [], prefix: [String] = []
    ) async throws {
        self.address = address
        self.certificate = certificate
        let port = if let port { port } else { try FreePort.next(at: address) }
        var securePort: Int?
        if certificate != nil {
            securePort = port == NatNetwork.relayPort ? 5_349 : try FreePort.next(at: address)
        }
        self.securePort = securePort
        var tls: [String] = []
        if let certificate, let securePort {
            tls = [
                "--tls-port", "\(securePort)", "--certificate", certificate.certificate, "--private-key",
                certificate.key,
            ]
        }
        self.port = port
        let endpoint = address.contains(":") ? "[\(address)]:\(port)" : "\(address):\(port)"
        let child = try Child(
            prefix + [
                Self.apus, "relay", "serve", "--listen", endpoint, "--secret", Self.secret, "--realm", "test", "--open",
                opened,
            ] + options + tls)
        self.child = child
        try await eventually("the relay at \(address):\(port) is open") {
            if !child.isRunning {
                Issue.record("the relay ended: \(child.errors)")
                throw CancellationError()
            }
            return child.errors.contains("The relay is open")
        }
    }

    /// ADDRESS:PORT of an endpoint: "udp", "tcp" or "tls".
    func endpoint(_ transport: String) -> String { "\(address):\((transport == "tls" ? securePort : nil) ?? port)" }

    /// The same as clients of WebRTC have it (RFC 7065).
    func url(_ transport: String) -> String {
        transport == "tls"
            ? "turns:\(endpoint(transport))?transport=tcp" : "turn:\(endpoint(transport))?transport=\(transport)"
    }

    /// What it logged.
    var log: String { child.errors }

    /// Ends it as an operator does.
    ///
    /// - Returns: how it ended, 0 where all was well.
    func stop() -> Int32 {
        child.terminate()
        return child.status
    }

    /// Credentials as `apus relay credentials` prints them.
    static func credentials(user: String = "camera") async throws -> (user: String, password: String) {
        let outcome = try await Outcome.of([
            apus, "relay", "credentials", "--user", user, "--secret", secret, "--realm", "test",
        ])
        let issued = try JSONDecoder().decode(IssuedServers.self, from: Data(outcome.output.utf8))
        let server = try #require(issued.iceServers.first)
        return (server.username, server.credential)
    }
}

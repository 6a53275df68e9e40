import ApusTestKit
import Foundation
import NIOCore
import NIOPosix
import Testing

/// `apus relay serve` in a process of its own, which ends with this value.
final class RelayProcess: Sendable {
    static let secret = "a secret of the tests"

    /// Where clients come, UDP and TCP.
    let address: String
    let port: Int
    private let child: Child

    /// The binary that was built beside the tests.
    static let apus: String = {
        if let path = ProcessInfo.processInfo.environment["APUS"] { return path }
        let folder = URL(fileURLWithPath: CommandLine.arguments[0]).deletingLastPathComponent().path
        return "\(folder)/apus"
    }()

    /// Starts one and waits until its doors are open.
    ///
    /// - Parameters:
    ///   - port: nil for one that is free.
    ///   - opened: the special range that its peers are in.
    ///   - options: more of `apus relay serve`.
    ///   - prefix: what runs the command, such as in a network namespace.
    init(
        address: String = "127.0.0.1", port: Int? = nil, opened: String = "loopback", options: [String] = [],
        prefix: [String] = []
    ) async throws {
        self.address = address
        let port = if let port { port } else { try await Self.freePort(address) }
        self.port = port
        let child = try Child(
            prefix + [
                Self.apus, "relay", "serve", "--listen", "\(address):\(port)", "--secret", Self.secret, "--realm",
                "test", "--open", opened,
            ] + options)
        self.child = child
        try await eventually("the relay at \(address):\(port) is open") {
            if !child.isRunning {
                Issue.record("the relay ended: \(child.errors)")
                throw CancellationError()
            }
            return child.errors.contains("The relay is open.")
        }
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
        struct Issued: Decodable {
            struct Server: Decodable {
                var username: String
                var credential: String
            }
            var iceServers: [Server]
        }
        let outcome = try await Outcome.of([
            apus, "relay", "credentials", "--user", user, "--secret", secret, "--realm", "test",
        ])
        let issued = try JSONDecoder().decode(Issued.self, from: Data(outcome.output.utf8))
        let server = try #require(issued.iceServers.first)
        return (server.username, server.credential)
    }

    /// A port that nobody listens at.
    static func freePort(_ address: String) async throws -> Int {
        let channel = try await ServerBootstrap(group: MultiThreadedEventLoopGroup.singleton)
            .bind(host: address, port: 0).get()
        let port = try #require(channel.localAddress?.port)
        try await channel.close().get()
        return port
    }
}

import ApusClient
import ApusContract
import ApusCore
import Foundation
import Logging
import NIOPosix
import Synchronization
import Testing

/// What a token opened ends with it, at real nodes (IV-A6).
@Suite(.serialized, .timeLimit(.minutes(3)))
struct TokenEndTests {
    @Test("Sessions, streams, tickets and relay credentials end when their token does, with 12002")
    func ends() async throws {
        let cluster = try Cluster(nodes: 2, basePort: 21_000)
        defer { cluster.down() }
        try cluster.start("device", "--id", "cam", "--test-pattern", "160x120@25", "--log", cluster.file("d"))
        _ = try await cluster.primary(of: "cam/0")
        let minted = try cluster.run("admin", "token", "--role", "app", "--access", "ann", "--ttl", "12s")
        let end = Date().timeIntervalSince1970 + 12
        let token = minted.output.trimmingCharacters(in: .whitespacesAndNewlines)

        let ended = Mutex<(error: ApusError, at: Double)?>(nil)
        let session = try ClientSession(
            configuration: ClientConfiguration(
                endpoints: [1, 2].map { HostPort(host: "127.0.0.1", port: cluster.endpointPort($0)) },
                authorityFile: cluster.file("pki/ca.pem"), token: token, role: .app),
            eventLoop: MultiThreadedEventLoopGroup.singleton.next(),
            log: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() }
        ) { state, error in
            guard state == .tokenFailed, let error else { return }
            ended.withLock { $0 = (error, Date().timeIntervalSince1970) }
        }
        session.start()
        defer { session.close() }
        let frames = Mutex<(count: Int, last: Double)>((0, 0))
        let player = Player(
            session: session, device: DeviceID(unchecked: "cam"), source: 0,
            onFrame: { _ in frames.withLock { $0 = ($0.count + 1, Date().timeIntervalSince1970) } },
            onEvent: { _ in })
        player.start()
        var given: ClientSession.RelayCredentials?
        while given == nil, Date().timeIntervalSince1970 < end - 2 {
            given = try? await session.relayCredentials()
            try await Task.sleep(for: .milliseconds(100))
        }
        let expiry = try #require(given?.username.split(separator: ":").first.flatMap { Double($0) })
        #expect(expiry <= end, "relay credentials end with the token")
        while ended.withLock({ $0 == nil }), Date().timeIntervalSince1970 < end + 8 {
            try await Task.sleep(for: .milliseconds(100))
        }
        let ending = try #require(ended.withLock { $0 }, "the session goes on 8 s after its token ended")
        #expect(ending.error.code == .tokenExpired && ending.at >= end - 2, "\(ending)")
        let seen = frames.withLock { $0 }
        #expect(seen.count > 25 && seen.last < end + 2, "the stream went on: \(seen), the token ended at \(end)")
        // The leeway of the token's check opens nothing that would have to end at once.
        let late = try cluster.run("watch", "cam", "--token", token, "--seconds", "5")
        #expect(late.status != 0 && late.errors.contains("12002"), "\(late.all)")
    }
}

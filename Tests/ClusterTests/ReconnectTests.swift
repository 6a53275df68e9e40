import ApusClient
import ApusContract
import ApusCore
import Glibc
import Synchronization
import Testing

/// The clients of a node that dies, each of which costs the others a sign-in (decision 44).
@Suite(.serialized, .timeLimit(.minutes(3)))
struct ReconnectTests {
    /// When a session got its newest connection, and where.
    private final class Connects: Sendable {
        private let newest = Mutex<(at: MonotonicTime, endpoint: HostPort)?>(nil)
        func note(_ endpoint: HostPort) { newest.withLock { $0 = (.now(), endpoint) } }
        /// How long after this time; nil if there was none since.
        func delay(since time: MonotonicTime) -> Duration? {
            newest.withLock { $0.flatMap { $0.at > time ? $0.at - time : nil } }
        }
        var isConnected: Bool { newest.withLock { $0 != nil } }
    }

    @Test("Idle clients of a dead node come back over the spread, and one whose link is wanted at once (IV-A7)")
    func spread() async throws {
        // Two sessions a second: eleven of them spread over 5.5 s.
        let cluster = try Cluster(nodes: 3, basePort: 30_700, environment: ["APUS_GATEWAY_RECONNECT_RATE": "2"])
        defer { cluster.down() }
        let connects = (0..<11).map { _ in Connects() }
        var sessions: [ClientSession] = []
        defer { for session in sessions { session.close() } }
        for (number, connects) in connects.enumerated() {
            let session = try cluster.session(
                node: 1, token: try cluster.token("--role", "app", "--access", "app-\(number)"))
            session.watchConnections { connects.note($0) }
            sessions.append(session)
        }
        for _ in 0..<100 where !connects.allSatisfy(\.isConnected) { try await Task.sleep(for: .milliseconds(50)) }
        // Each has asked for a pong by then, which says how many they are.
        try await Task.sleep(for: .milliseconds(2_500))
        #expect(NodeView(1, of: cluster).metric("apus_gateway_reconnect_spread_seconds") == 5.5)

        let killedAt = MonotonicTime.now()
        #expect(kill(try cluster.pid(1), SIGKILL) == 0)
        _ = try await eventually { () async throws(ApusError) in
            try await sessions[0].ask(ClientListDevicesRequest())
        }
        #expect(MonotonicTime.now() - killedAt < .milliseconds(1_500))

        try await Task.sleep(for: .seconds(7))
        let delays = connects.dropFirst().compactMap { $0.delay(since: killedAt) }
        #expect(delays.count == 10)
        // Chance brings all ten within 1.5 of 5.5 s in two of a million runs.
        #expect(delays.max()! > .milliseconds(1_500), "\(delays)")
        #expect(delays.max()! < .milliseconds(7_000), "\(delays)")
    }
}

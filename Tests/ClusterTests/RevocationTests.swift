import ApusClient
import ApusContract
import ApusCore
import Foundation
import Logging
import NIOPosix
import Synchronization
import Testing

/// `apus admin revoke`, at real nodes (IV-A6).
@Suite(.serialized, .timeLimit(.minutes(5)))
struct RevocationTests {
    private static let bound = Duration.seconds(1)

    @Test("A token, an identity and an account are revoked at three nodes within a second, and after a restart too")
    func revoke() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 21_100)
        defer { cluster.down() }
        let camera = try cluster.start(
            ["device", "--id", "cam", "--test-pattern", "160x120@25", "--log", cluster.file("d")],
            errors: cluster.file("d.err"))
        _ = try await cluster.primary(of: "cam/0")
        let viewers = try ["ann", "bob", "eve"].enumerated().map {
            try RevokedViewer(cluster, node: $0.offset + 1, access: $0.element, id: "token-\($0.element)")
        }
        defer { for viewer in viewers { viewer.session.close() } }
        for viewer in viewers { #expect(try await Self.wait { viewer.frames.count > 10 }) }
        let (ann, bob, eve) = (viewers[0], viewers[1], viewers[2])

        // Allocations at the relays of two nodes, with credentials that bob was given.
        let given = try await bob.session.relayCredentials()
        try cluster.start(
            [
                "relay", "check", "--server", "127.0.0.1:\(cluster.relayPort(1))", "--server",
                "127.0.0.1:\(cluster.relayPort(3))", "--username", given.username, "--password", given.credential,
                "--count", "3", "--hold", "60",
            ])
        #expect(try await Self.wait { Self.allocations(cluster) == 2 })

        try await Self.expectEnd(of: ann, ["--token-id", "token-ann"], cluster)
        #expect(Self.allocations(cluster) == 2, "the allocations are another token's")
        for viewer in [bob, eve] { #expect(viewer.failure == nil) }

        try await Self.expectEnd(of: bob, ["--identity", "bob"], cluster) { Self.allocations(cluster) == 0 }
        let refused = try Cluster.run([
            "relay", "check", "--server", "127.0.0.1:\(cluster.relayPort(2))", "--username", given.username,
            "--password", given.credential,
        ])
        #expect(refused.status != 0, "a relay takes the credentials: \(refused.all)")
        #expect(eve.failure == nil)
        let before = eve.frames.count
        #expect(try await Self.wait { eve.frames.count > before + 10 }, "another identity's stream goes on")

        try await Self.expectEnd(of: eve, ["--all"], cluster)
        #expect(try await Self.wait { !camera.isRunning }, "the account's camera goes on")
        #expect(Cluster.text(cluster.file("d.err")).contains("12001"))
        try await Self.restart(cluster, [ann, bob, eve])
    }

    /// What was revoked stays so when the nodes come back, and what is issued now is valid.
    private static func restart(_ cluster: Cluster, _ viewers: [RevokedViewer]) async throws {
        for node in 1...3 { #expect(try cluster.run("cluster", "restart", "n\(node)").status == 0) }
        for (index, viewer) in viewers.enumerated() {
            let outcome = try cluster.run("watch", "cam", "--node", "n\(index + 1)", "--token", viewer.token)
            #expect(outcome.status != 0 && outcome.errors.contains("12001"), "\(outcome.all)")
        }
        try cluster.start("device", "--id", "cam", "--test-pattern", "160x120@25")
        _ = try await cluster.primary(of: "cam/0")
        let outcome = try cluster.run("watch", "cam", "--access", "bob", "--seconds", "2", "--log", cluster.file("w"))
        #expect(outcome.status == 0 && Frames(cluster.file("w")).lines.count > 10, "\(outcome.all)")
    }

    /// Revokes, and measures from the command's end until the viewer's frames end and all else has.
    private static func expectEnd(
        of viewer: RevokedViewer, _ arguments: [String], _ cluster: Cluster, _ hasEnded: () -> Bool = { true }
    ) async throws {
        let outcome = try Cluster.run(["admin", "revoke"] + arguments + ["--dir", cluster.directory])
        let revoked = ContinuousClock.now
        #expect(outcome.status == 0, "\(outcome.all)")
        while !hasEnded(), ContinuousClock.now - revoked < bound { try await Task.sleep(for: .milliseconds(20)) }
        #expect(hasEnded(), "\(arguments): allocations are left after \(bound)")
        #expect(try await wait { viewer.failure != nil }, "\(arguments): the session goes on")
        #expect(viewer.failure?.code == .tokenInvalid, "\(arguments): \(String(describing: viewer.failure))")
        let took = viewer.frames.last - revoked
        #expect(took <= bound, "\(arguments): frames came for \(took)")
        print("\(arguments.joined(separator: " ")): the last frame came \(took) after the command")
    }

    private static func allocations(_ cluster: Cluster) -> Int? {
        var sum = 0
        for node in 1...3 {
            guard let value = NodeView(node, of: cluster).allocations else { return nil }
            sum += value
        }
        return sum
    }

    private static func wait(_ condition: () -> Bool) async throws -> Bool {
        for _ in 0..<200 where !condition() { try await Task.sleep(for: .milliseconds(100)) }
        return condition()
    }
}

extension NodeView {
    private struct Relayed: Decodable {
        struct Relay: Decodable { var allocations: Int }
        var relay: Relay?
    }

    /// Allocations of the node's relay; nil where the node does not answer.
    fileprivate var allocations: Int? {
        guard let body = get("/v1/status")?.body else { return nil }
        return try? JSONDecoder().decode(Relayed.self, from: Data(body.utf8)).relay?.allocations
    }
}

/// A viewer with a token of its own, whose frames and end are noted.
private final class RevokedViewer: Sendable {
    private final class Notes: Sendable {
        let failure = Mutex<ApusError?>(nil)
        let frames = Mutex<(count: Int, last: ContinuousClock.Instant)>((0, .now))
    }

    let token: String
    let session: ClientSession
    private let player: Player
    private let notes: Notes

    init(_ cluster: Cluster, node: Int, access: String, id: String) throws {
        let minted = try cluster.run("admin", "token", "--role", "app", "--access", access, "--id", id)
        token = minted.output.trimmingCharacters(in: .whitespacesAndNewlines)
        let notes = Notes()
        session = try ClientSession(
            configuration: ClientConfiguration(
                endpoints: [HostPort(host: "127.0.0.1", port: cluster.endpointPort(node))],
                authorityFile: cluster.file("pki/ca.pem"), token: token, role: .app),
            eventLoop: MultiThreadedEventLoopGroup.singleton.next(),
            log: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() }
        ) { state, error in
            guard state == .tokenFailed else { return }
            notes.failure.withLock { $0 = error ?? ApusError(.internalFailure) }
        }
        player = Player(
            session: session, device: DeviceID(unchecked: "cam"),
            onFrame: { _ in notes.frames.withLock { $0 = ($0.count + 1, .now) } })
        self.notes = notes
        session.start()
        player.start()
    }

    /// Why the session ended for good; nil while it goes on.
    var failure: ApusError? { notes.failure.withLock { $0 } }
    var frames: (count: Int, last: ContinuousClock.Instant) { notes.frames.withLock { $0 } }
}

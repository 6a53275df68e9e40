import ApusClient
import ApusContract
import ApusCore
import ApusMedia
import Foundation
import Logging
import NIOCore
import NIOPosix
import Testing

/// Clients with valid tokens that take what all share, beside the good clients of another account (``Witness``, D13).
@Suite("Attacks on the channels", .serialized, .timeLimit(.minutes(5)))
struct HubAttackTests {
    private static let quiet = Logger(label: "test") { _ in SwiftLogNoOpLogHandler() }

    @Test("A publisher of configurations that are none, and of as many bytes as it likes, takes bounded memory")
    func configurations() async throws {
        let cluster = try Cluster(
            nodes: 2, basePort: 31_000, environment: ["APUS_CHANNELS_RING_BYTES_TOTAL_MAX": "64MiB"])
        defer { cluster.down() }
        let witness = try await Witness(cluster)
        let before = try cluster.residentMiB(2)
        let group = MultiThreadedEventLoopGroup(numberOfThreads: 2)
        // One whose connection is closed for what it sends, and one that keeps to the protocol.
        let sessions = try ["evil", "large"].map { name in
            try session(cluster, role: .device, access: name, on: group.next())
        }
        for session in sessions { session.start() }
        let liars = (0..<4).map { Publisher(session: sessions[0], source: UInt16($0)) }
        let publishers = (0..<60).map { Publisher(session: sessions[1], source: UInt16($0)) }
        for publisher in liars + publishers { publisher.start() }
        let garbage = ByteBuffer(repeating: 0x5a, count: (4 << 20) - 128)
        var (round, peak) = (0, 0)
        let end = ContinuousClock().now + .seconds(10)
        while ContinuousClock().now < end {
            // What is no configuration, on every track; and frames that only are large.
            let time = Int64(round) * 40_000
            liars[round % liars.count].send(
                track: UInt8(round & 0xff), ptsMicroseconds: time, dtsDeltaMicroseconds: 0, flags: .configuration,
                payload: garbage)
            publishers[round % publishers.count].send(
                track: 0, ptsMicroseconds: time, dtsDeltaMicroseconds: 0, flags: .key, payload: garbage)
            round += 1
            if round % 16 == 0 { try witness.look() }
            peak = max(peak, try cluster.residentMiB(2))
            try await Task.sleep(for: .milliseconds(5))
        }
        for session in sessions { session.close() }
        try await group.shutdownGracefully()
        #expect(round > 200)
        // The bound on rings, twice for what the allocator holds, and what sockets and links may hold.
        #expect(peak - before < 300, "\(before) MiB before, \(peak) MiB at the peak of the second node")
        for node in 1...2 {
            let rings = NodeView(node, of: cluster).metric("apus_channel_ring_bytes") ?? .infinity
            #expect(rings < Double(64 << 20))
        }
        try await witness.testify()
    }

    @Test("An account that fills the links between nodes delays no camera and no viewer of another account")
    func links() async throws {
        let cluster = try Cluster(nodes: 2, basePort: 31_400)
        defer { cluster.down() }
        // Camera and viewer at different nodes, so that the way from one to the other leads over a link, and eight
        // cameras, so that the primary is now here, now there.
        let cameras = (0..<8).map { (name: "good\($0)", node: $0 % 2 + 1) }
        for camera in cameras {
            try cluster.start(
                "device", "--id", camera.name, "--test-pattern", "160x120@25", "--node", "\(camera.node)", "--log",
                cluster.file("\(camera.name).sent"))
        }
        for camera in cameras {
            let path = cluster.file("\(camera.name).sent")
            try #require(await waited(.seconds(10)) { Frames(path).lines.count > 5 } != nil, "\(camera.name)")
        }
        let viewers = try cameras.map { camera in
            try cluster.start(
                "watch", camera.name, "--seconds", "60", "--node", "\(3 - camera.node)", "--log",
                cluster.file("\(camera.name).seen"))
        }
        for camera in cameras {
            let path = cluster.file("\(camera.name).seen")
            try #require(await waited(.seconds(10)) { Frames(path).lines.count > 5 } != nil, "\(camera.name)")
        }
        let group = MultiThreadedEventLoopGroup(numberOfThreads: 2)
        let sessions = try (1...2).map { node in
            try session(cluster, role: .device, access: "evil\(node)", on: group.next(), node: node)
        }
        for session in sessions { session.start() }
        let publishers = (0..<120).map { Publisher(session: sessions[$0 % 2], source: UInt16($0 / 2)) }
        for publisher in publishers { publisher.start() }
        let large = ByteBuffer(repeating: 0x5a, count: (4 << 20) - 128)
        var round = 0
        let end = ContinuousClock().now + .seconds(8)
        while ContinuousClock().now < end {
            publishers[round % publishers.count].send(
                track: 0, ptsMicroseconds: Int64(round) * 40_000, dtsDeltaMicroseconds: 0, flags: .key, payload: large)
            round += 1
            try await Task.sleep(for: .milliseconds(5))
        }
        for session in sessions { session.close() }
        try await group.shutdownGracefully()
        #expect(round > 200, "the attack did not take place")
        for viewer in viewers { viewer.terminate() }
        for viewer in viewers { viewer.waitUntilExit() }
        for camera in cameras {
            let sent = Frames(cluster.file("\(camera.name).sent"))
            let seen = Frames(cluster.file("\(camera.name).seen"))
            #expect(seen.lostCount == 0 && seen.doubledCount == 0, "\(camera.name): \(seen.gaps)")
            #expect(seen.differing(from: sent) == 0)
            // The attack fills every core; what a node's own queues add to that is the window of a link, some 100 ms.
            #expect(seen.gapLongest < 2_000, "\(camera.name): \(seen.gapLongest) ms")
        }
    }

    @Test("An app that asks for 10,000 sources takes no channel of another account, and leaves none behind")
    func sources() async throws {
        let cluster = try Cluster(nodes: 2, basePort: 31_100)
        defer { cluster.down() }
        let witness = try await Witness(cluster, relaySeconds: 20)
        let group = MultiThreadedEventLoopGroup(numberOfThreads: 2)
        // The device must be known, so it was here once.
        let device = try session(cluster, role: .device, access: "evil", on: group.next())
        device.start()
        let apps = try (0..<16).map { try session(cluster, role: .app, access: "app\($0)", on: group.next()) }
        for app in apps { app.start() }
        try await Task.sleep(for: .seconds(1))
        var watchedMost = 0.0
        for first in stride(from: 0, to: 10_000, by: apps.count * 60) {
            let players = play(from: first, apps)
            for _ in 0..<20 {
                watchedMost = max(watchedMost, sum(cluster, "apus_channels_watched"))
                try await Task.sleep(for: .milliseconds(25))
            }
            try witness.look()
            for player in players { player.stop() }
        }
        #expect(watchedMost >= 256, "the attack did not take place")
        let refusedCount = sum(cluster, "apus_channels_refused_total")
        #expect(refusedCount > 1_000, "\(refusedCount) were refused")
        // A viewer that comes before its camera is served as ever, at the height of it.
        let held = play(from: 20_000, apps)
        try await viewerFirst(cluster)
        #expect(held.count == apps.count * 60)
        for app in apps { app.close() }
        device.close()
        let gone = await waited(.seconds(20), every: .milliseconds(100)) { sum(cluster, "apus_channels_watched") <= 4 }
        #expect(gone != nil, "channels of viewers that left stay: \(sum(cluster, "apus_channels_watched"))")
        try await group.shutdownGracefully()
        try await witness.testify()
    }

    @Test("Clients of one account that take every connection they get leave room for another account's")
    func connections() async throws {
        let cluster = try Cluster(
            nodes: 1, basePort: 31_300,
            environment: ["APUS_GATEWAY_CONNECTIONS_MAX": "90", "APUS_GATEWAY_UNAUTHENTICATED_MAX": "4"])
        defer { cluster.down() }
        let witness = try await Witness(cluster)
        let group = MultiThreadedEventLoopGroup(numberOfThreads: 2)
        let apps = try (0..<100).map { try session(cluster, role: .app, access: "app\($0)", on: group.next()) }
        for app in apps { app.start() }
        let node = NodeView(1, of: cluster)
        let refused = await waited(.seconds(10), every: .milliseconds(50)) {
            (node.metric("apus_gateway_closed_total{code=\"21020\"}") ?? 0) > 20
        }
        #expect(refused != nil, "the attack did not take place")
        try await witness.watch(for: .seconds(2))
        // 8/9 of what the camera and the viewer leave, and those that have not said who they are.
        let held = try #require(node.status).sessions.apps
        #expect((70...79).contains(held), "\(held) sessions of apps")
        for round in 0..<3 {
            let late = try cluster.run("watch", "good", "--seconds", "1", "--log", cluster.file("late\(round)"))
            #expect(late.status == 0, "\(late.all)")
            #expect(Frames(cluster.file("late\(round)")).lines.count > 5)
        }
        for app in apps { app.close() }
        try await group.shutdownGracefully()
        try await witness.testify()
    }

    /// A device that was here once; a viewer; then the camera.
    private func viewerFirst(_ cluster: Cluster) async throws {
        let once = try cluster.start(
            "device", "--id", "late", "--test-pattern", "320x240@25", "--log", cluster.file("late.sent"))
        let came = await waited(.seconds(10)) { Frames(cluster.file("late.sent")).lines.count > 5 }
        #expect(came != nil, "a new camera cannot publish")
        once.terminate()
        once.waitUntilExit()
        try cluster.start("watch", "late", "--seconds", "30", "--log", cluster.file("late"))
        try await Task.sleep(for: .seconds(2))
        let before = Frames(cluster.file("late")).lines.count
        try cluster.start("device", "--id", "late", "--test-pattern", "320x240@25")
        let seen = await waited(.seconds(10), every: .milliseconds(50)) {
            Frames(cluster.file("late")).lines.count > before + 25
        }
        #expect(seen != nil, "a viewer that came before its camera sees nothing")
    }

    // MARK: - The attacker

    private func session(
        _ cluster: Cluster, role: ClientRole, access: String, on eventLoop: any EventLoop, node: Int = 1
    ) throws -> ClientSession {
        let token = try cluster.run(
            "admin", "token", "--role", role == .device ? "device" : "app", "--account", "other", "--device",
            role == .device ? access : "evil", "--access", access)
        try #require(token.status == 0, "\(token.all)")
        let configuration = ClientConfiguration(
            endpoints: [HostPort(host: "127.0.0.1", port: cluster.endpointPort(node))],
            authorityFile: cluster.file("pki/ca.pem"),
            token: token.output.trimmingCharacters(in: .whitespacesAndNewlines), role: role)
        return try ClientSession(configuration: configuration, eventLoop: eventLoop, log: Self.quiet)
    }

    /// 60 sources that nobody published, asked for by each of the apps.
    private func play(from first: Int, _ apps: [ClientSession]) -> [Player] {
        let players = apps.enumerated().flatMap { index, app -> [Player] in
            (0..<60).map { offset in
                Player(
                    session: app, device: DeviceID(unchecked: "evil"), source: UInt16(first + index * 60 + offset),
                    onFrame: { _ in })
            }
        }
        for player in players { player.start() }
        return players
    }

    /// A number of all nodes.
    private func sum(_ cluster: Cluster, _ name: String) -> Double {
        (1...2).reduce(0) { $0 + (NodeView($1, of: cluster).metric(name) ?? 0) }
    }
}

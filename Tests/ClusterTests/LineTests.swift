import ApusClient
import ApusContract
import ApusCore
import ApusMedia
import ApusSessions
import Foundation
import Logging
import NIOCore
import NIOPosix
import Synchronization
import Testing

/// Clients on long lines, clients that come all at once, and clients of one identity: who ends, and who must not.
@Suite(.serialized, .timeLimit(.minutes(10)))
struct LineTests {
    @Test("On lines of 0 to 1,000 ms, with 5 of 100 connects refused, no viewer and no camera ends (IV-A5, IV-A7)")
    func longLines() async throws {
        let base = 31_000
        let cluster = try Cluster(configuredNodes: 3, basePort: base, advertised: { base + ($0 - 1) * 10 + 5 })
        defer { cluster.down() }
        let group = MultiThreadedEventLoopGroup(numberOfThreads: 2)
        var proxies: [DelayProxy] = []
        for node in 1...3 {
            let port = base + (node - 1) * 10
            proxies.append(try await DelayProxy(port: port + 5, target: port + 1, group: group))
        }
        for (refused, roundTrips) in [(0, [0, 150, 300, 600, 1000]), (5, [0, 300, 1000])] {
            for roundTrip in roundTrips {
                let line = DelayProxy.Line(
                    roundTrip: .milliseconds(Int64(roundTrip)), refusedPercent: refused)
                for proxy in proxies { proxy.set(line) }
                let crowd = try await Crowd(
                    cluster, name: "r\(roundTrip)-\(refused)", endpoints: (1...3).map { base + ($0 - 1) * 10 + 5 },
                    cameras: 5, viewers: 20, group: group)
                await crowd.waitForPictures(seconds: 40)
                crowd.expectAllWell("round trip \(roundTrip) ms, \(refused) % refused")
                let connects = crowd.clients.map(\.activations).reduce(0, +)
                #expect(connects <= 27, "\(connects) connections for 25 clients at \(roundTrip) ms")
                await crowd.end()
            }
        }
        for proxy in proxies { try await proxy.close() }
        try await group.shutdownGracefully()
    }

    @Test("500 viewers that start at once all watch, and none ends")
    func atOnce() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 31_100)
        defer { cluster.down() }
        let group = MultiThreadedEventLoopGroup(numberOfThreads: 2)
        let crowd = try await Crowd(
            cluster, name: "many", endpoints: (1...3).map { cluster.endpointPort($0) }, cameras: 1, viewers: 500,
            group: group)
        await crowd.waitForPictures(seconds: 60)
        crowd.expectAllWell("500 at once")
        await crowd.end()
        try await group.shutdownGracefully()
    }

    @Test(
        "Of two cameras with one id that start in the same second, exactly one stays, the other ends with 12003",
        arguments: [(1, 1), (1, 2), (2, 3)])
    func twoCameras(nodes: (Int, Int)) async throws {
        let cluster = try Cluster(nodes: 3, basePort: 31_200)
        defer { cluster.down() }
        for round in 1...3 {
            let id = "twin-\(round)"
            let said = (1...2).map { cluster.file("\(id)-\($0).err") }
            let cameras = try zip([nodes.0, nodes.1], said).map { node, errors in
                try cluster.start(
                    ["device", "--id", id, "--test-pattern", "320x240@25", "--node", "\(node)"], errors: errors)
            }
            let deadline = Date(timeIntervalSinceNow: 20)
            while cameras.allSatisfy(\.isRunning), Date() < deadline { try await Task.sleep(for: .milliseconds(20)) }
            let loser = cameras.firstIndex { !$0.isRunning }
            #expect(loser != nil, "both run on")
            // The one that stays is watched, for longer than an end would take to reach it.
            let watched = try cluster.run("watch", id, "--seconds", "4", "--log", cluster.file("\(id).log"))
            #expect(watched.status == 0, "\(watched.all)")
            #expect(Frames(cluster.file("\(id).log")).lines.count > 25)
            #expect(cameras.count { $0.isRunning } == 1, "\(said.map { Cluster.text($0) })")
            if let loser {
                #expect(Cluster.text(said[loser]).contains("12003"), "\(said.map { Cluster.text($0) })")
            }
            for camera in cameras where camera.isRunning { camera.terminate() }
            for camera in cameras { camera.waitUntilExit() }
        }
    }

    @Test("A node that refuses every token sends clients to the next; a token that all refuse ends them with 12001")
    func oneNodeRefuses() async throws {
        let strange = NSTemporaryDirectory() + "/apus-strange-\(UUID().uuidString)"
        defer { try? FileManager.default.removeItem(atPath: strange) }
        let made = try Cluster.run(["admin", "pki", "--dir", strange, "--cluster", "local"])
        try #require(made.status == 0, "\(made.all)")
        let cluster = try Cluster(
            configuredNodes: 3, basePort: 31_300, tokenKey: { $0 == 1 ? "\(strange)/token.pub" : nil })
        defer { cluster.down() }
        try cluster.start("device", "--id", "cam", "--test-pattern", "320x240@25", "--node", "1")
        let deadline = Date(timeIntervalSinceNow: 20)
        var watched: Cluster.Outcome
        repeat {
            watched = try cluster.run("watch", "cam", "--node", "1", "--seconds", "3", "--log", cluster.file("w"))
        } while watched.errors.contains("8002") && Date() < deadline
        #expect(watched.status == 0, "\(watched.all)")
        #expect(Frames(cluster.file("w")).lines.count > 25)
        let forged = try cluster.run("watch", "cam", "--token", "not.a.token", "--seconds", "10")
        #expect(forged.status != 0 && forged.errors.contains("12001"), "\(forged.all)")
    }
}

/// Cameras and viewers of one process, started at once.
private final class Crowd: Sendable {
    let clients: [CrowdClient]
    private let cameraCount: Int

    init(
        _ cluster: Cluster, name: String, endpoints: [Int], cameras: Int, viewers: Int, group: any EventLoopGroup
    ) async throws {
        let signer = try TokenSigner(privateKeyPEM: Cluster.text(cluster.file("pki/token.key")))
        var clients: [CrowdClient] = []
        for number in 0..<cameras + viewers {
            let isCamera = number < cameras
            let device = DeviceID(unchecked: "\(name)-cam-\(number % cameras)")
            let token = try signer.sign(
                TokenClaims(
                    access: AccessID(unchecked: "\(name)-\(number)"), account: AccountID(unchecked: "local"),
                    role: isCamera ? .device : .app, device: isCamera ? device : nil,
                    issuedAt: Int64(Date().timeIntervalSince1970), lifetime: .seconds(3600),
                    cluster: ClusterID(unchecked: "local")))
            let first = number % endpoints.count
            let configuration = ClientConfiguration(
                endpoints: (endpoints[first...] + endpoints[..<first]).map { HostPort(host: "127.0.0.1", port: $0) },
                authorityFile: cluster.file("pki/ca.pem"), token: token, role: isCamera ? .device : .app)
            clients.append(try CrowdClient(configuration, device: device, isCamera: isCamera, on: group.next()))
        }
        self.clients = clients
        cameraCount = cameras
        for client in clients[..<cameras] { client.start() }
        // A device is known once it was here (8002): viewers come at once after that.
        try await Self.wait(seconds: 30) { clients[..<cameras].allSatisfy { $0.state == .online } }
        for client in clients[cameras...] { client.start() }
    }

    /// Waits until every viewer sees frames; it is looked at what happened by then either way.
    func waitForPictures(seconds: Double) async {
        try? await Self.wait(seconds: seconds) { self.clients[self.cameraCount...].allSatisfy { $0.frameCount > 50 } }
    }

    private static func wait(seconds: Double, _ condition: () -> Bool) async throws {
        let deadline = Date(timeIntervalSinceNow: seconds)
        while !condition(), Date() < deadline { try await Task.sleep(for: .milliseconds(20)) }
    }

    func expectAllWell(_ what: String) {
        let ended = clients.filter { $0.hasEnded }
        #expect(ended.isEmpty, "\(what): \(ended.count) ended, first with \(ended.first?.lastError ?? "-")")
        let offline = clients.filter { $0.state != .online }
        #expect(offline.isEmpty, "\(what): \(offline.count) not online")
        let blind = clients[cameraCount...].filter { $0.frameCount <= 50 }
        #expect(blind.isEmpty, "\(what): \(blind.count) viewers without a picture")
    }

    func end() async {
        for client in clients { client.stop() }
    }
}

/// One client of a crowd, with what happened to it.
private final class CrowdClient: Sendable {
    private struct Seen {
        var state: LinkState?
        var hasEnded = false
        var lastError: String?
        var frameCount = 0
        var activations = 0
        var isStopped = false
    }

    private final class Record: Sendable {
        let seen = Mutex(Seen())
    }

    private let record: Record
    private let session: ClientSession
    private let player: Player?
    private let publisher: Publisher?

    init(
        _ configuration: ClientConfiguration, device: DeviceID, isCamera: Bool, on eventLoop: any EventLoop
    ) throws {
        let record = Record()
        self.record = record
        session = try ClientSession(
            configuration: configuration, eventLoop: eventLoop,
            log: Logger(label: "test") { _ in CountingLog(record: { record.seen.withLock { $0.activations += 1 } }) }
        ) { state, error in
            record.seen.withLock { seen in
                seen.state = state
                seen.hasEnded = seen.hasEnded || state == .kicked || state == .tokenFailed
                if let error { seen.lastError = "\(error)" }
            }
        }
        if isCamera {
            player = nil
            publisher = Publisher(
                session: session,
                onEvent: { event in
                    guard case .ended(let error) = event else { return }
                    record.seen.withLock { seen in
                        seen.hasEnded = true
                        seen.lastError = "\(error)"
                    }
                })
        } else {
            publisher = nil
            player = Player(
                session: session, device: device,
                onFrame: { _ in record.seen.withLock { $0.frameCount += 1 } },
                onEvent: { event in
                    guard case .ended(let error) = event else { return }
                    record.seen.withLock { seen in
                        seen.hasEnded = true
                        seen.lastError = "\(error)"
                    }
                })
        }
    }

    var state: LinkState? { record.seen.withLock { $0.state } }
    var hasEnded: Bool { record.seen.withLock { $0.hasEnded } }
    var lastError: String? { record.seen.withLock { $0.lastError } }
    var frameCount: Int { record.seen.withLock { $0.frameCount } }
    /// Connections that the session went on with.
    var activations: Int { record.seen.withLock { $0.activations } }

    func start() {
        session.start()
        player?.start()
        guard let publisher else { return }
        publisher.start()
        let number = Mutex(0)
        session.eventLoop.scheduleRepeatedTask(initialDelay: .zero, delay: .milliseconds(40)) { [record] task in
            guard !record.seen.withLock({ $0.isStopped }) else { return task.cancel() }
            let count = number.withLock { number in
                defer { number += 1 }
                return number
            }
            publisher.send(
                track: 0, ptsMicroseconds: Int64(count) * 40_000, dtsDeltaMicroseconds: 0,
                flags: count % 50 == 0 ? .key : [], payload: ByteBuffer(repeating: 1, count: 500))
        }
    }

    func stop() {
        record.seen.withLock { $0.isStopped = true }
        player?.stop()
        publisher?.stop()
        session.close()
    }
}

/// Counts what a session says of its connections.
private struct CountingLog: LogHandler {
    let record: @Sendable () -> Void
    var metadata: Logger.Metadata = [:]
    var logLevel = Logger.Level.debug

    init(record: @escaping @Sendable () -> Void) { self.record = record }

    subscript(metadataKey key: String) -> Logger.Metadata.Value? {
        get { metadata[key] }
        set { metadata[key] = newValue }
    }

    func log(event: LogEvent) {
        if "\(event.message)" == "The client is connected" { record() }
    }
}

import ApusClient
import ApusContract
import ApusCore
import ApusDevice
import ApusMedia
import ApusTestKit
import Foundation
import Logging
import NIOCore
import NIOPosix
import SwiftProtobuf
import Synchronization
import Testing

#if canImport(Glibc)
import Glibc
#endif

/// A camera of this process whose stream has a fault.
private final class FaultyCamera: Sendable {
    let session: ClientSession
    private let source: TestPatternSource?

    /// - Parameter passes: what of the pattern is sent; nil: the device publishes nothing at all.
    init(_ session: ClientSession, passes: (@Sendable (SourceEvent) -> Bool)?) throws {
        self.session = session
        guard let passes else {
            source = nil
            return
        }
        let publisher = Publisher(session: session)
        publisher.start()
        let source = TestPatternSource(try TestPattern(width: 160, height: 120, frameRate: 25))
        self.source = source
        source.start { event in
            guard passes(event) else { return }
            switch event {
            case .configuration(let track, let configuration):
                var payload = ByteBuffer()
                configuration.encode(into: &payload)
                publisher.send(
                    track: track, ptsMicroseconds: 0, dtsDeltaMicroseconds: 0, flags: .configuration, payload: payload)
            case .frame(let track, let pts, let delta, let flags, let payload):
                publisher.send(
                    track: track, ptsMicroseconds: pts, dtsDeltaMicroseconds: delta, flags: flags, payload: payload)
            case .ended, .failed: break
            }
        }
    }

    func end() {
        source?.stop()
        session.close()
    }
}

/// A display that needs its time, or none.
private final class Display: VideoRenderable {
    private let delay: Mutex<Double>

    init(delay: Double = 0) { self.delay = Mutex(delay) }
    func render(_ picture: Picture) throws(ApusError) {
        let time = delay.withLock { $0 }
        if time > 0 { Thread.sleep(forTimeInterval: time) }
    }
    /// What still waits is shown at once.
    func hurry() { delay.withLock { $0 = 0 } }
    func finish() throws(ApusError) {}
}

/// A decoder that fails, or needs a time for its first frame.
private final class FaultyDecoder: VideoDecodable {
    let decoder: PictureDecoder
    let fails: Bool
    var delay: Double

    init(_ configuration: TrackConfiguration, fails: Bool, delay: Double) throws(ApusError) {
        (decoder, self.fails, self.delay) = (try PictureDecoder(configuration), fails, delay)
    }
    func decode(_ frame: MediaFrame) throws(ApusError) -> [Picture] {
        if fails { throw ApusError(.mediaUnreadable, "the decoder is broken") }
        if delay > 0 { Thread.sleep(forTimeInterval: delay) }
        delay = 0
        return try decoder.decode(frame)
    }
    func finish() throws(ApusError) -> [Picture] { try decoder.finish() }
}

/// The numbers of the steps that a player has logged.
private final class StepLines: LogHandler, @unchecked Sendable {  // SAFETY: a `Mutex` guards what changes.
    private let found = Mutex<[Character]>([])
    var steps: [Character] { found.withLock { $0 } }
    var metadata: Logger.Metadata {
        get { [:] }
        set { _ = newValue }
    }
    var logLevel: Logger.Level {
        get { .info }
        set { _ = newValue }
    }
    subscript(metadataKey key: String) -> Logger.Metadata.Value? {
        get { nil }
        set { _ = newValue }
    }

    func log(event: LogEvent) {
        guard let first = "\(event.message)".first, "①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬".contains(first) else { return }
        found.withLock { $0.append(first) }
    }
}

/// An app that plays a device.
private struct Viewer {
    let device: DeviceID
    let session: ClientSession
    let player: Player
    let renderer: MediaRenderer
    let display: Display

    init(
        _ session: ClientSession, _ device: DeviceID, display: Display = Display(),
        decoder: MediaRenderer.MakeVideoDecoder? = nil
    ) throws {
        let renderer = try MediaRenderer(audio: nil, video: display, makeVideoDecoder: decoder)
        (self.session, self.device, self.renderer, self.display) = (session, device, renderer, display)
        player = Player(session: session, device: device, onFrame: { renderer.render($0) })
        player.attach(renderer)
        player.start()
    }

    func end() {
        player.stop()
        display.hurry()
        try? renderer.finish()
        session.close()
    }
}

@Suite("Why a picture is black, with faults of real streams (IV-G4, IV-G9)", .serialized, .timeLimit(.minutes(6)))
struct DiagnosisTests {
    private static func shared() throws -> Cluster { try SharedCluster.cluster(basePort: 25_700) }

    /// The names of accounts are those of devices: no test sees another one's.
    private static func app(_ cluster: Cluster, _ name: String, ports: [Int] = []) throws -> ClientSession {
        try cluster.session(
            node: 2, token: try cluster.token("--role", "app", "--access", "app-\(name)", "--account", name),
            ports: ports)
    }

    private static func camera(
        _ cluster: Cluster, _ name: String, passes: (@Sendable (SourceEvent) -> Bool)?
    ) throws -> FaultyCamera {
        try FaultyCamera(
            cluster.session(
                node: 3, token: try cluster.token("--role", "device", "--device", name, "--account", name),
                role: .device), passes: passes)
    }

    /// A camera of a process of its own.
    private static func process(_ cluster: Cluster, _ name: String) throws -> Process {
        try cluster.start(
            "device", "--id", name, "--test-pattern", "160x120@25", "--node", "3", "--token",
            try cluster.token("--role", "device", "--device", name, "--account", name))
    }

    /// An app that is connected when it begins to play: a busy machine is not why it is slow.
    private static func viewer(
        _ cluster: Cluster, _ name: String, display: Display = Display(),
        decoder: MediaRenderer.MakeVideoDecoder? = nil
    ) async throws -> Viewer {
        let session = try app(cluster, name)
        _ = try await eventually { () throws(ApusError) in try await session.ask(ClientListDevicesRequest()) }
        return try Viewer(session, DeviceID(unchecked: name), display: display, decoder: decoder)
    }

    /// Waits until the SDK, REST and the command line name this stage.
    private static func expect(
        _ key: String, unit: String, _ cluster: Cluster, _ viewer: Viewer,
        sourceLocation: SourceLocation = #_sourceLocation
    ) async throws {
        var last = ""
        let name = String(key.prefix { $0 != "." })
        do {
            try await eventually("the SDK names \(key)") {
                let answer = try await viewer.session.diagnose(viewer.device, player: viewer.player)
                last = "\(answer)"
                let stage = answer.stages.first { $0.state == .guilty }
                guard let stage, stage.key == key else {
                    try await Task.sleep(for: .milliseconds(200))
                    return false
                }
                return stage.unit == unit && answer.guilty == name
            }
            let device = viewer.device.rawValue
            let token = try cluster.token("--role", "app", "--access", "rest-\(device)", "--account", device)
            try await eventually("REST names \(key)") {
                let answer = try CustomerAPI(cluster: cluster).ask("GET", "/v1/devices/\(device)/diagnosis", token)
                last = "\(answer)"
                let stages = answer["stages"] as? [[String: Any]] ?? []
                let guilty = stages.filter { $0["state"] as? String == "STAGE_STATE_GUILTY" }
                try await Task.sleep(for: .milliseconds(200))
                return answer["guilty"] as? String == name && guilty.count == 1 && guilty[0]["key"] as? String == key
            }
            let shown = try cluster.run("diagnose", device)
            last = shown.all
            #expect(shown.output.hasPrefix("Guilty: \(name)."), "\(shown.all)", sourceLocation: sourceLocation)
            let json = try cluster.run("diagnose", device, "--json")
            #expect(json.output.contains("\"guilty\":\"\(name)\""), "\(json.all)", sourceLocation: sourceLocation)
        } catch {
            Issue.record("\(key): \(error)\n\(last)", sourceLocation: sourceLocation)
        }
    }

    /// An app may play a device once that has signed in.
    private static func isKnown(_ name: String, _ cluster: Cluster) async throws {
        let session = try app(cluster, name)
        defer { session.close() }
        try await eventually("the device is known") {
            (try? await session.ask(ClientGetDeviceRequest.with { $0.device = name })) != nil
        }
    }

    private static func shows(_ viewer: Viewer) async throws {
        try await eventually("a picture is shown") {
            try await Task.sleep(for: .milliseconds(100))
            return try await viewer.session.diagnose(viewer.device, player: viewer.player).play.rendered > 5
        }
    }

    @Test("A picture that is shown has no guilty stage, and a stranger learns nothing (8002)")
    func healthy() async throws {
        let (cluster, name) = (try Self.shared(), "whole")
        let camera = try Self.process(cluster, name)
        defer { camera.end() }
        try await Self.isKnown(name, cluster)
        let viewer = try await Self.viewer(cluster, name)
        defer { viewer.end() }
        try await Self.shows(viewer)
        let answer = try await viewer.session.diagnose(viewer.device, player: viewer.player)
        #expect(answer.guilty.isEmpty && answer.stages.allSatisfy { $0.state == .ok }, "\(answer)")
        #expect(answer.play.stepsMs.prefix(9).allSatisfy { $0 > 0 }, "\(answer.play)")
        try await eventually("the report has come") {
            try await viewer.session.ask(ClientDiagnoseRequest.with { $0.device = name }).play.rendered > 0
        }
        // By its session, and not by another one.
        let session = answer.play.session
        let same = try await viewer.session.ask(
            ClientDiagnoseRequest.with { ($0.device, $0.session) = (name, session) })
        #expect(same.play.session == session && same.guilty.isEmpty, "\(same)")
        await fails(.targetUnknown) { () throws(ApusError) in
            _ = try await viewer.session.ask(
                ClientDiagnoseRequest.with { ($0.device, $0.session) = (name, String(repeating: "0", count: 32)) })
        }
        let stranger = try Self.app(cluster, "stranger")
        defer { stranger.close() }
        for device in [name, "never-seen"] {
            await fails(.targetUnknown) { () throws(ApusError) in
                _ = try await stranger.ask(ClientDiagnoseRequest.with { $0.device = device })
            }
            await fails(.targetUnknown) { () throws(ApusError) in
                let play = ClientPlayReport.with { ($0.device, $0.session) = (device, session) }
                _ = try await stranger.ask(ClientReportPlaysRequest.with { $0.plays = [play] })
            }
        }
        // A guest who may view sees the device, and not what others have played.
        _ = try CustomerAPI(cluster: cluster).ask(
            "POST", "/v1/devices/\(name)/shares", try cluster.token("--role", "admin"), #"{"account":"guest"}"#)
        let guest = try Self.app(cluster, "guest")
        defer { guest.close() }
        let view = try await eventually { () throws(ApusError) in
            try await guest.ask(ClientDiagnoseRequest.with { $0.device = name })
        }
        #expect(view.view.publishing && view.sessions.isEmpty && view.guilty.isEmpty, "\(view)")
    }

    @Test("The lines of a real player have the 13 steps in order, and the last one follows when it is released (IV-G3)")
    func steps() async throws {
        let (cluster, name) = (try Self.shared(), "stepping")
        let camera = try Self.process(cluster, name)
        defer { camera.end() }
        try await Self.isKnown(name, cluster)
        let lines = StepLines()
        let session = try ClientSession(
            configuration: ClientConfiguration(
                endpoints: [HostPort(host: "127.0.0.1", port: cluster.endpointPort(1))],
                authorityFile: cluster.file("pki/ca.pem"),
                token: try cluster.token("--role", "app", "--access", "app-stepping", "--account", name), role: .app),
            log: Logger(label: "steps") { _ in lines })
        session.start()
        defer { session.close() }
        do {
            let viewer = try Viewer(session, DeviceID(unchecked: name))
            try await Self.shows(viewer)
            viewer.player.stop()
            try viewer.renderer.finish()
        }
        try await eventually("the player is released") { lines.steps.last == "⑬" }
        #expect(lines.steps == "①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬".map { $0 }, "\(lines.steps)")
    }

    @Test("A device that the cluster does not know, and one that belongs to nobody")
    func unknown() async throws {
        let (cluster, name) = (try Self.shared(), "nobodys")
        let viewer = try await Self.viewer(cluster, name)
        defer { viewer.end() }
        try await eventually("the app is refused") {
            try await viewer.session.diagnose(viewer.device, player: viewer.player).guilty == "device"
        }
        let admin = try cluster.token("--role", "admin")
        let api = CustomerAPI(cluster: cluster)
        func key() throws -> String? {
            let answer = try api.ask("GET", "/v1/devices/\(name)/diagnosis", admin)
            let stages = answer["stages"] as? [[String: Any]] ?? []
            return stages.first { $0["state"] as? String == "STAGE_STATE_GUILTY" }?["key"] as? String
        }
        #expect(try key() == "device.unknown")
        #expect(try cluster.run("diagnose", name).output.hasPrefix("Guilty: device."))
        try api.ask("POST", "/v1/devices/\(name)/binding", admin, #"{"account":"nobodys"}"#)
        #expect(try key() == "device.away")
        try api.ask("DELETE", "/v1/devices/\(name)/binding", admin)
        #expect(try key() == "device.unbound")
        #expect(try cluster.run("diagnose", name, "--json").output.contains("device.unbound"))
    }

    @Test("A device that was killed, and one whose process is stopped")
    func away() async throws {
        let cluster = try Self.shared()
        for (name, signal, key, unit) in [
            ("killed", SIGKILL, "device.away", "s"), ("stopped", SIGSTOP, "device.silent", "ms"),
        ] {
            let camera = try Self.process(cluster, name)
            defer {
                kill(camera.processIdentifier, SIGCONT)
                camera.end()
            }
            try await Self.isKnown(name, cluster)
            let viewer = try await Self.viewer(cluster, name)
            defer { viewer.end() }
            try await Self.shows(viewer)
            kill(camera.processIdentifier, signal)
            try await Self.expect(key, unit: unit, cluster, viewer)
        }
    }

    @Test("A device that publishes nothing, one without a header, and one with sound only")
    func incomplete() async throws {
        let cluster = try Self.shared()
        let faults: [(String, String, String, (@Sendable (SourceEvent) -> Bool)?)] = [
            ("idle", "publisher.none", "streams", nil),
            (
                "headless", "header.missing", "ms",
                { event in
                    if case .configuration = event { false } else { true }
                }
            ),
            (
                "mute-eye", "codec.no_picture", "tracks",
                { event in
                    switch event {
                    case .configuration(let track, _): track != 0
                    case .frame(let track, _, _, _, _): track != 0
                    case .ended, .failed: true
                    }
                }
            ),
        ]
        for (name, key, unit, passes) in faults {
            let camera = try Self.camera(cluster, name, passes: passes)
            defer { camera.end() }
            try await Self.isKnown(name, cluster)
            let viewer = try await Self.viewer(cluster, name)
            defer { viewer.end() }
            try await Self.expect(key, unit: unit, cluster, viewer)
        }
    }

    @Test("No key frames, and no frames any more")
    func data() async throws {
        let cluster = try Self.shared()
        let frames = Mutex(0)
        let faults: [(String, String, @Sendable (SourceEvent) -> Bool)] = [
            (
                "keyless", "data.no_key",
                { event in
                    if case .frame(0, _, _, let flags, _) = event { !flags.contains(.key) } else { true }
                }
            ),
            (
                "ending", "data.stopped",
                { event in
                    guard case .frame = event else { return true }
                    return frames.withLock { count in
                        count += 1
                        return count < 100
                    }
                }
            ),
        ]
        for (name, key, passes) in faults {
            let camera = try Self.camera(cluster, name, passes: passes)
            defer { camera.end() }
            try await Self.isKnown(name, cluster)
            let viewer = try await Self.viewer(cluster, name)
            defer { viewer.end() }
            try await Self.expect(key, unit: "ms", cluster, viewer)
        }
    }

    @Test("A way of 1.5 s to the app is a slow connection; a device that publishes 1.5 s late is slow data")
    func slowWay() async throws {
        let cluster = try Self.shared()
        let group = MultiThreadedEventLoopGroup.singleton
        let line = DelayProxy.Line(roundTrip: .milliseconds(1500))
        let proxy = try await DelayProxy(port: 25_790, target: cluster.endpointPort(2), line: line, group: group)
        let name = "far"
        let camera = try Self.process(cluster, name)
        defer { camera.end() }
        try await Self.isKnown(name, cluster)
        let viewer = try Viewer(
            try Self.app(cluster, name, ports: [25_790]), DeviceID(unchecked: name))
        try await Self.expect("network.slow", unit: "ms", cluster, viewer)
        viewer.end()
        try await proxy.close()

        // The device is known when the app begins to play, and publishes 1.5 s later.
        let late = "late"
        let silent = try Self.camera(cluster, late, passes: nil)
        try await Self.isKnown(late, cluster)
        let second = try await Self.viewer(cluster, late)
        defer { second.end() }
        try await eventually("the stream is granted") {
            try await Task.sleep(for: .milliseconds(50))
            return try await second.session.diagnose(second.device, player: second.player).play.stepsMs[2] > 0
        }
        try await Task.sleep(for: .milliseconds(1500))
        silent.end()
        let publishing = try Self.camera(cluster, late) { _ in true }
        defer { publishing.end() }
        try await Self.expect("data.slow", unit: "ms", cluster, second)
    }

    @Test("No decoder, a decoder that fails, a slow decoder and a slow renderer")
    func app() async throws {
        let cluster = try Self.shared()
        let name = "clear"
        let camera = try Self.process(cluster, name)
        defer { camera.end() }
        try await Self.isKnown(name, cluster)
        let faults: [(String, String, Double, MediaRenderer.MakeVideoDecoder?)] = [
            (
                "codec.no_decoder", "tracks", 0,
                { _ throws(ApusError) in throw ApusError(.mediaUnreadable, "no decoder") }
            ),
            (
                "decode.failed", "error", 0,
                { configuration throws(ApusError) in try FaultyDecoder(configuration, fails: true, delay: 0) }
            ),
            (
                "decode.slow", "ms", 0,
                { configuration throws(ApusError) in try FaultyDecoder(configuration, fails: false, delay: 1.5) }
            ),
            ("render.slow", "ms", 1.5, nil),
        ]
        for (key, unit, delay, decoder) in faults {
            let viewer = try await Self.viewer(cluster, name, display: Display(delay: delay), decoder: decoder)
            try await Self.expect(key, unit: unit, cluster, viewer)
            viewer.end()
        }
    }
}

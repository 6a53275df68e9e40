import ApusClient
import ApusContract
import ApusCore
import ApusDevice
import ApusMedia
import ApusTestKit
import Foundation
import Synchronization
import Testing

@Suite("Further numbers of calls and their media, across nodes (CALL-4, CALL-13 to CALL-15, IV-C12)", .serialized)
struct CallNumberTests {
    /// The cluster of all tests. Each of them has an account and devices of its own.
    private static func cluster() throws -> Cluster { try SharedCluster.cluster(basePort: 24_280) }

    @Test("What a side reports of its media ends the call with its number there, and with −2533 or the same elsewhere")
    func exceptions() async throws {
        let cluster = try Self.cluster()
        let (bell, app) = try await CallClient.pair(cluster)
        defer { for client in [bell, app] { client.close() } }
        for (own, other) in [
            (ErrorCode.mediaConnectFailed, ErrorCode.mediaConnectFailed), (.enteredBackground, .remoteStopped),
            (.networkChanged, .remoteStopped), (.remoteStopped, .remoteStopped),
        ] {
            let call = try await app.ring(bell)
            try await bell.session.acceptCall(call)
            _ = try await app.next(call) { $0.stage == .accepted }
            #expect(try await app.session.reportCallFailed(call, own).error?.code == own)
            #expect(try await bell.end(call)?.code == other, "\(own)")
        }
    }

    @Test("In a call of type 2, the reject of one app ends the ringing of the others with −2521")
    func rejectedByOthers() async throws {
        let cluster = try Self.cluster()
        let bell = try await CallClient(cluster, 1, device: "fork-bell", account: "fork").ready()
        let apps = [
            try await CallClient(cluster, 2, access: "phone", account: "fork").ready(),
            try await CallClient(cluster, 3, access: "tablet", account: "fork").ready(),
        ]
        defer { for client in apps + [bell] { client.close() } }
        let call = try await bell.start([.account(AccountID(unchecked: "fork"))], type: .oneToMany).id
        for app in apps { _ = try await app.next(call) { if case .ring = $0.stage { true } else { false } } }
        try await apps[0].session.rejectCall(call)
        #expect(try await apps[1].end(call)?.code == .rejectedByOthers)
        #expect(try await bell.end(call)?.code == .callRejected)
    }

    @Test("Pictures that change their size end a file of pictures with 21035; a codec without an encoder is 21036")
    func sizes() async throws {
        let cluster = try Self.cluster()
        let camera = try cluster.session(
            node: 1, token: try cluster.token("--role", "device", "--device", "sizes-cam", "--account", "sizes"),
            role: .device)
        let app = try cluster.session(node: 2, token: try cluster.token("--role", "app", "--account", "sizes"))
        let log = ClientSession.loggingDisabled
        func source(_ width: Int) throws -> TestPatternSource {
            TestPatternSource(try TestPattern(width: width, height: 64, frameRate: 10))
        }
        let agent = DeviceAgent(session: camera, source: try source(64), log: log)
        let work = Task { try? await agent.run() }
        defer {
            work.cancel()
            for session in [camera, app] { session.close() }
        }
        let folder = Folder()
        let renderer = try MediaRenderer(audio: nil, video: try Y4MFile(path: folder.file("pictures.y4m")))
        let count = Mutex(0)
        let player = Player(
            session: app, device: DeviceID(unchecked: "sizes-cam"),
            onFrame: { frame in
                renderer.render(frame)
                count.withLock { $0 += 1 }
            })
        player.start()
        try await eventually("pictures") { count.withLock { $0 } > 20 }
        agent.switchSource(to: try source(128))
        try await eventually("the change") { renderer.failure?.code == .pictureSizeChanged }
        player.stop()
        let error = #expect(throws: ApusError.self) { try SoundEncoding(codec: .mp3) }
        #expect(error?.code == .encoderUnavailable)
    }
}

import ApusClient
import ApusContract
import ApusCore
import ApusDevice
import ApusTestKit
import Foundation
import Synchronization
import Testing

@Suite("The numbers between apps and devices, across nodes (IV-C16, IV-A6)", .serialized, .timeLimit(.minutes(4)))
struct PeerNumberTests {
    private static let cam = PlaybackHome.cam
    private static let path = "Action._playback.ctlVal"

    /// The cluster of the tests that end no node. Each of them has an account and a device of its own.
    private static func cluster() throws -> Cluster { try SharedCluster.cluster(basePort: 24_440) }

    /// A device whose program answers as it likes.
    private static func device(
        _ cluster: Cluster, id: DeviceID = cam, account: String = "local", _ actions: [String: DeviceCommands.Action]
    ) throws -> (session: ClientSession, work: Task<Void, Never>) {
        let token = try cluster.token("--role", "device", "--device", id.rawValue, "--account", account)
        let session = try cluster.session(node: 1, token: token, role: .device)
        let commands = DeviceCommands(session: session, log: ClientSession.loggingDisabled)
        for (name, action) in actions { commands.onAction(name, action) }
        return (session, Task { _ = try? await commands.run() })
    }

    @Test("A playback that the device ends is 20002, an idle one 20008, a forgotten one 20009, one too many 20007")
    func ends() async throws {
        let cluster = try Self.cluster()
        var limits = PlaybackTable.Limits()
        (limits.countMax, limits.idleTime) = (1, .seconds(3))
        let home = try await PlaybackHome(cluster, limits: limits)
        let (camera, app, recording) = (home.camera, home.app, home.recording)
        let other = try cluster.session(node: 3, token: try cluster.token("--role", "app", "--access", "other"))
        defer { for session in [app, other] { session.close() } }
        let screen = PlaybackScreen()
        let player = screen.player(app)
        try await player.prepare(at: recording.start)
        await fails(.connectionExists) { () throws(ApusError) in try await player.prepare(at: recording.start) }
        await fails(.deviceChannelsFull) { () throws(ApusError) in
            try await PlaybackScreen().player(other).prepare(at: recording.start)
        }
        camera.playbacks.endAll()
        await fails(.hungUp) { () throws(ApusError) in try await player.pause() }
        #expect(screen.state.withLock { $0.ended }?.code == .hungUp)

        // Another client cannot use its id, to control it or to open one.
        let id = ClientSession.randomCommandID()
        let open =
            #"{"verb":"open","id":"\#(id)","source":0,"at":\#(Int64(recording.start.timeIntervalSince1970) * 1000)}"#
        _ = try await app.performAction(Self.path, json: open, on: Self.cam)
        for json in [open, #"{"verb":"stop","id":"\#(id)"}"#] {
            await fails(.duplicateConnection) { () throws(ApusError) in
                _ = try await other.performAction(Self.path, json: json, on: Self.cam)
            }
        }
        try await Task.sleep(for: .seconds(5))
        await fails(.connectionIdle) { () throws(ApusError) in
            _ = try await app.performAction(Self.path, json: #"{"verb":"pause","id":"\#(id)"}"#, on: Self.cam)
        }

        try await player.play(at: recording.start)
        camera.close()
        let second = try PlaybackCamera(cluster, home.records)
        defer { second.close() }
        try await eventually("the device has restarted, and knows nothing of it") {
            do throws(ApusError) {
                try await player.pause()
                return false
            } catch {
                return error.code == .destinationUnknown
            }
        }
        #expect(screen.state.withLock { $0.ended }?.code == .destinationUnknown)
        // It can be opened again.
        try await player.play(at: recording.start)
        await player.stop()
        for json in [
            "1", "{}", #"{"verb":"open"}"#, #"{"verb":"dance","id":"\#(id)"}"#, #"{"verb":"seek","id":"1"}"#,
            #"{"verb":"open","id":"\#(ClientSession.randomCommandID())","source":70000,"at":1}"#,
            #"{"verb":"open","id":"\#(ClientSession.randomCommandID())","source":0,"at":-1}"#,
            #"{"verb":"open","id":"\#(ClientSession.randomCommandID())","source":0,"at":1e300}"#,
        ] {
            await fails(.jsonInvalid) { () throws(ApusError) in
                _ = try await app.performAction(Self.path, json: json, on: Self.cam)
            }
        }
    }

    @Test("A device without recordings is 21030, with a list that is none 21033, of a later version 21037, and 20003")
    func lists() async throws {
        let cluster = try Self.cluster()
        let cam = DeviceID(unchecked: "lists-cam")
        let app = try cluster.session(node: 2, token: try cluster.token("--role", "app", "--account", "lists"))
        let list = Mutex(#"{"version":1,"list":[[5,6],[1,2]],"more":false}"#)
        let (session, work) = try Self.device(cluster, id: cam, account: "lists", [:])
        try await eventually { () throws(ApusError) in
            do throws(ApusError) {
                _ = try await app.recordings(of: cam, from: Date() - 60, to: Date())
            } catch {
                guard error.code == .notImplemented else { throw error }
            }
        }
        await fails(.notImplemented) { () throws(ApusError) in
            try await PlaybackScreen().player(app, of: cam).play(at: Date())
        }
        work.cancel()
        session.close()
        let second = try Self.device(
            cluster, id: cam, account: "lists",
            [
                "_recordings": { _ throws(ApusError) in list.withLock { $0 } },
                "_playback": { _ throws(ApusError) in
                    try? await Task.sleep(for: .seconds(30))
                    return "{}"
                },
            ])
        defer {
            second.work.cancel()
            for session in [app, second.session] { session.close() }
        }
        try await eventually("the list") {
            do throws(ApusError) {
                _ = try await app.recordings(of: cam, from: Date() - 60, to: Date())
                return false
            } catch {
                return error.code == .recordingListInvalid
            }
        }
        list.withLock { $0 = #"{"version":7}"# }
        await fails(.recordingListVersion) { () throws(ApusError) in
            _ = try await app.recordings(of: cam, from: Date() - 60, to: Date())
        }
        await fails(.badParameter) { () throws(ApusError) in
            _ = try await app.recordings(of: cam, from: Date(), to: Date() - 60)
        }
        await fails(.openingTimedOut) { () throws(ApusError) in
            try await PlaybackScreen().player(app, of: cam).play(at: Date())
        }
    }

    @Test("With a refused token all requests are 20010; a value of another type is 21004; a broken sending 21001")
    func sdk() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 31_700)
        defer { cluster.down() }
        let token = try cluster.token("--role", "app")
        let ends = SessionEnds()
        let forged = try cluster.session(node: 1, token: String(token.dropLast(4)) + "AAAA", ends: ends)
        let app = try cluster.session(node: 2, token: token)
        let begun = Mutex(false)
        let (session, work) = try Self.device(
            cluster,
            [
                "wait": { _ throws(ApusError) in
                    begun.withLock { $0 = true }
                    try? await Task.sleep(for: .seconds(60))
                    return "1"
                }
            ])
        defer {
            work.cancel()
            for session in [forged, app, session] { session.close() }
        }
        #expect(try await ends.isEnded(by: .tokenInvalid))
        await fails(.tokenRefused) { () throws(ApusError) in _ = try await forged.readProperty(of: Self.cam) }
        await fails(.tokenRefused) { () throws(ApusError) in
            _ = try await forged.performAction("Action.wait.ctlVal", json: "1", on: Self.cam)
        }
        await fails(.tokenRefused) { () throws(ApusError) in
            try await PlaybackScreen().player(forged).play(at: Date())
        }
        #expect(!begun.withLock { $0 }, "the device has seen nothing of it")

        try await eventually { () throws(ApusError) in
            try await app.addUserProperty("room", json: #"{"name":"hall"}"#, to: Self.cam)
        }
        struct Room: Decodable, Equatable { var name: String }
        let room = try await app.readProperty(of: Self.cam, path: "ProUser.room.val", as: Room.self)
        #expect(room == Room(name: "hall"))
        await fails(.modelUnreadable) { () throws(ApusError) in
            _ = try await app.readProperty(of: Self.cam, path: "ProUser.room.val", as: Int.self)
        }
        await fails(.propertyUnknown) { () throws(ApusError) in
            _ = try await app.readProperty(of: Self.cam, path: "ProUser.none.val", as: Int.self)
        }

        async let outcome = { () async -> ErrorCode? in
            do throws(ApusError) {
                _ = try await app.performAction("Action.wait.ctlVal", json: "1", on: Self.cam)
                return nil
            } catch {
                return error.code
            }
        }()
        try await eventually("the device has it") { begun.withLock { $0 } }
        for node in 1...3 { #expect(try cluster.run("cluster", "kill", "\(node)").status == 0) }
        #expect(await outcome == .sendFailed)
        await fails(.unavailable) { () throws(ApusError) in
            _ = try await app.performAction("Action.wait.ctlVal", json: "1", on: Self.cam)
        }
    }

    @Test("A command whose time was over at the device is 20001, and raw data to one that takes none 21007 (IV-D11)")
    func commands() async throws {
        let cluster = try Self.cluster()
        let cam = DeviceID(unchecked: "late-cam")
        let app = try cluster.session(node: 2, token: try cluster.token("--role", "app", "--account", "late"))
        let begun = Mutex(0)
        let (session, work) = try Self.device(
            cluster, id: cam, account: "late",
            [
                "wait": { _ throws(ApusError) in
                    begun.withLock { $0 += 1 }
                    try? await Task.sleep(for: .seconds(4))
                    return "1"
                }
            ])
        defer {
            work.cancel()
            for session in [app, session] { session.close() }
        }
        let path = "Action.wait.ctlVal"
        _ = try await eventually { () throws(ApusError) in
            try await app.sendCommand(.action(path: path, json: "1"), to: cam, until: .sent)
        }
        // It waits behind the first one, for longer than it may.
        let id = ClientSession.randomCommandID()
        _ = try await app.sendCommand(
            .action(path: path, json: "2"), to: cam, id: id, keptFor: .seconds(2), until: .queued)
        try await eventually("the end") {
            try await app.command(id, of: cam).error?.code == .peerTimedOut
        }
        #expect(begun.withLock { $0 } == 1, "it is not carried out late")
        await fails(.callbackUnknown) { () throws(ApusError) in
            _ = try await app.exchangeData([1, 2, 3], with: cam)
        }
    }
}

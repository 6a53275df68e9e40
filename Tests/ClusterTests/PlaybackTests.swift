import ApusClient
import ApusContract
import ApusCore
import ApusDevice
import ApusMedia
import ApusTestKit
import Foundation
import NIOCore
import Synchronization
import Testing

@Suite(
    "Recordings of a device, played across nodes (IV-C5, IV-C6, IV-C12, IV-C16)", .serialized, .timeLimit(.minutes(4)))
struct PlaybackTests {
    /// The cluster of the tests that end no node and delay no line. Each of them has a device of its own.
    private static func cluster() throws -> Cluster { try SharedCluster.cluster(basePort: 24_400) }

    @Test(
        "A recording is listed, and played from a time on to its end; it is paused, resumed and played from elsewhere")
    func plays() async throws {
        let cluster = try Self.cluster()
        let home = try await PlaybackHome(cluster)
        defer { home.close() }
        let (app, recording, sent, now) = (home.app, home.recording, home.sent, Date())
        #expect(abs(recording.duration - 12) < 0.5)
        #expect(try await app.recordings(of: PlaybackHome.cam, from: now - 30, to: now).isEmpty)
        #expect(try await app.recordings(of: PlaybackHome.cam, source: 4, from: now - 3600, to: now).isEmpty)

        let screen = PlaybackScreen()
        let player = screen.player(app)
        // Nothing comes before play().
        #expect(try await player.prepare(at: recording.start + 2.5) == recording)
        try await Task.sleep(for: .milliseconds(300))
        #expect(screen.count == 0 && player.recording == recording)
        let start = MonotonicTime.now()
        try await player.play()
        try await eventually("frames") { screen.pictures.count > 12 }
        let first = try #require(screen.pictures.first)
        let time = Double(first.header.ptsMicroseconds) / 1_000_000
        #expect(first.header.flags.contains(.key) && time <= 2.55 && time > 1.4, "\(time)")
        #expect(MonotonicTime.now() - start > .milliseconds(900), "it is played at its own pace")
        let position = try #require(player.position)
        #expect(position > recording.start + 2 && position < recording.start + 6)

        try await player.pause()
        try await Task.sleep(for: .milliseconds(300))
        let paused = screen.count
        try await Task.sleep(for: .seconds(1))
        #expect(screen.count == paused)
        try await player.resume()
        try await eventually("frames again") { screen.count > paused + 5 }
        #expect(screen.state.withLock { $0.lost } == 0, "it goes on with the next frame")

        // Within one group of pictures of the time, to the end; the same again from the end.
        for attempt in 1...2 {
            screen.forget()
            try await player.seek(to: recording.start + 9.2)
            try await eventually("the end") { screen.state.withLock { $0.finished } == attempt }
            let pictures = screen.pictures.filter { $0.header.ptsMicroseconds >= 7_900_000 }
            let times = pictures.map { Double($0.header.ptsMicroseconds) / 1_000_000 }
            let first = try #require(times.first)
            #expect(first > 8.1 && first <= 9.25 && times == times.sorted(), "\(times)")
            let wanted = sent.filter { $0.header.track == 0 }.suffix(pictures.count).map(\.payload)
            #expect(pictures.map(\.payload) == wanted, "bit for bit, to the last picture")
        }
        try await Self.expectOnePicture(player, screen, recording)

        await fails(.recordingListEmpty) { () throws(ApusError) in try await player.seek(to: now + 60) }
        await player.stop()
        await fails(.notConnected) { () throws(ApusError) in try await player.pause() }
        #expect(screen.state.withLock { $0.ended } == nil)
    }

    private static func expectOnePicture(
        _ player: PlaybackPlayer, _ screen: PlaybackScreen, _ recording: Recording
    ) async throws {
        // While it is paused, it shows the picture of the time.
        try await player.seek(to: recording.start + 1)
        try await player.pause()
        try await Task.sleep(for: .milliseconds(300))
        screen.forget()
        try await player.seek(to: recording.start + 5.5)
        try await eventually("the picture") { screen.pictures.count == 1 }
        try await Task.sleep(for: .milliseconds(300))
        #expect(screen.pictures.count == 1)
    }

    @Test("A playback goes on, and loses no frame, when each node is killed in turn")
    func kills() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 31_460)
        defer { cluster.down() }
        let home = try await PlaybackHome(cluster, seconds: 30)
        defer { home.close() }
        let (app, recording, sent) = (home.app, home.recording, home.sent)
        let (screen, file) = (PlaybackScreen(), home.folder.file("played.mp4"))
        let player = screen.player(app)
        try await player.prepare(at: recording.start)
        try player.startRecording(to: file)
        await fails(.alreadyRecording) { () throws(ApusError) in try player.startRecording(to: file) }
        try await player.play()
        for node in 1...3 {
            try await Task.sleep(for: .seconds(3))
            #expect(try cluster.run("cluster", "kill", "\(node)").status == 0)
            try await Task.sleep(for: .seconds(2))
            #expect(try Cluster.run(["cluster", "restart", "\(node)", "--dir", cluster.directory]).status == 0)
            try await cluster.awaitChecks()
        }
        try await eventually("the end") { screen.state.withLock { $0.finished } == 1 }
        #expect(screen.state.withLock { $0.lost } == 0)
        let wanted = sent.filter { $0.header.track == 0 }.map(\.payload)
        #expect(screen.pictures.map(\.payload) == wanted)
        // Recorded while it was played (IV-C12).
        let count = try await player.stopRecording()
        #expect(count == screen.count)
        #expect(try await player.stopRecording() == 0)
        let again = FileSource(path: file, loops: false, isPaced: false, log: ClientSession.loggingDisabled)
        let played = try await again.allFrames(byteCountMax: 64 << 20)
        #expect(
            played.filter { $0.header.track == 0 && !$0.header.flags.contains(.configuration) }.count == wanted.count)
        await player.stop()
    }

    @Test("After a transfer, the next account sees and plays nothing that was recorded before, nor does the former one")
    func transfer() async throws {
        let cluster = try Self.cluster()
        let cam = DeviceID(unchecked: "sold-cam")
        let home = try await PlaybackHome(cluster, cam, account: "sold")
        let buyer = AccountID(unchecked: "sold-to")
        let next = try cluster.session(
            node: 3, token: try cluster.token("--role", "app", "--account", buyer.rawValue))
        defer {
            home.close()
            next.close()
        }
        try await home.app.transfer(cam, to: buyer)
        // It comes back with what it has recorded, as one that was not told. Its new token is of another second.
        home.camera.close()
        try await Task.sleep(for: .seconds(1.1))
        let camera = try PlaybackCamera(cluster, home.records, cam, account: buyer.rawValue)
        defer { camera.close() }
        let found = try await eventually { () throws(ApusError) in
            try await next.recordings(of: cam, from: Date() - 3600, to: Date())
        }
        #expect(found.isEmpty)
        let player = PlaybackScreen().player(next, of: cam)
        await fails(.recordingListEmpty) { () throws(ApusError) in
            _ = try await player.prepare(at: home.recording.start + 2)
        }
        await fails(.illegalRelation) { () throws(ApusError) in
            _ = try await home.app.recordings(of: cam, from: Date() - 3600, to: Date())
        }
    }

    @Test("Only who may control the device plays its recordings; a guest that may watch it does not (8003, 12004)")
    func rights() async throws {
        let cluster = try Self.cluster()
        let cam = DeviceID(unchecked: "rights-cam")
        let home = try await PlaybackHome(cluster, cam, account: "rights")
        let (camera, owner, recording) = (home.camera, home.app, home.recording)
        let guestAccount = AccountID(unchecked: "rights-guests")
        let guest = try cluster.session(
            node: 3, token: try cluster.token("--role", "app", "--account", guestAccount.rawValue))
        let agent = DeviceAgent(
            session: camera.session, source: TestPatternSource(try TestPattern(width: 64, height: 64, frameRate: 10)),
            log: ClientSession.loggingDisabled)
        let live = Task { try? await agent.run() }
        defer {
            live.cancel()
            home.close()
            guest.close()
        }
        let screen = PlaybackScreen()
        let player = screen.player(owner, of: cam)
        try await player.play(at: recording.start)
        for (rights, code) in [(false, ErrorCode.illegalRelation), (true, .notAllowed)] {
            if rights { try await owner.share(cam, with: guestAccount, control: false, acceptedBy: guest) }
            await fails(code) { () throws(ApusError) in
                _ = try await guest.recordings(of: cam, from: Date() - 3600, to: Date())
            }
            // The stream of the owner's playback, whose number the guest can guess.
            let ended = Mutex<ApusError?>(nil)
            let seen = Mutex(0)
            let thief = Player(
                session: guest, device: cam, source: DevicePlaybacks.sourceMin,
                onFrame: { _ in seen.withLock { $0 += 1 } },
                onEvent: { event in if case .ended(let error) = event { ended.withLock { $0 = error } } })
            thief.start()
            try await eventually("the refusal") { ended.withLock { $0 } != nil }
            #expect(ended.withLock { $0 }?.code == code && seen.withLock { $0 } == 0)
        }
        // With the live picture, which it may watch, nothing of this changes; with control it may.
        let watching = Mutex(0)
        let watcher = Player(
            session: guest, device: cam, onFrame: { _ in watching.withLock { $0 += 1 } }, onEvent: { _ in }
        )
        watcher.start()
        try await eventually("the live picture") { watching.withLock { $0 } > 5 }
        try await owner.share(cam, with: guestAccount, control: true)
        let (own, second) = (PlaybackScreen(), guest)
        let theirs = own.player(second, of: cam)
        try await eventually { () throws(ApusError) in try await theirs.play(at: recording.start) }
        try await eventually("its frames") { own.count > 5 }
        // Without control, but still allowed to watch: the playback ends, and those of others later are not seen.
        try await owner.share(cam, with: guestAccount, control: false)
        try await eventually("the end") { own.state.withLock { $0.ended }?.code == .notAllowed }
        let seen = own.count
        let shown = watching.withLock { $0 }
        let third = PlaybackScreen().player(owner, of: cam)
        try await third.play(at: recording.start)
        try await eventually("the live picture goes on") { watching.withLock { $0 } > shown + 20 }
        #expect(own.count == seen)
        await third.stop()
        #expect(screen.state.withLock { $0.ended } == nil)
        await player.stop()
    }

    @Test("On lines of 0, 300 and 1,000 ms, a playback begins, is paused, goes to another time and loses no frame")
    func longLines() async throws {
        try await LongLines.with(base: 31_870) { lines in
            let home = try await PlaybackHome(lines.cluster, seconds: 20, ports: lines.ports)
            defer { home.close() }
            for milliseconds in [0, 300, 1000] {
                lines.set(milliseconds)
                let screen = PlaybackScreen()
                let player = screen.player(home.app)
                try await player.play(at: home.recording.start + 2)
                try await eventually("frames") { screen.pictures.count > 12 }
                try await player.pause()
                try await player.seek(to: home.recording.start + 14)
                screen.forget()
                try await player.resume()
                try await eventually("the end") { screen.state.withLock { $0.finished } == 1 }
                #expect(screen.state.withLock { $0.lost } == 0, "\(milliseconds) ms")
                let last = home.sent.last { $0.header.track == 0 }?.payload
                #expect(screen.pictures.last?.payload == last, "\(milliseconds) ms")
                await player.stop()
            }
        }
    }

    @Test("Verbs of the program record, list and play")
    func verbs() async throws {
        let cluster = try Self.cluster()
        let folder = cluster.file("records")
        let camera = try cluster.start(
            "device", "--id", "verbs-cam", "--test-pattern", "160x120@10", "--node", "1", "--recordings", folder)
        defer { camera.end() }
        struct List: Decodable {
            struct Entry: Decodable { var seconds: Double }
            var recordings: [Entry]
        }
        try await eventually("six seconds") {
            let run = try cluster.run("recordings", "verbs-cam", "--json")
            let list = try? JSONDecoder().decode(List.self, from: Data(run.output.utf8))
            return (list?.recordings.first?.seconds ?? 0) > 6
        }
        // What is still being recorded is played as far as it goes, with the later parts.
        let played = try cluster.run(
            "watch", "verbs-cam", "--at=-4", "--node", "3", "--record", cluster.file("played.mp4"), "--seconds", "6",
            "--json"
        )
        #expect(played.status == 0, "\(played.all)")
        struct Report: Decodable { var frames: Int }
        let report = try JSONDecoder().decode(Report.self, from: Data(played.output.utf8))
        #expect(report.frames > 60, "\(played.output)")
        let none = try cluster.run("watch", "verbs-cam", "--at", "2200-01-01T00:00:00Z", "--seconds", "20")
        #expect(none.status != 0 && none.all.contains("21032"), "\(none.all)")
    }
}

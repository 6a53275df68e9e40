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
    static let cam = DeviceID(unchecked: "cam")

    /// Twelve seconds, ten pictures a second and a key frame each second, that ended a minute before now.
    static func recorded(_ folder: Folder, seconds: UInt64 = 12) async throws -> (RecordingFolder, [MediaFrame]) {
        var pattern = try TestPattern(width: 64, height: 64, frameRate: 10)
        pattern.keyIntervalSeconds = 1
        let frames = try await TestPatternSource(pattern, frameCountMax: seconds * 10, isPaced: false)
            .allFrames(byteCountMax: 64 << 20)
        var limits = RecordingFolder.Limits()
        limits.fileDuration = .seconds(4)
        let records = try RecordingFolder(
            path: folder.file("records"), limits: limits, log: ClientSession.loggingDisabled)
        let writer = try RecordingWriter(records)
        let start = Int64(Date().timeIntervalSince1970 * 1000) - 60_000 - Int64(seconds) * 1000
        for var frame in frames {
            frame.header.captureMilliseconds = UInt32(
                truncatingIfNeeded: start + frame.header.ptsMicroseconds / 1000)
            writer.write(frame)
        }
        writer.finish()
        return (records, frames.filter { !$0.header.flags.contains(.configuration) })
    }

    /// A camera whose recordings can be played.
    final class Camera: Sendable {
        let session: ClientSession
        let playbacks: DevicePlaybacks
        private let work: Task<Void, Never>

        init(
            _ cluster: Cluster, _ records: RecordingFolder, limits: PlaybackTable.Limits = PlaybackTable.Limits(),
            node: Int = 1
        ) throws {
            session = try cluster.session(
                node: node, token: try cluster.token("--role", "device", "--device", cam.rawValue), role: .device)
            let log = ClientSession.loggingDisabled
            let commands = DeviceCommands(session: session, log: log)
            playbacks = DevicePlaybacks(
                session: session, commands: commands, store: records, limits: limits, log: log)
            work = Task { [playbacks] in
                await withDiscardingTaskGroup { group in
                    group.addTask { _ = try? await commands.run() }
                    group.addTask { await playbacks.run() }
                }
            }
        }

        func close() {
            work.cancel()
            session.close()
        }
    }

    /// What a player received.
    final class Screen: Sendable {
        struct State: Sendable {
            var frames: [MediaFrame] = []
            var finished = 0
            var ended: ApusError?
            var lost = 0
            var last: FramePosition?
        }
        let state = Mutex(State())

        func player(_ session: ClientSession) -> PlaybackPlayer {
            PlaybackPlayer(
                session: session, device: cam,
                onFrame: { [self] frame in
                    state.withLock { state in
                        if frame.header.flags.contains(.repeated) { return }
                        if let last = state.last, last.epoch == frame.header.position.epoch,
                            frame.header.position.sequence != last.sequence + 1
                        {
                            state.lost += 1
                        }
                        state.last = frame.header.position
                        if !frame.header.flags.contains(.configuration) { state.frames.append(frame) }
                    }
                },
                onEvent: { [self] event in
                    state.withLock { state in
                        switch event {
                        case .finished: state.finished += 1
                        case .ended(let error): state.ended = error
                        case .live, .waiting, .skipped, .began: break
                        }
                    }
                })
        }

        var pictures: [MediaFrame] { state.withLock { $0.frames.filter { $0.header.track == 0 } } }
        var count: Int { state.withLock { $0.frames.count } }

        func forget() { state.withLock { $0.frames = [] } }
    }

    @Test(
        "A recording is listed, and played from a time on to its end; it is paused, resumed and played from elsewhere")
    func plays() async throws {
        let folder = Folder()
        let (records, sent) = try await Self.recorded(folder)
        let cluster = try Cluster(nodes: 3, basePort: 31_420)
        defer { cluster.down() }
        let camera = try Camera(cluster, records)
        let app = try cluster.session(node: 2, token: try cluster.token("--role", "app"))
        defer {
            camera.close()
            app.close()
        }
        let now = Date()
        let found = try await eventually { () throws(ApusError) in
            try await app.recordings(of: Self.cam, from: now - 3600, to: now)
        }
        let recording = try #require(found.first)
        #expect(found.count == 1 && abs(recording.duration - 12) < 0.5)
        #expect(try await app.recordings(of: Self.cam, from: now - 30, to: now).isEmpty)
        #expect(try await app.recordings(of: Self.cam, source: 4, from: now - 3600, to: now).isEmpty)

        let screen = Screen()
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
        _ player: PlaybackPlayer, _ screen: Screen, _ recording: Recording
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
        let folder = Folder()
        let (records, sent) = try await Self.recorded(folder, seconds: 30)
        let cluster = try Cluster(nodes: 3, basePort: 31_460)
        defer { cluster.down() }
        let camera = try Camera(cluster, records)
        let app = try cluster.session(node: 2, token: try cluster.token("--role", "app"))
        defer {
            camera.close()
            app.close()
        }
        let recording = try #require(
            try await eventually { () throws(ApusError) in
                try await app.recordings(of: Self.cam, from: Date() - 3600, to: Date())
            }.first)
        let (screen, file) = (Screen(), folder.file("played.mp4"))
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

    @Test("Only who may control the device plays its recordings; a guest that may watch it does not (8003, 12004)")
    func rights() async throws {
        let folder = Folder()
        let (records, _) = try await Self.recorded(folder)
        let cluster = try Cluster(nodes: 3, basePort: 31_500)
        defer { cluster.down() }
        let camera = try Camera(cluster, records)
        let owner = try cluster.session(node: 2, token: try cluster.token("--role", "app"))
        let guestAccount = AccountID(unchecked: "guests")
        let guest = try cluster.session(
            node: 3, token: try cluster.token("--role", "app", "--account", guestAccount.rawValue))
        let agent = DeviceAgent(
            session: camera.session, source: TestPatternSource(try TestPattern(width: 64, height: 64, frameRate: 10)),
            log: ClientSession.loggingDisabled)
        let live = Task { try? await agent.run() }
        defer {
            live.cancel()
            camera.close()
            for session in [owner, guest] { session.close() }
        }
        let recording = try #require(
            try await eventually { () throws(ApusError) in
                try await owner.recordings(of: Self.cam, from: Date() - 3600, to: Date())
            }.first)
        let screen = Screen()
        let player = screen.player(owner)
        try await player.play(at: recording.start)
        for (rights, code) in [(false, ErrorCode.illegalRelation), (true, .notAllowed)] {
            if rights { try await owner.share(Self.cam, with: guestAccount, control: false) }
            await fails(code) { () throws(ApusError) in
                _ = try await guest.recordings(of: Self.cam, from: Date() - 3600, to: Date())
            }
            // The stream of the owner's playback, whose number the guest can guess.
            let ended = Mutex<ApusError?>(nil)
            let seen = Mutex(0)
            let thief = Player(
                session: guest, device: Self.cam, source: DevicePlaybacks.sourceMin,
                onFrame: { _ in seen.withLock { $0 += 1 } },
                onEvent: { event in if case .ended(let error) = event { ended.withLock { $0 = error } } })
            thief.start()
            try await eventually("the refusal") { ended.withLock { $0 } != nil }
            #expect(ended.withLock { $0 }?.code == code && seen.withLock { $0 } == 0)
        }
        // With the live picture, which it may watch, nothing of this changes; with control it may.
        let watching = Mutex(0)
        let watcher = Player(
            session: guest, device: Self.cam, onFrame: { _ in watching.withLock { $0 += 1 } }, onEvent: { _ in })
        watcher.start()
        try await eventually("the live picture") { watching.withLock { $0 } > 5 }
        try await owner.share(Self.cam, with: guestAccount, control: true)
        let (own, second) = (Screen(), guest)
        let theirs = own.player(second)
        try await eventually { () throws(ApusError) in try await theirs.play(at: recording.start) }
        try await eventually("its frames") { own.count > 5 }
        // Without control, but still allowed to watch: the playback ends, and those of others later are not seen.
        try await owner.share(Self.cam, with: guestAccount, control: false)
        try await eventually("the end") { own.state.withLock { $0.ended }?.code == .notAllowed }
        let seen = own.count
        let shown = watching.withLock { $0 }
        let third = Screen().player(owner)
        try await third.play(at: recording.start)
        try await eventually("the live picture goes on") { watching.withLock { $0 } > shown + 20 }
        #expect(own.count == seen)
        await third.stop()
        #expect(screen.state.withLock { $0.ended } == nil)
        await player.stop()
    }

    @Test("Verbs of the program record, list and play")
    func verbs() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 31_540)
        defer { cluster.down() }
        let folder = cluster.file("records")
        try cluster.start(
            "device", "--id", "cam", "--test-pattern", "160x120@10", "--node", "1", "--recordings", folder)
        struct List: Decodable {
            struct Entry: Decodable { var seconds: Double }
            var recordings: [Entry]
        }
        try await eventually("six seconds") {
            let run = try cluster.run("recordings", "cam", "--json")
            let list = try? JSONDecoder().decode(List.self, from: Data(run.output.utf8))
            return (list?.recordings.first?.seconds ?? 0) > 6
        }
        // What is still being recorded is played as far as it goes, with the later parts.
        let played = try cluster.run(
            "watch", "cam", "--at=-4", "--node", "3", "--record", cluster.file("played.mp4"), "--seconds", "6", "--json"
        )
        #expect(played.status == 0, "\(played.all)")
        struct Report: Decodable { var frames: Int }
        let report = try JSONDecoder().decode(Report.self, from: Data(played.output.utf8))
        #expect(report.frames > 60, "\(played.output)")
        let none = try cluster.run("watch", "cam", "--at", "2200-01-01T00:00:00Z", "--seconds", "20")
        #expect(none.status != 0 && none.all.contains("21032"), "\(none.all)")
    }
}

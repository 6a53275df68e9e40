import ApusClient
import ApusContract
import ApusCore
import ApusMedia
import ApusTestKit
import Foundation
import Testing

@Suite("Media of calls across nodes (CALL-13, CALL-16, IV-C8)", .serialized, .timeLimit(.minutes(3)))
struct CallMediaTests {
    private static let bell = DeviceID(unchecked: "bell")

    /// The sound of both sides, and libav's names of the two codecs.
    struct SoundPair: Sendable {
        var door: String
        var phone: String
        var names: [String]
        var basePort: Int
    }

    /// A call that was accepted, and both its sides.
    private func accepted(
        _ app: CallClient, _ bell: CallClient, extra: String = ""
    ) async throws -> (call: String, app: CallSide, bell: CallSide) {
        let call = try await app.start([.device(Self.bell)], extra: extra).id
        _ = try await bell.next(call) { if case .ring = $0.stage { true } else { false } }
        try await bell.session.acceptCall(call)
        _ = try await app.next(call) { $0.stage == .accepted }
        return (
            call, CallSide(app.session, call: call, name: "app"), CallSide(bell.session, call: call, name: "bell")
        )
    }

    @Test("Each side receives all frames of the other and none of its own, until the call ends with −2508 for both")
    func bothDirections() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 32_470)
        defer { cluster.down() }
        let (bell, app) = try await CallClient.pair(cluster)
        let tablet = try await CallClient(cluster, 3, access: "tablet").ready()
        let other = try await CallClient(cluster, 3, access: "other", account: "other").ready()
        defer { for client in [bell, app, tablet, other] { client.close() } }

        // Before the accept nobody has media.
        let early = try await app.ring(bell)
        let tooEarly = CallSide(app.session, call: early, name: "early")
        let refused = try await tooEarly.ends(within: .seconds(5))
        #expect(refused.publisher?.code == .callParametersInvalid && refused.player?.code == .callParametersInvalid)
        try await app.session.hangUpCall(early)
        _ = try await bell.end(early)

        let (call, appSide, bellSide) = try await accepted(app, bell)
        // Who has no part in it has no media of it: another app of the account, another account, a device of the name.
        for (client, code) in [(tablet, ErrorCode.answeredByOthers), (other, .illegalRelation)] {
            let side = CallSide(client.session, call: call, name: "thief")
            let ends = try await side.ends(within: .seconds(5))
            #expect(ends.publisher?.code == code && ends.player?.code == code, "\(ends)")
        }
        await fails(.targetUnknown) { () throws(ApusError) in
            _ = try await tablet.session.readProperty(of: DeviceID(unchecked: "call.\(call)"))
        }
        let token = try cluster.token("--role", "device", "--device", "call.\(call)")
        let ends = SessionEnds()
        let pretender = try cluster.session(node: 1, token: token, role: .device, ends: ends)
        defer { pretender.close() }
        #expect(try await ends.isEnded(by: .tokenInvalid))

        async let sending: Void = appSide.send(100)
        try await bellSide.send(100)
        try await sending
        try await eventually { () throws(ApusError) in
            guard appSide.received.count >= 100, bellSide.received.count >= 100 else { throw ApusError(.noRoute) }
        }
        #expect(appSide.received.lostCount == 0 && bellSide.received.lostCount == 0)
        #expect(appSide.received.senders == ["bell"] && bellSide.received.senders == ["app"])

        // Long frames that are on their way when the call ends do not end the connection of the app.
        async let last: Void = appSide.send(25)
        try await bell.session.hangUpCall(call)
        for side in [appSide, bellSide] {
            let ends = try await side.ends(within: .seconds(1))
            #expect(ends.publisher?.code == .callUnknown && ends.player?.code == .callUnknown, "\(ends)")
        }
        try await last
        _ = try await app.session.ask(ClientListCallsRequest())
        let late = CallSide(app.session, call: call, name: "late")
        let lateEnds = try await late.ends(within: .seconds(5))
        #expect(lateEnds.publisher?.code == .callUnknown && lateEnds.player?.code == .callUnknown)
    }

    /// The frames have 40 Mb/s in each direction. Beside other jobs, viewers lag by more than `channels.lag_bytes_max`
    /// and are moved forward, so this test runs alone.
    @Test("Both directions go on without a lost frame when any node is killed")
    func kills() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 32_500)
        defer { cluster.down() }
        let (bell, app) = try await CallClient.pair(cluster)
        defer { for client in [bell, app] { client.close() } }
        let (call, appSide, bellSide) = try await accepted(app, bell)
        async let sending: Void = appSide.send(900)
        async let sendingBack: Void = bellSide.send(900)
        for node in [3, 1, 2] {
            try await Task.sleep(for: .seconds(1))
            #expect(try cluster.run("cluster", "kill", "\(node)").status == 0)
            try await Task.sleep(for: .seconds(2))
            #expect(try cluster.run("cluster", "restart", "\(node)").status == 0)
        }
        try await sending
        try await sendingBack
        try await eventually { () throws(ApusError) in
            let (app, bell) = (appSide.received.count, bellSide.received.count)
            guard app >= 900, bell >= 900 else {
                throw ApusError(.deadlineExceeded, "of 900 frames, the app has \(app) and the bell \(bell)")
            }
        }
        #expect(appSide.received.lostCount == 0 && bellSide.received.lostCount == 0)
        #expect(appSide.received.count == 900 && bellSide.received.count == 900)
        try await eventually { () throws(ApusError) in try await app.session.hangUpCall(call) }
        let ends = try await bellSide.ends(within: .seconds(5))
        #expect(ends.publisher?.code == .callUnknown && ends.player?.code == .callUnknown)
    }

    @Test("After a hang-up with keepConnect the media go on for their time, and end then (CALL-16)")
    func keepConnect() async throws {
        let cluster = try Cluster(
            nodes: 3, basePort: 32_530, environment: ["APUS_CALLS_KEEP_CONNECT_TIME": "3s"])
        defer { cluster.down() }
        let (bell, app) = try await CallClient.pair(cluster)
        defer { for client in [bell, app] { client.close() } }
        let (call, appSide, bellSide) = try await accepted(app, bell, extra: #"{"keepConnect":true}"#)
        try await appSide.send(10)
        try await app.session.hangUpCall(call)
        #expect(try await bell.end(call)?.code == .peerHungUp)
        try await appSide.send(50)
        #expect(bellSide.received.count > 40)
        let running = try await appSide.ends(within: .milliseconds(10))
        #expect(running.publisher == nil && running.player == nil)
        let ends = try await appSide.ends(within: .seconds(6))
        #expect(ends.publisher?.code == .callUnknown && ends.player?.code == .callUnknown, "\(ends)")
    }

    @Test(
        "A guest that loses its right to the device loses the media of the call within a second, and the call (IV-B10)")
    func lostRight() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 32_440)
        defer { cluster.down() }
        let bell = try await CallClient(cluster, 1, device: "bell").ready()
        let owner = try await CallClient(cluster, 2, access: "phone").ready()
        let guest = try await CallClient(cluster, 3, access: "guest", account: "guests").ready()
        defer { for client in [bell, owner, guest] { client.close() } }
        let guests = AccountID(unchecked: "guests")
        try await owner.session.share(Self.bell, with: guests, control: true, acceptedBy: guest.session)
        let (call, guestSide, bellSide) = try await accepted(guest, bell)
        async let sending: Void = bellSide.send(250)
        try await Task.sleep(for: .seconds(1))
        try await owner.session.unshare(Self.bell, with: guests)
        try await Task.sleep(for: .seconds(1))
        let count = guestSide.received.count
        #expect(count > 20)
        try await sending
        #expect(guestSide.received.count == count, "frames have arrived after the right was lost")
        let ends = try await guestSide.ends(within: .seconds(10))
        #expect(ends.publisher?.code == .illegalRelation && ends.player?.code == .illegalRelation, "\(ends)")
        // The call has ended for that reason, also for media that are opened later.
        let late = try await CallSide(guest.session, call: call, name: "late").ends(within: .seconds(5))
        #expect(late.publisher?.code == .illegalRelation && late.player?.code == .illegalRelation, "\(late)")
        // The device is free again for its owner.
        #expect(try await bell.end(call)?.code == .mediaDisconnected)
        try await owner.session.hangUpCall(try await owner.ring(bell))
    }

    @Test(
        "A picture of up to 8 MiB arrives whole; a larger one ends its stream with 21024, and nothing else (IV-F1)"
    )
    func tooLarge() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 32_350)
        defer { cluster.down() }
        let (bell, app) = try await CallClient.pair(cluster)
        defer { for client in [bell, app] { client.close() } }
        let (call, appSide, bellSide) = try await accepted(app, bell)
        appSide.send(byteCount: MediaFrame.payloadByteCountMax)
        appSide.send(byteCount: MediaFrame.joinedByteCountMax)
        try await eventually { () throws(ApusError) in
            guard bellSide.received.count == 2 else { throw ApusError(.noRoute) }
        }
        for _ in 0..<3 { appSide.send(byteCount: MediaFrame.joinedByteCountMax + 1) }
        let ends = try await appSide.ends(within: .seconds(1))
        #expect(ends.publisher?.code == .packageTooLarge && ends.player == nil, "\(ends)")
        try await bellSide.send(20)
        try await eventually { () throws(ApusError) in
            guard appSide.received.count == 20 else { throw ApusError(.noRoute) }
        }
        try await app.session.hangUpCall(call)
    }

    /// The times of a recording's packets, by the kind of their track, in seconds.
    private func packets(_ path: String) throws -> [String: [Double]] {
        let tool = try #require(Tool.ffprobe)
        let entries = ["-v", "error", "-show_entries", "packet=codec_type,pts_time", "-of", "csv=p=0", path]
        let text = try #require(Tool.run(tool, entries), "ffprobe cannot read \(path)")
        var times: [String: [Double]] = [:]
        for line in text.split(separator: "\n") {
            let fields = line.split(separator: ",")
            guard fields.count >= 2, let time = Double(fields[1]) else { continue }
            times[String(fields[0]), default: []].append(time)
        }
        return times
    }

    @Test(
        "Two agents with a clip each: both recordings have all frames of the other side, also when a node dies (IV-C8)",
        .enabled(if: Tool.ffmpeg != nil && Tool.ffprobe != nil))
    func agents() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 32_290)
        defer { cluster.down() }
        let ffmpeg = try #require(Tool.ffmpeg)
        for (name, tone) in [("door", "440"), ("phone", "880")] {
            let made = Tool.run(
                ffmpeg,
                [
                    "-v", "error", "-f", "lavfi", "-i", "testsrc=size=320x240:rate=25", "-f", "lavfi", "-i",
                    "sine=frequency=\(tone)", "-t", "30", "-c:v", "libx264", "-preset", "ultrafast", "-g", "25", "-bf",
                    "0", "-pix_fmt", "yuv420p", "-c:a", "aac", cluster.file("\(name)-clip.mp4"),
                ])
            try #require(made != nil, "ffmpeg cannot make a clip")
        }
        func media(_ name: String) -> [String] {
            [
                "--file", cluster.file("\(name)-clip.mp4"), "--record", cluster.file("\(name).mp4"), "--log",
                cluster.file("\(name).log"), "--json",
            ]
        }
        let door = try cluster.start(
            ["answer", "bell", "--node", "1", "--count", "1"] + media("door"), output: cluster.file("door.out"),
            errors: cluster.file("door.err"))
        try await Task.sleep(for: .seconds(2))
        let phone = try cluster.start(
            ["call", "bell", "--node", "2", "--hang-up-after", "8"] + media("phone"), output: cluster.file("phone.out"),
            errors: cluster.file("phone.err"))
        try await Task.sleep(for: .seconds(4))
        #expect(try cluster.run("cluster", "kill", "3").status == 0)
        for process in [phone, door] { process.waitUntilExit() }
        for name in ["door", "phone"] {
            let said = Cluster.text(cluster.file("\(name).out")) + Cluster.text(cluster.file("\(name).err"))
            #expect(said.contains("\"event\":\"media\""), "\(said)")
            let log = Frames(cluster.file("\(name).log"))
            #expect(log.lines.count > 300 && log.lostCount == 0, "\(log.lines.count) frames, \(log.lostCount) lost")
            let times = try packets(cluster.file("\(name).mp4"))
            let (video, audio) = (times["video"] ?? [], times["audio"] ?? [])
            #expect(
                video.count + audio.count == log.lines.count(where: { $0.bytes > 0 }), "\(times.mapValues(\.count))")
            #expect(video.count > 150 && audio.count > 150)
            // Both tracks end together: they are in step.
            #expect(abs((video.last ?? 0) - (audio.last ?? 99)) < 0.1)
        }
    }

    @Test(
        "Each side chooses the codec of its sound, and the other plays it from the header (IV-C7, IV-C9, IV-G4)",
        .enabled(if: Tool.ffmpeg != nil && Tool.ffprobe != nil),
        arguments: [
            SoundPair(door: "g711a", phone: "opus", names: ["pcm_alaw", "opus"], basePort: 32_320),
            SoundPair(door: "amrNarrow", phone: "amrWide", names: ["amr_nb", "amr_wb"], basePort: 27_500),
            SoundPair(door: "amrWide", phone: "amrNarrow", names: ["amr_wb", "amr_nb"], basePort: 27_540),
        ])
    func codecs(pair: SoundPair) async throws {
        let cluster = try Cluster(nodes: 3, basePort: pair.basePort)
        defer { cluster.down() }
        let ffmpeg = try #require(Tool.ffmpeg)
        let made = Tool.run(
            ffmpeg,
            [
                "-v", "error", "-f", "lavfi", "-i", "sine=frequency=880:sample_rate=16000", "-t", "3",
                cluster.file("door.wav"),
            ])
        try #require(made != nil, "ffmpeg cannot make a file")
        // A door without a camera, and a phone with one.
        let door = try cluster.start(
            [
                "answer", "bell", "--node", "1", "--count", "1", "--wav", cluster.file("door.wav"), "--sound",
                pair.door, "--play-wav", cluster.file("from-phone.wav"), "--play-y4m", cluster.file("from-phone.y4m"),
                "--record", cluster.file("from-phone.mp4"), "--json",
            ], output: cluster.file("door.out"), errors: cluster.file("door.err"))
        try await Task.sleep(for: .seconds(2))
        let phone = try cluster.start(
            [
                "call", "bell", "--node", "2", "--hang-up-after", "8", "--test-pattern", "160x120@25", "--sound",
                pair.phone, "--play-wav", cluster.file("from-door.wav"), "--record", cluster.file("from-door.mp4"),
                "--json",
            ], output: cluster.file("phone.out"), errors: cluster.file("phone.err"))
        for process in [phone, door] { process.waitUntilExit() }
        let said = Cluster.text(cluster.file("phone.out")) + Cluster.text(cluster.file("phone.err"))
        for step in ["ring_ms", "accept_ms", "granted_ms", "header_ms", "first_frame_ms"] {
            #expect(said.contains("\"\(step)\":"), "\(step) is missing in \(said)")
        }
        // The tones that the other side plays, by their zero crossings.
        for (name, hertz, codec) in [("from-door", 880.0, pair.names[0]), ("from-phone", 440.0, pair.names[1])] {
            let entries = [
                "-v", "error", "-select_streams", "a", "-show_entries", "stream=codec_name", "-of", "csv=p=0",
            ]
            let recorded = Tool.run(try #require(Tool.ffprobe), entries + [cluster.file("\(name).mp4")])
            #expect(recorded?.split(separator: "\n") == [codec[...]], "\(recorded ?? "nothing") \(name)")
            let bytes = try Data(contentsOf: URL(fileURLWithPath: cluster.file("\(name).wav"))).dropFirst(44)
            let samples = bytes.withUnsafeBytes { Array($0.bindMemory(to: Int16.self)) }
            #expect(samples.count > 3 * 48_000, "\(samples.count) samples, \(said)")
            let inner = samples.dropFirst(24_000).prefix(96_000)
            let crossings = zip(inner, inner.dropFirst()).count { $0 < 0 && $1 >= 0 }
            #expect(abs(Double(crossings) / 2 - hertz) < hertz * 0.03, "\(name): \(crossings) crossings in 2 s")
        }
        let pictures = try Data(contentsOf: URL(fileURLWithPath: cluster.file("from-phone.y4m")))
        #expect(pictures.starts(with: Data("YUV4MPEG2 W160 H120 ".utf8)))
        #expect(pictures.count > 75 * Picture.byteCount(width: 160, height: 120))
    }
}

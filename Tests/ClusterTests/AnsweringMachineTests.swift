import ApusClient
import ApusContract
import ApusCore
import ApusDevice
import ApusMedia
import ApusTestKit
import Foundation
import Logging
import NIOCore
import SwiftProtobuf
import Synchronization
import Testing

@Suite("Answering machines across nodes (CALL-6, CALL-8, CALL-13)", .serialized, .timeLimit(.minutes(3)))
struct AnsweringMachineTests {
    /// The cluster of the tests that end and configure no node. Each of them has accounts and devices of its own.
    private static func cluster() throws -> Cluster { try SharedCluster.cluster(basePort: 24_320) }

    /// A clip of 4 seconds with H.264 and AAC.
    private static func clip(_ cluster: Cluster, _ name: String, seconds: Int = 4) throws -> String {
        let (ffmpeg, path) = (try #require(Tool.ffmpeg), cluster.file("\(name).mp4"))
        let made = Tool.run(
            ffmpeg,
            [
                "-v", "error", "-f", "lavfi", "-i", "testsrc=size=320x240:rate=25", "-f", "lavfi", "-i",
                "sine=frequency=440", "-t", "\(seconds)", "-c:v", "libx264", "-preset", "ultrafast", "-g", "25", "-bf",
                "0", "-pix_fmt", "yuv420p", "-c:a", "aac", path,
            ])
        try #require(made != nil, "ffmpeg cannot make a clip")
        return path
    }

    /// The hashes of a file's packets, by the kind of their track.
    private static func packets(_ path: String) throws -> [String: [Substring]] {
        let entries = [
            "-v", "error", "-show_data_hash", "MD5", "-show_entries", "packet=codec_type,data_hash", "-of", "csv=p=0",
            path,
        ]
        let tool = try #require(Tool.ffprobe)
        let text = try #require(Tool.run(tool, entries), "ffprobe cannot read \(path)")
        var hashes: [String: [Substring]] = [:]
        for line in text.split(separator: "\n") {
            let fields = line.split(separator: ",")
            if fields.count >= 2 { hashes[String(fields[0]), default: []].append(fields[1]) }
        }
        return hashes
    }

    /// Whether the packets are a run of the looped clip's packets, without one that is missing or comes twice.
    private static func isRun(_ found: [Substring], of clip: [Substring]) -> Bool {
        guard let first = found.first, let start = clip.firstIndex(of: first) else { return false }
        return found.enumerated().allSatisfy { $0.element == clip[(start + $0.offset) % clip.count] }
    }

    /// Publishes the file in the call until the task is cancelled or the call ends.
    private static func publish(_ file: String, in call: String, of client: CallClient) -> Task<Void, Never> {
        Task {
            let log = Logger(label: "test")
            let agent = DeviceAgent(
                session: client.session, source: FileSource(path: file, log: log), call: call, log: log)
            try? await agent.run()
        }
    }

    private static func messages(
        _ client: CallClient, count: Int
    ) async throws -> [ClientSession.CallMessage] {
        try await eventually { () throws(ApusError) in
            let found = try await client.session.callMessages()
            guard found.count == count else { throw ApusError(.noRoute, "\(found.count) messages") }
            return found
        }
    }

    @Test(
        "A visitor leaves a message while the recorder's node dies or stops: every packet is in it, once (CALL-13)",
        .enabled(if: Tool.ffmpeg != nil && Tool.ffprobe != nil), arguments: ["kill", "restart"])
    func otherRecorder(verb: String) async throws {
        let cluster = try Cluster(nodes: 3, basePort: 31_250)
        defer { cluster.down() }
        let clip = try Self.clip(cluster, "door")
        let owner = try cluster.owner(of: "local")
        let others = (1...3).filter { $0 != owner }
        let bell = try await CallClient(cluster, others[0], device: "bell").ready()
        let app = try await CallClient(cluster, others[1], access: "phone").ready()
        defer { for client in [bell, app] { client.close() } }
        let machine = try await app.session.setAnsweringMachine(isEnabled: true, length: .seconds(60))
        #expect(machine.isEnabled && machine.greeting == nil && machine.keepDays == 30)
        let heard = EventLog(app.session.accountEvents(of: AccountID(unchecked: "local")))

        let call = try await bell.start([], timeout: .seconds(5)).id
        _ = try await app.next(call) { if case .ring = $0.stage { true } else { false } }
        let notice = try await bell.next(call) { $0.stage == .message }
        #expect(notice.peer == .account(AccountID(unchecked: "local")))
        #expect(try await app.end(call)?.code == .callTimedOut)
        let sending = Self.publish(clip, in: call, of: bell)
        try await Task.sleep(for: .seconds(3))
        #expect(try cluster.run("cluster", verb, "\(owner)").status == 0)
        try await Task.sleep(for: .seconds(4))
        // While it is being left, nobody sees it, and the account takes other calls.
        #expect(try await app.session.callMessages().isEmpty)
        #expect(!heard.names.contains { $0.hasPrefix("system message") })
        try await eventually { () throws(ApusError) in try await bell.session.hangUpCall(call) }
        sending.cancel()

        let message = try #require(try await Self.messages(app, count: 1).first)
        #expect(message.id == call && message.caller == .device(DeviceID(unchecked: "bell")) && !message.isWatched)
        #expect((6_000...40_000).contains(message.length.milliseconds), "\(message.length)")
        let bytes = try await app.session.readCallMessage(call)
        #expect(UInt64(bytes.count) == message.byteCount)
        let file = cluster.file("message.mp4")
        try Data(bytes).write(to: URL(fileURLWithPath: file))
        let (found, sent) = (try Self.packets(file), try Self.packets(clip))
        for (kind, least) in [("video", 150), ("audio", 250)] {
            let packets = found[kind] ?? []
            #expect(packets.count >= least, "\(kind): \(packets.count)")
            #expect(Self.isRun(packets, of: sent[kind] ?? []), "\(kind): a packet is missing, or comes twice")
        }
        let listed = try cluster.run("calls", "--json")
        #expect(listed.output.contains("message_left"))
        let content = #"{"message":"\#(call)","machine":"","callerDevice":"bell","callerAccount":""}"#
        try await eventually("the account is notified") { heard.names.contains { $0.hasPrefix("system message") } }
        try await Task.sleep(for: .seconds(1))
        #expect(heard.names.filter { $0.hasPrefix("system ") } == ["system message bell \(content)"])
    }

    @Test(
        "A caller hears the greeting; nobody else reads the message; a full machine does not answer (CALL-8)",
        .enabled(if: Tool.ffmpeg != nil))
    func greeting() async throws {
        let cluster = try Cluster(
            nodes: 3, basePort: 31_280, environment: ["APUS_ANSWERING_MESSAGES_MAX": "1"])
        defer { cluster.down() }
        let clip = try Self.clip(cluster, "hello", seconds: 2)
        let bell = try await CallClient(cluster, 1, device: "bell").ready()
        let app = try await CallClient(cluster, 2, access: "phone").ready()
        let other = try await CallClient(cluster, 3, access: "other", account: "other").ready()
        defer { for client in [bell, app, other] { client.close() } }
        let frames = try await FileSource(path: clip, loops: false, isPaced: false, log: Logger(label: "test"))
            .allFrames(byteCountMax: 2 << 20)
        try await app.session.setAnsweringMachine(of: DeviceID(unchecked: "bell"), isEnabled: true)
        await fails(.targetUnknown) { () throws(ApusError) in
            try await other.session.setAnsweringMachine(of: DeviceID(unchecked: "bell"), isEnabled: true)
        }
        try await app.session.setGreeting(of: DeviceID(unchecked: "bell"), frames)
        try await refuseSmallFrames(app, frames)
        try await setLargeGreeting(cluster)
        try await app.session.setGreeting(of: DeviceID(unchecked: "bell"), frames)
        let machine = try await app.session.answeringMachine(of: DeviceID(unchecked: "bell"))
        #expect(machine.isEnabled && (machine.greeting ?? .zero) > .seconds(1.5))
        // The device is away: its machine answers at once.
        bell.close()
        try await Task.sleep(for: .seconds(1))
        let call = try await app.start([.device(DeviceID(unchecked: "bell"))]).id
        _ = try await app.next(call) { $0.stage == .message }
        let heard = Mutex<[[UInt8]]>([])
        let player = Player(
            session: app.session, call: call,
            onFrame: { frame in
                guard frame.header.flags.isDisjoint(with: [.configuration, .repeated, .endOfEpoch]) else { return }
                heard.withLock { $0.append(Array(frame.payload.readableBytesView)) }
            }, onEvent: { _ in })
        player.start()
        let sending = Self.publish(clip, in: call, of: app)
        try await Task.sleep(for: .seconds(4))
        // A live join begins with a key frame.
        let said = frames.drop { !$0.header.flags.contains(.key) }.map { Array($0.payload.readableBytesView) }
        #expect(said.count > 100)
        #expect(heard.withLock { $0 } == said, "\(heard.withLock { $0.count }) of \(said.count) frames")
        try await app.session.hangUpCall(call)
        sending.cancel()
        player.stop()

        let bellID = DeviceID(unchecked: "bell")
        let message = try await eventually { () throws(ApusError) in
            guard let found = try await app.session.callMessages(of: bellID).first else { throw ApusError(.noRoute) }
            return found
        }
        try await app.session.markCallMessage(message.id)
        #expect(try await app.session.callMessages(of: bellID).first?.isWatched == true)
        await fails(.targetUnknown) { () throws(ApusError) in _ = try await other.session.readCallMessage(message.id) }
        await fails(.targetUnknown) { () throws(ApusError) in try await other.session.deleteCallMessage(message.id) }
        await fails(.targetUnknown) { () throws(ApusError) in _ = try await other.session.callMessages(of: bellID) }

        await fails(.targetOffline) { () throws(ApusError) in
            _ = try await app.session.startCall(to: [.device(bellID)])
        }
        let saved = try cluster.run("messages", "save", message.id, cluster.file("saved.mp4"))
        #expect(saved.status == 0, "\(saved.all)")
        #expect(try Data(contentsOf: URL(fileURLWithPath: cluster.file("saved.mp4"))).count == Int(message.byteCount))
        try await app.session.deleteCallMessage(message.id)
        await fails(.targetUnknown) { () throws(ApusError) in _ = try await app.session.readCallMessage(message.id) }
        let next = try await app.start([.device(bellID)]).id
        _ = try await app.next(next) { $0.stage == .message }
        try await app.session.hangUpCall(next)
        #expect(try await app.session.callMessages(of: bellID).isEmpty, "a caller that says nothing leaves no message")
    }

    /// Nearly 1.5 MiB, from the command line, which uses REST.
    private func setLargeGreeting(_ cluster: Cluster) async throws {
        let (ffmpeg, path) = (try #require(Tool.ffmpeg), cluster.file("long.mp4"))
        let made = Tool.run(
            ffmpeg,
            [
                "-v", "error", "-f", "lavfi", "-i", "nullsrc=size=160x120:rate=25,geq=random(1)*255:128:128", "-t",
                "28", "-c:v", "libx264", "-preset", "ultrafast", "-tune", "zerolatency", "-g", "50", "-pix_fmt",
                "yuv420p",
                "-b:v", "410k", "-maxrate", "410k", "-bufsize", "100k", path,
            ])
        try #require(made != nil, "ffmpeg cannot make a clip")
        let size = try #require(try FileManager.default.attributesOfItem(atPath: path)[.size] as? Int)
        try #require((1_250_000..<(3 << 19)).contains(size), "the clip has \(size) bytes")
        let set = try cluster.run("messages", "machine", "--device", "bell", "--greeting", path)
        #expect(set.status == 0 && set.output.contains("27 s"), "\(set.all)")
    }

    /// Small frames, of which 2 MiB could hold tens of thousands.
    private func refuseSmallFrames(_ app: CallClient, _ frames: [MediaFrame]) async throws {
        var small = try #require(frames.last)
        small.payload = ByteBuffer(repeating: 0, count: 16)
        let many = Array(frames.prefix(4)) + Array(repeating: small, count: 8_192)
        await fails(.badParameter) { () throws(ApusError) in
            try await app.session.setGreeting(of: DeviceID(unchecked: "bell"), many)
        }
    }

    @Test("The machine of a called party without a client answers when nobody of the others accepts (CALL-4, CALL-6)")
    func otherParty() async throws {
        let cluster = try Self.cluster()
        let (bell, app) = try await CallClient.pair(cluster, device: "party-bell", account: "party")
        let gate = try await CallClient(cluster, 3, device: "party-gate", account: "party").ready()
        defer { for client in [bell, app] { client.close() } }
        try await app.session.setAnsweringMachine(of: DeviceID(unchecked: "party-gate"), isEnabled: true)
        gate.close()
        try await Task.sleep(for: .seconds(1))
        let targets = ["party-bell", "party-gate"].map { ClientSession.CallParty.device(DeviceID(unchecked: $0)) }
        let call = try await app.start(targets, type: .oneToMany, timeout: .seconds(5)).id
        _ = try await bell.next(call) { if case .ring = $0.stage { true } else { false } }
        let notice = try await app.next(call) { $0.stage == .message }
        #expect(notice.peer == .device(DeviceID(unchecked: "party-gate")))
        #expect(try await bell.end(call)?.code == .callTimedOut)
        try await app.session.hangUpCall(call)

        let answered = try await app.start(targets, type: .oneToMany, timeout: .seconds(5)).id
        _ = try await bell.next(answered) { if case .ring = $0.stage { true } else { false } }
        try await bell.session.acceptCall(answered)
        _ = try await app.next(answered) { $0.stage == .accepted }
        try await app.session.hangUpCall(answered)
        #expect(try await bell.end(answered)?.code == .peerHungUp)
    }

    /// The calls of a device that the client can list.
    private static func callCount(_ client: CallClient, of device: DeviceID) async throws(ApusError) -> Int {
        try await client.session.ask(ClientListCallsRequest.with { $0.device = device.rawValue }).calls.count
    }

    @Test("A device's next account sees no calls of the one before, and its machine does not answer for it (IV-B8)")
    func nextAccount() async throws {
        let cluster = try Self.cluster()
        let id = DeviceID(unchecked: "bell")
        let (bell, app) = try await CallClient.pair(cluster)
        let other = try await CallClient(cluster, 3, access: "other", account: "other").ready()
        defer { for client in [bell, app, other] { client.close() } }
        try await app.session.setAnsweringMachine(of: id, isEnabled: true, length: .seconds(40))
        let call = try await app.ring(bell)
        try await app.session.hangUpCall(call)
        _ = try await bell.end(call)
        try await eventually { () throws(ApusError) in
            guard try await Self.callCount(app, of: id) == 1 else { throw ApusError(.noRoute) }
        }
        bell.close()
        try await Task.sleep(for: .seconds(1))
        try await app.session.transfer(id, to: AccountID(unchecked: "other"))
        try await eventually { () throws(ApusError) in
            guard try await Self.callCount(other, of: id) == 0 else { throw ApusError(.noRoute) }
        }
        #expect(try await !other.session.answeringMachine(of: id).isEnabled)
        await fails(.targetOffline) { () throws(ApusError) in
            _ = try await other.session.startCall(to: [.device(id)])
        }
        try await other.session.setAnsweringMachine(of: id, isEnabled: true)
        #expect(try await other.session.answeringMachine(of: id).length != .seconds(40))
        let message = try await other.start([.device(id)]).id
        _ = try await other.next(message) { $0.stage == .message }
        try await other.session.hangUpCall(message)
        try await eventually { () throws(ApusError) in
            guard try await Self.callCount(other, of: id) == 1 else { throw ApusError(.noRoute) }
        }
    }
}

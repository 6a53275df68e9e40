import ApusClient
import ApusContract
import ApusCore
import ApusDevice
import ApusTestKit
import Foundation
import Logging
import SwiftProtobuf
import Synchronization
import Testing

@Suite("Dialogs in a cluster (VA-6, VA-7, VA-9, docs/voice.md)", .serialized, .timeLimit(.minutes(4)))
struct DialogTests {
    private static let silent = Logger(label: "test") { _ in SwiftLogNoOpLogHandler() }

    /// What a device has carried out.
    private final class Counts: Sendable {
        private let state = Mutex<[String: Int]>([:])
        func note(_ text: String) { state.withLock { $0[text, default: 0] += 1 } }
        var counts: [String: Int] { state.withLock { $0 } }
    }

    /// A device with a light and a lock, which counts what it carries out.
    final class Device: Sendable {
        let id: DeviceID
        let session: ClientSession
        private let tasks: [Task<Void, Never>]
        private let noted: Counts

        init(_ cluster: Cluster, _ name: String, node: Int, account: String) throws {
            id = DeviceID(unchecked: name)
            let token = try cluster.token("--role", "device", "--device", name, "--account", account)
            session = try cluster.session(node: node, token: token, role: .device)
            let counts = Counts()
            noted = counts
            let settings = DeviceSettings(session: session, device: id, initial: [], log: DialogTests.silent) {
                name, value in
                counts.note("\(name) \(value)")
                return value
            }
            let commands = DeviceCommands(session: session, log: DialogTests.silent)
            commands.onAction("lock") { value throws(ApusError) in
                counts.note("lock \(value)")
                return "0"
            }
            tasks = [
                Task { _ = try? await settings.run() }, Task { _ = try? await commands.run() },
            ]
        }

        var counts: [String: Int] { noted.counts }

        /// The model has the settings that the home names.
        func report() async throws {
            try await eventually { [session] () throws(ApusError) in
                try await session.reportProperty(path: "ProWritable.power.setVal", json: "0")
                try await session.reportProperty(path: "ProReadonly.locked.stVal", json: "1")
            }
        }

        func end() {
            for task in tasks { task.cancel() }
            session.close()
        }
    }

    /// A home with one lamp and one lock, both of one device.
    static func home(_ device: String) -> ClientVoiceHome {
        .with {
            $0.areas = [.with { ($0.id, $0.names) = ("hall", ["hall"]) }]
            $0.devices = [
                .with {
                    ($0.id, $0.device, $0.names, $0.kind, $0.area) = ("lamp", device, ["hall lamp"], "light", "hall")
                    $0.controls = [
                        .with {
                            ($0.what, $0.path, $0.onJson, $0.offJson) = ("power", "ProWritable.power", "1", "0")
                        }
                    ]
                },
                .with {
                    ($0.id, $0.device, $0.names, $0.kind, $0.area) = ("door", device, ["front door"], "lock", "hall")
                    $0.controls = [
                        .with {
                            ($0.what, $0.path, $0.statePath) = ("lock", "Action.lock", "ProReadonly.locked")
                            ($0.onJson, $0.offJson) = ("1", "0")
                        }
                    ]
                },
            ]
        }
    }

    static func app(_ cluster: Cluster, node: Int, account: String) throws -> ClientSession {
        try cluster.session(node: node, token: try cluster.token("--role", "app", "--account", account))
    }

    @Test(
        "A sentence changes a device at another node, the reply is what the device has confirmed, and apps hear of it")
    func threeNodes() async throws {
        let cluster = try SharedCluster.cluster(basePort: 24_520)
        let device = try Device(cluster, "voice-cam", node: 1, account: "voice")
        let app = try Self.app(cluster, node: 2, account: "voice")
        defer {
            device.end()
            app.close()
        }
        try await device.report()
        try await eventually { () throws(ApusError) in try await app.setVoiceHome(Self.home("voice-cam")) }
        let heard = Mutex<[ClientDialogPhase]>([])
        let changes = app.dialogChanges(of: device.id)
        let hearing = Task { for try await event in changes { heard.withLock { $0 += event.message.phases } } }
        defer { hearing.cancel() }

        let on = try await app.say("turn on the hall lamp", to: device.id)
        #expect(on.reply == "The hall lamp is on." && on.outcome == .done, "\(on)")
        #expect(on.steps.map(\.result) == [.done] && device.counts["power 1"] == 1)
        let again = try await app.say("turn on the hall lamp", to: device.id)
        #expect(again.reply == "The hall lamp is already on.", "\(again)")
        let state = try await app.say("is the front door locked", to: device.id)
        #expect(state.reply == "Yes, the front door is locked.", "\(state)")

        let asked = try await app.say("unlock the front door", to: device.id)
        #expect(asked.reply == "Shall I unlock the front door?" && asked.outcome == .asked)
        #expect(device.counts["lock 0"] == nil, "nothing is unlocked without a yes")
        let yes = try await app.say("yes", to: device.id)
        #expect(yes.reply == "The front door is unlocked." && device.counts["lock 0"] == 1, "\(yes)")
        let late = try await app.say("yes", to: device.id)
        #expect(late.outcome == .refused && device.counts["lock 0"] == 1)

        // The device itself hears, and a repetition does nothing more.
        let id = String(repeating: "ab", count: 16)
        for _ in 0..<2 {
            let own = try await device.session.say("turn off the hall lamp", to: device.id, id: id)
            #expect(own.reply == "The hall lamp is off.", "\(own)")
        }
        #expect(device.counts["power 0"] == 1)
        await fails(.duplicateMessage) { () throws(ApusError) in
            _ = try await app.say("turn on the hall lamp", to: device.id, id: id)
        }
        let timer = try await app.say("set a timer for ten minutes", to: device.id)
        #expect(timer.reply == "10 minutes, starting now.", "\(timer)")
        #expect(try await app.timers(of: device.id).map(\.duration) == [.seconds(600)])
        let cancelled = try await device.session.say("cancel the timer", to: device.id)
        #expect(cancelled.reply == "10 minutes: cancelled.", "\(cancelled)")
        let show = try await app.say("hang up", to: device.id)
        #expect(show.reply == "The hall lamp cannot do that." && show.steps[0].code == 20104, "\(show)")
        let dialog = try await app.dialog(of: device.id)
        #expect(dialog.turns.count == 8 && dialog.turns[0].text == "hang up", "\(dialog)")
        try await eventually("the app hears of the phases") {
            heard.withLock { $0.starts(with: [.listening, .thinking, .speaking]) }
        }
        try commandLine(cluster)
    }

    /// The same over REST, and with the command line.
    private func commandLine(_ cluster: Cluster) throws {
        let token = try cluster.token("--role", "app", "--account", "voice")
        let said = try cluster.run("say", "voice-cam", "turn on the hall lamp", "--token", token, "--explain")
        #expect(said.status == 0 && said.output.contains("The hall lamp is on."), "\(said.all)")
        #expect(said.output.contains("understood: DeviceOn"), "\(said.all)")
        let rest = try #require(PlainHTTP(port: cluster.httpPort(3)))
        let answer = try #require(
            rest.exchange("POST", "/v1/devices/voice-cam/say", token: token, body: #"{"text":"打开钢琴","language":"zh"}"#))
        #expect(answer.status == 200 && answer.body.contains("没听懂"), "\(answer.body)")
    }

    @Test("A device that is offline is not said to be on, and who has no right hears nothing (IV-B10)")
    func truth() async throws {
        let cluster = try SharedCluster.cluster(basePort: 24_520)
        let device = try Device(cluster, "away-cam", node: 1, account: "away")
        let app = try Self.app(cluster, node: 3, account: "away")
        let other = try Self.app(cluster, node: 2, account: "stranger")
        defer { for session in [app, other] { session.close() } }
        try await device.report()
        try await eventually { () throws(ApusError) in try await app.setVoiceHome(Self.home("away-cam")) }
        await fails(.illegalRelation) { () throws(ApusError) in
            _ = try await other.say("turn on the hall lamp", to: device.id)
        }
        // A home may name any device; the right to it is checked when something is done.
        try await other.setVoiceHome(Self.home("away-cam"))
        let spy = try Device(cluster, "spy-cam", node: 2, account: "stranger")
        defer { spy.end() }
        try await spy.report()
        for sentence in ["turn on the hall lamp", "is the front door locked"] {
            let turn = try await other.say(sentence, to: spy.id)
            #expect(turn.outcome == .failed && turn.steps[0].code == 8003, "\(turn)")
        }
        device.end()
        try await eventually("the device is offline") {
            try await app.readProperty(of: device.id, path: "ProReadonly._online.stVal").json == "0"
        }
        let lamp = try await app.say("turn on the hall lamp", to: device.id)
        #expect(lamp.reply == "The hall lamp is offline. It will be on when it is back.", "\(lamp)")
        #expect(lamp.outcome == .waiting)
        let state = try await app.say("is the front door locked", to: device.id)
        #expect(state.reply == "The front door is offline. Before that: The front door is locked.", "\(state)")
        let pending = try await app.say("is the hall lamp on", to: device.id)
        #expect(pending.reply.hasPrefix("The hall lamp is offline."), "\(pending)")
        let door = try await app.say("lock the front door", to: device.id)
        #expect(door.reply == "The front door is offline." && door.outcome == .failed, "\(door)")
    }

    @Test("Bad sentences, homes and contexts have their numbers, and one account's sentences leave room for another's")
    func refusals() async throws {
        let cluster = try SharedCluster.cluster(basePort: 24_520)
        let device = try Device(cluster, "bad-cam", node: 1, account: "bad")
        let app = try Self.app(cluster, node: 2, account: "bad")
        defer {
            device.end()
            app.close()
        }
        try await device.report()
        try await eventually { () throws(ApusError) in try await app.setVoiceHome(Self.home("bad-cam")) }
        func refused(
            _ code: ErrorCode, by session: ClientSession? = nil, _ change: (inout ClientSayRequest) -> Void
        ) async {
            var request = ClientSayRequest.with { ($0.device, $0.text) = ("bad-cam", "help") }
            change(&request)
            await fails(code) { [request] () throws(ApusError) in _ = try await (session ?? app).ask(request) }
        }
        await refused(.frameTooLarge) { $0.text = String(repeating: "a", count: 513) }
        await refused(.badParameter) { $0.id = "1" }
        await refused(.badParameter) { $0.language = "tlh" }
        await refused(.badParameter) { $0.context = #"{"header":{}}"# }
        await refused(.frameTooLarge) { $0.context = "[\(String(repeating: " ", count: 8192))]" }
        await refused(.targetUnknown) { $0.device = "no-cam" }
        await refused(.notAllowed, by: device.session) { $0.device = "other-cam" }
        for text in ["", " ", "\u{0}", String(repeating: "lamp ", count: 100), "🔥", "打开"] {
            let turn = try await app.say(text, to: device.id)
            #expect(turn.outcome == .notUnderstood, "\(text): \(turn)")
        }
        // A device to which nobody talks confirms nothing, whatever it says.
        let door = try await device.session.say("unlock the front door", to: device.id)
        #expect(door.outcome == .refused && device.counts["lock 0"] == nil, "\(door)")
        // Another client of the account was not asked.
        let asked = try await app.say("unlock the front door", to: device.id)
        #expect(asked.outcome == .asked)
        let second = try Self.app(cluster, node: 3, account: "bad")
        defer { second.close() }
        let yes = try await eventually { () throws(ApusError) in try await second.say("yes", to: device.id) }
        #expect(yes.outcome == .refused && device.counts["lock 0"] == nil, "\(yes)")

        var home = Self.home("bad-cam")
        home.timeZone = "UTC"
        await fails(.versionConflict) { [home] () throws(ApusError) in
            try await app.setVoiceHome(home, ifRevision: 99)
        }
        home.devices[0].area = "cellar"
        await fails(.badParameter) { [home] () throws(ApusError) in try await app.setVoiceHome(home) }
        let quiet = try Self.app(cluster, node: 2, account: "quiet")
        defer { quiet.close() }
        let camera = try Device(cluster, "quiet-cam", node: 1, account: "quiet")
        defer { camera.end() }
        try await camera.report()
        var refusedCount = 0
        for _ in 0..<300 {
            do throws(ApusError) {
                _ = try await app.say("what time is it", to: device.id)
            } catch {
                #expect(error.code == .overloaded)
                refusedCount += 1
            }
        }
        #expect(refusedCount > 20, "240 sentences in a minute at a node, and those that came back")
        #expect(try await quiet.say("what time is it", to: camera.id).outcome == .done)
    }

    @Test("Sentences that wait for a device take a share of the node, and leave room for another account")
    func share() async throws {
        let cluster = try SharedCluster.cluster(basePort: 24_520)
        // It is online, and takes no commands.
        let mute = DeviceID(unchecked: "mute-cam")
        let token = try cluster.token("--role", "device", "--device", "mute-cam", "--account", "mute")
        let session = try cluster.session(node: 1, token: token, role: .device)
        let app = try Self.app(cluster, node: 2, account: "mute")
        let device = try Device(cluster, "free-cam", node: 1, account: "free")
        let other = try Self.app(cluster, node: 2, account: "free")
        defer {
            device.end()
            for session in [session, app, other] { session.close() }
        }
        try await device.report()
        try await eventually { () throws(ApusError) in
            try await session.reportProperty(path: "ProReadonly.locked.stVal", json: "1")
            try await app.setVoiceHome(Self.home("mute-cam"))
            try await other.setVoiceHome(Self.home("free-cam"))
        }
        let codes = await withTaskGroup(of: ErrorCode?.self) { group in
            for _ in 0..<80 {
                group.addTask {
                    do throws(ApusError) {
                        _ = try await app.say("lock the front door", to: mute, timeout: .seconds(3))
                        return nil
                    } catch {
                        return error.code
                    }
                }
            }
            let free = try? await other.say("turn on the hall lamp", to: device.id)
            #expect(free?.outcome == .done || free?.steps.first?.result == .already, "\(String(describing: free))")
            return await group.reduce(into: [ErrorCode?]()) { $0.append($1) }
        }
        #expect(codes.count { $0 == .overloaded } >= 16, "64 of an account are carried out: \(codes)")
    }

    @Test(
        "The node of the dialog's owner is killed while it carries out sentences: each has its reply, and is done once")
    func kills() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 24_560)
        defer { cluster.down() }
        let device = try Device(cluster, "kill-cam", node: 1, account: "kills")
        let app = try Self.app(cluster, node: 2, account: "kills")
        defer {
            device.end()
            app.close()
        }
        try await device.report()
        try await eventually { () throws(ApusError) in try await app.setVoiceHome(Self.home("kill-cam")) }
        var sentences = 0
        var (locked, others) = (0, [String]())
        for round in 0..<6 {
            let pid = try cluster.pid(try cluster.owner(of: "kill-cam"))
            for count in 0..<8 {
                sentences += 1
                let id = "00000000000000000000" + String(1_000_000_000_000 + sentences).suffix(12)
                let isOn = sentences % 2 == 1
                let text = isOn ? "lock the front door" : "turn \(sentences % 4 == 0 ? "off" : "on") the hall lamp"
                async let said = eventually { () throws(ApusError) in
                    try await app.say(text, to: device.id, id: id)
                }
                if count == 4 {
                    try await Task.sleep(for: .milliseconds(round))
                    Glibc.kill(pid, SIGKILL)
                }
                let turn = try await said
                #expect(!turn.reply.isEmpty && turn.endedMs > 0, "\(turn)")
                guard isOn else { continue }
                // An action does not wait for a device whose own node was killed: the reply says that it is offline.
                if turn.outcome == .done { locked += 1 } else { others.append(turn.reply) }
            }
            let up = try cluster.run("cluster", "up")
            try #require(up.status == 0, "\(up.all)")
        }
        // Every second sentence locks.
        #expect(locked + others.count == sentences / 2 && others.count <= 3, "\(others)")
        #expect(device.counts["lock 1", default: 0] == locked, "\(device.counts)")
        #expect(others.allSatisfy { $0 == "The front door is offline." }, "\(others)")
    }

    @Test("An operator's sentences are read at the start and at SIGHUP, and a folder that is wrong is refused")
    func templates() async throws {
        let folder = NSTemporaryDirectory() + "apus-sentences-\(UUID().uuidString.prefix(8))"
        defer { try? FileManager.default.removeItem(atPath: folder) }
        func write(_ sentence: String) throws {
            try FileManager.default.createDirectory(atPath: "\(folder)/en", withIntermediateDirectories: true)
            let text = """
                language: en
                intents:
                  HassTurnOn:
                    data:
                      - sentences: ["\(sentence)"]
                        requires_context: {domain: light}
                """
            try Data(text.utf8).write(to: URL(fileURLWithPath: "\(folder)/en/lamps.yaml"))
        }
        try write("spark up [the] {name}")
        let cluster = try Cluster(nodes: 1, basePort: 24_830, environment: ["APUS_DIALOGS_TEMPLATES": folder])
        defer { cluster.down() }
        let device = try Device(cluster, "words-cam", node: 1, account: "words")
        let app = try Self.app(cluster, node: 1, account: "words")
        defer {
            device.end()
            app.close()
        }
        try await device.report()
        try await eventually { () throws(ApusError) in try await app.setVoiceHome(Self.home("words-cam")) }
        let on = try await app.say("spark up the hall lamp", to: device.id)
        #expect(on.reply == "The hall lamp is on." && on.intent == "DeviceOn" && device.counts["power 1"] == 1, "\(on)")
        #expect(try await app.say("turn off the hall lamp", to: device.id).reply == "The hall lamp is off.")

        try write("light up [the] {nam}")
        Glibc.kill(try cluster.pid(1), SIGHUP)
        let view = NodeView(1, of: cluster)
        try await eventually("the reload is refused") {
            view.get("/metrics")?.body.contains(#"apus_node_reloads_total{outcome="refused"} 1"#) ?? false
        }
        #expect(try await app.say("spark up the hall lamp", to: device.id).reply == "The hall lamp is on.")
        try write("light up [the] {name}")
        Glibc.kill(try cluster.pid(1), SIGHUP)
        try await eventually("the new sentences are understood") {
            try await app.say("light up the hall lamp", to: device.id).reply == "The hall lamp is already on."
        }
        #expect(try await app.say("spark up the hall lamp", to: device.id).outcome == .notUnderstood)
    }
}

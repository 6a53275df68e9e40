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

@Suite(
    "Devices that listen to a person, in a cluster (VA-6 to VA-16, docs/voice.md)", .serialized, .timeLimit(.minutes(4))
)
struct VoiceTests {
    private static let silent = Logger(label: "test") { _ in SwiftLogNoOpLogHandler() }

    /// A speaker with a brightness and a volume, whose dialog is followed.
    private final class Speaker: Sendable {
        let id: DeviceID
        let session: ClientSession
        let dialog: VoiceDialog
        let focus: VoiceFocus
        let seen: Seen
        private let tasks: [Task<Void, Never>]

        init(_ cluster: Cluster, _ name: String, node: Int, account: String) throws {
            let device = DeviceID(unchecked: name)
            let token = try cluster.token("--role", "device", "--device", name, "--account", account)
            let session = try cluster.session(node: node, token: token, role: .device)
            let (seen, focus) = (Seen(), VoiceFocus { _ in })
            var callbacks = VoiceDialog.Callbacks()
            callbacks.onState = { phase in
                seen.note(phase)
                focus.phaseChanged(phase)
            }
            callbacks.onUpload = { id, state, _ in seen.note(id, state) }
            callbacks.onReply = { turn in seen.note(turn) }
            let dialog = VoiceDialog(session: session, device: device, callbacks: callbacks, log: VoiceTests.silent)
            let settings = DeviceSettings(session: session, device: device, initial: [], log: VoiceTests.silent) {
                _, value in
                value
            }
            let commands = DeviceCommands(session: session, log: VoiceTests.silent)
            commands.onDirective { directive throws(ApusError) in
                seen.note(directive)
                guard try focus.take(directive) else { throw ApusError(.actionUnknown) }
            }
            (id, self.session, self.dialog, self.focus, self.seen) = (device, session, dialog, focus, seen)
            tasks = [
                Task { await dialog.run() }, Task { _ = try? await settings.run() },
                Task { _ = try? await commands.run() }, Task { await focus.run(session, device) },
            ]
        }

        func end() {
            for task in tasks { task.cancel() }
            session.close()
        }

        func wait(for phase: ClientDialogPhase) async throws {
            try await eventually("\(id) is \(phase), not \(dialog.phase)") { self.dialog.phase == phase }
        }
    }

    private final class Seen: Sendable {
        private struct State {
            var phases: [ClientDialogPhase] = []
            var uploads: [UploadStateMachine.ID: [UploadState]] = [:]
            var replies: [ClientDialogTurn] = []
            var directives: [ClientDialogDirective] = []
        }
        private let state = Mutex(State())
        var phases: [ClientDialogPhase] { state.withLock { $0.phases } }
        var replies: [String] { state.withLock { $0.replies.map(\.reply) } }
        var directives: [String] { state.withLock { $0.directives.map { "\($0.namespace).\($0.name)" } } }
        func ends(of id: UploadStateMachine.ID) -> [UploadState] { state.withLock { $0.uploads[id] ?? [] } }
        func note(_ phase: ClientDialogPhase) { state.withLock { $0.phases.append(phase) } }
        func note(_ turn: ClientDialogTurn) { state.withLock { $0.replies.append(turn) } }
        func note(_ directive: ClientDialogDirective) { state.withLock { $0.directives.append(directive) } }
        func note(_ id: UploadStateMachine.ID, _ upload: UploadState) {
            state.withLock { $0.uploads[id, default: []].append(upload) }
        }
    }

    private static func home(_ devices: [String], area: String = "hall") -> ClientVoiceHome {
        .with {
            $0.areas = [.with { ($0.id, $0.names) = ("hall", ["hall"]) }]
            $0.devices = devices.map { device in
                .with {
                    ($0.id, $0.device, $0.kind, $0.area) = (device, device, "speaker", area)
                    $0.names = ["\(device.split(separator: "-").last ?? "") speaker"]
                    $0.controls = [.with { ($0.what, $0.path) = ("volume", "ProWritable.volume") }]
                }
            }
        }
    }

    private static func app(_ cluster: Cluster, node: Int, account: String) throws -> ClientSession {
        try cluster.session(node: node, token: try cluster.token("--role", "app", "--account", account))
    }

    @Test("A tap at another node listens, a sentence is heard, and a stop is idle from each phase (VA-6, VA-7, VA-9)")
    func taps() async throws {
        let cluster = try SharedCluster.cluster(basePort: 24_640)
        let speaker = try Speaker(cluster, "tap-one", node: 1, account: "taps")
        let app = try Self.app(cluster, node: 2, account: "taps")
        defer {
            speaker.end()
            app.close()
        }
        try await speaker.wait(for: .idle)
        try await eventually { () throws(ApusError) in
            try await speaker.session.reportProperty(path: "ProWritable.volume.setVal", json: "40")
            try await app.setVoiceHome(Self.home(["tap-one"]))
        }
        let id = String(repeating: "1", count: 32)
        for _ in 0..<2 {
            let tapped = try await app.tapDialog(of: speaker.id, id: id)
            #expect(tapped.phase == .listening && tapped.listening == id && tapped.listeningEndsMs > 0)
        }
        try await speaker.wait(for: .listening)
        let said = speaker.dialog.say("what time is it")
        try await eventually("the sentence is answered") { speaker.seen.ends(of: said).last == .success }
        try await speaker.wait(for: .speaking)
        // A tap while it speaks begins again.
        try await speaker.dialog.tap()
        #expect(speaker.dialog.phase == .listening)
        try await speaker.dialog.stopActivity()
        #expect(speaker.dialog.phase == .idle)
        // What was heard before the stop is not carried out.
        await fails(.versionConflict) { () throws(ApusError) in
            _ = try await speaker.session.ask(
                ClientSayRequest.with {
                    ($0.device, $0.text, $0.heard) = (speaker.id.rawValue, "what time is it", id)
                })
        }
        // Nobody says anything.
        let before = speaker.seen.phases.count
        try await speaker.dialog.tap(language: "zh")
        try await speaker.wait(for: .idle)
        #expect(speaker.seen.phases.dropFirst(before) == [.listening, .idle])
        for (phase, next) in zip(speaker.seen.phases, speaker.seen.phases.dropFirst()) {
            #expect(VoiceStateMachine.following(phase).contains(next), "\(next) after \(phase)")
        }
        #expect(speaker.seen.phases.prefix(2) == [.pending, .idle])
        await fails(.notAllowed) { () throws(ApusError) in
            _ = try await speaker.session.tapDialog(of: DeviceID(unchecked: "other"))
        }
        await fails(.badParameter) { () throws(ApusError) in
            _ = try await app.tapDialog(of: speaker.id, language: "tlh")
        }
    }

    @Test(
        "Of three devices that hear a phrase at three nodes the loudest one listens, and the others are quieter (VA-8)")
    func rooms() async throws {
        let cluster = try SharedCluster.cluster(basePort: 24_640)
        let names = ["room-one", "room-two", "room-three"]
        let speakers = try names.enumerated().map { index, name in
            try Speaker(cluster, name, node: index + 1, account: "rooms")
        }
        let app = try Self.app(cluster, node: 1, account: "rooms")
        defer {
            for speaker in speakers { speaker.end() }
            app.close()
        }
        for speaker in speakers { try await speaker.wait(for: .idle) }
        try await eventually { () throws(ApusError) in try await app.setVoiceHome(Self.home(names)) }
        for speaker in speakers { speaker.focus.acquire(.content, by: "music") }
        for round in 0..<3 { try await Self.wake(speakers, loudest: (round + 1) % 3) }
        // One that is alone waits for no other one.
        for speaker in speakers[1...] { speaker.end() }
        try await eventually("the others are offline") {
            for speaker in speakers[1...] {
                let online = try await app.readProperty(of: speaker.id, path: "ProReadonly._online.stVal").json
                if online != "0" { return false }
            }
            return true
        }
        var shortest = Duration.seconds(60)
        for _ in 0..<3 {
            let began = MonotonicTime.now()
            #expect(try await speakers[0].dialog.wake(phrase: "hello", signalToNoise: 3, energy: -60))
            shortest = min(shortest, MonotonicTime.now() - began)
            try await Task.sleep(for: .milliseconds(800))
        }
        #expect(shortest < .milliseconds(140), "the window is not waited for")
        await fails(.malformed) { () throws(ApusError) in
            _ = try await speakers[0].session.ask(ClientWakeDialogRequest.with { $0.signalToNoiseDb = .infinity })
        }
    }

    /// All speakers hear the same phrase, and then one of them more loudly, but late.
    private static func wake(_ speakers: [Speaker], loudest: Int) async throws {
        let began = MonotonicTime.now()
        let won = try await withThrowingTaskGroup(of: (Int, Bool).self) { group in
            for (index, speaker) in speakers.enumerated() {
                group.addTask {
                    let level = index == loudest ? 21.5 : 12 + Double(index)
                    let isListening = try await speaker.dialog.wake(
                        phrase: "hello apus", signalToNoise: level, energy: -20, ended: began)
                    return (index, isListening)
                }
            }
            return try await group.reduce(into: [Int]()) { if $1.1 { $0.append($1.0) } }
        }
        #expect(won == [loudest])
        let (late, other) = ((loudest + 1) % 3, (loudest + 2) % 3)
        let isTaken = try await speakers[late].dialog.wake(
            phrase: "hello apus", signalToNoise: 40, energy: -10, ended: began)
        guard isTaken, MonotonicTime.now() - began < .milliseconds(900) else {
            // The machine is too slow for a message that is not too late.
            #expect(MonotonicTime.now() - began > .milliseconds(600))
            for speaker in speakers { try await speaker.dialog.stopActivity() }
            return try await Task.sleep(for: .milliseconds(1_400))
        }
        try await speakers[late].wait(for: .listening)
        try await speakers[loudest].wait(for: .idle)
        let said = speakers[late].dialog.say("what time is it")
        try await eventually("it is said") { speakers[late].seen.ends(of: said).last == .success }
        // It has heard a sentence: no other one takes its place.
        let isLate = try await speakers[loudest].dialog.wake(
            phrase: "hello apus", signalToNoise: 90, energy: 0, ended: began)
        #expect(!isLate || MonotonicTime.now() - began > .milliseconds(900))
        #expect(speakers[other].dialog.phase == .idle)
        try await eventually("the content ducks") { speakers[other].focus.focus(of: .content) == .background }
        for speaker in speakers { try await speaker.dialog.stopActivity() }
        for speaker in speakers {
            try await eventually("the content is as before") { speaker.focus.focus(of: .content) == .foreground }
        }
        // The next phrase is another one.
        try await Task.sleep(for: .milliseconds(1_400))
    }

    @Test(
        "Events wait for the synchronization of each connection, and tell what became of them (VA-11 to VA-13, VA-15)")
    func synchronizing() async throws {
        let cluster = try SharedCluster.cluster(basePort: 24_640)
        let token = try cluster.token("--role", "device", "--device", "sync-one", "--account", "sync")
        let app = try Self.app(cluster, node: 2, account: "sync")
        let first = try cluster.session(node: 1, token: token, role: .device)
        defer { app.close() }
        await fails(.notSynchronized) { () throws(ApusError) in try await first.sendCustomEvent("Custom") }
        await fails(.badParameter) { () throws(ApusError) in
            _ = try await first.ask(ClientSynchronizeDialogRequest.with { $0.state = "SPEAKER" })
        }
        await fails(.notSynchronized) { () throws(ApusError) in try await first.sendCustomEvent("Custom") }
        let device = DeviceID(unchecked: "sync-one")
        _ = try await first.tapDialog(of: device)
        let kept = try await first.ask(ClientSynchronizeDialogRequest.with { $0.state = "LISTENING" })
        #expect(kept.dialog.phase == .listening)
        let ended = try await first.ask(
            ClientSynchronizeDialogRequest.with { ($0.state, $0.alerts) = ("UDISCONNECT", [7]) })
        #expect(ended.dialog.phase == .idle && ended.endedAlerts == [7] && ended.ringingAlerts.isEmpty)
        // The home has no skill: it is synchronized.
        await fails(.targetUnknown) { () throws(ApusError) in try await first.sendCustomEvent("Custom") }
        first.close()

        // By the SDK, which synchronizes by itself.
        let speaker = try Speaker(cluster, "sync-one", node: 3, account: "sync")
        defer { speaker.end() }
        let early = speaker.dialog.sendCustomEvent()
        let end = speaker.seen.ends(of: early)
        #expect(end == [.notConnected] || end == [.notSynchronized], "\(end)")
        try await speaker.wait(for: .idle)
        let refused = speaker.dialog.sendCustomEvent(payload: "{}")
        try await eventually("it is refused") { speaker.seen.ends(of: refused) == [.pending, .refused] }
        let bad = speaker.dialog.sendCustomEvent("")
        try await eventually("it is bad") { speaker.seen.ends(of: bad).last?.isEnd ?? false }
        #expect(speaker.seen.ends(of: bad) == [.pending, .badRequest])
        speaker.dialog.audioInputFailed("unplugged")
        #expect(speaker.dialog.phase == .idle)
    }

    @Test("Louder, quieter and their like change a setting by a step, once, and say what it is then")
    func steps() async throws {
        let cluster = try SharedCluster.cluster(basePort: 24_640)
        let speaker = try Speaker(cluster, "step-one", node: 1, account: "steps")
        let app = try Self.app(cluster, node: 2, account: "steps")
        defer {
            speaker.end()
            app.close()
        }
        var home = Self.home(["step-one"])
        home.devices += [
            .with {
                ($0.id, $0.device, $0.kind, $0.area) = ("lamp", "step-one", "light", "hall")
                $0.names = ["hall lamp", "吊灯"]
                $0.controls = [.with { ($0.what, $0.path) = ("brightness", "ProWritable.brightness") }]
            },
            .with {
                ($0.id, $0.device, $0.kind, $0.area) = ("heater", "step-one", "climate", "hall")
                $0.names = ["heater"]
                $0.controls = [
                    .with {
                        ($0.what, $0.path, $0.statePath) = (
                            "temperature", "ProWritable.target", "ProReadonly.temperature"
                        )
                    }
                ]
            },
        ]
        try await speaker.wait(for: .idle)
        try await eventually { [home] () throws(ApusError) in
            for (name, value) in [("volume", "95"), ("brightness", "45"), ("target", "20.5")] {
                try await speaker.session.reportProperty(path: "ProWritable.\(name).setVal", json: value)
            }
            try await app.setVoiceHome(home)
        }
        for (sentence, reply) in [
            ("louder", "The one speaker is at 100 percent."), ("louder", "The one speaker is already at 100 percent."),
            ("quieter", "The one speaker is at 90 percent."),
            ("make the hall lamp brighter", "The hall lamp is at 55 percent."),
            ("dim the hall lamp a bit", "The hall lamp is at 45 percent."),
            ("it's too dark", "The hall lamp is at 55 percent."),
            ("make it warmer", "The heater is at 21.5 degrees."),
            ("turn down the heater", "The heater is at 20.5 degrees."),
        ] {
            let turn = try await app.say(sentence, to: speaker.id)
            #expect(turn.reply == reply, "\(sentence): \(turn.reply)")
        }
        let chinese = try await app.say("把吊灯调暗一点", to: speaker.id, language: "zh")
        #expect(chinese.reply.contains("45"), "\(chinese.reply)")
        // A repetition is no second step.
        let id = String(repeating: "2", count: 32)
        for _ in 0..<2 {
            let turn = try await app.say("quieter", to: speaker.id, id: id)
            #expect(turn.reply == "The one speaker is at 80 percent.", "\(turn)")
        }
        #expect(try await app.readProperty(of: speaker.id, path: "ProWritable.volume.setVal").json == "80")
    }
}

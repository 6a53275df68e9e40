import ApusClient
import ApusContract
import ApusCore
import ApusDevice
import ApusMedia
import ApusTestKit
import Foundation
import Logging
import SwiftProtobuf
import Synchronization
import Testing

#if canImport(Glibc)
import Glibc
#endif

@Suite("Spoken dialogs in a cluster (VA-7, VA-9, docs/voice.md)", .serialized, .timeLimit(.minutes(4)))
struct SpeechTests {
    private static let silent = Logger(label: "test") { _ in SwiftLogNoOpLogHandler() }
    private static let sentences = [
        "turn on the hall lamp", "turn off the hall lamp", "what time is it", "set a timer for ten minutes", "help",
    ]

    /// A microphone that hears 300 ms of a quiet room, the tone of a sentence, and then the quiet room.
    private final class ToneMicrophone: AudioCapturable {
        private let samples: [Int16]
        private let failsAfter: Int
        private let task = Mutex<Task<Void, Never>?>(nil)
        /// How late it was at most: the control of how busy the machine is.
        let lateness = Mutex(Duration.zero)

        /// - Parameters:
        ///   - other: the tone of the next two seconds.
        ///   - failsAfter: after this many events.
        init(_ sentence: Int, milliseconds: Int = 700, then other: Int? = nil, failsAfter: Int = .max) {
            self.failsAfter = failsAfter
            let frequency = Double(ScriptedEngine.frequency(sentence))
            let quiet = (0..<4800).map { Int16($0 % 3) }
            let tone = (0..<milliseconds * 16).map { index in
                Int16(8000 * sin(2 * .pi * frequency * Double(index) / 16_000))
            }
            let otherFrequency = Double(ScriptedEngine.frequency(other ?? 0))
            let rest = (0..<(other == nil ? 0 : 32_000)).map { index in
                Int16(8000 * sin(2 * .pi * otherFrequency * Double(index) / 16_000))
            }
            samples = quiet + tone + rest
        }

        func start(_ deliver: @escaping @Sendable (CaptureEvent<SoundSamples>) -> Void) {
            let (samples, failsAfter) = (samples, failsAfter)
            let task = Task { [self] in
                let start = MonotonicTime.now()
                for (index, first) in stride(from: 0, to: samples.count, by: 320).enumerated() {
                    guard index < failsAfter else { return deliver(.failed(ApusError(.mediaUnreadable))) }
                    let due = start + .milliseconds(20 * index)
                    guard (try? await Task.sleep(for: max(.zero, due - .now()))) != nil else { break }
                    lateness.withLock { $0 = max($0, .now() - due) }
                    let part = Array(samples[first..<min(first + 320, samples.count)])
                    deliver(
                        .media(
                            SoundSamples(
                                sampleRate: 16_000, ptsMicroseconds: Int64(first) * 1_000_000 / 16_000, samples: part)))
                }
                deliver(.ended)
            }
            self.task.withLock { $0 = task }
        }

        func stop() { task.withLock { $0 }?.cancel() }
    }

    /// What a device has heard of replies.
    private final class Replies: Sendable {
        struct Heard: Sendable {
            var rate = 0
            var samples: [Int16] = []
            var ends = 0
        }

        private struct State {
            var heard = Heard()
            var isWhole = true
            var cut: [Int] = []
            var last: MonotonicTime?
            var longestGap = Duration.zero
        }

        private let state = Mutex(State())
        func received(_ event: SpokenDialog.ReplyEvent) {
            state.withLock { state in
                switch event {
                case .began(let rate):
                    if !state.isWhole { state.cut.append(state.heard.samples.count) }
                    (state.heard.rate, state.heard.samples, state.isWhole) = (rate, [], false)
                    (state.last, state.longestGap) = (nil, .zero)
                case .sound(let samples):
                    state.heard.samples += samples
                    let now = MonotonicTime.now()
                    state.longestGap = max(state.longestGap, state.last.map { now - $0 } ?? .zero)
                    state.last = now
                case .ended: (state.heard.ends, state.isWhole) = (state.heard.ends + 1, true)
                }
            }
        }
        /// The samples of each reply that had no end.
        var cut: [Int] { state.withLock(\.cut) }
        /// Between two frames of the last reply.
        var longestGap: Duration { state.withLock(\.longestGap) }
        var heard: Heard { state.withLock(\.heard) }
    }

    /// A device with a lamp, which can be spoken to.
    private final class Device: Sendable {
        let id: DeviceID
        let session: ClientSession
        let dialog: SpokenDialog
        let replies = Replies()
        private let written = Mutex<[String]>([])
        private let task: Mutex<Task<Void, Never>?>

        init(_ cluster: Cluster, _ name: String, node: Int, account: String) throws {
            id = DeviceID(unchecked: name)
            let token = try cluster.token("--role", "device", "--device", name, "--account", account)
            session = try cluster.session(node: node, token: token, role: .device)
            dialog = SpokenDialog(session: session, device: id) { [replies] in replies.received($0) }
            task = Mutex(nil)
            let settings = DeviceSettings(session: session, device: id, initial: [], log: SpeechTests.silent) {
                [weak self] _, value in
                self?.written.withLock { $0.append(value) }
                return value
            }
            task.withLock { $0 = Task { _ = try? await settings.run() } }
            dialog.start()
        }

        var writes: [String] { written.withLock(\.self) }

        /// The device has a lamp, and its account's home has its name.
        func set(_ app: ClientSession) async throws {
            try await eventually { [session] () throws(ApusError) in
                try await session.reportProperty(path: "ProWritable.power.setVal", json: "0")
            }
            let home = ClientVoiceHome.with {
                $0.areas = [.with { ($0.id, $0.names) = ("hall", ["hall"]) }]
                $0.devices = [
                    .with {
                        ($0.id, $0.device, $0.names) = ("lamp", id.rawValue, ["hall lamp"])
                        ($0.kind, $0.area) = ("light", "hall")
                        $0.controls = [
                            .with {
                                ($0.what, $0.path, $0.onJson, $0.offJson) = ("power", "ProWritable.power", "1", "0")
                            }
                        ]
                    }
                ]
            }
            try await eventually { () throws(ApusError) in try await app.setVoiceHome(home) }
        }

        /// Says a sentence by its tone, when a provider is known to the node.
        func hear(_ sentence: Int, id: String? = nil) async throws(ApusError) -> ClientListenResponse {
            try await dialog.ask(ToneMicrophone(sentence), id: id)
        }

        func end() {
            task.withLock { $0 }?.cancel()
            dialog.stop()
            session.close()
        }
    }

    private static func app(_ cluster: Cluster, node: Int, account: String) throws -> ClientSession {
        try cluster.session(node: node, token: try cluster.token("--role", "app", "--account", account))
    }

    @Test("A device is spoken to, the lamp is on, and the reply is heard sample by sample; once for each id")
    func spoken() async throws {
        let (first, second) = (try ScriptedEngine(Self.sentences), try ScriptedEngine(Self.sentences))
        let cluster = try Cluster(
            nodes: 3, basePort: 24_760,
            environment: ["APUS_SPEECH_PROVIDERS": "unix:\(first.path) unix:\(second.path)"])
        defer {
            cluster.down()
            first.end()
            second.end()
        }
        let device = try Device(cluster, "spoken-cam", node: 1, account: "spoken")
        let app = try Self.app(cluster, node: 2, account: "spoken")
        defer {
            device.end()
            app.close()
        }
        try await device.set(app)
        // The node makes the sentences of the home before it hears the first one.
        #expect(try await device.hear(1).turn.reply == "The hall lamp is already off.")
        try await eventually("the reply is heard to its end") { device.replies.heard.ends == 1 }

        let id = "00112233445566778899aabbccddeeff"
        let microphone = ToneMicrophone(0)
        let on = try await device.dialog.ask(microphone, id: id)
        #expect(on.heard == "turn on the hall lamp" && on.end == .sentence, "\(on)")
        #expect(on.turn.reply == "The hall lamp is on." && on.turn.id == id && device.writes == ["1"])
        #expect((600...800).contains(Int(on.times.spoken) - 300), "\(on.times)")
        let lateness = microphone.lateness.withLock(\.milliseconds)
        #expect((200...260 + 2 * Int(lateness)).contains(Int(on.times.waited)), "\(on.times), late by \(lateness) ms")
        try await eventually("the reply is heard to its end") { device.replies.heard.ends == 2 }
        let reply = ScriptedEngine.reply(on.turn.reply)
        #expect(device.replies.heard.samples == reply && device.replies.heard.rate == ScriptedEngine.sampleRate)
        #expect(Int(on.replyMs) == reply.count * 1000 / ScriptedEngine.sampleRate)
        #expect(try await app.dialog(of: device.id).phase == .speaking)
        #expect(try await device.dialog.replyPlayed(id).phase == .idle)

        // The device repeats its request: nothing is done twice, and the reply comes again.
        let again = try await device.hear(1, id: id)
        #expect(again.turn.reply == on.turn.reply && device.writes == ["1"])
        try await eventually("the reply comes again") { device.replies.heard.ends == 3 }

        // Without a pause the provider is asked too, and goes on to hear: the first second alone is another sentence.
        let long = try await device.dialog.ask(ToneMicrophone(2, milliseconds: 1100, then: 0))
        #expect(long.heard == Self.sentences[1] && device.writes == ["1", "0"], "\(long)")
        // The sentences are sent to an engine once, and a reply that is known is not made again.
        _ = try await device.hear(0)
        #expect(first.counts.grammars == 1 && first.counts.unknown == 0, "\(first.counts)")
        let spoken = ["The hall lamp is already off.", "The hall lamp is on.", "The hall lamp is off."]
        #expect(first.counts.spoken == spoken)

        try await interruptions(device, app)
        try await refusals(cluster, device, app)
        try await engines(device, first, second)
    }

    @Test("A node is killed while a device is spoken to: each sentence has its reply, and is carried out once")
    func kills() async throws {
        let engine = try ScriptedEngine(Self.sentences)
        let environment = ["APUS_SPEECH_PROVIDERS": "unix:\(engine.path)"]
        let cluster = try Cluster(nodes: 3, basePort: 24_760, environment: environment)
        defer {
            cluster.down()
            engine.end()
        }
        let device = try Device(cluster, "spoken-kill", node: 1, account: "spoken")
        let app = try Self.app(cluster, node: 2, account: "spoken")
        defer {
            device.end()
            app.close()
        }
        try await device.set(app)
        try await eventually("a provider is known") { (try? await device.hear(1))?.turn.id.isEmpty == false }
        let before = device.writes.count
        for round in 0..<6 {
            let sentence = round % 2
            async let heard = device.dialog.ask(ToneMicrophone(sentence, milliseconds: 1000))
            // In the pause before the words, in them, at their end, and while the sentence is carried out.
            try await Task.sleep(for: .milliseconds(250 + 270 * round))
            Glibc.kill(try cluster.pid(round % 3 + 1), SIGKILL)
            let answer = try await heard
            let expected = sentence == 0 ? "The hall lamp is on." : "The hall lamp is off."
            #expect(answer.heard == Self.sentences[sentence] && answer.turn.reply == expected, "\(round): \(answer)")
            #expect(device.writes.count == before + round + 1, "\(device.writes)")
            let up = try Cluster.run(["cluster", "up", "--dir", cluster.directory], environment: environment)
            try #require(up.status == 0, "\(up.all)")
        }
    }

    @Test("The first sentence of a reply is heard before the next one is made, and all of it comes once, to its end")
    func parts() async throws {
        let engine = try ScriptedEngine(Self.sentences)
        let cluster = try Cluster(
            nodes: 1, basePort: 24_810, environment: ["APUS_SPEECH_PROVIDERS": "unix:\(engine.path)"])
        defer {
            cluster.down()
            engine.end()
        }
        let away = try Device(cluster, "parts-away", node: 1, account: "parts")
        let device = try Device(cluster, "parts-cam", node: 1, account: "parts")
        let app = try Self.app(cluster, node: 1, account: "parts")
        defer {
            device.end()
            app.close()
        }
        try await away.set(app)
        away.end()
        try await eventually("the lamp is offline") {
            try await app.readProperty(of: away.id, path: "ProReadonly._online.stVal").json == "0"
        }
        let sentences = ["The hall lamp is offline.", "It will be on when it is back."]
        engine.delay(sentences[1], by: 2000)
        let id = "aa112233445566778899aabbccddeeff"
        try await eventually("a provider is known") { (try? await device.hear(2))?.turn.id.isEmpty == false }
        try await eventually("the reply is heard to its end") { device.replies.heard.ends == 1 }
        let before = engine.counts.spoken.count
        let answer = try await device.hear(0, id: id)
        #expect(answer.turn.reply == sentences.joined(separator: " "), "\(answer)")
        #expect(answer.times.replyBegan < 2000, "the first sound has waited for the second sentence: \(answer.times)")
        let expected = sentences.flatMap { ScriptedEngine.reply($0) }
        try await eventually("the reply is heard to its end") { device.replies.heard.ends == 2 }
        #expect(device.replies.heard.samples == expected && device.replies.longestGap > .milliseconds(500))
        #expect(Int(answer.replyMs) == expected.count * 1000 / ScriptedEngine.sampleRate)
        // The reply is known as a whole.
        let spoken = engine.counts.spoken
        #expect(Array(spoken.dropFirst(before)) == sentences, "\(spoken)")
        #expect(try await device.hear(0, id: id).turn.reply == answer.turn.reply)
        try await eventually("the reply comes again") { device.replies.heard.ends == 3 }
        #expect(device.replies.heard.samples == expected && engine.counts.spoken == spoken)
        #expect(device.replies.longestGap < .milliseconds(500), "\(device.replies.longestGap)")
    }

    /// A person makes a sound while a reply of 2.6 s is spoken.
    private func interruptions(_ device: Device, _ app: ClientSession) async throws {
        // A cough: the reply pauses, and all of it is heard.
        let help = try await device.hear(4)
        let reply = ScriptedEngine.reply(help.turn.reply)
        #expect(reply.count > 50_000 && device.replies.heard.samples.count < reply.count / 2, "\(help)")
        let ends = device.replies.heard.ends
        let began = MonotonicTime.now()
        let cough = try await device.dialog.ask(ToneMicrophone(20, milliseconds: 300), whileSpeaking: true)
        #expect(cough.replyGoesOn && cough.heard.isEmpty && cough.turn.id.isEmpty, "\(cough)")
        #expect(try await app.dialog(of: device.id).phase == .speaking)
        try await eventually("the reply is heard to its end") { device.replies.heard.ends == ends + 1 }
        #expect(device.replies.heard.samples == reply)
        #expect(device.replies.longestGap > .milliseconds(300), "no pause: \(device.replies.longestGap)")
        #expect(MonotonicTime.now() - began > .milliseconds(2600))

        // Words: the rest of the reply is not heard, and what was said is done.
        let other = try await device.hear(4)
        let count = device.writes.count
        let words = try await device.dialog.ask(ToneMicrophone(1), whileSpeaking: true)
        #expect(words.turn.reply == "The hall lamp is off." && !words.replyGoesOn, "\(words) after \(other)")
        #expect(device.writes.count == count + 1)
        try await eventually("its own reply is heard") {
            device.replies.heard.samples == ScriptedEngine.reply(words.turn.reply)
        }
        #expect(device.replies.cut.last.map { $0 < reply.count } ?? false, "\(device.replies.cut)")
        // A stop while the person speaks: what was said is not carried out (VA-9).
        _ = try await device.hear(4)
        async let refused: Void = refuse(.versionConflict) { () throws(ApusError) in
            _ = try await device.dialog.ask(ToneMicrophone(0, milliseconds: 1000), whileSpeaking: true)
        }
        try await Task.sleep(for: .milliseconds(600))
        _ = try await app.stopDialog(of: device.id)
        await refused
        #expect(device.writes.count == count + 1)
        // A stop of the device: no sound comes any more.
        _ = try await device.hear(4)
        #expect(try await device.dialog.stopActivity().phase == .idle)
        let stopped = device.replies.heard
        try await Task.sleep(for: .milliseconds(300))
        #expect(device.replies.heard.samples.count == stopped.samples.count && stopped.samples.count < reply.count)
        // The next part expects what the one before has left.
        _ = try await device.hear(0)
    }

    private func refusals(_ cluster: Cluster, _ device: Device, _ app: ClientSession) async throws {
        let writes = device.writes
        // Another utterance ends the one before (VA-7).
        async let earlier: ErrorCode? = {
            do throws(ApusError) {
                _ = try await device.dialog.ask(ToneMicrophone(0, milliseconds: 4000))
                return nil
            } catch {
                return error.code
            }
        }()
        try await Task.sleep(for: .milliseconds(600))
        let later = try await device.hear(1)
        #expect(later.turn.reply == "The hall lamp is off." && device.writes == writes + ["0"], "\(later)")
        #expect(await earlier == .cancelled)

        await refuse(.notAllowed) { () throws(ApusError) in
            _ = try await app.ask(
                ClientListenRequest.with { $0.id = String(repeating: "0", count: 32) }, timeout: .seconds(5))
        }
        await refuse(.unavailable) { () throws(ApusError) in
            _ = try await device.dialog.ask(ToneMicrophone(0), language: "zh-CN")
        }
        await refuse(.badParameter) { () throws(ApusError) in _ = try await device.hear(0, id: "short") }
        // Nobody else plays what the microphone or the reply carries: not the owner's app either.
        for source in [ClientPublishRequest.microphoneSource, ClientPlayRequest.replySource] {
            let ended = Mutex<ApusError?>(nil)
            let player = Player(
                session: app, device: device.id, source: source, onFrame: { _ in },
                onEvent: { if case .ended(let error) = $0 { ended.withLock { $0 = error } } })
            player.start()
            defer { player.stop() }
            try await eventually("the app may not play \(source)") { ended.withLock { $0?.code } == .notAllowed }
        }
        // The microphone is unplugged in the sentence (VA-14).
        await refuse(.mediaUnreadable) { () throws(ApusError) in
            _ = try await device.dialog.ask(ToneMicrophone(0, failsAfter: 25))
        }
        #expect(try await app.dialog(of: device.id).phase == .idle)
        let silence = try await device.dialog.ask(ToneMicrophone(0, milliseconds: 0))
        #expect(silence.end == .nothing && silence.turn.id.isEmpty && silence.heard.isEmpty, "\(silence)")
    }

    private func refuse(_ code: ErrorCode, _ body: () async throws(ApusError) -> Void) async {
        do throws(ApusError) {
            try await body()
            Issue.record("\(code) was expected")
        } catch {
            #expect(error.code == code, "\(error)")
        }
    }

    /// One engine hangs, or is gone: the other one hears the same sound.
    private func engines(_ device: Device, _ first: ScriptedEngine, _ second: ScriptedEngine) async throws {
        first.hang(true)
        let after = try await device.hear(0)
        #expect(after.turn.reply == "The hall lamp is on." && second.counts.utterances == 1, "\(after)")
        first.hang(false)
        first.stop()
        let other = try await device.hear(1)
        #expect(other.turn.reply == "The hall lamp is off." && second.counts.utterances == 2, "\(other)")
        second.stop()
        await refuse(.connectFailed) { () throws(ApusError) in _ = try await device.hear(1) }
        try first.start()
        try await eventually("the engine is found again") {
            (try? await device.hear(0))?.turn.reply == "The hall lamp is on."
        }
        // Minutes may be followed by seconds; the name of a lamp is complete.
        let timer = try await device.hear(3)
        #expect((500...560).contains(timer.times.waited) && timer.turn.intent == "TimerSet", "\(timer)")
        first.hang(true)
        await refuse(.deadlineExceeded) { () throws(ApusError) in _ = try await device.hear(1) }
        first.hang(false)
        // One answer that was late takes the only engine from nobody.
        let late = try await device.hear(0)
        #expect(late.turn.reply == "The hall lamp is already on.", "\(late)")
    }
}

import ApusClient
import ApusContract
import ApusCore
import ApusTestKit
import Foundation
import Synchronization
import Testing

@Suite("Language models as guests of dialogs (VA, docs/voice.md)", .serialized, .timeLimit(.minutes(4)))
struct GuestTests {
    private static let port = 24_835
    private static let key = "sk-0815-test"
    private static let keyFile: String = {
        let path = NSTemporaryDirectory() + "/apus-model-key-\(UUID().uuidString)"
        _ = FileManager.default.createFile(atPath: path, contents: Data("\(key)\n".utf8))
        return path
    }()

    private static func environment(time: String) -> [String: String] {
        [
            "APUS_DIALOGS_MODEL_URL": "http://127.0.0.1:\(port)/v1/", "APUS_DIALOGS_MODEL": "scripted",
            "APUS_DIALOGS_MODEL_KEY_FILE": keyFile, "APUS_DIALOGS_MODEL_TIME": time,
            "APUS_DIALOGS_MODELS_RUNNING_MAX": "4",
        ]
    }

    private static func cluster() throws -> Cluster {
        try SharedCluster.cluster(basePort: 24_800, environment: environment(time: "1500ms"))
    }

    /// A chat completions server that answers each sentence as it is scripted, and other ones with a text.
    private final class Server: Sendable {
        enum Answer: Sendable {
            case calls([(String, String)])
            case text(String)
            case raw(String)
            case status(Int)
            case hang
            /// The first request of the test has no answer.
            case secondTime([(String, String)])
        }

        private let receiver: HTTPReceiver

        init(_ script: [String: Answer]) async throws {
            receiver = try await HTTPReceiver.start(port: GuestTests.port) { request in
                Self.body(script[Self.sentence(request), default: .text("I do not know.")])
            } _: { request, number in
                switch script[Self.sentence(request)] {
                case .hang: nil
                case .secondTime: number == 1 ? nil : 200
                case .status(let status): status
                default: 200
                }
            }
        }

        func stop() async throws { try await receiver.stop() }
        var requests: [HTTPReceiver.Request] { receiver.requests }
        var sentences: [String] { requests.map(Self.sentence) }

        static func messages(_ request: HTTPReceiver.Request) -> [(role: String, text: String)] {
            let body = try? JSONSerialization.jsonObject(with: Data(request.body.utf8)) as? [String: Any]
            let messages = body?["messages"] as? [[String: String]] ?? []
            return messages.map { ($0["role"] ?? "", $0["content"] ?? "") }
        }

        private static func sentence(_ request: HTTPReceiver.Request) -> String { messages(request).last?.text ?? "" }

        private static func body(_ answer: Answer) -> String {
            var message: [String: Any] = ["role": "assistant"]
            switch answer {
            case .calls(let calls), .secondTime(let calls):
                message["tool_calls"] = calls.enumerated().map { index, call in
                    [
                        "id": "call-\(index)", "type": "function",
                        "function": ["name": call.0, "arguments": "{\(call.1)}"],
                    ] as [String: Any]
                }
            case .text(let text): message["content"] = text
            case .raw(let text): return text
            case .status, .hang: return "{}"
            }
            let data = try? JSONSerialization.data(withJSONObject: ["choices": [["index": 0, "message": message]]])
            return String(decoding: data ?? Data(), as: UTF8.self)
        }
    }

    /// A device with a lamp and a lock, and an app of its account, which says something to it.
    private struct Place {
        let device: DialogTests.Device
        let app: ClientSession

        init(
            _ cluster: Cluster, _ name: String, model: Bool = true, _ change: (inout ClientVoiceHome) -> Void = { _ in }
        ) async throws {
            device = try DialogTests.Device(cluster, "\(name)-cam", node: 1, account: name)
            app = try DialogTests.app(cluster, node: 2, account: name)
            try await device.report()
            var home = DialogTests.home("\(name)-cam")
            home.model = model
            change(&home)
            try await eventually { [app, home] () throws(ApusError) in try await app.setVoiceHome(home) }
        }

        func say(_ text: String, id: String? = nil) async throws(ApusError) -> ClientDialogTurn {
            try await app.say(text, to: device.id, id: id)
        }

        func end() {
            device.end()
            app.close()
        }
    }

    private static let lampOn = ("control", #""action":"turn_on","name":"hall lamp""#)
    private static let unlock = ("control", #""action":"unlock","name":"front door""#)

    @Test("A sentence that the grammar rejects switches a lamp, unlocks after a yes, or gets a text; others ask nobody")
    func calls() async throws {
        let server = try await Server([
            "it is so dark where i read": .calls([Self.lampOn]), "tell me about owls": .text("**Owls** are birds."),
            "my brother is outside": .calls([Self.unlock]), "well i guess": .text("Yes."),
            "sure enough then": .calls([("yes", "")]),
            "good night everybody": .calls([
                ("control", #""action":"turn_off","name":"hall lamp""#),
                ("control", #""action":"lock","name":"front door""#),
            ]),
            "the piano is too quiet": .calls([("control", #""action":"turn_on","name":"piano""#)]),
            "everything off later": .calls([("control", #""action":"turn_off","name":"hall lamp","delay":60"#)]),
        ])
        let place = try await Place(try Self.cluster(), "guest")
        defer { place.end() }
        _ = try await place.say("turn off the hall lamp")
        #expect(server.requests.isEmpty, "the grammar understands it")
        let id = String(repeating: "0a", count: 16)
        for _ in 0..<2 {
            let on = try await place.say("it is so dark where i read", id: id)
            #expect(on.reply == "The hall lamp is on." && on.intent == "DeviceOn" && on.outcome == .done, "\(on)")
            #expect(on.sentence == "model: turn on hall lamp")
        }
        #expect(place.device.counts["power 1"] == 1 && server.requests.count == 1, "a repetition asks nobody")
        let request = try #require(server.requests.first)
        #expect(request.path == "/v1/chat/completions" && request.headers["authorization"] == "Bearer \(Self.key)")
        let history = Server.messages(request).map(\.text)
        #expect(
            history.dropFirst() == [
                "turn off the hall lamp", "The hall lamp is already off.", "it is so dark where i read",
            ])
        #expect(!request.body.contains("guest-cam") && !request.body.contains(id), "\(request.body)")

        let text = try await place.say("tell me about owls")
        #expect(text.reply == "Owls are birds." && text.outcome == .done && text.intent.isEmpty, "\(text)")
        let next = Server.messages(try #require(server.requests.last)).map(\.text)
        #expect(
            next.suffix(3) == ["it is so dark where i read", "The hall lamp is on.", "tell me about owls"],
            "one history")

        // Nothing but the person's yes unlocks, and a model's yes is none.
        for answer in ["well i guess", "sure enough then", "no"] {
            let asked = try await place.say("my brother is outside")
            #expect(asked.reply == "Shall I unlock the front door?" && asked.outcome == .asked, "\(asked)")
            _ = try await place.say(answer)
            #expect(try await place.say("yes").outcome == .refused)
        }
        #expect(place.device.counts["lock 0"] == nil)
        _ = try await place.say("my brother is outside")
        let yes = try await place.say("yes")
        #expect(yes.reply == "The front door is unlocked." && place.device.counts["lock 0"] == 1, "\(yes)")

        let both = try await place.say("good night everybody")
        #expect(both.reply == "The hall lamp is off. The front door is locked." && both.steps.count == 2, "\(both)")
        #expect(place.device.counts["power 0"] == 1 && place.device.counts["lock 1"] == 1)
        for sentence in ["the piano is too quiet", "everything off later"] {
            #expect(try await place.say(sentence).outcome == .notUnderstood)
        }
        #expect(place.device.counts.values.reduce(0, +) == 4, "\(place.device.counts)")
        try await server.stop()
    }

    @Test(
        "Without the home's opt-in nothing is sent, a skill goes before the model, and rights are those of the account")
    func permission() async throws {
        let server = try await Server(["light please somehow": .calls([Self.lampOn])])
        let cluster = try Self.cluster()
        let place = try await Place(cluster, "private", model: false)
        let skilled = try await Place(cluster, "skilled") { $0.skill = "nowhere" }
        // It names a device of another account, and gets nowhere with it.
        let foreign = try await Place(cluster, "foreign") { home in
            for index in home.devices.indices { home.devices[index].device = "private-cam" }
        }
        defer { for place in [place, skilled, foreign] { place.end() } }
        for place in [place, skilled] {
            #expect(try await place.say("light please somehow").outcome == .notUnderstood)
        }
        #expect(server.requests.isEmpty, "\(server.sentences)")
        let turn = try await foreign.say("light please somehow")
        #expect(turn.outcome == .failed && turn.steps.first?.code == 8003 && server.requests.count == 1, "\(turn)")
        #expect(place.device.counts.isEmpty)
        try await server.stop()
    }

    @Test("A model that hangs, fails, or answers garbage or 5 MB costs a bounded time, and is paused; others go on")
    func faults() async throws {
        let cluster = try Self.cluster()
        let place = try await Place(cluster, "faulty")
        let other = try await Place(cluster, "calm")
        defer { for place in [place, other] { place.end() } }
        func time(_ place: Place, _ text: String) async throws -> (turn: ClientDialogTurn, time: Duration) {
            let start = MonotonicTime.now()
            return (try await place.say(text), MonotonicTime.now() - start)
        }
        let (missing, missingTime) = try await time(place, "are you there")
        #expect(missing.outcome == .notUnderstood && missingTime < .seconds(1), "there is no server")
        let server = try await Server([
            "hang now": .hang, "fail now": .status(500), "garble now": .raw("{\"choices\":[{"),
            "flood now": .raw("{\"choices\":[\"\(String(repeating: "a", count: 5 << 20))\"]}"),
            "move now": .status(302),
            "say nothing now": .text(""),
        ])
        // An answer without a text is no failure.
        #expect(try await place.say("say nothing now").outcome == .notUnderstood)
        for sentence in ["hang now", "fail now", "garble now", "flood now", "move now"] {
            async let late = time(place, sentence)
            let (quick, quickTime) = try await time(other, "turn on the hall lamp")
            #expect(quick.outcome == .done && quickTime < .milliseconds(1200), "\(sentence): \(quickTime)")
            let (turn, lateTime) = try await late
            #expect(turn.outcome == .notUnderstood && lateTime < .milliseconds(2500), "\(sentence): \(lateTime)")
            if sentence == "hang now" { #expect(lateTime >= .milliseconds(1500)) }
        }
        #expect(server.requests.count == 6)
        // Five failures in a row: it is not asked, but for other accounts.
        for _ in 0..<3 { #expect(try await place.say("are you there").outcome == .notUnderstood) }
        #expect(server.requests.count == 6, "\(server.sentences)")
        #expect(try await other.say("are you there").reply == "I do not know.")
        try await server.stop()
    }

    @Test("An account fills its half of the model's places, and another one's sentences are answered at the same node")
    func share() async throws {
        let server = try await Server(["hang on a while": .hang])
        let cluster = try Self.cluster()
        // The dialogs of both are at one node, which has four places.
        let owner = try cluster.owner(of: "busy-cam")
        let name = try #require(
            try (0..<40).map { "quick\($0)" }.first { try cluster.owner(of: "\($0)-cam") == owner })
        let busy = try await Place(cluster, "busy")
        let quick = try await Place(cluster, name)
        defer { for place in [busy, quick] { place.end() } }
        try await withThrowingTaskGroup(of: ClientDialogTurn.self) { group in
            for _ in 0..<8 { group.addTask { try await busy.say("hang on a while") } }
            try await eventually("two wait") { server.requests.count == 2 }
            let start = MonotonicTime.now()
            #expect(try await quick.say("are you there").reply == "I do not know.")
            #expect(MonotonicTime.now() - start < .seconds(1))
            for try await turn in group { #expect(turn.outcome == .notUnderstood, "\(turn)") }
        }
        #expect(server.sentences.count { $0 == "hang on a while" } == 2, "\(server.sentences)")
        try await server.stop()
    }
    @Test("The node that waits for the model is killed: another one asks again, and the lamp is switched once")
    func kill() async throws {
        let server = try await Server(["dark once more": .secondTime([Self.lampOn])])
        let cluster = try Cluster(nodes: 3, basePort: 24_880, environment: Self.environment(time: "8s"))
        defer { cluster.down() }
        // The device is at the first node, and the app at the second one.
        let name = try #require(
            try (0..<40).map { "mortal\($0)" }.first { try cluster.owner(of: "\($0)-cam") == 3 })
        let place = try await Place(cluster, name)
        defer { place.end() }
        let id = String(repeating: "0b", count: 16)
        async let said = eventually { () throws(ApusError) in try await place.say("dark once more", id: id) }
        try await eventually("the owner's node has asked") { server.requests.count == 1 }
        Glibc.kill(try cluster.pid(3), SIGKILL)
        let turn = try await said
        #expect(turn.reply == "The hall lamp is on." && turn.outcome == .done, "\(turn)")
        #expect(server.requests.count == 2 && place.device.counts == ["power 1": 1], "\(place.device.counts)")
        try await server.stop()
    }
}

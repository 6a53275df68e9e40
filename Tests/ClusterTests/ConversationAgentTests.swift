import ApusClient
import ApusContract
import ApusCore
import ApusTestKit
import ApusWyoming
import Foundation
import SwiftProtobuf
import Testing

@Suite("Home Assistant's conversation agent (docs/voice.md)", .serialized, .timeLimit(.minutes(4)))
struct ConversationAgentTests {
    private static let home = ClientVoiceHome.with {
        $0.areas = [.with { ($0.id, $0.names) = ("hall", ["hall"]) }]
        $0.devices = [
            .with {
                ($0.id, $0.device, $0.names, $0.kind) = ("lamp", "agent-lamp", ["hall lamp"], "light")
                $0.area = "hall"
                $0.controls = [
                    .with { ($0.what, $0.path, $0.onJson, $0.offJson) = ("power", "ProWritable.power", "1", "0") }
                ]
            },
            .with {
                ($0.id, $0.device, $0.names, $0.kind) = ("door", "agent-lamp", ["front door"], "lock")
                $0.area = "hall"
                $0.controls = [.with { ($0.what, $0.path) = ("lock", "Action.lock") }]
            },
        ]
    }

    private static func path() -> String { "/tmp/agent-\(UUID().uuidString.prefix(8)).sock" }

    /// An agent of a device of the account `local`, and its socket.
    private static func agent(
        _ cluster: Cluster, node: Int = 1, token: String? = nil
    ) async throws -> (process: Process, address: WyomingAddress) {
        let path = path()
        let arguments = ["conversation", "agent-lamp", "--listen", "unix:\(path)", "--node", "\(node)"]
        let process = try cluster.start(arguments + (token.map { ["--token", $0] } ?? []))
        try await eventually("the agent listens") { FileManager.default.fileExists(atPath: path) }
        return (process, .unix(path))
    }

    private static func transcript(_ text: String, in conversation: String? = nil) -> WyomingMessage {
        let context = conversation.map {
            [
                JSONValue.Member(name: "conversation_id", value: .string($0)),
                JSONValue.Member(name: "device_id", value: .string("ha")),
            ]
        }
        return .transcript(WyomingTranscript(text: text, language: "en", context: context ?? []))
    }

    /// What is answered on a connection of its own, as Home Assistant asks.
    private static func ask(
        _ address: WyomingAddress, _ text: String, in conversation: String? = nil
    ) async throws -> WyomingMessage? {
        let client = try await WyomingTestClient(address)
        defer { client.close() }
        try client.send(transcript(text, in: conversation))
        return try await client.next()
    }

    private static func reply(_ message: WyomingMessage?) -> String? {
        guard case .handled(let text, _) = message else { return nil }
        return text
    }

    @Test("What is said in Home Assistant changes a device of another node, and questions keep to their conversation")
    func dialogs() async throws {
        let cluster = try SharedCluster.cluster(basePort: 24_880)
        let device = try cluster.start(
            "device", "--id", "agent-lamp", "--test-pattern", "64x64@1", "--setting", "power=0")
        defer { device.terminate() }
        let app = try cluster.session(node: 2, token: try cluster.token("--role", "app", "--account", "local"))
        defer { app.close() }
        try await eventually { () throws(ApusError) in
            _ = try await app.readProperty(of: DeviceID(unchecked: "agent-lamp"), path: "ProWritable.power")
        }
        try await app.setVoiceHome(Self.home)
        let (process, address) = try await Self.agent(cluster, node: 3)
        defer { process.terminate() }

        let client = try await WyomingTestClient(address)
        try client.send(.describe)
        guard case .info(let info) = try await client.next() else { throw TestFailure("no info") }
        #expect(info.handling.map(\.artifact.name) == ["Apus"] && info.recognition.isEmpty)
        #expect(info.handling[0].controlsHome && info.handling[0].models.map(\.languages) == [["en"], ["zh"]])

        // The session may not be connected yet: the text waits for it.
        let on = try await Self.ask(address, "turn on the hall lamp", in: "a")
        guard case .handled(let text, let context) = on else { throw TestFailure("\(String(describing: on))") }
        #expect(text == "The hall lamp is on." && context?["conversation_id"]?.string == "a")
        #expect(context?["device_id"]?.string == "ha")
        #expect(
            try await app.readProperty(of: DeviceID(unchecked: "agent-lamp"), path: "ProWritable.power.setVal").json
                == "1")
        let lost = try await Self.ask(address, "order a pizza", in: "a")
        guard case .notHandled(let apology, _) = lost else { throw TestFailure("\(String(describing: lost))") }
        #expect(apology?.isEmpty == false)

        // A retry of Home Assistant is a new sentence.
        for reply in ["The hall lamp is off.", "The hall lamp is already off."] {
            #expect(Self.reply(try await Self.ask(address, "turn off the hall lamp", in: "a")) == reply)
        }

        let question = "Shall I unlock the front door?"
        #expect(Self.reply(try await Self.ask(address, "unlock the front door", in: "a")) == question)
        let stranger = try await Self.ask(address, "yes", in: "b")
        let turns = try await app.dialog(of: DeviceID(unchecked: "agent-lamp")).turns
        #expect(turns.first?.text == "yes" && turns.first?.outcome == .refused, "\(String(describing: stranger))")
        #expect(Self.reply(try await Self.ask(address, "unlock the front door", in: "a")) == question)
        _ = try await Self.ask(address, "yes", in: "a")
        let confirmed = try await app.dialog(of: DeviceID(unchecked: "agent-lamp")).turns
        #expect(confirmed.first?.steps.map(\.path) == ["Action.lock.ctlVal"], "\(confirmed.prefix(1))")
        // A client that names no conversation gets a name for the next text.
        let unnamed = try await Self.ask(address, "unlock the front door")
        guard case .handled(question, let given) = unnamed, let name = given?["conversation_id"]?.string else {
            throw TestFailure("\(String(describing: unnamed))")
        }
        #expect(Self.reply(try await Self.ask(address, "no", in: name)) != nil)
    }

    @Test("Garbage, wrong events, long texts and languages are refused with numbers, and others are served meanwhile")
    func refusals() async throws {
        let cluster = try SharedCluster.cluster(basePort: 24_880)
        let (process, address) = try await Self.agent(cluster)
        defer { process.terminate() }
        // The session may not be connected yet: a text waits for it.
        #expect(Self.reply(try await Self.ask(address, "what time is it"))?.hasPrefix("It is ") == true)

        let other = try await WyomingTestClient(address)
        for garbage in [
            "no JSON\n", "{}\n", #"{"type":"transcript","data_length":-1}"# + "\n",
            #"{"type":"transcript","data_length":99999999}"# + "\n", #"{"type":"transcript","data":{"text":1}}"# + "\n",
            String(repeating: "a", count: 70_000),
        ] {
            let client = try await WyomingTestClient(address)
            client.send(garbage)
            #expect(try await client.nextCode() == "apus-protocol", "\(garbage.prefix(40))")
            #expect(try await client.next() == nil, "the connection is closed")
        }
        let client = try await WyomingTestClient(address)
        try client.send(Self.transcript(String(repeating: "a", count: 513)))
        #expect(try await client.nextCode() == "10002")
        try client.send(.transcript(.init(text: "help", language: "tlh")))
        #expect(try await client.nextCode() == "21031")
        for _ in 0..<16 {
            try client.send(.transcribe(.init()))
            #expect(try await client.nextCode() == "10004")
        }
        try client.send(.transcribe(.init()))
        #expect(try await client.next() == nil, "the connection is closed")

        // A client that asks a lot at once gets numbers for what is too much, and an answer to the rest.
        for _ in 0..<10 { try other.send(Self.transcript("what time is it")) }
        var (handled, refused) = (0, 0)
        for _ in 0..<10 {
            switch try await other.next() {
            case .handled: handled += 1
            case .error(_, "10007"): refused += 1
            case let message: Issue.record("\(String(describing: message))")
            }
        }
        #expect(handled >= 4 && refused >= 1 && handled + refused == 10)

        var clients: [WyomingTestClient] = []
        for _ in 0..<70 { clients.append(try await WyomingTestClient(address)) }
        try await eventually("connections beyond 64 are closed") { clients.count(where: \.isClosed) >= 6 }
        clients.removeAll()
    }

    @Test("Another account's devices cannot be spoken to, other addresses are refused, and SIGTERM ends with code 0")
    func ends() async throws {
        let cluster = try SharedCluster.cluster(basePort: 24_880)
        let foreign = try cluster.token("--role", "app", "--account", "agent-foreign")
        let (stranger, strange) = try await Self.agent(cluster, token: foreign)
        let refused = try await WyomingTestClient(strange)
        try await eventually("the text is refused") {
            try refused.send(Self.transcript("turn on the hall lamp"))
            let code = try await refused.nextCode()
            return code == "8002" || code == "8003"
        }
        stranger.terminate()
        for address in ["tcp:0.0.0.0:10400", "tcp:192.0.2.1:1", "unix:", "http://127.0.0.1:1"] {
            let outcome = try cluster.run("conversation", "agent-lamp", "--listen", address)
            #expect(outcome.status != 0 && outcome.errors.contains("10022"), "\(outcome.all)")
        }
        let (process, address) = try await Self.agent(cluster)
        let client = try await WyomingTestClient(address)
        try client.send(.ping(text: "a"))
        #expect(try await client.next() == .pong(text: "a"))
        process.terminate()
        process.waitUntilExit()
        #expect(process.terminationStatus == 0)
        #expect(try await client.next() == nil, "the connection is closed")
        guard case .unix(let path) = address else { return }
        #expect(!FileManager.default.fileExists(atPath: path))
    }
}

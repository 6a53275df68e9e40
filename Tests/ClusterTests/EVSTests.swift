import ApusClient
import ApusContract
import ApusCore
import ApusTestKit
import Foundation
import SwiftProtobuf
import Testing

/// An EVS device of a test, over a WebSocket.
final class EVSDevice {
    private let socket: PlainWebSocket
    let token: String
    private var lastRequest = 0
    /// Responses that came without a request.
    private(set) var unasked: [(name: String, payload: [String: Any])] = []

    init(_ cluster: Cluster, _ id: String, node: Int, account: String, path: String = "/v1/evs") throws {
        token = try cluster.token("--role", "device", "--device", id, "--account", account)
        socket = try #require(PlainWebSocket(port: cluster.httpPort(node), path: path, token: token))
    }

    func send(_ text: String) { _ = socket.send(text) }

    func send(_ bytes: [UInt8]) { _ = socket.send(bytes) }

    static func request(_ name: String, id: String, _ payload: String, token: String? = nil) -> String {
        let header = token.map { #""iflyos_header":{"authorization":"Bearer \#($0)"},"# } ?? ""
        return """
            {\(header)"iflyos_context":{"speaker":{"version":"1.0","volume":10}},
             "iflyos_request":{"header":{"name":"\(name)","request_id":"\(id)"},"payload":\(payload)}}
            """
    }

    /// The responses of the next message; nil if the connection has ended.
    func next() -> (request: String?, isLast: Bool, items: [(name: String, payload: [String: Any])])? {
        guard let message = socket.receive(), let meta = message["iflyos_meta"] as? [String: Any],
            let responses = message["iflyos_responses"] as? [[String: Any]]
        else { return nil }
        let items = responses.compactMap { item -> (String, [String: Any])? in
            guard let name = (item["header"] as? [String: Any])?["name"] as? String else { return nil }
            return (name, item["payload"] as? [String: Any] ?? [:])
        }
        return (meta["request_id"] as? String, meta["is_last"] as? Bool ?? false, items)
    }

    /// All responses to a request, up to the last.
    func ask(
        _ name: String, _ payload: String = "{}", id: String? = nil
    ) throws -> [(name: String, payload: [String: Any])] {
        lastRequest += 1
        let id = id ?? "\(ObjectIdentifier(self).hashValue)-\(lastRequest)"
        send(Self.request(name, id: id, payload))
        return try answer(to: id)
    }

    func answer(to id: String) throws -> [(name: String, payload: [String: Any])] {
        var items: [(name: String, payload: [String: Any])] = []
        while let message = next() {
            guard message.request == id else {
                unasked += message.items
                continue
            }
            items += message.items
            if message.isLast { return items }
        }
        throw TestFailure("no answer to \(id)")
    }

    /// The text of the reply to a sentence.
    func say(_ text: String, id: String? = nil) throws -> String? {
        let items = try ask("recognizer.text_in", #"{"query":"\#(text)","with_tts":true}"#, id: id)
        return Self.reply(items)
    }

    static func reply(_ items: [(name: String, payload: [String: Any])]) -> String? {
        let payload = items.first { $0.name == "audio_player.audio_out" }?.payload
        return (payload?["metadata"] as? [String: Any])?["text"] as? String
    }

    /// The codes of an error: the device's and the catalogue's.
    static func codes(_ items: [(name: String, payload: [String: Any])]?) -> [Int] {
        guard let payload = items?.first(where: { $0.name == "system.error" })?.payload else { return [] }
        return [payload["code"] as? Int ?? 0, payload["number"] as? Int ?? 0]
    }
}

@Suite("Embedded voice devices over EVS (docs/evs.md)", .serialized, .timeLimit(.minutes(4)))
struct EVSTests {
    /// A home with a lamp, a lock and the speaker that is spoken to.
    private static func home(_ name: String) -> ClientVoiceHome {
        .with {
            $0.areas = [.with { ($0.id, $0.names) = ("hall", ["hall"]) }]
            $0.devices = [
                .with {
                    ($0.id, $0.device, $0.names, $0.kind) = ("lamp", "\(name)-lamp", ["hall lamp"], "light")
                    $0.area = "hall"
                    $0.controls = [
                        .with { ($0.what, $0.path, $0.onJson, $0.offJson) = ("power", "ProWritable.power", "1", "0") }
                    ]
                },
                .with {
                    ($0.id, $0.device, $0.names, $0.kind) = ("door", "\(name)-lamp", ["front door"], "lock")
                    $0.area = "hall"
                    $0.controls = [.with { ($0.what, $0.path) = ("lock", "Action.lock") }]
                },
                .with {
                    ($0.id, $0.device, $0.names, $0.kind) = ("box", "\(name)-box", ["hall speaker"], "speaker")
                    $0.area = "hall"
                },
            ]
        }
    }

    @Test("A device says texts at one node and receives directives, and a repetition at another node has no effect")
    func texts() async throws {
        let cluster = try SharedCluster.cluster(basePort: 24_920)
        let lamp = try cluster.start(
            "device", "--id", "evs-lamp", "--test-pattern", "64x64@1", "--setting", "power=0", "--token",
            try cluster.token("--role", "device", "--device", "evs-lamp", "--account", "evs"))
        defer { lamp.terminate() }
        let app = try cluster.session(node: 2, token: try cluster.token("--role", "app", "--account", "evs"))
        defer { app.close() }
        try await eventually { () throws(ApusError) in
            _ = try await app.readProperty(of: DeviceID(unchecked: "evs-lamp"), path: "ProWritable.power")
        }
        try await app.setVoiceHome(Self.home("evs"))

        let device = try EVSDevice(cluster, "evs-box", node: 1, account: "evs")
        #expect(try device.ask("system.state_sync").isEmpty)
        #expect(device.unasked.map(\.name) == ["system.ping"])
        let time = try #require(device.unasked[0].payload["timestamp"] as? Int)
        #expect(abs(Double(time) - Date().timeIntervalSince1970) < 60)
        #expect(try device.say("turn on the hall lamp", id: "lamp on") == "The hall lamp is on.")
        #expect(try device.say("turn on the hall lamp") == "The hall lamp is already on.")

        let asked = try device.ask("recognizer.text_in", #"{"query":"unlock the front door"}"#)
        #expect(
            EVSDevice.reply(asked) == "Shall I unlock the front door?" && asked.last?.name == "recognizer.expect_reply")
        #expect(asked.last?.payload["reply_key"] as? String == asked.first?.payload["resource_id"] as? String)
        #expect(try device.say("no")?.isEmpty == false)

        // A directive of a dialog comes before the reply, which says that the device has it.
        let ended = try device.say("hang up")
        #expect(device.unasked.last?.name == "Calls.End", "\(device.unasked)")
        #expect(ended != nil && ended?.contains("cannot") == false, "\(ended ?? "")")
        let turn = try await app.dialog(of: DeviceID(unchecked: "evs-box")).turns[0]
        #expect(turn.outcome == .done, "\(turn)")
        let finished = #"{"type":"FINISHED","resource_id":"\#(turn.id)"}"#
        #expect(try device.ask("audio_player.tts.progress_sync", finished).isEmpty)
        try await eventually("the dialog is idle") {
            try await app.dialog(of: DeviceID(unchecked: "evs-box")).phase == .idle
        }

        // An action that is no directive is answered with a number.
        await fails(.actionUnknown) { () throws(ApusError) in
            _ = try await app.performAction("Action.reboot.ctlVal", json: "1", on: DeviceID(unchecked: "evs-box"))
        }

        // The same request at another node, as after the death of the first one.
        let second = try EVSDevice(cluster, "evs-box", node: 3, account: "evs", path: "/embedded/v1")
        #expect(try second.say("turn on the hall lamp", id: "lamp on") == "The hall lamp is on.")
        #expect(
            EVSDevice.codes(try second.ask("recognizer.text_in", #"{"query":"help"}"#, id: "lamp on")) == [400, 21000])
        #expect(device.next()?.items.first.map { EVSDevice.codes([$0]) } == [400, 12003], "the first one is replaced")
        #expect(device.next() == nil)
    }

    @Test("A custom event goes to the skill of the home, and without one it is refused")
    func events() async throws {
        let cluster = try SharedCluster.cluster(basePort: 24_920)
        let device = try EVSDevice(cluster, "evs-custom", node: 2, account: "evs-custom")
        #expect(EVSDevice.codes(try device.ask("interceptor.custom", #"{"a":1}"#)) == [400, 8002])
    }

    @Test("Tokens, texts and requests that are not valid have their numbers, and the connection stays where it can")
    func refusals() async throws {
        let cluster = try SharedCluster.cluster(basePort: 24_920)
        let port = cluster.httpPort(2)
        func first(_ socket: PlainWebSocket?, _ text: String) throws -> [Int] {
            let socket = try #require(socket)
            _ = socket.send(text)
            let responses = socket.receive()?["iflyos_responses"] as? [[String: Any]]
            let payload = responses?.first?["payload"] as? [String: Any]
            #expect(socket.receive() == nil, "the connection is closed")
            return [payload?["code"] as? Int ?? 0, payload?["number"] as? Int ?? 0]
        }
        let app = try cluster.token("--role", "app", "--account", "evs-bad")
        let sync = EVSDevice.request("system.state_sync", id: "1", "{}")
        #expect(try first(PlainWebSocket(port: port, path: "/v1/evs"), sync) == [401, 12001], "no token")
        #expect(try first(PlainWebSocket(port: port, path: "/v1/evs", token: "x.y.z"), sync) == [401, 12001])
        let refused = try first(PlainWebSocket(port: port, path: "/v1/evs", token: app), sync)
        #expect(refused[0] == 403 || refused[0] == 401, "\(refused)")
        #expect(PlainWebSocket(port: port, path: "/v1/evs/more") == nil)

        // The token may come with the first request, or in the query.
        let token = try cluster.token("--role", "device", "--device", "evs-bad", "--account", "evs-bad")
        let socket = try #require(PlainWebSocket(port: port, path: "/v1/evs"))
        _ = socket.send(EVSDevice.request("system.state_sync", id: "1", "{}", token: token))
        #expect((socket.receive()?["iflyos_responses"] as? [[String: Any]])?.count == 1, "a ping")
        let query = try #require(PlainWebSocket(port: port, path: "/embedded/v1?token=\(token)&device_id=evs-bad"))
        #expect((query.receive()?["iflyos_responses"] as? [[String: Any]])?.count == 1, "a ping")

        let device = try EVSDevice(cluster, "evs-bad", node: 2, account: "evs-bad")
        device.send([UInt8](repeating: 1, count: 640))
        device.send("__CANCEL__")
        for text in ["no JSON", "{}", "[]", String(repeating: "a", count: 33_000)] {
            device.send(text)
            var codes: [Int] = []
            while codes.isEmpty, let message = device.next() { codes = EVSDevice.codes(message.items) }
            #expect(codes == [400, text.count > 32_768 ? 10002 : 10001], "\(text.prefix(20))")
        }
        #expect(EVSDevice.codes(try device.ask("recognizer.sing")) == [400, 21030])
        let long = #"{"query":"\#(String(repeating: "a", count: 513))"}"#
        #expect(EVSDevice.codes(try device.ask("recognizer.text_in", long)) == [400, 10002])
        #expect(EVSDevice.codes(try device.ask("recognizer.text_in", #"{"query":1}"#)) == [400, 21031])
        device.send(
            #"{"iflyos_header":{"device":{"device_id":"evs-other"}},"#
                + #""iflyos_request":{"header":{"name":"system.state_sync","request_id":"o"}}}"#
        )
        #expect(EVSDevice.codes(try device.answer(to: "o")) == [403, 12004])
        #expect(try device.say("what time is it")?.hasPrefix("It is ") == true)
        for _ in 0..<20 { device.send("no JSON") }
        var isEnded = false
        for _ in 0..<40 where !isEnded { isEnded = device.next() == nil }
        #expect(isEnded, "17 texts that are no requests end the connection")
    }

    private static func tone(_ sentence: Int) -> [Int16] {
        let frequency = Double(ScriptedEngine.frequency(sentence))
        return (0..<4800).map { Int16($0 % 3) }
            + (0..<11_200).map { Int16(8000 * sin(2 * .pi * frequency * Double($0) / 16_000)) }
    }

    /// Sends sound in frames of 20 ms, and silence behind it, until the device is to stop.
    private static func speak(_ samples: [Int16], _ device: EVSDevice, frames: Int) async throws {
        for index in 0..<frames {
            let from = min(320 * index, samples.count)
            var part = Array(samples[from..<min(from + 320, samples.count)])
            part += Array(repeating: 0, count: 320 - part.count)
            device.send(part.flatMap { [UInt8(truncatingIfNeeded: $0), UInt8(truncatingIfNeeded: $0 >> 8)] })
            try await Task.sleep(for: .milliseconds(20))
        }
    }

    /// The samples of a reply at its address.
    private static func fetch(_ url: String, _ cluster: Cluster) throws -> [Int16] {
        let path = String(url.drop { $0 != "/" }.dropFirst(2).drop { $0 != "/" })
        #expect(url.hasPrefix("http://localhost:\(cluster.httpPort(1))/v1/evs/replies/"))
        let http = try #require(PlainHTTP(port: cluster.httpPort(1)))
        #expect(http.send("GET \(path) HTTP/1.1\r\nHost: a\r\n\r\n"))
        let head = try #require(http.readHead())
        #expect(head.hasPrefix("HTTP/1.1 200") && head.lowercased().contains("content-type: audio/wav"), "\(head)")
        let header = try #require(http.read(44))
        #expect(String(decoding: header[..<4], as: UTF8.self) == "RIFF")
        let count = Int(header[40]) | Int(header[41]) << 8 | Int(header[42]) << 16
        let sound = try #require(http.read(count))
        return (0..<count / 2).map { Int16(truncatingIfNeeded: Int(sound[2 * $0]) | Int(sound[2 * $0 + 1]) << 8) }
    }

    @Test("A device is spoken to: the end is found, and the reply is fetched from its address, sample by sample")
    func spoken() async throws {
        let engine = try ScriptedEngine(["what time is it", "what day is it"])
        let cluster = try Cluster(
            nodes: 2, basePort: 24_960, environment: ["APUS_SPEECH_PROVIDERS": "unix:\(engine.path)"])
        defer {
            cluster.down()
            engine.end()
        }
        let app = try cluster.session(node: 2, token: try cluster.token("--role", "app", "--account", "local"))
        defer { app.close() }
        let device = try EVSDevice(cluster, "evs-ear", node: 1, account: "local")
        #expect(try device.ask("system.state_sync").isEmpty)
        let box = DeviceID(unchecked: "evs-ear")
        for (sentence, text) in ["what time is it", "what day is it"].enumerated() {
            let id = "audio-\(sentence)"
            device.send(EVSDevice.request("recognizer.audio_in", id: id, "{}"))
            try await Self.speak(Self.tone(sentence), device, frames: 100)
            let items = try device.answer(to: id)
            #expect(
                items.map(\.name) == [
                    "recognizer.intermediate_text", "recognizer.stop_capture", "audio_player.audio_out",
                ], "\(items)")
            #expect(items.first?.payload["text"] as? String == text)
            let reply = try #require(EVSDevice.reply(items))
            let url = try #require(items.last?.payload["url"] as? String)
            let (samples, expected) = (try Self.fetch(url, cluster), ScriptedEngine.reply(reply))
            // The length is that of the answer, in whole milliseconds.
            #expect(abs(samples.count - expected.count) <= ScriptedEngine.sampleRate / 1000)
            #expect(samples == Array(expected.prefix(samples.count)))
            let finished =
                #"{"type":"FINISHED","resource_id":"\#(items.last?.payload["resource_id"] as? String ?? "")"}"#
            #expect(try device.ask("audio_player.tts.progress_sync", finished).isEmpty)
            #expect(try await app.dialog(of: box).phase == .idle)
        }
        #expect(PlainHTTP(port: cluster.httpPort(1))?.exchange("GET", "/v1/evs/replies/00", token: "")?.status == 404)

        // A device that ends its sound itself, faster than it was said.
        device.send(EVSDevice.request("recognizer.audio_in", id: "own", #"{"enable_vad":false}"#))
        let all = Self.tone(1).flatMap { [UInt8(truncatingIfNeeded: $0), UInt8(truncatingIfNeeded: $0 >> 8)] }
        for from in stride(from: 0, to: all.count, by: 6400) {
            device.send(Array(all[from..<min(from + 6400, all.count)]))
        }
        device.send("__END__")
        let own = try device.answer(to: "own")
        #expect(
            own.map(\.name) == ["recognizer.intermediate_text", "audio_player.audio_out"]
                && EVSDevice.reply(own)?.hasPrefix("Today is") == true)

        // What is withdrawn, and what nobody has said.
        device.send(EVSDevice.request("recognizer.audio_in", id: "withdrawn", "{}"))
        try await Self.speak([], device, frames: 10)
        device.send("__CANCEL__")
        #expect(try device.answer(to: "withdrawn").isEmpty)
        try await eventually("the dialog is idle") { try await app.dialog(of: box).phase == .idle }
        device.send(EVSDevice.request("recognizer.audio_in", id: "format", #"{"format":"OPUS"}"#))
        #expect(EVSDevice.codes(try device.answer(to: "format")) == [400, 21031])
        #expect(try device.say("help")?.isEmpty == false)
    }
}

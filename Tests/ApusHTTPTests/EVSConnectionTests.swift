import ApusCore
import ApusHTTP
import ApusMedia
import NIOCore
import Testing

@Suite("What an EVS device may send when, and what it is answered (docs/evs.md)")
struct EVSConnectionTests {
    private typealias Machine = EVSConnectionStateMachine

    private static let now = MonotonicTime.zero + .seconds(1000)

    /// A connection of the device `speaker`.
    private struct Connection {
        var machine = Machine()
        var actions: [Machine.Action] = []

        /// What follows of the change.
        mutating func change(_ body: (inout Machine, inout [Machine.Action]) -> Void) -> [Machine.Action] {
            var actions: [Machine.Action] = []
            body(&machine, &actions)
            return actions
        }

        mutating func receive(_ request: EVSRequest, _ sentence: String = "s") -> [Machine.Action] {
            change { $0.received(request, sentence: sentence, &$1) }
        }

        mutating func answer(_ call: UInt32?, _ answer: Machine.Answer) -> [Machine.Action] {
            guard let call else { return [] }
            return change { $0.answered(call, answer, &$1) }
        }

        /// Signed in and synchronized.
        static func synchronized() -> Connection {
            var connection = Connection()
            _ = connection.change { $0.connected(token: "t", &$1) }
            let opened = connection.change { $0.opened(as: "speaker", at: EVSConnectionTests.now, seconds: 1, &$1) }
            _ = connection.answer(EVSConnectionTests.call(opened)?.0, .done)
            let first = connection.receive(EVSRequest(name: "system.state_sync", id: "1"))
            _ = connection.answer(EVSConnectionTests.call(first)?.0, .done)
            return connection
        }
    }

    private static func call(_ actions: [Machine.Action]) -> (UInt32, Machine.Call)? {
        for case .ask(let id, let call) in actions { return (id, call) }
        return nil
    }

    private static func sent(_ actions: [Machine.Action]) -> [EVSResponses] {
        actions.compactMap { if case .send(let responses) = $0 { responses } else { nil } }
    }

    /// The codes of the first error that was sent: the device's and ours.
    private static func codes(_ actions: [Machine.Action]) -> [Int64?] {
        let item = sent(actions).flatMap(\.items).first { $0.name == "system.error" }
        return item.map { [$0.payload["code"]?.integer, $0.payload["number"]?.integer] } ?? []
    }

    private static func say(_ text: String, id: String = "r") -> EVSRequest {
        EVSRequest(
            name: "recognizer.text_in", id: id, payload: .object([.init(name: "query", value: .string(text))]))
    }

    @Test("The token comes with the upgrade or with the first request, and what comes before the session waits")
    func signIn() throws {
        var connection = Connection()
        #expect(connection.change { $0.connected(token: nil, &$1) }.isEmpty)
        var first = Self.say("help")
        first.token = "t"
        #expect(connection.receive(first) == [.signIn(token: "t")])
        #expect(connection.receive(Self.say("stop", id: "r2")).isEmpty)
        let opened = connection.change { $0.opened(as: "speaker", at: Self.now, seconds: 17, &$1) }
        #expect(
            opened == [
                .ask(1, .follow(topic: "commands/own")),
                .send(EVSResponses([.init("system.ping", ["timestamp": .number("17")])])),
                .ask(2, .synchronize(context: "")),
            ])
        let both = connection.answer(2, .done)
        #expect(
            both == [
                .ask(3, .say(id: "s", text: "help", context: "")), .ask(4, .say(id: "s", text: "stop", context: "")),
            ])
        var other = Connection()
        #expect(other.change { $0.connected(token: "t", &$1) } == [.signIn(token: "t")])
        var none = Connection()
        guard case .close(let error)? = none.receive(Self.say("help")).first else {
            Issue.record("a request without a token closes the connection")
            return
        }
        #expect(error.code == .tokenInvalid)
    }

    @Test("A sentence is answered with the reply's text, and with the key for the answer to a question")
    func sentence() throws {
        var connection = Connection.synchronized()
        let (call, _) = try #require(Self.call(connection.receive(Self.say("unlock the door"))))
        let asked = connection.answer(call, .turn(.init(id: "t1", reply: "Shall I?", asks: true)))
        let responses = try #require(Self.sent(asked).first)
        #expect(responses.requestID == "r" && responses.isLast && responses.trace == "t1")
        #expect(responses.items.map(\.name) == ["audio_player.audio_out", "recognizer.expect_reply"])
        #expect(responses.items[0].payload["metadata"]?["text"]?.string == "Shall I?")
        #expect(responses.items[1].payload["reply_key"]?.string == "t1")
        let text = responses.text
        #expect(
            text.hasPrefix(#"{"iflyos_meta":{"trace_id":"t1","request_id":"r","is_last":true},"iflyos_responses":["#))
        let progress = EVSRequest(
            name: "audio_player.tts.progress_sync", id: "p",
            payload: .object([
                .init(name: "type", value: .string("FINISHED")), .init(name: "resource_id", value: .string("t1")),
            ]))
        #expect(Self.call(connection.receive(progress))?.1 == .spoken(id: "t1"))
    }

    @Test("Errors have one of five codes for devices, and the number of the catalogue")
    func errors() throws {
        var connection = Connection.synchronized()
        #expect(Self.codes(connection.receive(EVSRequest(name: "recognizer.sing"))) == [400, 21030])
        #expect(Self.codes(connection.receive(EVSRequest(name: "recognizer.text_in"))) == [400, 21031])
        var foreign = Self.say("help")
        foreign.device = "other"
        #expect(Self.codes(connection.receive(foreign)) == [403, 12004])
        for (error, code) in [(ErrorCode.overloaded, 503), (.internalFailure, 500), (.tokenExpired, 401)] {
            let call = Self.call(connection.receive(Self.say("help")))?.0
            #expect(
                Self.codes(connection.answer(call, .failed(ApusError(error)))) == [Int64(code), Int64(error.number)])
        }
        for _ in 0..<16 {
            #expect(Self.codes(connection.change { $0.receivedWrong(ApusError(.malformed), &$1) }) == [400, 10001])
        }
        #expect(connection.change { $0.receivedWrong(ApusError(.malformed), &$1) } == [.close(ApusError(.malformed))])
        #expect(connection.receive(Self.say("help")).isEmpty)
    }

    @Test("A synchronization that fails is the answer to its request, and the next request makes another")
    func synchronization() throws {
        var connection = Connection()
        _ = connection.change { $0.connected(token: "t", &$1) }
        _ = connection.change { $0.opened(as: "speaker", at: Self.now, seconds: 1, &$1) }
        var request = Self.say("help")
        request.context = [.init(name: "speaker", value: .object([.init(name: "volume", value: .number("10"))]))]
        let (call, content) = try #require(Self.call(connection.receive(request)))
        let context = #"[{"header":{"namespace":"speaker","name":"State"},"payload":{"volume":10}}]"#
        #expect(content == .synchronize(context: context))
        #expect(connection.receive(Self.say("stop", id: "r2")).isEmpty)
        let failed = connection.answer(call, .failed(ApusError(.noRoute)))
        #expect(Self.sent(failed).map(\.requestID) == ["r"] && Self.codes(failed) == [503, 10010])
        #expect(Self.call(failed)?.1 == .synchronize(context: ""))
    }

    @Test("Directives are sent once and answered; other commands are answered with 20104 and 21007")
    func directives() throws {
        var connection = Connection.synchronized()
        let payload = JSONValue.object([.init(name: "a", value: .number("1"))])
        func receive(_ id: String, _ namespace: String) -> [Machine.Action] {
            connection.change {
                $0.received(command: id, isAction: true, directive: (namespace, "Start", payload), &$1)
            }
        }
        let custom = receive("c1", "Custom")
        #expect(Self.sent(custom).map(\.items) == [[.init("interceptor.custom", payload)]])
        #expect(Self.sent(custom).map(\.requestID) == [""])
        #expect(Self.call(custom)?.1 == .answer(command: "c1", nil))
        let again = receive("c1", "Custom")
        #expect(Self.sent(again).isEmpty && Self.call(again)?.1 == .answer(command: "c1", nil))
        #expect(Self.sent(receive("c2", "Calls")).map(\.items) == [[.init("Calls.Start", payload)]])
        let action = connection.change { $0.received(command: "c3", isAction: true, directive: nil, &$1) }
        #expect(action.count == 1 && Self.call(action)?.1 == .answer(command: "c3", .actionUnknown))
        let data = connection.change { $0.received(command: "c4", isAction: false, directive: nil, &$1) }
        #expect(Self.call(data)?.1 == .answer(command: "c4", .callbackUnknown))
    }

    private static func audio(_ id: String = "a", _ members: KeyValuePairs<String, JSONValue> = [:]) -> EVSRequest {
        EVSRequest(
            name: "recognizer.audio_in", id: id, payload: .object(members.map { .init(name: $0.key, value: $0.value) }))
    }

    private static let position = FramePosition(epoch: 1, sequence: 7)

    @Test("A sentence that is spoken is published, heard, stopped and answered with the address of the reply")
    func sound() throws {
        var connection = Connection.synchronized()
        let begun = connection.receive(Self.audio(), "s1")
        #expect(Self.call(begun)?.1 == .follow(topic: "dialogs/speaker") && begun.last == .begin(1))
        let bytes = ByteBuffer(repeating: 1, count: 640)
        #expect(connection.change { $0.received(sound: bytes, &$1) } == [.sound(bytes)])
        let listening = connection.change { $0.began(1, at: Self.position, &$1) }
        let (call, content) = try #require(Self.call(listening))
        #expect(content == .listen(id: "s1", Self.position, context: ""))
        #expect(connection.change { $0.began(1, at: Self.position, &$1) }.isEmpty, "a sentence begins once")
        #expect(connection.change { $0.heard("other", "x", &$1) }.isEmpty)
        let heard = connection.change { $0.heard("s1", "help", &$1) }
        #expect(heard.last == .silence)
        #expect(
            Self.sent(heard).first?.items.map(\.name) == ["recognizer.intermediate_text", "recognizer.stop_capture"])
        #expect(Self.sent(heard).first?.isLast == false)
        #expect(connection.change { $0.received(sound: bytes, &$1) }.isEmpty, "the sentence has ended")
        let turn = Machine.Turn(id: "s1", reply: "Yes.", asks: false)
        let end = connection.answer(call, .heard(.init(text: "help", turn: turn, address: "https://a/b")))
        #expect(end.first == .end)
        let item = try #require(Self.sent(end).first?.items.first)
        #expect(Self.sent(end)[0].items.count == 1 && item.name == "audio_player.audio_out")
        #expect(item.payload["url"]?.string == "https://a/b" && item.payload["secure_url"]?.string == "https://a/b")
        #expect(Self.sent(end)[0].isLast && Self.sent(end)[0].requestID == "a")
    }

    @Test("Without the change of the dialog, the answer stops the sound; nothing that was heard has no reply")
    func nothingHeard() throws {
        var connection = Connection.synchronized()
        _ = connection.receive(Self.audio())
        let call = Self.call(connection.change { $0.began(1, at: Self.position, &$1) })?.0
        let end = connection.answer(call, .heard(.init(text: "", turn: nil, address: nil)))
        #expect(Self.sent(end).first?.items.map(\.name) == ["recognizer.stop_capture"])
        // A device that ends its sound itself need not be stopped.
        _ = connection.receive(Self.audio("b", ["enable_vad": .bool(false)]))
        #expect(connection.change { $0.soundEnded(&$1) } == [.silence])
        #expect(connection.change { $0.soundEnded(&$1) }.isEmpty)
        let second = Self.call(connection.change { $0.began(2, at: Self.position, &$1) })?.0
        let silent = connection.answer(second, .heard(.init(text: "", turn: nil, address: nil)))
        #expect(Self.sent(silent).map(\.items) == [[]])
    }

    @Test("A sentence that is withdrawn, replaced or without a microphone is answered, and its call is cancelled")
    func withdrawn() throws {
        var connection = Connection.synchronized()
        _ = connection.receive(Self.audio("a"))
        let (call, _) = try #require(Self.call(connection.change { $0.began(1, at: Self.position, &$1) }))
        let cancelled = connection.change { $0.soundCancelled(&$1) }
        #expect(cancelled.starts(with: [.cancel(call), .end]) && Self.call(cancelled)?.1 == .stop)
        #expect(Self.sent(cancelled).map(\.requestID) == ["a"] && Self.sent(cancelled)[0].items.isEmpty)
        #expect(connection.answer(call, .done).isEmpty)
        #expect(connection.change { $0.soundCancelled(&$1) }.isEmpty)
        _ = connection.receive(Self.audio("b"))
        let replaced = connection.receive(Self.audio("c"))
        #expect(Self.sent(replaced).map(\.requestID) == ["b"] && replaced.last == .begin(3))
        let failed = connection.change { $0.microphoneFailed(ApusError(.kicked), &$1) }
        #expect(Self.sent(failed).map(\.requestID) == ["c"] && Self.codes(failed) == [400, 12003])
        #expect(Self.codes(connection.receive(Self.audio("d", ["format": .string("OPUS")]))) == [400, 21031])
        #expect(Self.codes(connection.receive(Self.audio("e", ["profile": .string("EVALUATE")]))) == [400, 21030])
    }

    @Test("Sound that comes before the session is open waits for it, within its bound")
    func earlySound() throws {
        var connection = Connection()
        _ = connection.change { $0.connected(token: "t", &$1) }
        _ = connection.receive(Self.audio())
        for _ in 0..<120 {
            #expect(connection.change { $0.received(sound: ByteBuffer(repeating: 1, count: 640), &$1) }.isEmpty)
        }
        #expect(connection.change { $0.soundEnded(&$1) }.isEmpty)
        _ = connection.change { $0.opened(as: "speaker", at: Self.now, seconds: 1, &$1) }
        let begun = connection.answer(2, .done)
        #expect(
            begun.suffix(3) == [.begin(1), .sound(ByteBuffer(repeating: 1, count: 64_000)), .silence], "\(begun.count)"
        )
        #expect(connection.change { $0.received(sound: ByteBuffer(repeating: 1, count: 640), &$1) }.isEmpty)
    }

    @Test("A ping with the time comes every two minutes")
    func pings() {
        var connection = Connection.synchronized()
        #expect(connection.change { $0.tick(at: Self.now + .seconds(119), seconds: 5, &$1) }.isEmpty)
        let ping = connection.change { $0.tick(at: Self.now + .seconds(120), seconds: 6, &$1) }
        #expect(Self.sent(ping).first?.items == [.init("system.ping", ["timestamp": .number("6")])])
        #expect(connection.change { $0.tick(at: Self.now + .seconds(121), seconds: 7, &$1) }.isEmpty)
    }

    @Test("Texts are read within bounds")
    func texts() throws {
        func read(_ text: String) throws(ApusError) -> EVSText { try EVSText(Array(text.utf8)) }
        #expect(try read("__END__") == .soundEnded && read("__CANCEL__") == .soundCancelled)
        let text = """
            {"iflyos_header":{"authorization":"Bearer abc","device":{"device_id":"d","ip":"1"}},
             "iflyos_context":{"system":{"version":"1.3"}},
             "iflyos_request":{"header":{"name":"recognizer.text_in","request_id":"1"},"payload":{"query":"a"}}}
            """
        let expected = EVSRequest(
            name: "recognizer.text_in", id: "1",
            payload: .object([.init(name: "query", value: .string("a"))]),
            context: [.init(name: "system", value: .object([.init(name: "version", value: .string("1.3"))]))],
            token: "abc", device: "d")
        #expect(try read(text) == .request(expected))
        for (text, code) in [
            ("", ErrorCode.malformed), ("[]", .malformed), ("{}", .malformed), ("__end__", .malformed),
            (#"{"iflyos_request":{"header":{}}}"#, .malformed),
            (#"{"iflyos_request":{"header":{"name":1}}}"#, .malformed),
            (String(repeating: "[", count: 30_000), .malformed),
            (String(repeating: " ", count: 32_769), .frameTooLarge),
            (
                #"{"iflyos_request":{"header":{"name":"a","request_id":"\#(String(repeating: "a", count: 129))"}}}"#,
                .frameTooLarge
            ),
        ] {
            do {
                _ = try read(text)
                Issue.record("\(text.prefix(80)) was read")
            } catch {
                #expect(error.code == code, "\(text.prefix(80))")
            }
        }
        #expect(EVSRequest.token("bearer abc") == "abc" && EVSRequest.token("abc") == "abc")
        #expect(EVSRequest.token("Bearer ") == "Bearer ")
    }

    @Test("An account with many replies makes room for those of others with its own")
    func replies() {
        let (large, small) = (AccountID(unchecked: "large"), AccountID(unchecked: "small"))
        #expect(EVSReplies.oldestOfLargest([(small, 5), (large, 4), (large, 4), (small, 2)]) == 1)
        #expect(EVSReplies.oldestOfLargest([(large, 4), (small, 9), (large, 4), (small, 1)]) == 1)
        // One that was just added stays, also if it is the largest.
        #expect(EVSReplies.oldestOfLargest([(small, 5), (large, 90)]) == 0)
    }
}

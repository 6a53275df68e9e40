import ApusCore
import ApusDialogs
import ApusTestKit
import Testing

@Suite("Answers of chat completions servers (VA, docs/voice.md)")
struct GuestAnswerTests {
    private static func answer(_ message: String) throws -> GuestAnswer {
        try GuestAnswer(Array(#"{"id":"x","choices":[{"index":0,"message":\#(message)}],"usage":{}}"#.utf8))
    }

    @Test("A text is a reply, and tool calls are calls, also with objects as arguments")
    func shapes() throws {
        #expect(try Self.answer(#"{"role":"assistant","content":"It is late."}"#) == .text("It is late."))
        #expect(
            try Self.answer(#"{"content":[{"type":"text","text":"It is"},{"text":"late."}]}"#) == .text("It is late."))
        let lamp = GuestCall("control", .object([.init(name: "name", value: .string("lamp"))]))
        let both =
            #"{"content":"Done!","tool_calls":[{"id":"1","type":"function","function":{"name":"control","arguments":"#
        #expect(try Self.answer(both + #""{\"name\":\"lamp\"}"}}]}"#) == .calls([lamp]))
        #expect(try Self.answer(both + #"{"name":"lamp"}}}]}"#) == .calls([lamp]))
        #expect(try Self.answer(both + #""{\"name\":"}}]}"#) == .calls([GuestCall("control", .null)]))
        #expect(try Self.answer(#"{"tool_calls":[{}]}"#) == .calls([GuestCall("", .null)]))
        for nothing in [
            #"{"content":null,"tool_calls":[]}"#, #"{"content":""}"#, #"{"content":" \n\u0007 "}"#, "{}",
            #"{"content":"<think>What now"}"#,
        ] {
            #expect(try Self.answer(nothing) == .nothing, "\(nothing)")
        }
    }

    @Test(
        "What is no chat completion is an error",
        arguments: [
            "", "OK", "[]", "{}", #"{"choices":[]}"#, #"{"choices":[{"message":"Hello"}]}"#, #"{"choices":{}}"#,
            #"{"error":{"message":"no model"}}"#, #"{"choices":[{"message":{"content":"a"}}]"#,
            #"{"choices":[{"message":{"content":"\ud800"}}]}"#,
            String(repeating: "[", count: 60_000),
        ])
    func garbage(text: String) {
        #expect { try GuestAnswer(Array(text.utf8)) } throws: { ($0 as? ApusError)?.code == .passToServerFailed }
    }

    @Test(
        "Texts are said without formatting",
        arguments: [
            ("**It** is *late*.", "It is late."), ("# News\n\n- one\n- `two`\n> three", "News one two three"),
            ("2 * 3 is _six_, and a_b stays", "2 * 3 is six, and a_b stays"),
            ("a\u{7}b\u{1b}[31m\tc\r\nd\u{202e}e", "a b [31m c de"),
            ("<think>The lamp?\n</think>\n\nIt is late.", "It is late."), ("好的。**好**", "好的。好"),
            ("-5 degrees\n* +5 degrees", "-5 degrees +5 degrees"),
        ])
    func spoken(text: String, expected: String) {
        #expect(GuestText.spoken(text) == expected)
    }

    @Test("A long text ends with a sentence, else with a word, and never within a character")
    func cut() {
        let sentence = "This is one sentence of several. "
        let long = GuestText.spoken(String(repeating: sentence, count: 100))
        #expect((1990...2048).contains(long.utf8.count) && long.hasSuffix("of several."))
        let words = GuestText.spoken(String(repeating: "word ", count: 1000))
        #expect((2000...2048).contains(words.utf8.count) && words.hasSuffix("word"))
        let chinese = GuestText.spoken(String(repeating: "好", count: 1000))
        #expect(chinese == String(repeating: "好", count: 682))
        #expect(GuestText.spoken(String(repeating: "a", count: 5000)).utf8.count == 2048)
    }

    @Test("Random changes of an answer are read or refused, and every text is within its bounds", arguments: 0..<10)
    func random(seed: UInt64) throws {
        var random = SeededRandom(seed: seed)
        let call = #"{"function":{"name":"control","arguments":"{\"action\":\"turn_on\",\"name\":\"desk lamp\"}"}}"#
        let text = ##"{"choices":[{"message":{"content":"**It** is late.","tool_calls":[\##(call)]}}]}"##
        let whole = Array(text.utf8)
        let reader = try VoiceHomes.reader()
        for _ in 0..<2_000 {
            var bytes = whole
            for _ in 0..<Int.random(in: 0...4, using: &random) {
                let index = Int.random(in: 0..<bytes.count, using: &random)
                switch Int.random(in: 0..<4, using: &random) {
                case 0: bytes[index] = UInt8.random(in: 0...255, using: &random)
                case 1: bytes.remove(at: index)
                case 2: bytes.insert(contentsOf: bytes[index...].prefix(20), at: index)
                default: bytes.removeSubrange(index...)
                }
                guard !bytes.isEmpty else { break }
            }
            guard let answer = try? GuestAnswer(bytes) else { continue }
            if case .text(let text) = answer {
                #expect((1...2048).contains(text.utf8.count) && !text.unicodeScalars.contains { $0.value < 32 })
            }
            let plan = reader.plan(of: answer)
            #expect(plan.steps.allSatisfy { $0.entry == "lamp" }, "\(plan)")
        }
    }
}

import ApusContract
import ApusCore
import ApusDialogs
import SwiftProtobuf
import Testing

@Suite("What a language model gets with a sentence (VA, docs/voice.md)")
struct GuestPromptTests {
    private static let account = AccountID(unchecked: "account-7")
    private static let now: Int64 = 1_796_044_020_000

    private static func turn(_ text: String, _ reply: String, of account: AccountID = account, ago: Int64 = 1)
        -> DialogTurn
    {
        .with {
            ($0.id, $0.text, $0.beganMs, $0.endedMs) = ("0123456789abcdef", text, now - ago, now)
            ($0.plan.reply, $0.speaker.account, $0.speaker.tokenTag) = (reply, account.rawValue, 4711)
        }
    }

    private static func read(_ reader: SentenceReader, _ turns: [DialogTurn] = []) throws -> (
        text: String, json: JSONValue
    ) {
        let text = GuestPrompt(reader, "it is dark", after: turns, of: account).json(model: "small", tokensMax: 99)
        return (text, try #require(JSONValue(ArraySlice(text.utf8), depthMax: 16)))
    }

    private static func items(_ value: JSONValue?) -> [JSONValue] {
        if case .array(let items)? = value { items } else { [] }
    }

    /// The values of a parameter of a function; empty if there is none.
    private static func values(_ json: JSONValue, _ function: String, _ parameter: String) -> [String] {
        let tool = items(json["tools"]).first { $0["function"]?["name"]?.string == function }
        return items(tool?["function"]?["parameters"]?["properties"]?[parameter]?["enum"]).compactMap(\.string)
    }

    @Test("It has the language, the local time, the place, the sentence and names, and no id")
    func content() throws {
        let (text, json) = try Self.read(try VoiceHomes.reader(), [Self.turn("turn it on", "The lamp is on.")])
        #expect(json["model"]?.string == "small" && json["max_tokens"]?.integer == 99)
        let messages = Self.items(json["messages"]).map { ($0["role"]?.string ?? "", $0["content"]?.string ?? "") }
        #expect(messages.map(\.0) == ["system", "user", "assistant", "user"])
        #expect(messages.dropFirst().map(\.1) == ["turn it on", "The lamp is on.", "it is dark"])
        for part in ["English", "Monday, 2026-11-30, 14:07", "The person is here: kitchen."] {
            #expect(messages[0].1.contains(part), "\(messages[0].1)")
        }
        #expect(Self.values(json, "control", "name").contains("desk lamp"))
        #expect(Self.values(json, "control", "area") == ["kitchen", "garage", "hall", "厨房", "车库", "门厅"])
        #expect(Self.values(json, "call", "name") == ["speaker", "front door", "garden", "safe", "garage door", "前门"])
        #expect(Self.values(json, "group", "kind") == ["light", "climate", "speaker", "cover"])
        for secret in ["dev-", "account-7", "0123456789abcdef", "4711", "ProWritable", "spot1", "Berlin"] {
            #expect(!text.contains(secret), "\(secret) leaves the cluster")
        }
        let chinese = try Self.read(try VoiceHomes.reader("zh-CN"))
        #expect(chinese.text.contains("Reply in Chinese"))
    }

    @Test("The history is that of the account, at most ten minutes old, and bounded; the oldest turns are left out")
    func history() throws {
        let reader = try VoiceHomes.reader()
        let turns = [
            Self.turn("old", "Old.", ago: 600_000), Self.turn("other", "Other.", of: AccountID(unchecked: "account-8")),
            Self.turn("silent", ""), Self.turn("new", "New.", ago: 599_999),
        ]
        let texts = Self.items(try Self.read(reader, turns).json["messages"]).compactMap { $0["content"]?.string }
        #expect(texts.dropFirst() == ["new", "New.", "it is dark"])
        let many = (0..<12).map { Self.turn("t\($0)", "r") }
        #expect(Self.items(try Self.read(reader, many).json["messages"])[1]["content"]?.string == "t4")
        let long = (0..<8).map { Self.turn("t\($0)", String(repeating: "a", count: 2000)) }
        let kept = Self.items(try Self.read(reader, long).json["messages"])
        #expect(kept.count == 10 && kept[1]["content"]?.string == "t4", "8 KiB")
    }

    @Test("The names are bounded, and first names come before others; an empty home has timers only")
    func bounds() throws {
        var home = ClientVoiceHome()
        home.areas = (0..<64).map { number in
            .with { ($0.id, $0.names) = ("a\(number)", (0..<8).map { "area \(number) \($0)" }) }
        }
        home.devices = (0..<256).map { number in
            .with {
                ($0.id, $0.device, $0.kind) = ("d\(number)", "cam", "light")
                $0.names = ["lamp \(number)"]
            }
        }
        func reader() throws -> SentenceReader {
            try SentenceReader(VoiceHome(stored: home), language: "en", speaker: VoiceHomes.speaker, now: Self.now)
        }
        var read = try Self.read(try reader())
        #expect(Self.values(read.json, "control", "name") == (0..<128).map { "lamp \($0)" })
        #expect(Self.values(read.json, "group", "area") == (0..<32).map { "area \($0) 0" })
        for index in home.devices.indices {
            home.devices[index].names = (0..<3).map { String(repeating: "\($0)\(index)", count: 15) }
        }
        read = try Self.read(try reader())
        #expect(Self.values(read.json, "control", "name").reduce(0) { $0 + $1.utf8.count } <= 4096)
        #expect(read.text.utf8.count < 32 << 10)
        home = ClientVoiceHome()
        read = try Self.read(try reader())
        let functions = Self.items(read.json["tools"]).compactMap { $0["function"]?["name"]?.string }
        #expect(functions == ["timer", "alarm_clock"])
    }
}

import ApusCore
import ApusGrammar
import Testing

/// A home with devices, for tests: the same ones in each language.
enum GrammarHome {
    static func device(_ text: String, _ id: String, _ kind: VoiceKind) -> GrammarValue {
        GrammarValue(text, value: id, context: [kind.fact])
    }

    static let english = [
        GrammarList(
            "name",
            [
                device("Desk Lamp", "lamp-1", .light), device("Ceiling Light", "lamp-2", .light),
                device("kitchen light", "lamp-3", .light), device("reading lamp", "lamp-4", .light),
                device("Reading lamp!", "lamp-5", .light), device("Coffee Machine", "socket-1", .socket),
                device("Fan", "fan-1", .fan), device("Thermostat", "climate-1", .climate),
                device("radio", "speaker-1", .speaker), device("Garage Door", "garage-1", .cover),
                device("garage door", "garage-1", .lock), device("Bedroom Blinds", "cover-1", .cover),
                device("Front Door", "lock-1", .lock), device("front door", "lock-1", .door),
                device("back door", "lock-2", .lock), device("Front Door", "camera-1", .camera),
                device("Garden", "camera-2", .camera), device("Camera 1", "camera-3", .camera),
            ]),
        GrammarList(
            "area",
            [
                GrammarValue("Kitchen", value: "area-1"), GrammarValue("Living Room", value: "area-2"),
                GrammarValue("Bedroom", value: "area-3"), GrammarValue("Garage", value: "area-4"),
            ]),
        GrammarList(
            "contact",
            [
                GrammarValue("Front Door", value: "contact-1"), GrammarValue("Grandma", value: "contact-2"),
                GrammarValue("Office", value: "contact-3"),
            ]),
        GrammarList(
            "screen", [GrammarValue("kitchen screen", value: "screen-1"), GrammarValue("TV", value: "screen-2")]),
    ]

    static let chinese = [
        GrammarList(
            "name",
            [
                device("台灯", "lamp-1", .light), device("吸顶灯", "lamp-2", .light),
                device("落地灯", "lamp-4", .light), device("落地灯", "lamp-5", .light),
                device("咖啡机", "socket-1", .socket), device("风扇", "fan-1", .fan),
                device("空调", "climate-1", .climate), device("音箱", "speaker-1", .speaker),
                device("车库门", "garage-1", .cover), device("卧室窗帘", "cover-1", .cover),
                device("大门", "lock-1", .lock), device("大门", "lock-1", .door), device("后门", "lock-2", .lock),
                device("门口", "camera-1", .camera), device("花园", "camera-2", .camera),
                device("1号摄像机", "camera-3", .camera),
            ]),
        GrammarList(
            "area",
            [
                GrammarValue("厨房", value: "area-1"), GrammarValue("客厅", value: "area-2"),
                GrammarValue("卧室", value: "area-3"), GrammarValue("车库", value: "area-4"),
            ]),
        GrammarList(
            "contact",
            [
                GrammarValue("门口", value: "contact-1"), GrammarValue("奶奶", value: "contact-2"),
                GrammarValue("办公室", value: "contact-3"),
            ]),
        GrammarList(
            "screen", [GrammarValue("厨房屏幕", value: "screen-1"), GrammarValue("电视", value: "screen-2")]),
    ]

    /// The grammar of the home in a language.
    static func grammar(_ language: GrammarLanguage) throws -> Grammar {
        let yaml = try #require(VoiceTemplates.yaml(of: language))
        let lists = language.numbers == .chinese ? chinese : english
        return try Grammar(GrammarTemplates(GrammarSource(yaml: yaml)), lists: lists)
    }

    /// A grammar of some sentences of the intent `Test`.
    static func grammar(
        _ sentences: [String], lists: String = "", rules: String = "", block: String = "", top: String = "",
        language: String = "en", bound: [GrammarList] = []
    ) throws -> Grammar {
        let quoted = sentences.map {
            "          - '"
                + $0.split(separator: "'", omittingEmptySubsequences: false)
                .joined(separator: "''") + "'"
        }
        let yaml = """
            language: \(language)
            \(top)
            lists:
              unused: [unused]
            \(lists)
            expansion_rules:
              unused: unused
            \(rules)
            intents:
              Test:
                data:
                  - sentences:
            \(quoted.joined(separator: "\n"))
            \(block)
            """
        let templates = try GrammarTemplates(GrammarSource(yaml: yaml), boundLists: ["name", "area"])
        return try Grammar(templates, lists: bound)
    }
}

extension GrammarMatch {
    /// The match as one text: the intent, and the slots by name.
    var summary: String {
        let slots = slots.map { "\($0.name)=\($0.candidates.map(\.value).joined(separator: "|"))" }.sorted()
        return ([intent] + slots).joined(separator: " ")
    }
}

extension Grammar {
    /// The best meaning of a text as one text; empty: none.
    func best(_ text: String, _ context: [GrammarFact] = []) -> String {
        match(text, context: context).best?.summary ?? ""
    }

    /// All meanings of a text.
    func all(_ text: String, _ context: [GrammarFact] = []) -> [String] {
        match(text, context: context).all.map(\.summary)
    }
}

/// Expects an error of a number whose message has all of the texts.
func expectError(
    _ code: ErrorCode, _ texts: [String], _ comment: String = "", sourceLocation: SourceLocation = #_sourceLocation,
    _ body: () throws -> Void
) {
    do {
        try body()
        Issue.record("no error: \(comment)", sourceLocation: sourceLocation)
    } catch let error as ApusError {
        #expect(error.code == code, "\(comment): \(error)", sourceLocation: sourceLocation)
        for text in texts {
            #expect(error.message.contains(text), "\(error.message) has no \(text)", sourceLocation: sourceLocation)
        }
    } catch {
        Issue.record("\(error)", sourceLocation: sourceLocation)
    }
}

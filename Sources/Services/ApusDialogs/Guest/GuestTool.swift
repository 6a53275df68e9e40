import ApusCore
import ApusGrammar

/// What a language model may ask for: the intents of the grammar, as functions.
///
/// A call stands for an English sentence of the grammar (``GuestSentence``). It can express nothing that a person could
/// not say, and means what the sentence means.
///
/// Pure value.
enum GuestTool: String, Sendable, CaseIterable {
    case control, group, set, read, call, timer
    case showCamera = "show_camera"
    case alarmSystem = "alarm_system"
    case alarmClock = "alarm_clock"

    enum Parameter: String, Sendable {
        case action, name, area, kind, what, value, mode, screen, hours, minutes, seconds, hour, minute, day
    }

    /// The values that a parameter may have.
    enum Values: Sendable {
        case texts([String])
        case number
        case integer
    }

    typealias Rule = (parameter: Parameter, values: Values, isRequired: Bool)

    /// The actions on a device that is named, with the sentence around its name.
    static let actions: [(name: String, intent: VoiceIntent, before: String, after: String)] = [
        ("turn_on", .deviceOn, "turn on", ""), ("turn_off", .deviceOff, "turn off", ""),
        ("open", .deviceOpen, "open", ""), ("close", .deviceClose, "close", ""),
        ("lock", .deviceLock, "lock", ""), ("unlock", .deviceUnlock, "unlock", ""),
        ("brighter", .deviceRaise, "make", "brighter"), ("dimmer", .deviceLower, "make", "dimmer"),
        ("warmer", .deviceRaise, "make", "warmer"), ("colder", .deviceLower, "make", "colder"),
        ("louder", .deviceRaise, "make", "louder"), ("quieter", .deviceLower, "make", "quieter"),
    ]
    /// The kinds of groups, as the sentences call them. Lights and the like are switched, and covers moved.
    static let switchedGroups: [(kind: VoiceKind, words: String)] = [
        (.light, "lights"), (.socket, "sockets"), (.fan, "fans"), (.climate, "heaters"), (.speaker, "speakers"),
        (.display, "screens"),
    ]
    static let readings = ["state", "temperature", "humidity", "battery", "brightness", "volume"]
    static let levels = ["brightness", "temperature", "volume", "position", "speed"]
    static let modes = ["home", "away", "night"]
    static let days = ["today", "tomorrow"] + HomeTime.days

    /// The parameters; nil if the home has nothing for the function.
    func rules(_ names: GuestNames) -> [Rule]? {
        func texts(_ parameter: Parameter, _ values: [String], _ isRequired: Bool = false) -> Rule {
            (parameter, .texts(values), isRequired)
        }
        let area = texts(.area, names.areas)
        let all = names.names()
        switch self {
        case .control:
            return all.isEmpty ? nil : [texts(.action, Self.actions.map(\.name), true), texts(.name, all, true), area]
        case .group:
            let kinds = (Self.switchedGroups.map(\.kind) + [.cover]).filter { !names.names(of: [$0]).isEmpty }
            guard !kinds.isEmpty, !names.areas.isEmpty else { return nil }
            return [
                texts(.action, ["turn_on", "turn_off", "open", "close"], true),
                texts(.kind, kinds.map(\.rawValue), true), texts(.area, names.areas, true),
            ]
        case .set:
            let able = names.names(of: [.light, .climate, .speaker, .display, .cover, .fan])
            guard !able.isEmpty else { return nil }
            return [texts(.what, Self.levels, true), (.value, .number, true), texts(.name, able), area]
        case .read: return all.isEmpty ? nil : [texts(.what, Self.readings, true), texts(.name, all), area]
        case .call:
            let able = names.names(of: VoiceHome.callable)
            return able.isEmpty ? nil : [texts(.name, able, true)]
        case .showCamera:
            let cameras = names.names(of: [.camera])
            return cameras.isEmpty ? nil : [texts(.name, cameras, true), texts(.screen, names.names(of: [.display]))]
        case .alarmSystem:
            let has = !names.names(of: [.alarm]).isEmpty
            return has ? [texts(.action, ["arm", "disarm"], true), texts(.mode, Self.modes)] : nil
        case .timer:
            return [
                texts(.action, ["set", "cancel", "cancel_all", "pause", "resume", "time_left"], true),
                (.hours, .integer, false), (.minutes, .integer, false), (.seconds, .integer, false),
            ]
        case .alarmClock:
            return [
                texts(.action, ["set", "cancel", "cancel_all"], true), (.hour, .integer, false),
                (.minute, .integer, false), texts(.day, Self.days),
            ]
        }
    }

    private var summary: String {
        switch self {
        case .control: "Does something with one device."
        case .group: "Does something with all devices of a kind in an area."
        case .set:
            "Sets a value: percent, or degrees Celsius. Brightness and temperature: maybe of an area instead of a name."
        case .read: "Reads the state or a value of a device, or a temperature or humidity of an area."
        case .call: "Calls somebody."
        case .showCamera: "Shows a camera on a screen."
        case .alarmSystem: "Arms or disarms the alarm system."
        case .timer: "Timers that count down. For set: the duration. For cancel: maybe its minutes."
        case .alarmClock: "Alarm clocks. For set: hour is 0 to 23."
        }
    }

    /// The function in the notation of chat completions; nil if the home has nothing for it.
    func definition(_ names: GuestNames) -> JSON? {
        guard let rules = rules(names) else { return nil }
        let properties = rules.compactMap { rule -> (String, JSON)? in
            let type: [(String, JSON)]
            switch rule.values {
            // An empty list of values is no JSON schema.
            case .texts(let values) where values.isEmpty: return nil
            case .texts(let values): type = [("type", .string("string")), ("enum", .strings(values))]
            case .number: type = [("type", .string("number"))]
            case .integer: type = [("type", .string("integer"))]
            }
            return (rule.parameter.rawValue, .object(type))
        }
        let parameters: [(String, JSON)] = [
            ("type", .string("object")), ("properties", .object(properties)),
            ("required", .strings(rules.filter(\.isRequired).map(\.parameter.rawValue))),
            ("additionalProperties", .bool(false)),
        ]
        return .object([
            ("type", .string("function")),
            (
                "function",
                .object([
                    ("name", .string(rawValue)), ("description", .string(summary)),
                    ("parameters", .object(parameters)),
                ])
            ),
        ])
    }
}

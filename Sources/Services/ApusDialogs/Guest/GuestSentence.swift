import ApusCore
import ApusGrammar

/// The sentence of the English grammar that a tool call stands for. The grammar checks the ranges of numbers, the kinds
/// of the devices, and everything else that it checks when a person says it.
///
/// Pure value.
struct GuestSentence: Sendable {
    let intent: VoiceIntent
    let text: String
    /// What the grammar must find: these slots, with these values; nil: with any.
    private(set) var slots: [(slot: VoiceSlot, value: String?)] = []
    /// The area of the device that is named; nil: the call names none.
    private(set) var area: String?

    private init(_ intent: VoiceIntent, _ text: String, _ slots: (VoiceSlot, String?)...) {
        (self.intent, self.text) = (intent, text)
        self.slots = slots.map { (slot: $0.0, value: $0.1) }
    }

    /// Nil for a function, a parameter or a value that was not offered, and for values that do not fit together.
    init?(_ call: GuestCall, _ names: GuestNames) {
        guard let tool = GuestTool.allCases.first(where: { $0.rawValue.isExactly(call.name) }),
            let rules = tool.rules(names), let values = Self.values(call.arguments, rules),
            let sentence = Self.sentence(tool, values)
        else { return nil }
        self = sentence
    }

    /// Whether the grammar has found this sentence. A name that also reads as another sentence does not count.
    func isMeant(by match: GrammarMatch) -> Bool {
        guard match.intent.isExactly(intent.rawValue), match.slot(VoiceSlot.scope.rawValue) == nil else { return false }
        return slots.allSatisfy { slot, value in
            guard let found = match.value(slot.rawValue) else { return false }
            return value.map { found.isExactly($0) } ?? true
        }
    }

    private typealias Values = [GuestTool.Parameter: String]

    /// The arguments, checked against what was offered; nil if one does not fit. Some models send a parameter that they
    /// do not use as `null` or as an empty text.
    private static func values(_ arguments: JSONValue, _ rules: [GuestTool.Rule]) -> Values? {
        guard case .object(let members) = arguments else { return nil }
        var values: Values = [:]
        for member in members {
            guard let rule = rules.first(where: { $0.parameter.rawValue.isExactly(member.name) }) else { return nil }
            if member.value == .null || member.value.string?.isEmpty ?? false { continue }
            switch rule.values {
            case .texts(let offered):
                guard let text = member.value.string, offered.contains(where: { $0.isExactly(text) }) else {
                    return nil
                }
                values[rule.parameter] = text
            case .number, .integer:
                guard let tenths = tenths(member.value) else { return nil }
                guard tenths % 10 != 0 else {
                    values[rule.parameter] = "\(tenths / 10)"
                    continue
                }
                guard case .number = rule.values else { return nil }
                values[rule.parameter] = "\(tenths / 10).\(tenths % 10)"
            }
        }
        return rules.allSatisfy { !$0.isRequired || values[$0.parameter] != nil } ? values : nil
    }

    /// A number from 0 to 9999 with at most one digit behind the point, in tenths. Some models send numbers as texts.
    private static func tenths(_ value: JSONValue) -> Int? {
        let text: String
        switch value {
        case .number(let number): text = number
        case .string(let string) where string.utf8.count <= JSONValue.numberByteCountMax: text = string
        default: return nil
        }
        guard let number = Double(text), (0...9999).contains(number) else { return nil }
        let tenths = (number * 10).rounded()
        return abs(tenths - number * 10) < 1e-6 ? Int(tenths) : nil
    }

    private static func sentence(_ tool: GuestTool, _ values: Values) -> GuestSentence? {
        switch tool {
        case .control: control(values)
        case .group: group(values)
        case .set: set(values)
        case .read: read(values)
        case .call: values[.name].map { GuestSentence(.callStart, "call \($0)", (.contact, nil)) }
        case .showCamera:
            values[.name].map { name in
                guard let screen = values[.screen] else {
                    return GuestSentence(.cameraShow, "show \(name)", (.name, nil))
                }
                return GuestSentence(.cameraShow, "show \(name) on \(screen)", (.name, nil), (.screen, nil))
            }
        case .alarmSystem: alarmSystem(values)
        case .timer: timer(values)
        case .alarmClock: alarmClock(values)
        }
    }

    private static func control(_ values: Values) -> GuestSentence? {
        guard let name = values[.name], let action = GuestTool.actions.first(where: { $0.name == values[.action] })
        else { return nil }
        let text = "\(action.before) \(name)\(action.after.isEmpty ? "" : " \(action.after)")"
        var sentence = GuestSentence(action.intent, text, (.name, nil))
        sentence.area = values[.area]
        return sentence
    }

    private static func group(_ values: Values) -> GuestSentence? {
        guard let kind = values[.kind], let area = values[.area],
            let action = GuestTool.actions.first(where: { $0.name == values[.action] })
        else { return nil }
        let isMoved = kind == VoiceKind.cover.rawValue
        guard isMoved == (action.intent == .deviceOpen || action.intent == .deviceClose),
            let words = isMoved ? "blinds" : GuestTool.switchedGroups.first(where: { $0.kind.rawValue == kind })?.words
        else { return nil }
        return GuestSentence(
            action.intent, "\(action.before) all \(words) in \(area)", (.kind, kind), (.area, nil))
    }

    private static func set(_ values: Values) -> GuestSentence? {
        guard let what = values[.what], let value = values[.value] else { return nil }
        let amount = "\(value) \(what == "temperature" ? "degrees" : "percent")"
        if let name = values[.name] {
            let text = what == "speed" ? "set \(name) speed to \(amount)" : "set \(what) of \(name) to \(amount)"
            var sentence = GuestSentence(.deviceSet, text, (.name, nil), (.what, what), (.value, value))
            sentence.area = values[.area]
            return sentence
        }
        if let area = values[.area] {
            return GuestSentence(
                .deviceSet, "set \(what) in \(area) to \(amount)", (.area, nil), (.what, what), (.value, value))
        }
        return what == "volume"
            ? GuestSentence(.volumeSet, "set volume to \(amount)", (.value, value))
            : GuestSentence(.deviceSet, "set \(what) to \(amount)", (.what, what), (.value, value))
    }

    private static func read(_ values: Values) -> GuestSentence? {
        guard let what = values[.what] else { return nil }
        if let name = values[.name] {
            let text = what == "state" ? "what is the status of \(name)" : "what is the \(what) of \(name)"
            var sentence = GuestSentence(.deviceGet, text, (.name, nil), (.what, what))
            sentence.area = values[.area]
            return sentence
        }
        guard let area = values[.area] else {
            return GuestSentence(.deviceGet, "what is the \(what)", (.what, what), (.area, nil))
        }
        return GuestSentence(.deviceGet, "what is the \(what) in \(area)", (.what, what), (.area, nil))
    }

    private static func alarmSystem(_ values: Values) -> GuestSentence? {
        guard values[.action] == "arm" else {
            return values[.mode] == nil ? GuestSentence(.alarmDisarm, "disarm the alarm") : nil
        }
        guard let mode = values[.mode] else { return GuestSentence(.alarmArm, "arm the alarm") }
        return GuestSentence(.alarmArm, "arm the alarm for \(mode)", (.mode, mode))
    }

    private static func timer(_ values: Values) -> GuestSentence? {
        func part(_ parameter: GuestTool.Parameter) -> Int { values[parameter].flatMap { Int($0) } ?? 0 }
        let total = part(.hours) * 3600 + part(.minutes) * 60 + part(.seconds)
        let minutes = total / 60
        if values[.action] == "set" { return timer(of: total) }
        if values[.action] == "cancel", total > 0 {
            guard total % 60 == 0 else { return nil }
            return GuestSentence(.timerCancel, "cancel the \(minutes) minute timer", (.minutes, "\(minutes)"))
        }
        guard total == 0 else { return nil }
        return switch values[.action] {
        case "cancel": GuestSentence(.timerCancel, "cancel the timer")
        case "cancel_all": GuestSentence(.timerCancel, "cancel all timers", (.count, "all"))
        case "pause": GuestSentence(.timerPause, "pause the timer")
        case "resume": GuestSentence(.timerResume, "resume the timer")
        case "time_left": GuestSentence(.timerQuery, "how much time is left")
        default: nil
        }
    }

    /// In seconds. Hours with seconds and without minutes cannot be said.
    private static func timer(of total: Int) -> GuestSentence? {
        let inMinutes = total < 60 || total / 60 <= 180
        let parts = [
            (inMinutes ? 0 : total / 3600, VoiceSlot.hours, "hours"),
            (inMinutes ? total / 60 : total / 60 % 60, .minutes, "minutes"), (total % 60, .seconds, "seconds"),
        ].filter { $0.0 > 0 }
        guard !parts.isEmpty else { return nil }
        let span = parts.map { "\($0.0) \($0.2)" }.joined(separator: " ")
        var sentence = GuestSentence(.timerSet, "set a timer for \(span)")
        sentence.slots = parts.map { ($0.1, "\($0.0)") }
        return sentence
    }

    private static func alarmClock(_ values: Values) -> GuestSentence? {
        let day = values[.day].map { " \($0)" } ?? ""
        let minute = values[.minute].flatMap { $0 == "0" ? nil : " \($0)" } ?? ""
        var (time, slots): (String, [(slot: VoiceSlot, value: String?)]) = ("", [])
        if let hour = values[.hour].flatMap({ Int($0) }) {
            guard hour < 24 else { return nil }
            let said = hour % 12 == 0 ? 12 : hour % 12
            time = "\(said)\(minute) \(hour < 12 ? "am" : "pm")"
            slots = [(.hour, "\(said)")]
            if !minute.isEmpty { slots.append((.minute, values[.minute])) }
        }
        if let day = values[.day] { slots.append((.day, day)) }
        var sentence: GuestSentence
        switch (values[.action], time.isEmpty) {
        case ("set", false): sentence = GuestSentence(.alarmSet, "wake me at \(time)\(day)")
        case ("cancel", true) where minute.isEmpty:
            sentence = GuestSentence(.alarmCancel, "cancel the alarm clock\(day)")
        case ("cancel", false) where minute.isEmpty && day.isEmpty:
            sentence = GuestSentence(.alarmCancel, "cancel the \(time) alarm")
        case ("cancel_all", true) where minute.isEmpty && day.isEmpty:
            sentence = GuestSentence(.alarmCancel, "cancel all alarms")
            slots = [(.count, "all")]
        default: return nil
        }
        sentence.slots = slots
        return sentence
    }
}

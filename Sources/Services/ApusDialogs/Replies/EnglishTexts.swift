import ApusGrammar
import Foundation

struct EnglishTexts: DialogTexts {
    let notUnderstood = "Sorry, I did not understand that."
    let tookTooLong = "Sorry, that took too long."
    let nothingHeard = "Sorry, I did not hear anything."
    let help = "You can say: turn on the lights, lock the front door, how warm is it, or what time is it."
    let stopped = "OK."
    let cancelled = "OK, I will not."
    let nothingToConfirm = "There is nothing to confirm."
    let nothingToRepeat = "I have not said anything yet."
    let whichArea = "Several rooms have that name."
    let tooMany = "Those are too many devices at once."

    let noScreen = "I do not know which screen you mean."

    let noTimers = "There is no timer."
    let noAlarms = "There is no alarm."
    let noSuchTime = "That time is over."
    let tooManyTimers = "There are too many timers."

    private static let weekdays = [
        "Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday",
    ]
    private static let months = [
        "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
        "December",
    ]

    func time(_ now: Int64, _ zone: TimeZone) -> String { "It is \(clock(HomeTime(now, zone)))." }

    private func clock(_ time: HomeTime) -> String {
        let hour = time.hour % 12 == 0 ? 12 : time.hour % 12
        return "\(hour):\(time.minuteText) \(time.hour < 12 ? "AM" : "PM")"
    }

    func span(_ seconds: Int64) -> String {
        let parts = [(seconds / 3600, "hour"), (seconds / 60 % 60, "minute"), (seconds % 60, "second")]
            .filter { $0.0 > 0 }.map { "\($0.0) \($0.1)\($0.0 == 1 ? "" : "s")" }
        return parts.isEmpty ? "0 seconds" : list(parts, "and")
    }

    func moment(_ due: Int64, _ now: Int64, _ zone: TimeZone) -> String {
        let (time, today) = (HomeTime(due, zone), HomeTime(now, zone))
        let tomorrow = today.next(zone)
        let day =
            time.isSameDay(as: today)
            ? "today" : time.isSameDay(as: tomorrow) ? "tomorrow" : Self.weekdays[time.weekday]
        return "\(clock(time)) \(day)"
    }

    func whichTimer(_ names: [String]) -> String { "There are \(names.count): \(list(names, "and")). Which one?" }

    func timersLeft(_ left: [(left: Int64, isPaused: Bool)]) -> String {
        let parts = left.map { "\(span($0.left)) left\($0.isPaused ? ", paused" : "")" }
        return left.count == 1 ? "\(parts[0])." : "There are \(left.count) timers: \(list(parts, "and"))."
    }

    func timer(_ action: TimerAction, _ name: String) -> String {
        switch action {
        case .set: "\(name), starting now."
        case .alarm: "The alarm rings at \(name)."
        case .cancel: "\(name): cancelled."
        case .pause: "\(name): paused."
        case .resume: "\(name): it runs again."
        case .stop: stopped
        }
    }

    func date(_ now: Int64, _ zone: TimeZone) -> String {
        let time = HomeTime(now, zone)
        return "Today is \(Self.weekdays[time.weekday]), \(Self.months[time.month - 1]) \(time.day), \(time.year)."
    }

    func none(_ area: String?) -> String { "I know no such device\(area.map { " in \(the($0))" } ?? "")." }
    func noSuch(_ name: String, in area: String?) -> String {
        "I know no \(name)\(area.map { " in \(the($0))" } ?? "")."
    }

    func which(_ choices: [(name: String, area: String?)]) -> String {
        let areas = Set(choices.map { $0.area ?? "" })
        let names = choices.map { choice in
            areas.count == choices.count && !areas.contains("")
                ? "the one in \(the(choice.area ?? ""))" : the(choice.name)
        }
        return "Which one: \(list(names, "or"))?"
    }

    func cannot(_ name: String) -> String { "\(capitalized(name)) cannot do that." }
    func neverByVoice(_ name: String) -> String { "I may not do that with \(the(name)) by voice." }

    func confirm(_ intent: VoiceIntent, _ names: [String]) -> String {
        let verb =
            switch intent {
            case .deviceUnlock: "unlock"
            case .deviceOpen: "open"
            case .alarmDisarm: "disarm"
            case .deviceOn: "turn on"
            case .deviceOff: "turn off"
            case .deviceClose: "close"
            case .deviceLock: "lock"
            case .alarmArm: "arm"
            default: "change"
            }
        return "Shall I \(verb) \(list(names.map(the), "and"))?"
    }

    func state(_ intent: VoiceIntent, _ step: DialogStep) -> String {
        switch intent {
        case .deviceOn: "on"
        case .deviceOff: "off"
        case .deviceOpen: "open"
        case .deviceClose: "closed"
        case .deviceLock: "locked"
        case .deviceUnlock: "unlocked"
        case .alarmArm: "armed"
        case .alarmDisarm: "disarmed"
        default: "at \(quantity(VoiceControl.What(rawValue: step.what) ?? .position, step.json))"
        }
    }

    func done(_ name: String, _ state: String) -> String { "\(capitalized(name)) is \(state)." }
    func already(_ name: String, _ state: String) -> String { "\(capitalized(name)) is already \(state)." }
    func sent(_ name: String) -> String { "\(capitalized(name)) was asked, and has not confirmed it yet." }
    func queued(_ name: String, _ state: String) -> String {
        "\(capitalized(name)) is offline. It will be \(state) when it is back."
    }
    func offline(_ name: String) -> String { "\(capitalized(name)) is offline." }
    func forbidden(_ name: String) -> String { "You may not control \(the(name))." }
    func failed(_ name: String) -> String { "\(capitalized(name)) did not do that." }
    func lastKnown(_ name: String, _ state: String) -> String { "\(offline(name)) Before that: \(state)" }
    func unknown(_ name: String) -> String { "\(capitalized(name)) has not said." }
    func doneAll(_ count: Int, _ state: String) -> String { "OK, \(count) devices are \(state)." }

    func directed(_ intent: VoiceIntent, _ device: String, _ other: String) -> String {
        switch intent {
        case .callStart: "Calling \(the(other))."
        case .cameraShow: "Showing \(the(other)) on \(the(device))."
        default: stopped
        }
    }

    func reading(_ name: String, _ what: VoiceControl.What, _ value: String) -> String {
        "\(capitalized(name)) is at \(quantity(what, value))."
    }

    func position(_ what: VoiceControl.What, isOn: Bool) -> String {
        switch what {
        case .open, .position: isOn ? "open" : "closed"
        case .lock: isOn ? "locked" : "unlocked"
        case .alarm: isOn ? "armed" : "disarmed"
        default: isOn ? "on" : "off"
        }
    }

    func answer(_ isSo: Bool, _ name: String, _ state: String) -> String {
        "\(isSo ? "Yes" : "No"), \(the(name)) is \(state)."
    }
    func status(_ name: String, _ state: String) -> String { done(name, state) }

    private func quantity(_ what: VoiceControl.What, _ value: String) -> String {
        what == .temperature ? "\(value) degrees" : "\(value) percent"
    }

    private func the(_ name: String) -> String {
        let lower = name.lowercased()
        return lower.hasPrefix("the ") || lower.hasPrefix("my ") || lower.hasPrefix("our ") ? name : "the \(name)"
    }

    private func capitalized(_ name: String) -> String {
        let text = the(name)
        return text.prefix(1).uppercased() + text.dropFirst()
    }

    private func list(_ names: [String], _ word: String) -> String {
        guard names.count > 2, let last = names.last else { return names.joined(separator: " \(word) ") }
        return "\(names.dropLast().joined(separator: ", ")) \(word) \(last)"
    }
}

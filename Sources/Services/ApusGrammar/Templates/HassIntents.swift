import ApusCore

/// The intents of home-assistant-intents that dialogs carry out, as those of ``VoiceIntent``.
///
/// Nothing is guessed: a sentence with a slot that has no meaning here, such as a color or the name of a timer, has no
/// meaning as a whole.
package enum HassIntents: String, Sendable, CaseIterable {
    case turnOn = "HassTurnOn"
    case turnOff = "HassTurnOff"
    case openCover = "HassOpenCover"
    case closeCover = "HassCloseCover"
    case setPosition = "HassSetPosition"
    case lightSet = "HassLightSet"
    case fanSetSpeed = "HassFanSetSpeed"
    case getState = "HassGetState"
    case setTemperature = "HassClimateSetTemperature"
    case getTemperature = "HassClimateGetTemperature"
    case setVolume = "HassSetVolume"
    case setVolumeRelative = "HassSetVolumeRelative"
    case startTimer = "HassStartTimer"
    case cancelTimer = "HassCancelTimer"
    case cancelAllTimers = "HassCancelAllTimers"
    case pauseTimer = "HassPauseTimer"
    case resumeTimer = "HassUnpauseTimer"
    case timerStatus = "HassTimerStatus"
    case time = "HassGetCurrentTime"
    case date = "HassGetCurrentDate"
    case nevermind = "HassNevermind"

    /// The lists that sentences of home-assistant-intents name and that homes do not have: nothing matches them.
    package static let emptyLists = ["floor"]
    /// The fact of a name in ``VoiceList/name`` that these sentences have conditions on.
    package static let factName = "domain"

    /// The domain of a kind of devices, as home-assistant-intents calls it.
    package static func domain(of kind: VoiceKind) -> String {
        switch kind {
        case .light: "light"
        case .socket, .other: "switch"
        case .fan: "fan"
        case .climate: "climate"
        case .speaker, .display: "media_player"
        case .camera: "camera"
        case .cover, .door, .window: "cover"
        case .lock: "lock"
        case .alarm: "alarm_control_panel"
        case .sensor: "sensor"
        }
    }

    /// Whether sentences of an intent can be carried out: one of these, or one of ``VoiceIntent``.
    package static func isKnown(_ name: String) -> Bool {
        Self(rawValue: name) != nil || VoiceIntent(rawValue: name) != nil
    }

    /// What a match means: as it is if its intent is one of ``VoiceIntent``; nil if it has no meaning here.
    package static func meaning(of match: GrammarMatch) -> (VoiceIntent, GrammarMatch)? {
        if let intent = VoiceIntent(rawValue: match.intent) { return (intent, match) }
        guard let hass = Self(rawValue: match.intent) else { return nil }
        var reading = HassReading(match)
        guard let intent = reading.read(hass) else { return nil }
        return (intent, reading.match)
    }
}

/// Reads the slots of a sentence of home-assistant-intents.
private struct HassReading {
    private(set) var match: GrammarMatch

    init(_ match: GrammarMatch) { self.match = match }

    private func value(_ slot: String) -> String? { match.value(slot) }
    private var hasName: Bool { match.slot(VoiceSlot.name.rawValue) != nil }

    mutating func read(_ intent: HassIntents) -> VoiceIntent? {
        switch intent {
        case .turnOn: turn(isOn: true)
        case .turnOff: turn(isOn: false)
        case .openCover: moved(.deviceOpen)
        case .closeCover: moved(.deviceClose)
        case .setPosition: set(.position, from: "position")
        case .lightSet: set(.brightness, from: "brightness")
        case .fanSetSpeed: set(.speed, from: "percentage")
        case .setTemperature: set(.temperature, from: "temperature")
        case .getTemperature: asked([VoiceSlot.name, .area], what: .temperature)
        case .getState: state()
        case .setVolume: hasName ? set(.volume, from: "volume_level") : volume()
        case .setVolumeRelative: louder()
        case .startTimer: only([.hours, .minutes, .seconds]) ? .timerSet : nil
        case .cancelTimer: timer(.timerCancel)
        case .pauseTimer: timer(.timerPause)
        case .resumeTimer: timer(.timerResume)
        case .timerStatus: timer(.timerQuery)
        case .cancelAllTimers: allTimers()
        case .time: only([]) ? .timeGet : nil
        case .date: only([]) ? .dateGet : nil
        case .nevermind: only([]) ? .cancel : nil
        }
    }

    /// What a number sets.
    private enum What: String { case brightness, temperature, volume, position, speed }

    // MARK: - Intents

    private mutating func turn(isOn: Bool) -> VoiceIntent? {
        switch domain {
        case "cover": return moved(isOn ? .deviceOpen : .deviceClose)
        case "lock":
            // Not all locks of an area: nothing of that kind is said without a name.
            guard hasName, only([.name, .area]) else { return nil }
            return isOn ? .deviceLock : .deviceUnlock
        case "light": return switched(.light, isOn)
        case "fan": return switched(.fan, isOn)
        case "switch", "input_boolean": return switched(.socket, isOn)
        case "climate": return switched(.climate, isOn)
        default:
            guard hasName, only([.name, .area]) else { return nil }
            return isOn ? .deviceOn : .deviceOff
        }
    }

    private mutating func switched(_ kind: VoiceKind, _ isOn: Bool) -> VoiceIntent? {
        guard only([.name, .area]) else { return nil }
        if !hasName { all(of: kind) }
        return isOn ? .deviceOn : .deviceOff
    }

    private mutating func moved(_ intent: VoiceIntent) -> VoiceIntent? {
        let classes = value("device_class").map { $0.parts(separatedBy: ",") } ?? []
        guard only([.name, .area]) else { return nil }
        guard !hasName else { return intent }
        let kinds = Set(classes.map(Self.kind(ofClass:)))
        // A garage or a gate may be a cover or a door of the home.
        guard kinds.count == 1, let kind = kinds.first ?? nil else { return nil }
        all(of: kind)
        return intent
    }

    private static func kind(ofClass name: String) -> VoiceKind? {
        switch name {
        case "awning", "blind", "curtain", "shade", "shutter": .cover
        case "window": .window
        case "door": .door
        default: nil
        }
    }

    private mutating func set(_ what: What, from slot: String) -> VoiceIntent? {
        guard let number = value(slot), Double(number) != nil else { return nil }
        let lights = domain == "light" ? VoiceKind.light : domain == "cover" ? .cover : nil
        let classes = value("device_class").map { $0.parts(separatedBy: ",") } ?? []
        remove([slot])
        guard only([.name, .area]) else { return nil }
        if !hasName {
            guard value(VoiceSlot.area.rawValue) != nil else { return nil }
            // "Set the temperature in the hall" means what has one; the lights of an area are said.
            if what == .position, Set(classes.map(Self.kind(ofClass:))) != [.cover] { return nil }
            if what == .speed { all(of: .fan) } else if let lights { all(of: lights) }
        }
        fix(.what, what.rawValue)
        fix(.value, number)
        return .deviceSet
    }

    private mutating func volume() -> VoiceIntent? {
        guard let number = value("volume_level"), Double(number) != nil, value(VoiceSlot.area.rawValue) == nil else {
            return nil
        }
        remove(["volume_level"])
        guard only([]) else { return nil }
        fix(.value, number)
        return .volumeSet
    }

    private mutating func louder() -> VoiceIntent? {
        let step = value("volume_step")
        remove(["volume_step"])
        guard let step, step == "up" || step == "down" else { return nil }
        if hasName {
            guard only([.name, .area]) else { return nil }
            fix(.what, What.volume.rawValue)
            return step == "up" ? .deviceRaise : .deviceLower
        }
        // The context has the area of the listening device, which is meant.
        guard match.slot(VoiceSlot.area.rawValue)?.range == nil else { return nil }
        remove([VoiceSlot.area.rawValue])
        guard only([]) else { return nil }
        return step == "up" ? .volumeUp : .volumeDown
    }

    private mutating func state() -> VoiceIntent? {
        guard hasName, only([.name, .area, .state]) else { return nil }
        switch value(VoiceSlot.state.rawValue) {
        case nil, "on", "off", "open", "closed", "locked", "unlocked": return .deviceGet
        default: return nil
        }
    }

    private mutating func asked(_ slots: [VoiceSlot], what: What) -> VoiceIntent? {
        guard only(slots), hasName || value(VoiceSlot.area.rawValue) != nil else { return nil }
        fix(.what, what.rawValue)
        return .deviceGet
    }

    private mutating func timer(_ intent: VoiceIntent) -> VoiceIntent? {
        for index in match.slots.indices where match.slots[index].name.hasPrefix("start_") {
            match.slots[index].name.removeFirst("start_".count)
        }
        return only([.hours, .minutes, .seconds]) ? intent : nil
    }

    private mutating func allTimers() -> VoiceIntent? {
        guard only([]) else { return nil }
        fix(.count, "all")
        return .timerCancel
    }

    // MARK: - Slots

    /// What the sentence is about: as it says, or as the things of the name are, if all are alike.
    private var domain: String? {
        if let said = value(HassIntents.factName) { return said }
        let names = match.slot(VoiceSlot.name.rawValue)?.candidates ?? []
        let domains = Set(names.map { $0.context.value(of: HassIntents.factName) })
        return domains.count == 1 ? domains.first ?? nil : nil
    }

    /// Whether the sentence has no other slots than these. The domain and the class of devices are no slots then.
    private mutating func only(_ slots: [VoiceSlot]) -> Bool {
        remove([HassIntents.factName, "device_class"])
        return match.slots.allSatisfy { slot in slots.contains { $0.rawValue.isExactly(slot.name) } }
    }

    private mutating func remove(_ names: [String]) {
        match.slots.removeAll { slot in names.contains { $0.isExactly(slot.name) } }
    }

    private mutating func fix(_ slot: VoiceSlot, _ value: String) {
        match.slots.append(GrammarSlot(name: slot.rawValue, candidates: [GrammarValue(value)], text: ""))
    }

    /// All of a kind in the area, or everywhere: a sentence that names an area has it, since another one does not
    /// match.
    private mutating func all(of kind: VoiceKind) {
        fix(.kind, kind.rawValue)
        if value(VoiceSlot.area.rawValue) == nil { fix(.scope, "everywhere") }
    }
}

import ApusContract
import ApusGrammar
import SwiftProtobuf

/// What a sentence asks of one device.
///
/// Pure value.
struct DeviceRequest {
    private let control: VoiceControl
    /// Nil: the state is asked for.
    private let json: String?
    let risk: ClientVoiceRisk
    /// The setting is changed by ``json``, a signed number.
    private var isRelative = false

    /// Nil if the device has no control for it.
    ///
    /// - Parameter what: nil: the one in the sentence.
    init?(_ intent: VoiceIntent, _ match: GrammarMatch, _ device: ClientVoiceDevice, what: VoiceControl.What?) {
        let said = what ?? match.value(VoiceSlot.what.rawValue).flatMap(VoiceControl.What.init(rawValue:))
        let kind = VoiceKind(rawValue: device.kind) ?? .other
        /// A switch that is set.
        func switched(_ what: VoiceControl.What, _ isOn: Bool) -> (VoiceControl, String, ClientVoiceRisk)? {
            guard let control = device.control(what), control.path != nil else { return nil }
            return (control, isOn ? control.onJSON : control.offJSON, control.risk(isOn: isOn, kind: kind))
        }
        /// A cover without a control to open it has a position.
        func opened(_ isOpen: Bool) -> (VoiceControl, String, ClientVoiceRisk)? {
            if let found = switched(.open, isOpen) { return found }
            guard let control = device.control(.position), control.path != nil else { return nil }
            let isGuarded = isOpen && kind == .door && control.risk == .unspecified
            return (control, isOpen ? "100" : "0", isGuarded ? .guarded : control.risk(isOn: isOpen, kind: kind))
        }
        let found: (VoiceControl, String, ClientVoiceRisk)?
        switch intent {
        case .deviceOn: found = switched(.power, true)
        case .deviceOff: found = switched(.power, false)
        case .deviceOpen: found = opened(true)
        case .deviceClose: found = opened(false)
        case .deviceLock: found = switched(.lock, true)
        case .deviceUnlock: found = switched(.lock, false)
        case .alarmDisarm: found = switched(.alarm, false)
        case .alarmArm:
            guard var armed = switched(.alarm, true) else { return nil }
            // A control with modes has them as texts.
            if let mode = match.value(VoiceSlot.mode.rawValue), armed.1.hasPrefix("\"") { armed.1 = "\"\(mode)\"" }
            guard armed.1 != armed.0.offJSON else { return nil }
            found = armed
        case .deviceSet:
            guard let said, let value = match.value(VoiceSlot.value.rawValue), let control = device.control(said),
                control.path != nil
            else { return nil }
            found = (control, value, control.risk(isOn: true, kind: kind))
        case .deviceRaise, .deviceLower, .volumeUp, .volumeDown:
            guard let said, let control = device.control(said), control.path != nil, !control.isAction,
                let amount = said.stepAmount
            else { return nil }
            let isUp = intent == .deviceRaise || intent == .volumeUp
            isRelative = true
            found = (control, isUp ? "\(amount)" : "-\(amount)", control.risk(isOn: isUp, kind: kind))
        case .deviceGet:
            guard let control = Self.read(match, said, device) else { return nil }
            (self.control, json, risk) = (control, nil, .harmless)
            return
        default: return nil
        }
        guard let found else { return nil }
        (control, json, risk) = (found.0, found.1, found.2)
    }

    /// The control whose state is asked for.
    private static func read(
        _ match: GrammarMatch, _ said: VoiceControl.What?, _ device: ClientVoiceDevice
    ) -> VoiceControl? {
        let wanted: [VoiceControl.What] =
            switch match.value(VoiceSlot.state.rawValue) {
            case "on", "off": [.power]
            case "open", "closed": [.open, .position]
            case "locked", "unlocked": [.lock]
            case "armed": [.alarm]
            default: said.map { [$0] } ?? [.power, .open, .lock, .alarm, .position, .temperature]
            }
        return wanted.lazy.compactMap { device.control($0) }.first { $0.statePath != nil }
    }

    func step(_ device: ClientVoiceDevice) -> DialogStep {
        .with {
            ($0.entry, $0.name, $0.device, $0.what) = (device.id, device.name, device.device, control.what.rawValue)
            ($0.onJson, $0.offJson) = (control.onJSON, control.offJSON)
            if let json, let path = control.path {
                ($0.kind, $0.path, $0.json) = (isRelative ? .adjust : control.isAction ? .act : .write, path, json)
            } else {
                ($0.kind, $0.path) = (.read, control.statePath ?? "")
            }
        }
    }
}

import ApusCore
import ApusGrammar

/// The reply to a sentence whose steps have ended. It says that something is done only if a device has confirmed it.
///
/// Pure value.
struct DialogReply {
    let text: String
    let outcome: DialogOutcome

    init(_ plan: DialogPlan, _ steps: [DialogStep], _ language: DialogLanguage) {
        if let first = steps.first, first.kind == .skill {
            (text, outcome) = Self.skill(first, language.texts)
            return
        }
        let (texts, intent) = (language.texts, VoiceIntent(rawValue: plan.intent) ?? .deviceGet)
        let intents = steps.map { VoiceIntent(rawValue: $0.intent) ?? intent }
        let isFailed = steps.contains { $0.result == .failed || $0.result == .unspecified }
        let isWaiting = zip(steps, intents).contains { step, intent in
            intent != .deviceGet && (step.result == .sent || step.result == .queued)
        }
        outcome = isFailed ? .failed : isWaiting ? .waiting : .done
        let parts =
            if Set(intents).count > 1 {
                zip(steps, intents).map { step, intent in
                    intent == .deviceGet ? Self.reading(step, plan, texts) : Self.change(step, intent, texts)
                }
            } else {
                intents.first == .deviceGet
                    ? steps.map { Self.reading($0, plan, texts) } : Self.changes(steps, intents.first ?? intent, texts)
            }
        text = parts.joined(separator: language == .english ? " " : "")
    }

    /// What the skill has answered.
    private static func skill(_ step: DialogStep, _ texts: any DialogTexts) -> (String, DialogOutcome) {
        guard step.result == .done else { return (texts.notUnderstood, .notUnderstood) }
        return (step.value.isEmpty ? texts.stopped : step.value, .done)
    }

    private static func changes(
        _ steps: [DialogStep], _ intent: VoiceIntent, _ texts: any DialogTexts
    ) -> [String] {
        guard let first = steps.first, steps.count > 1, first.kind != .timer else {
            return steps.map { change($0, intent, texts) }
        }
        let isSo = steps.filter { $0.result == .done || $0.result == .already }
        let others = steps.filter { $0.result != .done && $0.result != .already }
        let all = isSo.isEmpty ? [] : [texts.doneAll(isSo.count, texts.state(intent, first))]
        return all + others.map { change($0, intent, texts) }
    }

    private static func change(
        _ step: DialogStep, _ intent: VoiceIntent, _ texts: any DialogTexts
    ) -> String {
        if step.kind == .timer { return timer(step, texts) }
        guard step.kind != .direct || step.result != .done else {
            return texts.directed(intent, step.name, step.what)
        }
        let state = texts.state(intent, step)
        return switch step.result {
        case .done: texts.done(step.name, state)
        case .already: texts.already(step.name, state)
        case .sent: texts.sent(step.name)
        case .queued: texts.queued(step.name, state)
        case .failed, .unspecified, .UNRECOGNIZED: failure(step, texts)
        }
    }

    private static func timer(_ step: DialogStep, _ texts: any DialogTexts) -> String {
        guard step.result == .done, let action = TimerAction(rawValue: step.path) else {
            switch ErrorCode(number: step.code) {
            case .overloaded: return texts.tooManyTimers
            // It ended before the step.
            case .targetUnknown: return texts.noTimers
            default: return failure(step, texts)
            }
        }
        return texts.timer(action, step.what)
    }

    private static func failure(_ step: DialogStep, _ texts: any DialogTexts) -> String {
        switch ErrorCode(number: step.code) {
        case .targetOffline: texts.offline(step.name)
        case .illegalRelation, .notAllowed, .targetUnknown, .deviceDisabled: texts.forbidden(step.name)
        case .propertyUnknown: texts.unknown(step.name)
        case .actionUnknown: texts.cannot(step.name)
        default: texts.failed(step.name)
        }
    }

    private static func reading(_ step: DialogStep, _ plan: DialogPlan, _ texts: any DialogTexts) -> String {
        switch step.result {
        case .done: return state(step, plan, texts) ?? texts.unknown(step.name)
        case .sent: return texts.sent(step.name)
        case .queued:
            var unasked = plan
            unasked.slots.removeAll { $0.name == VoiceSlot.state.rawValue }
            return texts.lastKnown(step.name, state(step, unasked, texts) ?? texts.unknown(step.name))
        default: return failure(step, texts)
        }
    }

    /// Nil for a value that is not one of the control.
    private static func state(_ step: DialogStep, _ plan: DialogPlan, _ texts: any DialogTexts) -> String? {
        guard let what = VoiceControl.What(rawValue: step.what) else { return nil }
        let wanted = plan.slots.first { $0.name == VoiceSlot.state.rawValue }?.value ?? ""
        let number = Double(step.value)
        guard what.isSwitch || !wanted.isEmpty else {
            return number == nil ? nil : texts.reading(step.name, what, step.value)
        }
        let isOn: Bool
        if what == .position {
            guard let number else { return nil }
            isOn = number > 0
        } else if step.value.isExactly(step.offJson) {
            isOn = false
        } else {
            // A mode of an alarm system is armed, too.
            let isMode = what == .alarm && step.value.hasPrefix("\"") && step.onJson.hasPrefix("\"")
            guard step.value.isExactly(step.onJson) || isMode else { return nil }
            isOn = true
        }
        let state = texts.position(what, isOn: isOn)
        guard !wanted.isEmpty else { return texts.status(step.name, state) }
        let wantsOn = ["on", "open", "locked", "armed"].contains(wanted)
        return texts.answer(isOn == wantsOn, step.name, state)
    }
}

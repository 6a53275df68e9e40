import ApusContract
package import ApusCore
import ApusGrammar
import Foundation
import SwiftProtobuf

/// Reads sentences, and plans what to do in a home.
///
/// If several devices have a name, the area in the sentence decides, then the area of the listening device. Otherwise
/// the reply asks which one is meant. A name or an area that the home does not have is not understood. It never stands
/// for another one, or for all of them. Unlocking, disarming and opening a door need a confirmation
/// (``VoiceControl/risk(isOn:kind:)``).
///
/// Pure value.
package struct SentenceReader: Sendable {
    let home: VoiceHome
    let grammar: Grammar
    let language: DialogLanguage
    /// The area of the listening device; nil: unknown.
    let area: String?
    let speaker: DeviceID
    /// The time of the sentence, in Unix milliseconds.
    let now: Int64
    /// The previous reply; empty: none.
    let lastReply: String
    /// Whether the speaker may confirm what is guarded. A device may if people talk to it.
    var mayConfirm = true
    /// What the listening device shows and plays: a JSON array for the skill; may be empty.
    var context = ""
    /// The timers of the listening device, for sentences about them.
    var timers: [ClientTimer] = []
    /// The English sentences of the home, for the calls of a language model.
    var guestGrammar: Grammar
    /// A language model asks for it: what opens the home needs a confirmation, whatever the home says.
    var isGuest = false

    var texts: any DialogTexts { language.texts }

    init(
        home: VoiceHome, grammar: Grammar, language: DialogLanguage, speaker: DeviceID, now: Int64, lastReply: String
    ) {
        (self.home, self.grammar, self.language) = (home, grammar, language)
        (self.speaker, self.now, self.lastReply) = (speaker, now, lastReply)
        guestGrammar = grammar
        let own = home.speaker(speaker).map(\.area) ?? ""
        area = own.isEmpty ? nil : own
    }

    /// A reader of one home.
    ///
    /// - Parameters:
    ///   - language: a tag such as `en`.
    ///   - sentences: those of the operator.
    /// - Throws: 21031 for a language that dialogs do not have.
    package init(
        _ home: VoiceHome, language: String, sentences: UserSentences = UserSentences(), speaker: DeviceID, now: Int64,
        lastReply: String = ""
    ) throws(ApusError) {
        let language = try DialogLanguage(checking: language)
        let own = try DialogTemplates.sentences(of: language)
        let grammar = try Grammar(sentences.templates[language] ?? own, lists: home.lists)
        self.init(
            home: home, grammar: grammar, language: language, speaker: speaker, now: now, lastReply: lastReply)
        if language != .english || sentences.templates[language] != nil {
            guestGrammar = try Grammar(try DialogTemplates.sentences(of: .english), lists: home.lists)
        }
    }

    /// - Parameter question: the open question; nil: none.
    package func plan(of text: String, answering question: DialogQuestion?) -> DialogPlan {
        if let question, let answer = answer(text, question) { return answer }
        guard let (intent, match) = meaning(of: text) else {
            return home.content.skill.isEmpty ? reply("", texts.notUnderstood, .notUnderstood) : plan(ofSkill: text)
        }
        return plan(reading: intent, match)
    }

    /// The plan of a sentence that the grammar has read.
    func plan(reading intent: VoiceIntent, _ match: GrammarMatch) -> DialogPlan {
        var plan = plan(of: intent, match)
        (plan.intent, plan.sentence) = (intent.rawValue, match.sentence)
        if plan.slots.isEmpty { plan.slots = match.slots.map { DialogSlot($0) } }
        // What a question leads to is the same sentence.
        for index in plan.choices.indices {
            plan.choices[index].plan.intent = plan.intent
            plan.choices[index].plan.sentence = plan.sentence
            plan.choices[index].plan.slots = plan.slots
        }
        return plan
    }

    /// The skill of the home gets what is not understood.
    private func plan(ofSkill text: String) -> DialogPlan {
        let payload = JSONValue.object([
            .init(name: "text", value: .string(text)), .init(name: "language", value: .string(language.grammar.tag)),
            .init(name: "device", value: .string(speaker.rawValue)),
        ])
        let step = DialogStep.with {
            ($0.name, $0.device, $0.kind) = (hearing.name, speaker.rawValue, .skill)
            ($0.path, $0.json, $0.context) = (home.content.skill, payload.text, context)
        }
        return .with { $0.steps = [step] }
    }

    /// The best meaning that this release carries out.
    private func meaning(of text: String) -> (VoiceIntent, GrammarMatch)? {
        let context = area.map { [GrammarFact(VoiceSlot.area.rawValue, $0)] } ?? []
        let known = grammar.match(text, context: context).all.lazy.compactMap { HassIntents.meaning(of: $0) }
        return known.first { Self.supported.contains($0.0) }
    }

    /// What this release carries out. Other sentences are not understood.
    private static let supported: Set<VoiceIntent> = [
        .deviceOn, .deviceOff, .deviceSet, .deviceGet, .deviceOpen, .deviceClose, .deviceLock, .deviceUnlock, .alarmArm,
        .alarmDisarm, .callStart, .callAnswer, .callDecline, .callEnd, .cameraShow, .timerSet, .timerCancel,
        .timerQuery,
        .timerPause, .timerResume, .alarmSet, .alarmCancel, .timeGet, .dateGet, .volumeSet, .volumeUp,
        .volumeDown, .deviceRaise, .deviceLower, .stop, .repeatReply, .help,
        .yes, .no, .cancel,
    ]

    private func plan(of intent: VoiceIntent, _ match: GrammarMatch) -> DialogPlan {
        switch intent {
        case .timeGet: reply(texts.time(now, home.timeZone), .done)
        case .dateGet: reply(texts.date(now, home.timeZone), .done)
        case .help: reply(texts.help, .done)
        case .stop: planOfStop()
        case .timerSet, .alarmSet, .timerCancel, .timerQuery, .timerPause, .timerResume, .alarmCancel:
            plan(forTimers: intent, match)
        case .cancel, .no: reply(texts.cancelled, .done)
        case .yes: reply(texts.nothingToConfirm, .refused)
        case .repeatReply: reply(lastReply.isEmpty ? texts.nothingToRepeat : lastReply, .done)
        case .volumeSet, .volumeUp, .volumeDown: planOfVolume(intent, match)
        case .callStart: plan(ofCall: match)
        case .callAnswer: direct(intent, .answerCall, at: hearing)
        case .callDecline: direct(intent, .declineCall, at: hearing)
        case .callEnd: direct(intent, .endCall, at: hearing)
        case .cameraShow: plan(ofCamera: match)
        default: plan(forDevices: intent, match)
        }
    }

    private func planOfVolume(_ intent: VoiceIntent, _ match: GrammarMatch) -> DialogPlan {
        let own = home.content.devices.filter { $0.device == speaker.rawValue }
        let device = own.first { $0.control(.volume) != nil } ?? hearing
        return run(intent == .volumeSet ? .deviceSet : intent, match, [device], what: .volume)
    }

    // MARK: - Devices

    private func plan(forDevices intent: VoiceIntent, _ match: GrammarMatch) -> DialogPlan {
        let areas = match.slot(VoiceSlot.area.rawValue)?.candidates.map(\.value)
        guard (areas?.count ?? 1) == 1 else { return reply(texts.whichArea, .refused) }
        if let name = match.slot(VoiceSlot.name.rawValue) { return plan(of: intent, match, name, in: areas?.first) }
        let found = targets(of: intent, match, in: areas?.first)
        guard !found.isEmpty else { return reply(texts.none(areas?.first.flatMap(areaName)), .refused) }
        // One alarm system of several is not chosen at random, and neither is one heater.
        if intent == .alarmArm || intent == .alarmDisarm, found.count > 1 {
            return ask(found) { run(intent, match, [$0]) }
        }
        return run(intent, match, found)
    }

    private func plan(
        of intent: VoiceIntent, _ match: GrammarMatch, _ name: GrammarSlot, in area: String?
    ) -> DialogPlan {
        let found = entries(named: name, in: area)
        guard !found.isEmpty else { return reply(texts.noSuch(name.text, in: area.flatMap(areaName)), .refused) }
        guard found.count > 1 else { return run(intent, match, found) }
        // A name of several things means the one that can do it.
        let able = found.filter { DeviceRequest(intent, match, $0, what: nil) != nil }
        return able.count == 1 ? run(intent, match, able) : ask(found) { run(intent, match, [$0]) }
    }

    /// The entries that a name may mean. There are several if neither the area in the sentence nor the area of the
    /// listening device decides.
    func entries(named name: GrammarSlot, in area: String?) -> [ClientVoiceDevice] {
        var ids: [String] = []
        for candidate in name.candidates where !ids.contains(candidate.value) { ids.append(candidate.value) }
        let found = ids.compactMap { home.entry($0) }
        if let area { return found.filter { $0.area == area } }
        let here = found.filter { !$0.area.isEmpty && $0.area == self.area }
        return here.count == 1 ? here : found
    }

    /// The devices of a sentence that names none.
    private func targets(of intent: VoiceIntent, _ match: GrammarMatch, in area: String?) -> [ClientVoiceDevice] {
        if intent == .alarmArm || intent == .alarmDisarm { return home.entries(of: VoiceKind.alarm.rawValue, in: nil) }
        if let kind = match.value(VoiceSlot.kind.rawValue) {
            guard area != nil || match.value(VoiceSlot.scope.rawValue) == "everywhere" else { return [] }
            return home.entries(of: kind, in: area)
        }
        guard let area else {
            // "Is the alarm on?"
            guard match.value(VoiceSlot.state.rawValue) == "armed" else { return [] }
            return home.entries(of: VoiceKind.alarm.rawValue, in: nil)
        }
        // "What is the temperature in the kitchen?", and the setting of it.
        guard let what = match.value(VoiceSlot.what.rawValue).flatMap(VoiceControl.What.init(rawValue:)) else {
            return []
        }
        let here = home.content.devices.filter { $0.area == area && $0.control(what) != nil }
        return intent == .deviceSet || intent == .deviceRaise || intent == .deviceLower
            ? here.filter { $0.control(what)?.path != nil } : here
    }

    private func areaName(_ id: String) -> String? { home.area(id)?.names.first }

    /// Asks which one is meant.
    ///
    /// - Parameter plan: of each of them.
    func ask(_ found: [ClientVoiceDevice], _ plan: (ClientVoiceDevice) -> DialogPlan) -> DialogPlan {
        let found = found.prefix(Self.choicesMax)
        var question = reply(texts.which(found.map { (name: $0.name, area: areaName($0.area)) }), .asked)
        question.choices = found.map { device in
            .with {
                ($0.names, $0.plan) = (device.names, plan(device))
                $0.areaNames = home.area(device.area)?.names ?? []
            }
        }
        return question
    }

    /// The things that a question names.
    private static let choicesMax = 8

    /// Carries out the sentence with these devices, after a yes if one of them is guarded.
    private func run(
        _ intent: VoiceIntent, _ match: GrammarMatch, _ devices: [ClientVoiceDevice], what: VoiceControl.What? = nil
    ) -> DialogPlan {
        guard devices.count <= DialogConfiguration.stepsMax else { return reply(texts.tooMany, .refused) }
        let requests = devices.compactMap { device in
            DeviceRequest(intent, match, device, what: what).map { (device, $0) }
        }
        // Of a group, those do it that can.
        guard !requests.isEmpty else { return reply(texts.cannot(devices[0].name), .refused) }
        var (steps, isGuarded): ([DialogStep], Bool) = ([], false)
        for (device, request) in requests {
            switch request.risk {
            case .never: return reply(texts.neverByVoice(device.name), .refused)
            case .guarded: isGuarded = true
            case .unspecified, .harmless, .UNRECOGNIZED: break
            }
            let step = request.step(device)
            if isGuest, Self.isOpening(intent, step) { isGuarded = true }
            steps.append(step)
        }
        let plan = DialogPlan.with { ($0.intent, $0.steps) = (intent.rawValue, steps) }
        guard isGuarded else { return plan }
        guard mayConfirm else { return reply(texts.neverByVoice(devices[0].name), .refused) }
        var question = reply(texts.confirm(intent, requests.map(\.0.name)), .asked)
        question.choices = [.with { $0.plan = plan }]
        return question
    }

    func reply(_ text: String, _ outcome: DialogOutcome) -> DialogPlan { reply("", text, outcome) }

    private func reply(_ intent: String, _ text: String, _ outcome: DialogOutcome) -> DialogPlan {
        .with { ($0.intent, $0.reply, $0.outcome) = (intent, text, outcome) }
    }

    // MARK: - Answers

    /// The plan that an answer chooses; nil if the text does not answer the question.
    private func answer(_ text: String, _ question: DialogQuestion) -> DialogPlan? {
        let intents = Set(
            grammar.match(text).all.compactMap { HassIntents.meaning(of: $0) }.map { $0.0.rawValue })
        if intents.contains(VoiceIntent.no.rawValue) || intents.contains(VoiceIntent.cancel.rawValue) {
            return reply(VoiceIntent.no.rawValue, texts.cancelled, .done)
        }
        if question.choices.count == 1, question.choices[0].names.isEmpty {
            return intents.contains(VoiceIntent.yes.rawValue) ? question.choices[0].plan : nil
        }
        guard let chosen = chosen(text, question) else { return nil }
        guard chosen.count > 1 else { return question.choices[chosen[0]].plan }
        let left = chosen.map { question.choices[$0] }
        var plan = reply(
            question.choices[0].plan.intent,
            texts.which(left.map { (name: $0.names.first ?? "", area: $0.areaNames.first) }), .asked)
        plan.choices = left
        return plan
    }

    private func chosen(_ text: String, _ question: DialogQuestion) -> [Int]? {
        var values: [GrammarValue] = []
        for (index, choice) in question.choices.enumerated() {
            values += (choice.names + choice.areaNames).map { GrammarValue($0, value: "\(index)") }
        }
        guard let templates = try? DialogTemplates.answers(of: language),
            let answers = try? Grammar(templates, lists: [GrammarList(DialogTemplates.answerList, values)])
        else { return nil }
        let found = answers.match(text).best?.slot(DialogTemplates.answerList)?.candidates.compactMap { Int($0.value) }
        guard let found, !found.isEmpty else { return nil }
        return Set(found).sorted()
    }
}

extension DialogSlot {
    fileprivate init(_ slot: GrammarSlot) {
        self.init()
        (name, text, value) = (slot.name, slot.text, slot.isAmbiguous ? "" : slot.value)
    }
}

import ApusContract
import ApusCore
import ApusGrammar
import SwiftProtobuf

// What a language model has answered, as the plan of a sentence.

extension DialogPlan {
    /// Whether the grammar has rejected the sentence, and no server has answered it.
    package var isRejected: Bool { intent.isEmpty && steps.isEmpty && outcome == .notUnderstood }

    /// Whether a yes carries it out.
    fileprivate var isConfirmation: Bool { choices.count == 1 && choices[0].names.isEmpty }
}

extension SentenceReader {
    /// The plan of an answer. A call that does not fit the home, or that the grammar would reject, is not understood,
    /// and neither are the others of the answer.
    package func plan(of answer: GuestAnswer) -> DialogPlan {
        switch answer {
        case .nothing: return reply(texts.notUnderstood, .notUnderstood)
        case .text(let text): return reply(text, .done)
        case .calls(let calls):
            let names = GuestNames(home)
            var reader = self
            reader.isGuest = true
            let plans = calls.compactMap { GuestSentence($0, names).flatMap(reader.plan) }
            guard (1...GuestConfiguration.callsMax).contains(calls.count), plans.count == calls.count else {
                return reply(texts.notUnderstood, .notUnderstood)
            }
            return plans.count == 1 ? plans[0] : plan(joining: plans)
        }
    }

    private func plan(of sentence: GuestSentence) -> DialogPlan? {
        let here = area.map { [GrammarFact(VoiceSlot.area.rawValue, $0)] } ?? []
        let found = guestGrammar.match(sentence.text, context: here).all.first { sentence.isMeant(by: $0) }
        guard var match = found else { return nil }
        if let name = sentence.area {
            let areas = home.content.areas.filter { $0.names.contains { $0.isExactly(name) } }
            match.slots.append(
                GrammarSlot(
                    name: VoiceSlot.area.rawValue, candidates: areas.map { GrammarValue(name, value: $0.id) },
                    text: name))
        }
        match.sentence = "model: \(sentence.text)"
        return plan(reading: sentence.intent, match)
    }

    /// One plan of several. The first one that is refused, or that asks which device is meant, is the plan: then
    /// nothing is done. One question for a yes is asked about all of them. Of two, the first one is the plan.
    private func plan(joining plans: [DialogPlan]) -> DialogPlan {
        let waiting = plans.filter(\.steps.isEmpty)
        if let other = waiting.first(where: { !$0.isConfirmation }) { return other }
        guard waiting.count < 2 else { return waiting[0] }
        var steps: [DialogStep] = []
        for plan in plans {
            for var step in plan.steps.isEmpty ? plan.choices[0].plan.steps : plan.steps {
                step.intent = plan.intent
                // Steps are carried out at the same time: a second change of the same setting has no order.
                let isKnown = steps.contains { known in
                    known.device.isExactly(step.device) && known.path.isExactly(step.path) && known.kind == step.kind
                        && (known.kind != .timer || known.json.isExactly(step.json))
                }
                if !isKnown { steps.append(step) }
            }
        }
        guard steps.count <= DialogConfiguration.stepsMax else { return reply(texts.tooMany, .refused) }
        let all = DialogPlan.with {
            ($0.intent, $0.steps) = (plans[0].intent, steps)
            $0.sentence = plans.map(\.sentence).joined(separator: "; ")
        }
        guard var question = waiting.first else { return all }
        question.choices[0].plan = all
        return question
    }

    /// Whether a plan opens a way into the home, or ends its protection. A person who says so is believed where the
    /// home allows it; a language model is not.
    static func isOpening(_ intent: VoiceIntent, _ step: DialogStep) -> Bool {
        switch intent {
        case .deviceOpen, .deviceUnlock, .alarmDisarm: true
        default:
            step.what == VoiceControl.What.position.rawValue && step.kind != .read && !step.json.isExactly("0")
        }
    }
}

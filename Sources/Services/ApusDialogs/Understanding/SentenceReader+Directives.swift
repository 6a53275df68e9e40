import ApusContract
import ApusCore
import ApusGrammar
import SwiftProtobuf

// Sentences that a device carries out itself: calls, and cameras on screens. It receives a directive (VA-10).

extension SentenceReader {
    /// The listening device. It need not be in the home.
    var hearing: ClientVoiceDevice {
        home.speaker(speaker) ?? .with { ($0.device, $0.names) = (speaker.rawValue, [speaker.rawValue]) }
    }

    /// Whether people talk to the listening device.
    var isConfirming: Bool { [VoiceKind.speaker.rawValue, VoiceKind.display.rawValue].contains(hearing.kind) }

    /// The listening device places the call.
    func plan(ofCall match: GrammarMatch) -> DialogPlan {
        guard let slot = match.slot(VoiceList.contact.rawValue) else {
            return reply(texts.notUnderstood, .notUnderstood)
        }
        let found = entries(named: slot, in: nil)
        let call: (ClientVoiceDevice) -> DialogPlan = { [self] called in
            guard called.device != speaker.rawValue else { return reply(texts.cannot(called.name), .refused) }
            return direct(.callStart, .startCall, at: hearing, with: called)
        }
        return found.count == 1 ? call(found[0]) : ask(found, call)
    }

    func plan(ofCamera match: GrammarMatch) -> DialogPlan {
        guard let slot = match.slot(VoiceSlot.name.rawValue) else { return reply(texts.notUnderstood, .notUnderstood) }
        guard let screen = screen(match) else { return reply(texts.noScreen, .refused) }
        let found = entries(named: slot, in: nil)
        let show: (ClientVoiceDevice) -> DialogPlan = { [self] camera in
            direct(.cameraShow, .showCamera, at: screen, with: camera)
        }
        return found.count == 1 ? show(found[0]) : ask(found, show)
    }

    /// The screen in the sentence, otherwise the listening device, the only screen of its area, or the only one of the
    /// home.
    private func screen(_ match: GrammarMatch) -> ClientVoiceDevice? {
        if let slot = match.slot(VoiceSlot.screen.rawValue) {
            let found = entries(named: slot, in: nil)
            return found.count == 1 ? found[0] : nil
        }
        if hearing.kind == VoiceKind.display.rawValue { return hearing }
        let here = area.map { home.entries(of: VoiceKind.display.rawValue, in: $0) } ?? []
        let all = home.entries(of: VoiceKind.display.rawValue, in: nil)
        return here.count == 1 ? here[0] : all.count == 1 ? all[0] : nil
    }

    /// - Parameter other: the device that the directive names.
    func direct(
        _ intent: VoiceIntent, _ directive: DeviceDirective, at device: ClientVoiceDevice,
        with other: ClientVoiceDevice? = nil
    ) -> DialogPlan {
        let payload = other.map { JSONValue.object([.init(name: "device", value: .string($0.device))]) }
        let step = DialogStep.with {
            ($0.entry, $0.name, $0.device, $0.kind) = (device.id, device.name, device.device, .direct)
            ($0.path, $0.json) = (directive.rawValue, (payload ?? .object([])).text)
            ($0.what, $0.other) = (other?.name ?? "", other?.device ?? "")
        }
        return .with { ($0.intent, $0.steps) = (intent.rawValue, [step]) }
    }
}

/// A directive of the cluster: its namespace and its name.
enum DeviceDirective: String, Sendable {
    case startCall = "Calls.Start"
    case answerCall = "Calls.Answer"
    case declineCall = "Calls.Decline"
    case endCall = "Calls.End"
    case showCamera = "Camera.Show"
}

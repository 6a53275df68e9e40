import ApusClientAPI
import ApusCluster
import ApusContract
import ApusCore
import ApusSessions
import SwiftProtobuf

extension DialogService {
    func addRequests(to api: inout ClientAPI) {
        api.on(ClientSayRequest.self) { [self] request, call throws(ApusError) in
            let device = try Self.device(request.device, call.session)
            let turn = try await say(
                request.text, id: try Self.id(request.id, call), to: device, language: request.language,
                context: request.context, heard: request.heard.isEmpty ? "" : try Self.id(request.heard, call), call)
            return ClientDialogTurn(turn)
        }
        api.on(ClientGetDialogRequest.self) { [self] request, call throws(ApusError) in
            let device = try Self.device(request.device, call.session)
            let since = try await access(to: device, call.session).dataSince
            let look = DialogLook.with {
                $0.dataSinceMs = since
                ($0.account, $0.access) = (call.session.account.rawValue, call.session.access.rawValue)
            }
            return ClientDialog(try await ref(device).ask(look, timeout: try call.timeLeft()), device)
        }
        api.on(ClientStopDialogRequest.self) { [self] request, call throws(ApusError) in
            let device = try Self.device(request.device, call.session)
            let since = try await access(to: device, call.session).dataSince
            let stop = DialogStop.with { $0.dataSinceMs = since }
            return ClientDialog(try await ref(device).ask(stop, timeout: try call.timeLeft()), device)
        }
        api.on(ClientTapDialogRequest.self) { [self] request, call throws(ApusError) in
            let device = try Self.device(request.device, call.session)
            return ClientDialog(try await tap(request, id: try Self.id(request.id, call), device, call), device)
        }
        api.on(ClientSpokenDialogRequest.self) { [self] request, call throws(ApusError) in
            let device = try Self.device(request.device, call.session)
            let since = try await access(to: device, call.session).dataSince
            let spoken = DialogSpoken.with { ($0.id, $0.dataSinceMs) = (request.id.lowercased(), since) }
            return ClientDialog(try await ref(device).ask(spoken, timeout: try call.timeLeft()), device)
        }
        api.on(ClientWakeDialogRequest.self) { [self] request, call throws(ApusError) in
            try await wake(request, id: try Self.id(request.id, call), call)
        }
        api.on(ClientSynchronizeDialogRequest.self) { [self] request, call throws(ApusError) in
            try await synchronize(request, call)
        }
        api.on(ClientSendDialogEventRequest.self) { [self] request, call throws(ApusError) in
            try await send(request, id: try Self.id(request.id, call), call)
        }
        api.on(ClientGetVoiceHomeRequest.self) { [self] _, call throws(ApusError) in
            try await homes.home(of: call.session.account).content
        }
        api.on(
            ClientPutVoiceHomeRequest.self, byteCountMax: 2 * VoiceHome.byteCountMax, orderKey: { _ in "voice.home" }
        ) {
            [self] request, call throws(ApusError) in
            let home = try VoiceHome(checking: request.home)
            return try await homes.put(home, of: call.session.account, ifRevision: request.ifRevision).content
        }
    }

    /// The listening device: that of the session, or the named one if the client is an app. Throws 12004 and 21031.
    static func device(_ text: String, _ session: Session) throws(ApusError) -> DeviceID {
        guard let own = session.device else { return try DeviceID(checking: text, "the device's id") }
        guard text.isEmpty || text == own.rawValue else {
            throw ApusError(.notAllowed, "a device has its own dialog only")
        }
        return own
    }

    /// The id that the client chose for the sentence or its request, or a random one.
    static func id(_ text: String, _ call: ClientCall) throws(ApusError) -> String {
        guard text.isEmpty else {
            guard text.utf8.count == 32, let id = Hexadecimal.bytes(text) else {
                throw ApusError(.badParameter, "an id has 32 hexadecimal digits")
            }
            return Hexadecimal.text(id)
        }
        var generator = SystemRandomNumberGenerator()
        let id = call.request.map { RequestID(key: $0.key, digest: 0) } ?? RequestID(using: &generator)
        return Hexadecimal.text(id.bytes)
    }
}

extension ClientDialogPhase {
    init(_ phase: DialogPhase) {
        self = phase == .unspecified ? .idle : ClientDialogPhase(rawValue: phase.rawValue) ?? .idle
    }
}

extension ClientDialog {
    init(_ state: DialogState, _ device: DeviceID) {
        self.init()
        (self.device, phase, version) = (device.rawValue, ClientDialogPhase(state.phase), state.version)
        turns = state.turns.reversed().map { ClientDialogTurn($0) }
        questionEndsMs = state.hasQuestion ? state.question.endsMs : 0
        if state.phase == .listening { (listening, listeningEndsMs) = (state.listening.id, state.deadlineMs) }
    }
}

extension ClientDialogTurn {
    init(_ turn: DialogTurn) {
        self.init()
        (id, text, language) = (turn.id, turn.text, turn.language)
        (intent, sentence, reply) = (turn.plan.intent, turn.plan.sentence, turn.plan.reply)
        slots = turn.plan.slots.map { slot in
            .with { ($0.name, $0.text, $0.value) = (slot.name, slot.text, slot.value) }
        }
        steps = turn.plan.steps.map { step in
            .with {
                ($0.entry, $0.device, $0.path) = (step.entry, step.device, step.path)
                $0.json = step.kind == .read ? step.value : step.json
                $0.result = ClientDialogResult(rawValue: step.result.rawValue) ?? .unspecified
                ($0.code, $0.message) = (step.code, step.message)
            }
        }
        outcome = ClientDialogOutcome(rawValue: turn.plan.outcome.rawValue) ?? .unspecified
        (beganMs, endedMs, heard) = (turn.beganMs, turn.endedMs, turn.heard)
    }
}

import ApusClientAPI
import ApusCluster
import ApusContract
import ApusCore
import ApusGrammar
import ApusSessions
import SwiftProtobuf

// Devices that listen to a person: taps (VA-7).

extension DialogService {
    /// Lets a device listen from now on.
    ///
    /// - Parameter id: of the listening.
    /// - Throws: 10007 if the account says too much, 21031 for a language that dialogs do not have; otherwise as
    ///   ``access(to:_:)``.
    func tap(
        _ request: ClientTapDialogRequest, id: String, _ device: DeviceID, _ call: ClientCall
    ) async throws(ApusError) -> DialogState {
        let since = try await access(to: device, call.session).dataSince
        try takeTurn(of: call.session.account)
        let home = try await homes.home(of: call.session.account)
        let listening = try listening(id, request.language, home, call)
        let state = try await listen(listening, device, since, call)
        // A repetition of an earlier tap does not listen, and stops no other device.
        if state.phase == .listening, state.listening.id.isExactly(id) {
            await tapped(device, id: id, home, call.session.account)
        }
        return state
    }

    func listening(
        _ id: String, _ language: String, _ home: VoiceHome, _ call: ClientCall
    ) throws(ApusError) -> DialogListening {
        if !language.isEmpty { _ = try DialogLanguage(checking: language) }
        return .with {
            $0.id = id
            $0.language = DialogLanguage(language.isEmpty ? home.content.language : language).grammar.tag
            $0.speaker = DialogSpeaker(Authority(call.session))
            $0.speaker.isDevice = call.session.device != nil
        }
    }

    func listen(
        _ listening: DialogListening, joins: Bool = false, _ device: DeviceID, _ since: UInt64, _ call: ClientCall
    ) async throws(ApusError) -> DialogState {
        let listen = DialogListen.with { ($0.listening, $0.dataSinceMs, $0.joins) = (listening, since, joins) }
        return try await ref(device).ask(listen, timeout: try call.timeLeft())
    }
}

public import ApusContract
public import ApusCore
import SwiftProtobuf

// Dialogs with devices, and what the devices of an account are called (VA-6 to VA-9, docs/voice.md).

extension ClientSession {
    /// Says a sentence to a device, and waits for the reply. A device says what it has heard itself.
    ///
    /// - Parameters:
    ///   - device: the device that hears it: its room is meant where the sentence names none.
    ///   - language: such as `en` or `zh-CN`; nil: that of the home.
    ///   - id: 32 hexadecimal digits: a repetition is answered with the turn that there is. Nil: chosen by the cluster.
    /// - Returns: what was understood, what was done, and the reply.
    /// - Throws: 8002, 8003 and 12004 if this client may not control the device, 10002 for a sentence of more than 512
    ///   bytes, 10007 after too many sentences (`dialogs.sentences_per_minute`), 21031 for a language that the cluster
    ///   does not have, otherwise as ``ask(_:timeout:)``.
    public func say(
        _ text: String, to device: DeviceID, language: String? = nil, id: String? = nil,
        timeout: Duration = .seconds(20)
    ) async throws(ApusError) -> ClientDialogTurn {
        let request = ClientSayRequest.with {
            ($0.device, $0.text, $0.language, $0.id) = (device.rawValue, text, language ?? "", id ?? "")
        }
        return try await ask(request, timeout: timeout)
    }

    /// Lets a device listen to a person from now on (VA-7). What its dialog does is interrupted.
    ///
    /// - Parameters:
    ///   - language: such as `en` or `zh-CN`; nil: that of the home.
    ///   - id: 32 hexadecimal digits: a repetition has no effect. Nil: chosen by the cluster.
    /// - Throws: as ``say(_:to:language:id:timeout:)``.
    @discardableResult
    public func tapDialog(
        of device: DeviceID, language: String? = nil, id: String? = nil
    ) async throws(ApusError) -> ClientDialog {
        try await ask(
            ClientTapDialogRequest.with {
                ($0.device, $0.language, $0.id) = (device.rawValue, language ?? "", id ?? "")
            })
    }

    /// A device says what it does, once after each connection (VA-15). Its events are refused before.
    ///
    /// - Parameters:
    ///   - phase: what the dialog does at the device.
    ///   - context: what the device shows and plays, as in ``sendCustomEvent(_:dialogRequestID:payload:context:)``.
    ///   - alerts: the numbers of the timers that ring at the device.
    /// - Returns: the dialog, and which timers ring.
    /// - Throws: 12004 if the session is not a device's, 21031 for a context that is not valid, otherwise as
    ///   ``ask(_:timeout:)``.
    @discardableResult
    public func synchronizeDialog(
        phase: ClientDialogPhase = .idle, context: String = "", alerts: [UInt32] = []
    ) async throws(ApusError) -> ClientSynchronizeDialogResponse {
        try await ask(
            ClientSynchronizeDialogRequest.with {
                ($0.state, $0.context, $0.alerts) = (phase.name, context, alerts)
            })
    }

    /// A device sends a custom event to the skill of its account's home (VA-11). The device receives the
    /// directives of the answer.
    ///
    /// - Parameters:
    ///   - name: such as `Custom`.
    ///   - sentence: the id of the sentence that it follows from; nil: none.
    ///   - payload: a JSON object of at most 8 KiB; empty: `{}`.
    ///   - context: a JSON array of `{"header":…,"payload":…}` of at most 8 KiB (VA-12); empty: none.
    /// - Returns: the number of directives.
    /// - Throws: 10040 before ``synchronizeDialog(phase:context:alerts:)``, 8002 if the home has no skill, 21002 if the
    ///   skill does not answer within 2 s, 21005 if it fails, 21031 if the event is not valid, 10007 after too many
    ///   events, otherwise as ``ask(_:timeout:)``.
    @discardableResult
    public func sendCustomEvent(
        _ name: String, dialogRequestID sentence: String? = nil, payload: String = "", context: String = ""
    ) async throws(ApusError) -> Int {
        let request = ClientSendDialogEventRequest.with {
            ($0.name, $0.dialogRequestID, $0.payload, $0.context) = (name, sentence ?? "", payload, context)
        }
        return Int(try await ask(request).directives)
    }

    /// What was said to a device in the last minutes, the newest first.
    ///
    /// - Throws: as ``say(_:to:language:id:timeout:)``.
    public func dialog(of device: DeviceID) async throws(ApusError) -> ClientDialog {
        try await ask(ClientGetDialogRequest.with { $0.device = device.rawValue })
    }

    /// Ends what the dialog of a device does (VA-9). What devices were asked to do goes on.
    ///
    /// - Throws: as ``say(_:to:language:id:timeout:)``.
    @discardableResult
    public func stopDialog(of device: DeviceID) async throws(ApusError) -> ClientDialog {
        try await ask(ClientStopDialogRequest.with { $0.device = device.rawValue })
    }

    /// The changes of a device's dialog from now on, for apps that may control it and for the device itself. As
    /// ``events(of:as:bufferMax:)``. The newest 16 are kept for a session that was away.
    public func dialogChanges(
        of device: DeviceID
    ) -> AsyncThrowingStream<TopicEvent<ClientDialogChanged>, any Error> {
        events(of: "dialogs/\(device.rawValue)")
    }

    /// What the account's devices and areas are called.
    ///
    /// - Throws: as ``ask(_:timeout:)``.
    public func voiceHome() async throws(ApusError) -> ClientVoiceHome { try await ask(ClientGetVoiceHomeRequest()) }

    /// Sets what the account's devices and areas are called, and what can be done with them by voice.
    ///
    /// - Parameter revision: that which the home must have; nil: any.
    /// - Throws: 10030 if it has another revision, 21031 with the id of what is not valid, 10002 over 96 KiB, otherwise
    ///   as ``ask(_:timeout:)``.
    @discardableResult
    public func setVoiceHome(
        _ home: ClientVoiceHome, ifRevision revision: UInt64? = nil
    ) async throws(ApusError) -> ClientVoiceHome {
        try await ask(ClientPutVoiceHomeRequest.with { ($0.home, $0.ifRevision) = (home, revision ?? 0) })
    }
}

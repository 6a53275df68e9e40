// The requests about dialogs and homes (VA-6 to VA-9, docs/voice.md).

extension ClientSayRequest: ClientRequestMessage {
    public typealias Reply = ClientDialogTurn
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            170, "dialogs.say", .post("/v1/devices/{device}/say"), roles: [.app, .device], isIdempotent: false,
            fields: [
                "device": .identifier, "text": FieldRule(isRequired: true), "language": .optionalIdentifier,
                "id": .sentence, "context": .optionalJSON, "heard": .sentence,
            ],
            "Say a sentence to a device, and get the reply.")
    }
}

extension ClientGetDialogRequest: ClientRequestMessage {
    public typealias Reply = ClientDialog
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            171, "dialogs.get", .get("/v1/devices/{device}/dialog"), roles: [.app, .device],
            fields: ["device": .identifier], "Get what was said to a device in the last minutes.")
    }
}

extension ClientStopDialogRequest: ClientRequestMessage {
    public typealias Reply = ClientDialog
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            172, "dialogs.stop", .post("/v1/devices/{device}/stop-dialog"), roles: [.app, .device],
            fields: ["device": .identifier], "End what the dialog of a device does.")
    }
}

extension ClientGetVoiceHomeRequest: ClientRequestMessage {
    public typealias Reply = ClientVoiceHome
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            173, "voice.home", .get("/v1/voice/home"), roles: .app,
            "Get what the account's devices and areas are called.")
    }
}

extension ClientPutVoiceHomeRequest: ClientRequestMessage {
    public typealias Reply = ClientVoiceHome
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            174, "voice.put", .put("/v1/voice/home"), roles: .app, fields: ["home": FieldRule(isRequired: true)],
            "Set what the account's devices and areas are called, and what can be done with them by voice.")
    }
}

extension ClientSendDialogEventRequest: ClientRequestMessage {
    public typealias Reply = ClientSendDialogEventResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            175, "dialogs.event", roles: .device, isIdempotent: false,
            fields: [
                "name": .identifier, "dialog_request_id": .sentence, "payload": .optionalJSON,
                "context": .optionalJSON, "id": .sentence,
            ],
            "Send a custom event of this device to the skill of its home.")
    }
}

extension ClientTapDialogRequest: ClientRequestMessage {
    public typealias Reply = ClientDialog
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            180, "dialogs.tap", .post("/v1/devices/{device}/tap"), roles: [.app, .device], isIdempotent: false,
            fields: ["device": .identifier, "id": .sentence, "language": .optionalIdentifier],
            "Let a device listen to a person from now on.")
    }
}

extension ClientSpokenDialogRequest: ClientRequestMessage {
    public typealias Reply = ClientDialog
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            181, "dialogs.spoken", .post("/v1/devices/{device}/spoken"), roles: [.app, .device],
            fields: ["id": .sentence, "device": .identifier],
            "Report that the whole reply to a sentence has been given.")
    }
}

extension ClientWakeDialogRequest: ClientRequestMessage {
    public typealias Reply = ClientWakeDialogResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            182, "dialogs.wake", roles: .device, isIdempotent: false,
            fields: ["id": .sentence, "phrase": FieldRule(), "language": .optionalIdentifier],
            "Report that this device has heard a wake phrase. If several of a room have, one of them listens.")
    }
}

extension ClientSynchronizeDialogRequest: ClientRequestMessage {
    public typealias Reply = ClientSynchronizeDialogResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            183, "dialogs.synchronize", roles: .device,
            fields: ["state": .optionalIdentifier, "context": .optionalJSON, "alerts": FieldRule()],
            "Report what this device does, once after each connection. Events are refused before.")
    }
}

extension FieldRule {
    /// The id of a sentence or an event, or empty.
    fileprivate static let sentence = Self(pattern: "^([0-9A-Fa-f]{32})?$")
}

extension ClientDialogChanged: ClientEventMessage {
    public static var info: ClientEventInfo {
        ClientEventInfo(7, "dialog", "The dialog of a device has changed.")
    }
}

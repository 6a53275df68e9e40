// Answering machines and their messages (docs/answering-machine.md).

extension ClientGetAnsweringMachineRequest: ClientRequestMessage {
    public typealias Reply = ClientAnsweringMachine
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            87, "answering.get", .get("/v1/answering-machine"), roles: [.device, .app, .admin],
            fields: ["device": .optionalIdentifier, "account": .optionalIdentifier],
            "Get the answering machine of a device or an account.")
    }
}

extension ClientSetAnsweringMachineRequest: ClientRequestMessage {
    public typealias Reply = ClientAnsweringMachine
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            88, "answering.set", .put("/v1/answering-machine"), roles: [.device, .app, .admin], isAudited: true,
            fields: [
                "device": .optionalIdentifier, "account": .optionalIdentifier,
                "after_seconds": FieldRule(range: 0...120), "length_seconds": FieldRule(range: 0...120),
                "keep_days": FieldRule(range: 0...365),
            ],
            "Turn the answering machine of a device or an account on or off.")
    }
}

extension ClientSetGreetingRequest: ClientRequestMessage {
    public typealias Reply = ClientSetGreetingResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            89, "answering.greet", .put("/v1/answering-machine/greeting"), roles: [.device, .app, .admin],
            isAudited: true,
            fields: [
                "device": .optionalIdentifier, "account": .optionalIdentifier, "index": FieldRule(range: 0...31),
            ],
            "Send a piece of an answering machine's greeting, or remove the greeting.")
    }
}

extension ClientListMessagesRequest: ClientRequestMessage {
    public typealias Reply = ClientListMessagesResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            90, "messages.list", .get("/v1/call-messages"), roles: [.device, .app, .admin],
            fields: [
                "device": .optionalIdentifier, "account": .optionalIdentifier,
                "page_token": FieldRule(pattern: "^([0-9]{1,16}-[A-Za-z0-9._-]{1,63})?$"),
            ],
            "List the messages for a device or an account, the newest first.")
    }
}

extension ClientReadMessageRequest: ClientRequestMessage {
    public typealias Reply = ClientReadMessageResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            91, "messages.read", .get("/v1/call-messages/{message}/bytes"), roles: [.device, .app, .admin],
            fields: ["message": .identifier], "Read a piece of a message, which is an MP4.")
    }
}

extension ClientMarkMessageRequest: ClientRequestMessage {
    public typealias Reply = ClientMarkMessageResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            92, "messages.mark", .post("/v1/call-messages/{message}"), roles: [.device, .app, .admin], isAudited: true,
            fields: ["message": .identifier], "Mark a message as watched, or as new.")
    }
}

extension ClientDeleteMessageRequest: ClientRequestMessage {
    public typealias Reply = ClientDeleteMessageResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            93, "messages.delete", .delete("/v1/call-messages/{message}"), roles: [.device, .app, .admin],
            isAudited: true, fields: ["message": .identifier], "Delete a message.")
    }
}

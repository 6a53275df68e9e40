// Video calls (CALL-4 to CALL-11, docs/calls.md).

extension ClientStartCallRequest: ClientRequestMessage {
    public typealias Reply = ClientCallInfo
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            82, "calls.start", roles: [.device, .app], isIdempotent: false,
            fields: ["id": FieldRule(pattern: "^([0-9A-Fa-f]{32})?$")], "Place a call.")
    }
}

extension ClientReportCallRequest: ClientRequestMessage {
    public typealias Reply = ClientCallInfo
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            83, "calls.report", roles: [.device, .app], fields: ["call": .identifier],
            "Report an event of a call: it rings, it is accepted, it is hung up.")
    }
}

extension ClientListCallsRequest: ClientRequestMessage {
    public typealias Reply = ClientListCallsResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            84, "calls.list", .get("/v1/calls"), roles: [.device, .app, .admin], isForNamedDevices: true,
            fields: [
                "device": .optionalIdentifier, "account": .optionalIdentifier,
                "page_token": FieldRule(pattern: "^([0-9]{1,16}-[A-Za-z0-9._-]{1,63})?$"),
            ],
            "List the calls of a device or an account that have ended, the newest first.")
    }
}

extension ClientRegisterPushRequest: ClientRequestMessage {
    public typealias Reply = ClientRegisterPushResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            85, "push.register", roles: [.app], fields: ["provider": FieldRule(pattern: "^(webhook|apns|fcm)$")],
            "Register an app for push notifications of calls.")
    }
}

extension ClientUnregisterPushRequest: ClientRequestMessage {
    public typealias Reply = ClientUnregisterPushResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            86, "push.unregister", roles: [.app], "End the registration of an app for push notifications.")
    }
}

extension ClientCallNotice: ClientEventMessage {
    public static var info: ClientEventInfo {
        ClientEventInfo(4, "call", "A call rings, was accepted, or has ended.")
    }
}

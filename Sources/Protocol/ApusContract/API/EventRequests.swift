// Events of devices and accounts, raw data to servers, and the hooks of integrators (IV-D10, IV-D12, docs/events.md).

extension ClientReportEventRequest: ClientRequestMessage {
    public typealias Reply = ClientReportEventResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            110, "events.report", roles: .device, fields: ["name": .identifier, "json": FieldRule()],
            "Report an event of the device, such as motion, to all accounts that may use it.")
    }
}

extension ClientNotifyAccountRequest: ClientRequestMessage {
    public typealias Reply = ClientNotifyAccountResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            111, "events.notify", .post("/v1/accounts/{account}/notices"), roles: .admin, isAudited: true,
            fields: ["account": .identifier, "name": .identifier, "json": .optionalJSON], "Send an account a notice.")
    }
}

extension ClientSendToServerRequest: ClientRequestMessage {
    public typealias Reply = ClientSendToServerResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            112, "servers.send", .post("/v1/server-messages"), roles: [.device, .app], isIdempotent: false,
            fields: [
                "url": FieldRule(pattern: "^[A-Za-z0-9._-]{1,63}(/[A-Za-z0-9._~/-]{0,200})?$", isRequired: true),
                "timeout_ms": FieldRule(range: 0...86_400_000),
            ],
            "Send raw data to a server of the integrator, and get its answer.")
    }
}

extension ClientPutHookRequest: ClientRequestMessage {
    public typealias Reply = ClientPutHookResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            113, "hooks.put", .post("/v1/customers/{customer}/hooks/{hook}"), roles: [.customer, .admin],
            isAudited: true,
            fields: [
                "customer": .identifier, "hook": .identifier,
                "url": .hookURL,
                "events": FieldRule(
                    pattern: "^(alarm|share|system|property|call)$", itemCount: 0...5, itemsDiffer: true),
            ],
            "Set an HTTP endpoint that receives events, or raw data of apps and devices.")
    }
}

extension ClientListHooksRequest: ClientRequestMessage {
    public typealias Reply = ClientListHooksResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            114, "hooks.list", .get("/v1/customers/{customer}/hooks"), roles: [.customer, .admin],
            fields: ["customer": .identifier], "List the endpoints of an integrator, and what waits for them.")
    }
}

extension ClientDeleteHookRequest: ClientRequestMessage {
    public typealias Reply = ClientDeleteHookResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            115, "hooks.delete", .delete("/v1/customers/{customer}/hooks/{hook}"), roles: [.customer, .admin],
            isAudited: true, fields: ["customer": .identifier, "hook": .identifier],
            "Delete an endpoint, and the events that wait for it.")
    }
}

extension ClientListFailedEventsRequest: ClientRequestMessage {
    public typealias Reply = ClientListFailedEventsResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            116, "hooks.failed", .get("/v1/customers/{customer}/hooks/{hook}/failed"), roles: [.customer, .admin],
            fields: ["customer": .identifier, "hook": .identifier, "page_token": .optionalEvent],
            "List the events that an endpoint has refused, and that were put aside.")
    }
}

extension ClientRetryFailedEventsRequest: ClientRequestMessage {
    public typealias Reply = ClientRetryFailedEventsResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            117, "hooks.retry", .post("/v1/customers/{customer}/hooks/{hook}/failed/retry"),
            roles: [.customer, .admin],
            isIdempotent: false, isAudited: true,
            fields: ["customer": .identifier, "hook": .identifier, "ids": .events],
            "Send an endpoint events again that it has refused.")
    }
}

extension ClientDropFailedEventsRequest: ClientRequestMessage {
    public typealias Reply = ClientDropFailedEventsResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            118, "hooks.drop", .post("/v1/customers/{customer}/hooks/{hook}/failed/drop"), roles: [.customer, .admin],
            isIdempotent: false, isAudited: true,
            fields: ["customer": .identifier, "hook": .identifier, "ids": .events],
            "Drop events that an endpoint has refused.")
    }
}

extension ClientAccountEvent: ClientEventMessage {
    public static var info: ClientEventInfo {
        ClientEventInfo(
            5, "account_event", "A device reports an alarm, its accounts have changed, or an operator's notice.")
    }
}

extension FieldRule {
    fileprivate static let optionalEvent = Self(pattern: "^([0-9]{1,16}-[0-9a-f]{1,16})?$")
    fileprivate static let events = Self(pattern: "^[0-9]{1,16}-[0-9a-f]{1,16}$", itemCount: 0...100)
    /// `http` or `https`, a host, a port, a path and a query. An address of IPv6, which only operators may name, is
    /// left out.
    public static let hookURL: Self = {
        let port = "[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
        let name = "([A-Za-z0-9_-]{1,63}\\.){0,7}[A-Za-z0-9_-]{1,63}"
        let path = "[/?]([A-Za-z0-9._~:/?@!$&'()*+,;=-]|%[0-9A-Fa-f]{2}){0,480}"
        return Self(pattern: "^https?://\(name)(:(\(port)))?(\(path))?$", isRequired: true)
    }()
}

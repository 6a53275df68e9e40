// The requests about the timers and alarm clocks of devices (VA-2, docs/timers.md).

extension ClientSetTimerRequest: ClientRequestMessage {
    public typealias Reply = ClientTimer
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            160, "timers.set", .post("/v1/devices/{device}/timers"), roles: [.device, .app], isIdempotent: false,
            isForNamedDevices: true, fields: ["device": .identifier, "label": .label],
            oneOf: [
                RequestShape(["duration_ms": .duration], absent: ["due_ms"]),
                RequestShape(["due_ms": .due], absent: ["duration_ms"]),
            ],
            "Set a timer or an alarm clock of a device.")
    }
}

extension ClientListTimersRequest: ClientRequestMessage {
    public typealias Reply = ClientListTimersResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            161, "timers.list", .get("/v1/devices/{device}/timers"), roles: [.device, .app], isForNamedDevices: true,
            fields: ["device": .identifier], "List the timers and alarm clocks of a device.")
    }
}

extension ClientCancelTimerRequest: ClientRequestMessage {
    public typealias Reply = ClientCancelTimerResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            162, "timers.cancel", .delete("/v1/devices/{device}/timers/{id}"), roles: [.device, .app],
            isIdempotent: false, isForNamedDevices: true, fields: ["device": .identifier, "id": .timers],
            "Cancel a timer, those that ring, or all timers of a device.")
    }
}

extension ClientChangeTimerRequest: ClientRequestMessage {
    public typealias Reply = ClientTimer
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            163, "timers.change", .post("/v1/devices/{device}/timers/{id}"), roles: [.device, .app],
            isForNamedDevices: true,
            fields: ["device": .identifier, "id": .timer, "change": FieldRule(isRequired: true)],
            "Pause a timer, or let it run again.")
    }
}

extension ClientStopRingingRequest: ClientRequestMessage {
    public typealias Reply = ClientStopRingingResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            164, "timers.stop", .post("/v1/devices/{device}/stop-ringing"), roles: [.device, .app],
            isIdempotent: false, isForNamedDevices: true, fields: ["device": .identifier],
            "Silence the timers of a device that ring.")
    }
}

extension ClientTimerChanged: ClientEventMessage {
    public static var info: ClientEventInfo {
        ClientEventInfo(6, "timer", "A timer of a device was set, changed, rings or has ended.")
    }
}

extension FieldRule {
    fileprivate static let label = Self(pattern: "^[^\\x00-\\x1f\\x7f-\\x9f]{0,64}$")
    /// 1 ms to seven days.
    fileprivate static let duration = Self(
        pattern: "^([1-9][0-9]{0,7}|[1-5][0-9]{8}|60[0-3][0-9]{6}|604[0-7][0-9]{5}|604800000)$", isRequired: true)
    fileprivate static let due = Self(pattern: "^[1-9][0-9]{0,17}$", isRequired: true)
    fileprivate static let timer = Self(range: 1...999, isRequired: true)
    fileprivate static let timers = Self(pattern: "^([1-9][0-9]{0,2}|ringing|all)$", isRequired: true)
}

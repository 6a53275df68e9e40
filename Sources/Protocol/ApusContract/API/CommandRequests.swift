// The requests about commands to devices (IV-D5, IV-D11, IV-D15, docs/commands.md).

extension ClientSendCommandRequest: ClientRequestMessage {
    public typealias Reply = ClientCommand
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            56, "commands.send", .post("/v1/devices/{device}/commands"), roles: .app, isIdempotent: false,
            isForNamedDevices: true,
            fields: [
                "device": .identifier, "id": .optionalCommand, "ttl_seconds": FieldRule(range: 0...604_800),
            ],
            oneOf: [
                RequestShape(["path": .action, "json": .json(member: "ctlVal")], absent: ["data"]),
                RequestShape(["path": .argument, "json": .json], absent: ["data"]),
                RequestShape([:], absent: ["path", "json"]),
            ],
            "Send a device an action or raw data, and wait until it is answered.")
    }
}

extension ClientGetCommandRequest: ClientRequestMessage {
    public typealias Reply = ClientCommand
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            57, "commands.get", .get("/v1/devices/{device}/commands/{id}"), roles: .app, isForNamedDevices: true,
            fields: ["device": .identifier, "id": .command],
            "Get what is known of a command. The newest 32 that have ended are kept.")
    }
}

extension ClientListCommandsRequest: ClientRequestMessage {
    public typealias Reply = ClientListCommandsResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            58, "commands.list", .get("/v1/devices/{device}/commands"), roles: .app, isForNamedDevices: true,
            fields: ["device": .identifier], "List the commands of a device, and the order in which they are sent.")
    }
}

extension ClientCancelCommandRequest: ClientRequestMessage {
    public typealias Reply = ClientCommand
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            59, "commands.cancel", .delete("/v1/devices/{device}/commands/{id}"), roles: .app, isIdempotent: false,
            isForNamedDevices: true,
            fields: ["device": .identifier, "id": .command], "End a command that was not sent to its device yet.")
    }
}

extension ClientSetCommandOrderRequest: ClientRequestMessage {
    public typealias Reply = ClientSetCommandOrderResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            60, "commands.order", .post("/v1/devices/{device}/command-order"), roles: .app, isForNamedDevices: true,
            fields: ["device": .identifier], "Set when the next command of a device is sent.")
    }
}

extension ClientAcknowledgeCommandsRequest: ClientRequestMessage {
    public typealias Reply = ClientAcknowledgeCommandsResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            61, "commands.acknowledge", roles: .device, fields: ["ids": .commands],
            "Confirm that this device has received commands.")
    }
}

extension ClientAnswerCommandRequest: ClientRequestMessage {
    public typealias Reply = ClientAnswerCommandResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            62, "commands.answer", roles: .device, fields: ["id": .command],
            "Report that this device has carried out a command, or has failed to.")
    }
}

extension ClientCommandDelivery: ClientEventMessage {
    public static var info: ClientEventInfo {
        ClientEventInfo(3, "command", "A command for the device that subscribes.")
    }
}

extension FieldRule {
    /// An id of a command.
    fileprivate static let command = Self(pattern: "^[0-9A-Fa-f]{32}$", isRequired: true)
    fileprivate static let action = Self(pattern: "^Action\\.[A-Za-z0-9_-]{1,64}$")
    fileprivate static let argument = Self(pattern: "^Action\\.[A-Za-z0-9_-]{1,64}\\.ctlVal$")
    fileprivate static let optionalCommand = Self(pattern: "^([0-9A-Fa-f]{32})?$")
    fileprivate static let commands = Self(pattern: "^[0-9A-Fa-f]{32}$", itemCount: 0...256)
}

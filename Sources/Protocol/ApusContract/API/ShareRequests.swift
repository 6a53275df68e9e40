// Which accounts may use a device (IV-B8, IV-B10, docs/sharing.md).

extension ClientBindDeviceRequest: ClientRequestMessage {
    public typealias Reply = ClientBindDeviceResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            63, "devices.bind", .post("/v1/devices/{device}/binding"), roles: [.customer, .admin],
            isIdempotent: false, isAudited: true, fields: ["device": .identifier, "account": .identifier],
            "Bind a device to an account.")
    }
}

extension ClientUnbindDeviceRequest: ClientRequestMessage {
    public typealias Reply = ClientUnbindDeviceResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            64, "devices.unbind", .delete("/v1/devices/{device}/binding"), roles: [.app, .customer, .admin],
            isAudited: true,
            fields: ["device": .identifier],
            "Unbind a device from its account, end all its shares, and revoke the device's tokens.")
    }
}

extension ClientTransferDeviceRequest: ClientRequestMessage {
    public typealias Reply = ClientTransferDeviceResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            65, "devices.transfer", .post("/v1/devices/{device}/transfer"), roles: [.app, .customer, .admin],
            isIdempotent: false, isAudited: true, fields: ["device": .identifier, "account": .identifier],
            "Bind a device to another account, end all its shares, and revoke the device's tokens.")
    }
}

extension ClientShareDeviceRequest: ClientRequestMessage {
    public typealias Reply = ClientShareDeviceResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            66, "devices.share", .post("/v1/devices/{device}/shares"), roles: [.app, .customer, .admin],
            isAudited: true,
            fields: ["device": .identifier, "account": .identifier], "Let another account use a device.")
    }
}

extension ClientUnshareDeviceRequest: ClientRequestMessage {
    public typealias Reply = ClientUnshareDeviceResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            67, "devices.unshare", .delete("/v1/devices/{device}/shares/{account}"), roles: [.app, .customer, .admin],
            isAudited: true,
            fields: ["device": .identifier, "account": .identifier], "End the use of a device by another account.")
    }
}

extension ClientListSharesRequest: ClientRequestMessage {
    public typealias Reply = ClientListSharesResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            68, "devices.shares", .get("/v1/devices/{device}/shares"), roles: [.app, .customer, .admin],
            isForNamedDevices: true,
            fields: ["device": .identifier], "List the other accounts that may use a device.")
    }
}

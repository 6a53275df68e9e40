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
            "Unbind a device from its account. Its shares and tokens end, and its data is wiped unless it is kept.")
    }
}

extension ClientTransferDeviceRequest: ClientRequestMessage {
    public typealias Reply = ClientTransferDeviceResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            65, "devices.transfer", .post("/v1/devices/{device}/transfer"), roles: [.app, .customer, .admin],
            isIdempotent: false, isAudited: true, fields: ["device": .identifier, "account": .identifier],
            "Give a device to another account. Its shares and tokens end, and its data is wiped unless it is kept.")
    }
}

extension ClientShareDeviceRequest: ClientRequestMessage {
    public typealias Reply = ClientShareDeviceResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            66, "devices.share", .post("/v1/devices/{device}/shares"), roles: [.app, .customer, .admin],
            isAudited: true, fields: ["device": .identifier, "account": .identifier],
            "Invite another account to use a device. Operators and integrators share it at once.")
    }
}

extension ClientAcceptShareRequest: ClientRequestMessage {
    public typealias Reply = ClientAcceptShareResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            94, "devices.accept", .post("/v1/devices/{device}/acceptance"), roles: [.app], isAudited: true,
            fields: ["device": .identifier], "Accept the invitation to use a device of another account.")
    }
}

extension ClientListInvitationsRequest: ClientRequestMessage {
    public typealias Reply = ClientListInvitationsResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            95, "devices.invitations", .get("/v1/invitations"), roles: [.app],
            "List the devices of other accounts that this account is invited to use.")
    }
}

extension ClientUnshareDeviceRequest: ClientRequestMessage {
    public typealias Reply = ClientUnshareDeviceResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            67, "devices.unshare", .delete("/v1/devices/{device}/shares/{account}"), roles: [.app, .customer, .admin],
            isAudited: true, fields: ["device": .identifier, "account": .identifier],
            "End the use of a device by another account, or its invitation.")
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

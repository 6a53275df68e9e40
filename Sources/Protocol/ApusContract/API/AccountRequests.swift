// Integrators, their users and access to devices (IV-A1 to IV-A3, docs/accounts.md).

extension ClientCreateCustomerRequest: ClientRequestMessage {
    public typealias Reply = ClientCustomer
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            70, "customers.create", .post("/v1/customers"), roles: .admin, isAudited: true,
            fields: ["customer": .identifier], "Create an integrator.")
    }
}

extension ClientListCustomersRequest: ClientRequestMessage {
    public typealias Reply = ClientListCustomersResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            71, "customers.list", .get("/v1/customers"), roles: .admin, fields: ["page_token": .optionalIdentifier],
            "List the integrators.")
    }
}

extension ClientIssueKeyRequest: ClientRequestMessage {
    public typealias Reply = ClientIssueKeyResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            72, "keys.issue", .post("/v1/customers/{customer}/keys"), roles: [.customer, .admin], isIdempotent: false,
            isAudited: true, fields: ["customer": .identifier, "lifetime_seconds": .seconds],
            "Issue a key with which an integrator's server makes requests. Two are valid at a time.")
    }
}

extension ClientRevokeKeyRequest: ClientRequestMessage {
    public typealias Reply = ClientRevokeKeyResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            73, "keys.revoke", .delete("/v1/customers/{customer}/keys/{id}"), roles: [.customer, .admin],
            isAudited: true, fields: ["customer": .identifier, "id": .identifier], "Revoke a key of an integrator.")
    }
}

extension ClientAssignDeviceRequest: ClientRequestMessage {
    public typealias Reply = ClientAssignDeviceResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            74, "devices.assign", .post("/v1/devices/{device}/customer"), roles: .admin, isAudited: true,
            fields: ["device": .identifier, "customer": .optionalIdentifier], "Assign a device to an integrator.")
    }
}

extension ClientDisableDeviceRequest: ClientRequestMessage {
    public typealias Reply = ClientDisableDeviceResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            69, "devices.disable", .post("/v1/devices/{device}/disabled"), roles: [.customer, .admin],
            isAudited: true, fields: ["device": .identifier, "disabled": FieldRule(isRequired: true)],
            "Disable a device, so that it can neither sign in nor be used, or enable it again.")
    }
}

extension ClientAuthorizeDeviceRequest: ClientRequestMessage {
    public typealias Reply = ClientAccessToken
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            75, "devices.authorize", .post("/v1/devices/{device}/tokens"), roles: [.customer, .admin],
            isIdempotent: false, isAudited: true, fields: ["device": .identifier, "lifetime_seconds": .seconds],
            "Issue a token with which a device signs in to the account that it is bound to.")
    }
}

extension ClientRegisterUserRequest: ClientRequestMessage {
    public typealias Reply = ClientUser
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            76, "users.register", .post("/v1/customers/{customer}/users"), roles: [.customer, .admin], isAudited: true,
            fields: [
                "external_id": FieldRule(pattern: "^[^\\u0000-\\u001f\\u007f]{1,256}$", isRequired: true),
                "customer": .identifier,
            ],
            "Register a user of an integrator, and get its access id. The same external id has the same access id.")
    }
}

extension ClientListUsersRequest: ClientRequestMessage {
    public typealias Reply = ClientListUsersResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            77, "users.list", .get("/v1/customers/{customer}/users"), roles: [.customer, .admin],
            fields: ["customer": .identifier, "page_token": .optionalIdentifier],
            "List the users of an integrator.")
    }
}

extension ClientAuthorizeUserRequest: ClientRequestMessage {
    public typealias Reply = ClientAccessToken
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            78, "users.authorize", .post("/v1/users/{user}/tokens"), roles: [.customer, .admin], isIdempotent: false,
            isAudited: true,
            fields: [
                "user": .identifier, "client": FieldRule(pattern: "^[A-Za-z0-9._-]{0,32}$"),
                "lifetime_seconds": .seconds,
            ],
            "Issue a token with which an app of a user signs in.")
    }
}

extension ClientRevokeUserRequest: ClientRequestMessage {
    public typealias Reply = ClientRevokeUserResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            79, "users.revoke", .delete("/v1/users/{user}/tokens"), roles: [.customer, .admin], isAudited: true,
            fields: ["user": .identifier], "Revoke all tokens of a user that were issued until now.")
    }
}

extension ClientGrantAccessRequest: ClientRequestMessage {
    public typealias Reply = ClientAccessToken
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            80, "grants.issue", .post("/v1/users/{user}/grants"), roles: [.customer, .admin], isIdempotent: false,
            isAudited: true,
            fields: [
                "user": .identifier,
                "devices": FieldRule(pattern: "^[A-Za-z0-9._-]{1,63}$", itemCount: 1...16, isRequired: true),
                "lifetime_seconds": .seconds,
            ],
            "Give temporary access to devices of a user.")
    }
}

extension ClientRevokeAccessRequest: ClientRequestMessage {
    public typealias Reply = ClientRevokeAccessResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            81, "grants.revoke", .delete("/v1/users/{user}/grants/{access}"), roles: [.customer, .admin],
            isAudited: true, fields: ["user": .identifier, "access": .identifier], "End temporary access.")
    }
}

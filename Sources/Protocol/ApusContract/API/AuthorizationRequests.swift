// The requests about devices that ask for a token with a user code (VA-3, docs/voice.md).

extension ClientGetAuthorizationRequest: ClientRequestMessage {
    public typealias Reply = ClientAuthorization
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            200, "authorizations.get", .get("/v1/authorizations/{user_code}"), roles: .app,
            fields: ["user_code": .userCode], "Get the device that shows a user code.")
    }
}

extension ClientApproveAuthorizationRequest: ClientRequestMessage {
    public typealias Reply = ClientAuthorization
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            201, "authorizations.approve", .post("/v1/authorizations/{user_code}/approval"), roles: .app,
            isAudited: true, fields: ["user_code": .userCode],
            "Bind the device that shows a user code to the account, and let it have a token.")
    }
}

extension ClientRefuseAuthorizationRequest: ClientRequestMessage {
    public typealias Reply = ClientAuthorization
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            202, "authorizations.refuse", .post("/v1/authorizations/{user_code}/refusal"), roles: .app,
            isAudited: true, fields: ["user_code": .userCode], "Refuse a token to the device that shows a user code.")
    }
}

extension FieldRule {
    /// Eight letters; between them may be a hyphen or spaces.
    fileprivate static let userCode = Self(
        pattern: "^[BCDFGHJKLMNPQRSTVWXZbcdfghjklmnpqrstvwxz]{4}[- ]?[BCDFGHJKLMNPQRSTVWXZbcdfghjklmnpqrstvwxz]{4}$",
        isRequired: true)
}

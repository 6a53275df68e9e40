// The requests about the sign-in of browsers (docs/sign-in.md).

extension ClientCreateSignInCodeRequest: ClientRequestMessage {
    public typealias Reply = ClientCreateSignInCodeResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            210, "sign-in.code", .post("/v1/sign-in/codes"), roles: .admin, isIdempotent: false, isAudited: true,
            fields: [
                "role": FieldRule(pattern: "^(app|admin)$", isRequired: true), "account": .identifier,
                "devices": FieldRule(pattern: "^[A-Za-z0-9._-]{1,63}$"),
            ], "Make a code with which one browser signs in, once.")
    }
}

// Connections of apps to a device in its own network (IV-D14, docs/local-access.md).

extension ClientCheckLocalAccessRequest: ClientRequestMessage {
    /// The action with which an app asks a device for access.
    package static let action = "_localAccess"

    public typealias Reply = ClientCheckLocalAccessResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            150, "local.check", .post("/v1/local-access-checks"), roles: .device, isIdempotent: true,
            fields: ["user": FieldRule(pattern: "^[^\\x00-\\x1f]{1,256}$", isRequired: true)],
            "Check whether a client that received local access may still control this device.")
    }
}

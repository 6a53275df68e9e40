package import ApusCore

extension DeviceAuthorizationService {
    package static let metrics: [MetricDescription] = [
        .counter(
            "apus_authorizations_total", "codes",
            [.init("result", "`requested`, `approved` or `refused`")],
            "Codes that devices have received, and that accounts have decided about."),
        .counter(
            "apus_authorization_tokens_total", "tokens",
            [.init("grant", "`device_code` or `refresh_token`")],
            "Tokens that devices have received for a code, and for a refresh token."),
        .counter(
            "apus_authorization_copied_total", "tokens",
            "Refresh tokens that were used again, which ends their grants."),
        .counter(
            "apus_authorization_limited_total", "requests",
            "Requests for codes, and attempts to use a code, that were refused because there were too many."),
    ]
}

import ApusCore

/// The questions of a voice client to the authorization service (RFC 8628, RFC 6749 §6).
///
/// Isolation: any task.
struct VoiceAuthorizer: Sendable {
    private static let deviceGrant = "urn:ietf:params:oauth:grant-type:device_code"

    let http: VoiceHTTP
    /// CUSTOMER/PRODUCT
    let client: String
    let device: DeviceID

    /// - Throws: 21031 and 12004 if the service will never give codes to this client, otherwise as ``VoiceHTTP``.
    func codes() async throws(ApusError) -> VoiceCodes {
        let answer = try await http.post(
            "/device_authorization", [("client_id", client), ("device_id", device.rawValue)])
        let json = JSONValue(answer.body[...])
        guard answer.status == 200 else { throw Self.refusal(json, answer.status) }
        guard let deviceCode = json?["device_code"]?.string, let userCode = json?["user_code"]?.string,
            let url = json?["verification_uri"]?.string, let seconds = json?["expires_in"]?.integer,
            (1...86_400).contains(seconds)
        else { throw ApusError(.malformed, "the codes cannot be read") }
        // RFC 8628 §3.2: without an interval, five seconds.
        let interval = min(max(json?["interval"]?.integer ?? 5, 1), 300)
        return VoiceCodes(
            deviceCode: deviceCode,
            shown: VoiceAuthorization(
                url: url, userCode: userCode,
                completeURL: json?["verification_uri_complete"]?.string ?? "\(url)?user_code=\(userCode)"),
            lifetime: .seconds(seconds), interval: .seconds(interval))
    }

    func token(deviceCode: String) async -> VoiceAnswer {
        await ask([("grant_type", Self.deviceGrant), ("device_code", deviceCode), ("client_id", client)])
    }

    func refresh(_ token: String) async -> VoiceAnswer {
        await ask([("grant_type", "refresh_token"), ("refresh_token", token), ("client_id", client)])
    }

    private func ask(_ form: [(name: String, value: String)]) async -> VoiceAnswer {
        let answer: VoiceHTTP.Answer
        do throws(ApusError) { answer = try await http.post("/token", form) } catch { return .failed(error) }
        let json = JSONValue(answer.body[...])
        if answer.status == 200, let token = json?["access_token"]?.string,
            let refresh = json?["refresh_token"]?.string,
            let lifetime = json?["expires_in"]?.integer, (1...Int64(UInt32.max)).contains(lifetime)
        {
            return .token(token, refresh: refresh, lifetime: lifetime)
        }
        guard answer.status == 400 else { return .failed(Self.refusal(json, answer.status)) }
        return switch json?["error"]?.string {
        case "authorization_pending"?: .pending
        case "slow_down"?: .slowDown
        case "access_denied"?: .denied
        case "expired_token"?, "invalid_grant"?, "invalid_client"?: .invalid
        default: .failed(Self.refusal(json, answer.status))
        }
    }

    private static func refusal(_ json: JSONValue?, _ status: Int) -> ApusError {
        let name = json?["error"]?.string ?? ""
        let text = "the authorization service answers \(status) \(UntrustedText.escaped(String(name.prefix(64))))"
        // What a proxy or a node of an earlier release answers is no refusal of this client.
        let isFinal = status == 400 && ["invalid_client", "invalid_request", "unauthorized_client"].contains(name)
        return switch status {
        case _ where isFinal: ApusError(.badParameter, text)
        case 429: ApusError(.overloaded, text)
        default: ApusError(.unavailable, text)
        }
    }
}

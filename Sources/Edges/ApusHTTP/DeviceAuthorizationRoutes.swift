import ApusCore
import ApusDeviceAuthorization
import HTTPTypes
import Hummingbird
import NIOCore

/// The requests of devices that have no token yet (RFC 8628, docs/voice.md), and the page on which people approve them.
/// `POST /v1/oauth/device_authorization`, `POST /v1/oauth/token` and `GET`, `POST /v1/oauth/device`.
///
/// Isolation: immutable.
struct DeviceAuthorizationRoutes: Sendable {
    let service: DeviceAuthorizationService
    let clients: HTTPClients
    let configuration: HTTPConfiguration

    static let deviceGrant = "urn:ietf:params:oauth:grant-type:device_code"
    /// The longest body, in bytes: a form has a token and a few names.
    static let bodyByteCountMax = 16 << 10

    func add(to router: Router<HTTPContext>) {
        let routes = self
        router.post("v1/oauth/device_authorization") { request, context in
            await routes.answer(request, context) { form throws(ApusError) in
                try await routes.authorize(form, request, context)
            }
        }
        router.post("v1/oauth/token") { request, context in
            await routes.answer(request, context) { form throws(ApusError) in try await routes.token(form) }
        }
        let page = AuthorizationPage(service: service, clients: clients, configuration: configuration)
        router.get("v1/oauth/device") { request, context in await page.get(request, context) }
        router.post("v1/oauth/device") { request, context in await page.post(request, context) }
    }

    private func authorize(
        _ form: FormFields, _ request: Request, _ context: HTTPContext
    ) async throws(ApusError) -> Response {
        guard let client = form["client_id"], let device = form["device_id"] else {
            return Self.refusal("invalid_request", "client_id and device_id are expected")
        }
        let result = try await service.begin(client: client, device: device, from: context.source)
        let codes: DeviceCodes
        switch result {
        case .success(let made): codes = made
        case .failure(let refusal): return Self.refusal(refusal.rawValue, "")
        }
        let base = codes.url.isEmpty ? Self.base(request, context) : codes.url
        guard let base else { return Self.refusal("invalid_request", "the header Host is expected") }
        let page = "\(base)/v1/oauth/device"
        return Self.json([
            ("device_code", .string(codes.deviceCode)), ("user_code", .string(codes.userCode)),
            ("verification_uri", .string(page)),
            ("verification_uri_complete", .string("\(page)?user_code=\(codes.userCode)")),
            ("expires_in", .int(Int(codes.expiresIn.components.seconds))),
            ("interval", .int(Int(codes.interval.components.seconds))),
        ])
    }

    private func token(_ form: FormFields) async throws(ApusError) -> Response {
        guard let client = form["client_id"] else {
            return Self.refusal("invalid_request", "client_id is expected")
        }
        let grantType = form["grant_type"] ?? ""
        let result: Result<DeviceTokens, DeviceRefusal>
        if grantType.isExactly(Self.deviceGrant), let code = form["device_code"] {
            result = try await service.token(deviceCode: code, client: client)
        } else if grantType.isExactly("refresh_token"), let token = form["refresh_token"] {
            result = try await service.refresh(token: token, client: client)
        } else if ["refresh_token", Self.deviceGrant].contains(where: grantType.isExactly) {
            return Self.refusal("invalid_request", "device_code or refresh_token is expected")
        } else {
            return Self.refusal("unsupported_grant_type", "")
        }
        switch result {
        case .success(let tokens):
            return Self.json([
                ("access_token", .string(tokens.token)), ("token_type", .string("Bearer")),
                ("expires_in", .int(Int(tokens.expiresIn.components.seconds))),
                ("refresh_token", .string(tokens.refreshToken)),
            ])
        case .failure(let refusal): return Self.refusal(refusal.rawValue, "")
        }
    }

    // MARK: - Requests

    /// Answers a form, which carries secrets: over plain HTTP only where tokens are accepted too.
    private func answer(
        _ request: Request, _ context: HTTPContext,
        _ body: (FormFields) async throws(ApusError) -> Response
    ) async -> Response {
        do throws(ApusError) {
            try configuration.checkSecrets(context)
            return try await body(try await FormFields(request))
        } catch {
            return Self.response(of: error)
        }
    }

    /// The address at which the client has reached this node; nil without a valid one.
    private static func base(_ request: Request, _ context: HTTPContext) -> String? {
        guard let authority = request.head.authority, (1...255).contains(authority.utf8.count),
            authority.utf8.allSatisfy({ byte in
                (UInt8(ascii: "a")...UInt8(ascii: "z")).contains(byte | 0x20)
                    || (UInt8(ascii: "0")...UInt8(ascii: ":")).contains(byte) || "-._[]".utf8.contains(byte)
            })
        else { return nil }
        return "\(context.isEncrypted ? "https" : "http")://\(authority)"
    }

    // MARK: - Answers

    private static func json(_ fields: [(String, JSON)], _ status: HTTPResponse.Status = .ok) -> Response {
        Response(
            status: status,
            headers: [.contentType: "application/json", .cacheControl: "no-store"],
            body: ResponseBody(byteBuffer: ByteBuffer(string: JSON.object(fields).text)))
    }

    /// RFC 6749 §5.2: 401 is for clients that authenticate, and these do not.
    private static func refusal(
        _ name: String, _ description: String, _ status: HTTPResponse.Status = .badRequest
    ) -> Response {
        let details: [(String, JSON)] = description.isEmpty ? [] : [("error_description", .string(description))]
        return json([("error", .string(name))] + details, status)
    }

    private static func response(of error: ApusError) -> Response {
        let status = Problem.status(of: error.code)
        var response =
            switch status {
            case .tooManyRequests, .serviceUnavailable, .gatewayTimeout, .internalServerError:
                // RFC 6749 has no name for it on this path; this is the one of the path for people (§4.1.2.1).
                refusal("temporarily_unavailable", error.message, status)
            default: refusal("invalid_request", error.message, status == .forbidden ? status : .badRequest)
            }
        if status == .tooManyRequests { response.headers[.retryAfter] = "60" }
        return response
    }
}

extension HTTPConfiguration {
    /// - Throws: 12004 if secrets of this client would cross a network in plain text.
    func checkSecrets(_ context: HTTPContext) throws(ApusError) {
        guard context.isEncrypted || context.isFromThisMachine || isTokenTakenFromAnywhere else {
            throw ApusError(
                .notAllowed, "tokens over plain HTTP are accepted only from this machine: set http.tls, or use a proxy")
        }
    }
}

extension HTTPContext {
    /// Where the client is, as requests without a token are counted.
    var source: String { ConnectionSource(remote).text }
}

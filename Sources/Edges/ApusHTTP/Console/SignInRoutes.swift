import ApusClientAPI
import ApusCore
import ApusSessions
import ApusSignIn
import HTTPTypes
import Hummingbird
import NIOCore

/// The sign-in of browsers (docs/sign-in.md): `POST /v1/sign-in` with a code or a token, `GET /v1/sign-in` and
/// `POST /v1/sign-out` with the cookie.
///
/// Isolation: immutable.
struct SignInRoutes: Sendable {
    let service: SignInService
    let clients: HTTPClients
    let configuration: HTTPConfiguration

    /// The longest body, in bytes: a token has at most 8 KiB.
    private static let bodyByteCountMax = 16 << 10

    func add(to router: Router<HTTPContext>) {
        let routes = self
        router.get("v1/sign-in") { request, context in routes.standing(request, context) }
        router.post("v1/sign-in") { request, context in await routes.signIn(request, context) }
        router.post("v1/sign-out") { request, context in await routes.signOut(request, context) }
    }

    private func signIn(_ request: Request, _ context: HTTPContext) async -> Response {
        do throws(ApusError) {
            try configuration.checkSecrets(context)
            try service.takeAttempt(from: context.source)
            // A page of another origin must not sign somebody in as another.
            try BrowserRequest(request, context).check(changes: false, isMarked: true)
            let browser: SignedInBrowser
            let fields = try await fields(request)
            if let code = Self.text("code", fields) {
                browser = try await service.signIn(code: code)
            } else if let token = Self.text("token", fields) {
                browser = try service.signIn(bearer: try clients.session(token))
            } else {
                throw ApusError(.badParameter, "code or token is expected")
            }
            clients.services.audit.note("sign-in", target: "", by: AuditActor(browser.session), nil)
            var response = Self.answer(browser.session)
            response.headers[.setCookie] = Self.cookie(browser.cookie, browser.seconds, context)
            return response
        } catch {
            return Problem(error).response
        }
    }

    private func standing(_ request: Request, _ context: HTTPContext) -> Response {
        do throws(ApusError) {
            return Self.answer(try clients.browser(request, context, configuration))
        } catch {
            return Problem(error).response
        }
    }

    private func signOut(_ request: Request, _ context: HTTPContext) async -> Response {
        do throws(ApusError) {
            let browser = BrowserRequest(request, context)
            try browser.check(request)
            // A cookie that is not valid any more is forgotten as well.
            if let cookie = browser.cookie, let session = try? service.browser(of: cookie) {
                try await service.signOut(session)
                clients.services.audit.note("sign-out", target: "", by: AuditActor(session), nil)
            }
            return Response(
                status: .noContent,
                headers: [.setCookie: Self.cookie("", 0, context), .cacheControl: "no-store"])
        } catch {
            return Problem(error).response
        }
    }

    // MARK: - Parts

    private func fields(_ request: Request) async throws(ApusError) -> [(name: String, value: String)] {
        let type = request.headers[.contentType]?.split(separator: ";").first.map { $0.lowercased() } ?? ""
        // No form can send it.
        guard type.isExactly("application/json") else {
            throw ApusError(.malformed, "the body's Content-Type must be application/json")
        }
        let body: ByteBuffer
        do {
            body = try await request.body.collect(upTo: Self.bodyByteCountMax)
        } catch {
            throw ApusError(.frameTooLarge)
        }
        return try JSONFields.of(Array(body.readableBytesView))
    }

    /// Codes and tokens have no characters that JSON escapes.
    private static func text(_ name: String, _ fields: [(name: String, value: String)]) -> String? {
        guard let value = fields.first(where: { $0.name.isExactly(name) })?.value, value.utf8.count > 2,
            value.hasPrefix("\""), value.hasSuffix("\""), !value.contains("\\")
        else { return nil }
        return String(value.dropFirst().dropLast())
    }

    private static func answer(_ session: Session) -> Response {
        var fields: [(String, JSON)] = [
            ("access", .string(session.access.rawValue)), ("account", .string(session.account.rawValue)),
            ("role", .string("ROLE_\(session.role.rawValue.uppercased())")),
            ("expires", .int(Int(session.token.expires))),
        ]
        if let devices = session.allowedDevices {
            fields.append(("devices", .array(devices.map { .string($0.rawValue) })))
        }
        return Response(
            status: .ok, headers: [.contentType: "application/json", .cacheControl: "no-store"],
            body: ResponseBody(byteBuffer: ByteBuffer(string: JSON.object(fields).text)))
    }

    /// RFC 6265 §4.1: no script reads it, and no page of another site sends it.
    private static func cookie(_ value: String, _ seconds: Int64, _ context: HTTPContext) -> String {
        "\(BrowserRequest.cookieName)=\(value); Path=/; Max-Age=\(seconds); HttpOnly; SameSite=Strict"
            + (context.isEncrypted ? "; Secure" : "")
    }
}

extension HTTPClients {
    /// The browser that makes a request with its cookie.
    ///
    /// - Throws: 12001 without a valid cookie, 12002 if it has expired, 12004 if it does not count for this request.
    func browser(
        _ request: Request, _ context: HTTPContext, _ configuration: HTTPConfiguration
    ) throws(ApusError) -> Session {
        try configuration.checkSecrets(context)
        let browser = BrowserRequest(request, context)
        guard let cookie = browser.cookie, let signIn else {
            throw ApusError(.tokenInvalid, "a bearer token is required")
        }
        try browser.check(request)
        return try signIn.browser(of: cookie)
    }
}

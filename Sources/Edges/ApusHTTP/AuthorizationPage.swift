import ApusClientAPI
import ApusContract
import ApusCore
import ApusDeviceAuthorization
import ApusSessions
import HTTPTypes
import Hummingbird
import NIOCore
import SwiftProtobuf

/// The page on which a person approves or refuses the code that a device shows (RFC 8628 §3.3, VA-3). It ends at
/// `close://success` or `close://failed`, which an app's web view looks for.
///
/// It has no scripts, and needs a token of role app: in the header of the `GET`, or typed. A `GET` decides nothing. A
/// `POST` carries the token in its body, so no other site can make one.
///
/// Isolation: immutable.
struct AuthorizationPage: Sendable {
    let service: DeviceAuthorizationService
    let clients: HTTPClients
    let configuration: HTTPConfiguration

    static let success = "close://success"
    static let failed = "close://failed"
    private static let style = "body{font-family:sans-serif;max-width:30em;margin:2em auto;padding:0 1em}"
    /// Of the text above, so that nothing else is a style (CSP level 3 §6.7.3.3). PageTests computes it.
    static let styleHash = "sha256-XtHL+cidZzhrBcjYmVUYwPChCi03q8C2dgyeb9B/Jfg="

    func get(_ request: Request, _ context: HTTPContext) async -> Response {
        let code = request.uri.queryParameters["user_code"].map { String($0) } ?? ""
        do throws(ApusError) {
            // Before somebody types a token into the form.
            try configuration.checkSecrets(context)
            guard let token = BearerToken.of(request.headers) else { return Self.page(code: code, token: nil, nil) }
            try service.takeAttempt(context.source, of: nil)
            let shown: ClientAuthorization = try await carryOut(
                ClientGetAuthorizationRequest.with { $0.userCode = code }, token, context)
            return Self.page(code: code, token: token, nil, shown)
        } catch {
            return Self.answer(to: error, code: code)
        }
    }

    func post(_ request: Request, _ context: HTTPContext) async -> Response {
        var code = ""
        do throws(ApusError) {
            try configuration.checkSecrets(context)
            let form = try await FormFields(request)
            code = form["user_code"] ?? ""
            guard let token = form["token"] else { throw ApusError(.tokenInvalid, "a token is expected") }
            try service.takeAttempt(context.source, of: nil)
            switch form["decision"] {
            case "approve"?:
                let _: ClientAuthorization = try await carryOut(
                    ClientApproveAuthorizationRequest.with { $0.userCode = code }, token, context)
                return Self.redirect(Self.success)
            case "refuse"?:
                let _: ClientAuthorization = try await carryOut(
                    ClientRefuseAuthorizationRequest.with { $0.userCode = code }, token, context)
                return Self.redirect(Self.failed)
            default: throw ApusError(.badParameter, "decision is approve or refuse")
            }
        } catch {
            return Self.answer(to: error, code: code)
        }
    }

    /// Makes one of the cluster's requests in the name of a token, as REST does.
    private func carryOut<M: ClientRequestMessage, Reply: Message>(
        _ message: M, _ token: String, _ context: HTTPContext
    ) async throws(ApusError) -> Reply where M.Reply == Reply {
        let session = try clients.session(token)
        let (services, info) = (clients.services, M.info)
        try services.quotas.take(info, of: session.account)
        let operation = try services.api.operation(number: info.number)
        guard let bytes: [UInt8] = try? message.serializedBytes() else { throw ApusError(.internalFailure) }
        let work = try operation.read(ByteBuffer(bytes: bytes), .binary)
        let call = ClientCall(
            session: session, deadline: services.deadline(asked: nil), topics: services.api.topics)
        guard let departure = context.departure else { throw ApusError(.cancelled) }
        let result = await departure.cancelling { await services.carryOut(operation, work, call) }
        do {
            return try Reply(serializedBytes: Array(try result.get().readableBytesView))
        } catch let error as ApusError {
            throw error
        } catch {
            throw ApusError(.internalFailure, "an answer cannot be read")
        }
    }

    // MARK: - Answers

    /// A wrong token, and a limit, can be tried again on the page. Anything else has failed.
    private static func answer(to error: ApusError, code: String) -> Response {
        switch error.code {
        case .tokenInvalid, .tokenExpired, .notAllowed, .overloaded, .malformed, .badParameter:
            page(code: code, token: nil, error.message, status: Problem.status(of: error.code))
        case .storageFailed, .unavailable, .deadlineExceeded, .shuttingDown, .linkLost, .noRoute, .moved, .cancelled:
            page(
                code: code, token: nil, "The cluster cannot answer now. Try again.",
                status: Problem.status(of: error.code))
        default: redirect(failed)
        }
    }

    /// RFC 9110 §15.4.4: the web view continues with a GET.
    private static func redirect(_ url: String) -> Response {
        Response(status: .seeOther, headers: [.location: url, .cacheControl: "no-store"], body: .init())
    }

    private static func page(
        code: String, token: String?, _ notice: String?, _ shown: ClientAuthorization? = nil,
        status: HTTPResponse.Status = .ok
    ) -> Response {
        var content = ""
        if let notice { content += "<p><strong>\(escaped(notice))</strong></p>\n" }
        if let shown {
            content += """
                <p>The device <strong>\(escaped(shown.device))</strong> (\(escaped(shown.client))) shows the code
                <strong>\(escaped(shown.userCode))</strong>. Approve only if you see this code on a device of yours: it
                will belong to your account.</p>

                """
        }
        let codeField = field("user_code", label: shown == nil ? "Code of the device" : nil, value: code)
        let tokenField = field(
            "token", label: token == nil ? "Token of your account" : nil, type: "password", value: token ?? "")
        let text = """
            <!doctype html>
            <html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
            <title>Authorize a device</title><style>\(style)</style></head><body>
            <h1>Authorize a device</h1>
            \(content)<form method="post" action="device">
            \(codeField)
            \(tokenField)
            <p><button name="decision" value="approve">Approve</button>
            <button name="decision" value="refuse">Refuse</button></p>
            </form></body></html>

            """
        var response = Response(
            status: status, headers: [.contentType: "text/html; charset=utf-8", .cacheControl: "no-store"],
            body: ResponseBody(byteBuffer: ByteBuffer(string: text)))
        // No script, no other host. A form may be sent here, and may end at `close:`.
        response.headers[.contentSecurityPolicy] =
            "default-src 'none'; style-src '\(styleHash)'; form-action 'self' close:; base-uri 'none'; "
            + "frame-ancestors 'none'"
        response.headers[.referrerPolicy] = "no-referrer"
        response.headers[.xContentTypeOptions] = "nosniff"
        return response
    }

    /// - Parameter label: nil for a field that is not shown.
    private static func field(_ name: String, label: String?, type: String = "text", value: String) -> String {
        let type = label == nil ? "hidden" : type
        let input = #"<input type="\#(type)" name="\#(name)" autocomplete="off" value="\#(escaped(value))">"#
        return label.map { "<p><label>\($0)<br>\(input)</label></p>" } ?? input
    }

    /// A text within HTML (HTML §13.1.2.3).
    private static func escaped(_ text: String) -> String {
        var escaped = ""
        for scalar in text.unicodeScalars {
            switch scalar {
            case "&": escaped += "&amp;"
            case "<": escaped += "&lt;"
            case ">": escaped += "&gt;"
            case "\"": escaped += "&quot;"
            case "'": escaped += "&#39;"
            default: escaped.unicodeScalars.append(scalar)
            }
        }
        return escaped
    }
}

extension HTTPField.Name {
    fileprivate static let referrerPolicy = Self("Referrer-Policy") ?? .cookie
}

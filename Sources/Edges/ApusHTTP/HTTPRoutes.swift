import ApusClientAPI
package import ApusCore
import Foundation
import HTTPTypes
package import Hummingbird
package import Logging
package import NIOCore

/// The routes of the listener.
package struct HTTPRoutes: Sendable {
    private let sources: HTTPSources
    private let configuration: HTTPConfiguration
    private let logger: Logger
    private let limited: LogLimiter
    private let replies: EVSReplies?
    private let metrics = RequestMetrics()

    /// - Parameters:
    ///   - limited: for messages that unauthenticated clients can cause.
    ///   - replies: of EVS devices; nil: this listener has none.
    package init(
        sources: HTTPSources, configuration: HTTPConfiguration, logger: Logger, limited: LogLimiter,
        replies: EVSReplies? = nil
    ) {
        self.sources = sources
        self.replies = replies
        self.configuration = configuration
        self.logger = logger
        self.limited = limited
    }

    /// The routes without a listener: answers requests that were read from a channel.
    package func answers() -> @Sendable (Request, any Channel) async throws -> Response {
        let (responder, logger) = (responder(), logger)
        return { request, channel in
            let source = ApplicationRequestContextSource(channel: channel, logger: logger)
            return try await responder.respond(to: request, context: HTTPContext(source: source))
        }
    }

    /// Tries the services' requests first, then the operators' routes.
    func responder() -> some HTTPResponder<HTTPContext> {
        let rest = sources.clients.map { RESTResponder($0, configuration: configuration, metrics: metrics) }
        let (cors, bound) = (CORS(origins: configuration.corsOrigins), configuration.bodyByteCountMax)
        let routes = router().buildResponder()
        let hasConsole = configuration.hasConsole && sources.clients?.signIn != nil
        return CallbackResponder<HTTPContext> { request, context in
            if let preflight = cors.preflight(request) { return preflight }
            // The answer to HEAD is that to GET without its body (RFC 9110 §9.3.2).
            let isHead = request.method == .head
            let request = isHead ? request.asGet : request
            var response: Response
            if Self.bodyByteCount(request) > bound {
                response = Problem(ApusError(.frameTooLarge)).response
            } else if hasConsole, let file = ConsoleRoutes.answer(request) {
                response = file
            } else if let answer = await rest?.respond(request, context) {
                response = answer
            } else {
                response = try await routes.respond(to: request, context: context)
                // The router's own answer has no body.
                if response.status == .notFound, response.headers[.contentType] == nil {
                    response = Problem(ApusError(.targetUnknown, "there is no such path"), .notFound).response
                }
            }
            cors.mark(&response, of: request)
            return isHead ? response.createHeadResponse() : response
        }
    }

    /// The announced length of a body. No route here reads a body of unknown length, so chunked ones are refused as
    /// well.
    private static func bodyByteCount(_ request: Request) -> Int {
        guard request.headers[.transferEncoding] == nil else { return .max }
        return request.headers[.contentLength].map { Int($0) ?? .max } ?? 0
    }

    func router() -> Router<HTTPContext> {
        let router = Router(context: HTTPContext.self)
        let sources = sources
        router.add(middleware: CountedRequests(metrics: metrics))
        router.get("healthz") { _, _ in
            let health = await sources.health()
            return Self.json(health, status: health.healthy ? .ok : .serviceUnavailable)
        }
        router.get("metrics") { _, _ in
            Response(
                status: .ok, headers: [.contentType: "text/plain; version=0.0.4; charset=utf-8"],
                body: ResponseBody(byteBuffer: ByteBuffer(string: sources.metrics() + ProcessMetrics.text())))
        }
        router.get("v1/status") { _, _ in
            Self.json(await sources.status(), status: .ok)
        }
        if sources.clients?.webSockets != nil {
            // Reached by requests that have not become a WebSocket.
            for path in WebSockets.addresses {
                router.get(RouterPath(path)) { _, _ in
                    Problem(
                        ApusError(
                            .tooManyConnections,
                            "a WebSocket needs an upgrade (RFC 6455), TLS or a client of this machine, and a free place"
                        ),
                        .serviceUnavailable
                    ).response
                }
            }
        }
        replies?.add(to: router)
        if let api = sources.clients?.services.api {
            // Making them takes an eighth of the time in which a node starts.
            let open = FirstUse { OpenAPIDocument(api).text }
            let asynchronous = FirstUse { AsyncAPIDocument(api).text }
            router.get("v1/openapi.json") { _, _ in Self.document(open.value) }
            router.get("v1/asyncapi.json") { _, _ in Self.document(asynchronous.value) }
        }
        if let downloads = sources.clients?.downloads {
            DownloadRoutes(downloads, configuration: configuration).add(to: router)
        }
        if let clients = sources.clients, let signIn = clients.signIn {
            SignInRoutes(service: signIn, clients: clients, configuration: configuration).add(to: router)
        }
        if let clients = sources.clients, let authorization = clients.authorization {
            DeviceAuthorizationRoutes(service: authorization, clients: clients, configuration: configuration)
                .add(to: router)
        }
        let admin = router.group("v1/admin").add(
            middleware: AdminGuard(
                authorize: sources.authorizeAdmin, audit: sources.clients?.services.audit ?? AuditLog(logger),
                limited: limited))
        RelayRoutes(sources: sources).add(to: admin)
        admin.post("drain") { _, _ in
            do throws(ApusError) {
                try await sources.drain()
                return Self.json(Accepted(state: "draining"), status: .accepted)
            } catch {
                return Problem(error, .serviceUnavailable).response
            }
        }
        return router
    }

    static func json(_ value: some Encodable, status: HTTPResponse.Status) -> Response {
        let encoder = JSONEncoder()
        encoder.outputFormatting = [.sortedKeys, .withoutEscapingSlashes]
        guard let data = try? encoder.encode(value) else { return Response(status: .internalServerError) }
        var buffer = ByteBuffer()
        buffer.writeBytes(data)
        buffer.writeString("\n")
        return Response(
            status: status, headers: [.contentType: "application/json"], body: ResponseBody(byteBuffer: buffer))
    }
}

extension HTTPRoutes {
    fileprivate static func document(_ text: String) -> Response {
        Response(
            status: .ok, headers: [.contentType: "application/json"],
            body: ResponseBody(byteBuffer: ByteBuffer(string: text)))
    }
}

extension Request {
    /// The same request with the method GET.
    fileprivate var asGet: Request {
        var head = head
        head.method = .get
        return Request(head: head, body: body)
    }
}

/// The answer to a request that was accepted and continues after the answer.
struct Accepted: Encodable, Sendable {
    var state: String
}

/// Admits only bearers of a token with role `admin` (12001, 12002: 401; 12004: 403), and writes what they change to the
/// audit log.
struct AdminGuard: RouterMiddleware {
    typealias Context = HTTPContext
    let authorize: @Sendable (String) async throws(ApusError) -> AuditActor
    let audit: AuditLog
    let limited: LogLimiter

    func handle(
        _ request: Request, context: Context, next: @concurrent (Request, Context) async throws -> Response
    ) async throws -> Response {
        let actor: AuditActor
        do throws(ApusError) {
            guard let token = BearerToken.of(request.headers) else {
                throw ApusError(.tokenInvalid, "a bearer token with role admin is required")
            }
            actor = try await authorize(token)
        } catch {
            limited.log(.warning, "An administration request was refused", metadata: Logger.facts(of: error))
            return Problem(error, error.code == .notAllowed ? .forbidden : .unauthorized).response
        }
        let response = try await next(request, context)
        if request.method != .get, request.method != .head {
            let isDone = (200..<300).contains(response.status.code)
            audit.note(
                "\(request.method.rawValue) \(request.uri.path)", target: String(request.uri.query ?? ""), by: actor,
                isDone ? nil : ApusError(.unavailable, "HTTP \(response.status.code)"))
        }
        return response
    }
}

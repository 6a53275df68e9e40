package import ApusCore
import Foundation
import HTTPTypes
package import Hummingbird
package import Logging
package import NIOCore

/// What the door answers to which request.
package struct HTTPRoutes: Sendable {
    private let sources: HTTPSources
    private let bodyByteCountMax: Int
    private let isTokenTakenFromAnywhere: Bool
    private let logger: Logger
    private let limited: LogLimiter

    /// - Parameter limited: for messages that unauthenticated clients can cause.
    package init(
        sources: HTTPSources, bodyByteCountMax: Int, isTokenTakenFromAnywhere: Bool, logger: Logger, limited: LogLimiter
    ) {
        self.sources = sources
        self.bodyByteCountMax = bodyByteCountMax
        self.isTokenTakenFromAnywhere = isTokenTakenFromAnywhere
        self.logger = logger
        self.limited = limited
    }

    /// What answers a request that was read from a channel: the routes without a listener.
    package func responder() -> @Sendable (Request, any Channel) async throws -> Response {
        let (responder, logger) = (router().buildResponder(), logger)
        return { request, channel in
            let source = ApplicationRequestContextSource(channel: channel, logger: logger)
            return try await responder.respond(to: request, context: DoorContext(source: source))
        }
    }

    func router() -> Router<DoorContext> {
        let router = Router(context: DoorContext.self)
        let sources = sources
        router.add(middleware: RequestMetrics())
        router.add(middleware: BodyBound(byteCountMax: bodyByteCountMax))
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
        ClientRoutes(
            credentials: sources.relayCredentials, isTokenTakenFromAnywhere: isTokenTakenFromAnywhere, logger: logger
        ).add(to: router)
        let admin = router.group("v1/admin").add(
            middleware: AdminGuard(authorize: sources.authorizeAdmin, limited: limited))
        RelayRoutes(sources: sources).add(to: admin)
        admin.post("drain") { _, _ in
            do throws(ApusError) {
                try await sources.drain()
                return Self.json(Accepted(state: "draining"), status: .accepted)
            } catch {
                return Self.json(Refusal(error), status: .serviceUnavailable)
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

/// A request that was taken and goes on after its answer.
struct Accepted: Encodable, Sendable {
    var state: String
}

/// A refusal, with its number from the catalogue.
struct Refusal: Encodable, Sendable {
    var code: Int32
    var message: String

    init(_ error: ApusError) {
        code = error.code.number
        message = error.message
    }
}

/// Refuses a request whose announced body is over the bound; the connection ends with it.
struct BodyBound: RouterMiddleware {
    typealias Context = DoorContext
    let byteCountMax: Int

    func handle(
        _ request: Request, context: Context, next: @concurrent (Request, Context) async throws -> Response
    ) async throws -> Response {
        let announced = request.headers[.contentLength].map { Int($0) ?? .max } ?? 0
        // No route here reads a body of unknown length, so a chunked one is refused as well.
        guard announced <= byteCountMax, request.headers[.transferEncoding] == nil else {
            return HTTPRoutes.json(Refusal(ApusError(.frameTooLarge)), status: .contentTooLarge)
        }
        return try await next(request, context)
    }
}

/// Lets only bearers of a token of role `admin` through (12001, 12002: 401; 12004: 403).
struct AdminGuard: RouterMiddleware {
    typealias Context = DoorContext
    let authorize: @Sendable (String) async throws(ApusError) -> Void
    let limited: LogLimiter

    func handle(
        _ request: Request, context: Context, next: @concurrent (Request, Context) async throws -> Response
    ) async throws -> Response {
        do throws(ApusError) {
            guard let token = BearerToken.of(request.headers) else {
                throw ApusError(.tokenInvalid, "this needs a bearer token of role admin")
            }
            try await authorize(token)
        } catch {
            limited.log(.warning, "An administration request was refused", metadata: Logger.facts(of: error))
            var response = HTTPRoutes.json(
                Refusal(error), status: error.code == .notAllowed ? .forbidden : .unauthorized)
            if error.code != .notAllowed { response.headers[.wwwAuthenticate] = "Bearer" }
            return response
        }
        return try await next(request, context)
    }
}

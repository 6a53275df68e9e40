import ApusCore
import HTTPTypes
import Hummingbird
import Logging
import NIOCore

/// What the door knows of a request beside its text: where it comes from.
struct DoorContext: RequestContext {
    var coreContext: CoreRequestContextStorage
    let remote: SocketAddress?

    init(source: ApplicationRequestContextSource) {
        coreContext = .init(source: source)
        remote = source.channel.remoteAddress
    }

    /// True for a peer on this machine: 127.0.0.0/8, ::1, the same as mapped IPv4, and sockets of the file system.
    var isFromThisMachine: Bool {
        guard let remote else { return false }
        guard let text = remote.ipAddress else { return true }
        return text == "::1" || text.hasPrefix("127.") || text.hasPrefix("::ffff:127.")
    }
}

/// What devices and apps ask for with their own token: `GET` and `POST /v1/relay/credentials` (D8).
struct ClientRoutes: Sendable {
    let credentials: @Sendable (_ token: String) async throws(ApusError) -> IceServers
    let isTokenTakenFromAnywhere: Bool
    let logger: Logger

    func add(to router: Router<DoorContext>) {
        let group = router.group("v1/relay")
        group.get("credentials") { request, context in await answer(request, context) }
        group.post("credentials") { request, context in await answer(request, context) }
    }

    private func answer(_ request: Request, _ context: DoorContext) async -> Response {
        do throws(ApusError) {
            // The token would have crossed a network in the clear: refused before it is looked at, so that whoever
            // wrote the client finds out at the first try.
            guard context.isFromThisMachine || isTokenTakenFromAnywhere else {
                throw ApusError(
                    .notAllowed, "tokens are taken over plain HTTP from this machine alone: put a proxy with TLS on it")
            }
            guard let token = BearerToken.of(request.headers) else {
                throw ApusError(.tokenInvalid, "this needs the bearer token of a device or an app")
            }
            var response = HTTPRoutes.json(try await credentials(token), status: .ok)
            // Neither proxies nor browsers may keep a password (RFC 9111 §5.2.2.5).
            response.headers[.cacheControl] = "no-store"
            return response
        } catch {
            logger.debug("A request for credentials of the relay was refused", metadata: Logger.facts(of: error))
            var response = HTTPRoutes.json(Refusal(error), status: Self.status(of: error.code))
            if response.status == .unauthorized { response.headers[.wwwAuthenticate] = "Bearer" }
            return response
        }
    }

    private static func status(of code: ErrorCode) -> HTTPResponse.Status {
        switch code {
        case .tokenInvalid, .tokenExpired: .unauthorized
        case .notAllowed: .forbidden
        case .overloaded: .tooManyRequests
        case .unavailable: .serviceUnavailable
        default: .internalServerError
        }
    }
}

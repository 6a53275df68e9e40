import ApusCore
import ApusTraversal
import HTTPTypes
import Hummingbird

/// Lists and ends allocations of the node's relay, for operators.
/// `GET /v1/admin/relay/sessions` and `POST /v1/admin/relay/end`, both with `id=N`, `user=NAME` or neither. Ending
/// without either is refused with 400.
struct RelayRoutes: Sendable {
    let sources: HTTPSources

    private struct Ended: Encodable, Sendable {
        var ended: Int
    }

    func add(to admin: RouterGroup<HTTPContext>) {
        let sources = sources
        admin.get("relay/sessions") { request, _ in
            do throws(ApusError) {
                let selection = try Self.selection(request)
                return HTTPRoutes.json(try await sources.relaySessions(selection), status: .ok)
            } catch { return Self.refusal(error) }
        }
        admin.post("relay/end") { request, _ in
            do throws(ApusError) {
                let selection = try Self.selection(request)
                guard selection != .all else { throw ApusError(.badParameter, "id or user is expected") }
                return HTTPRoutes.json(Ended(ended: try await sources.endRelaySessions(selection)), status: .ok)
            } catch { return Self.refusal(error) }
        }
    }

    private static func selection(_ request: Request) throws(ApusError) -> RelaySelection {
        let parameters = request.uri.queryParameters
        if let user = parameters["user"] { return .user(String(user)) }
        guard let text = parameters["id"] else { return .all }
        guard let id = UInt32(text) else { throw ApusError(.badParameter, "id must be a number") }
        return .one(id)
    }

    private static func refusal(_ error: ApusError) -> Response {
        Problem(error, error.code == .badParameter ? .badRequest : .serviceUnavailable).response
    }
}

import HTTPTypes
import Hummingbird

/// Lets pages of some origins read answers (the Fetch standard's CORS protocol).
///
/// Pure.
struct CORS {
    /// `*` lets all in.
    let origins: [String]

    private func allowed(_ request: Request) -> String? {
        guard let origin = request.headers[.origin], !origins.isEmpty else { return nil }
        if origins.contains("*") { return "*" }
        return origins.contains(origin) ? origin : nil
    }

    /// The answer to a browser's question before a request; nil where it is none.
    func preflight(_ request: Request) -> Response? {
        guard request.method == .options, request.headers[.accessControlRequestMethod] != nil,
            let origin = allowed(request)
        else { return nil }
        return Response(
            status: .noContent,
            headers: [
                .accessControlAllowOrigin: origin, .accessControlAllowMethods: "GET, POST, DELETE",
                .accessControlAllowHeaders: "Authorization, Content-Type, Idempotency-Key, Prefer",
                .accessControlMaxAge: "600", .vary: "Origin",
            ])
    }

    func mark(_ response: inout Response, of request: Request) {
        guard let origin = allowed(request) else { return }
        response.headers[.accessControlAllowOrigin] = origin
        response.headers[.vary] = "Origin"
    }
}

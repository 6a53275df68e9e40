import HTTPTypes
import Hummingbird

/// Permits pages of some origins to read answers (the Fetch standard's CORS protocol).
///
/// Pure.
struct CORS {
    /// `*` permits all origins.
    let origins: [String]

    private func allowed(_ request: Request) -> String? {
        guard let origin = request.headers[.origin], !origins.isEmpty else { return nil }
        if origins.contains("*") { return "*" }
        return origins.contains(origin) ? origin : nil
    }

    /// The answer to a browser's preflight request; nil if the request is not one.
    func preflight(_ request: Request) -> Response? {
        guard request.method == .options, request.headers[.accessControlRequestMethod] != nil,
            let origin = allowed(request)
        else { return nil }
        return Response(
            status: .noContent,
            headers: [
                .accessControlAllowOrigin: origin, .accessControlAllowMethods: "GET, POST, PUT, DELETE",
                .accessControlAllowHeaders:
                    "Authorization, Content-Type, Idempotency-Key, If-Range, Prefer, Range, traceparent",
                .accessControlMaxAge: "600", .vary: "Origin",
            ])
    }

    func mark(_ response: inout Response, of request: Request) {
        guard let origin = allowed(request) else { return }
        response.headers[.accessControlAllowOrigin] = origin
        response.headers[.vary] = "Origin"
        guard response.headers[.acceptRanges] != nil else { return }
        // A player that loads ranges reads what it has got.
        response.headers[.accessControlExposeHeaders] = "Accept-Ranges, Content-Length, Content-Range, ETag"
    }
}

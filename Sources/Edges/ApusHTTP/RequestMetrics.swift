import ApusCore
import CoreMetrics
import Hummingbird

/// Counts requests by route and status, and measures the time to the answer.
/// The label is the route's pattern, never a request's path: clients choose paths, and each would create a series.
struct RequestMetrics: RouterMiddleware {
    typealias Context = HTTPContext
    /// The label of a request without a route.
    static let noRoute = "none"

    func handle(
        _ request: Request, context: Context, next: @concurrent (Request, Context) async throws -> Response
    ) async throws -> Response {
        let start = MonotonicTime.now()
        do {
            let response = try await next(request, context)
            count(context, response.status.code, since: start)
            return response
        } catch {
            count(context, (error as? any HTTPResponseError)?.status.code ?? 500, since: start)
            throw error
        }
    }

    private func count(_ context: Context, _ status: Int, since start: MonotonicTime) {
        // The router has no pattern, or a placeholder of its own, for a path without a route.
        Self.count(context.endpointPath.flatMap { $0.hasPrefix("/") ? $0 : nil } ?? Self.noRoute, status, since: start)
    }

    /// Counts an answer.
    ///
    /// - Parameter route: the route's pattern.
    static func count(_ route: String, _ status: Int, since start: MonotonicTime) {
        Counter(label: "apus_http_requests_total", dimensions: [("route", route), ("status", "\(status)")]).increment()
        CoreMetrics.Timer(label: "apus_http_request_seconds", dimensions: [("route", route)])
            .recordNanoseconds((MonotonicTime.now() - start).nanoseconds)
    }
}

import ApusCore
import CoreMetrics
import Hummingbird
import Synchronization

/// Counts requests by route and status, and measures the time to the answer.
/// The label is the route's pattern, never a request's path: clients choose paths, and each would create a series.
///
/// Isolation: any thread.
final class RequestMetrics: Sendable {
    /// The label of a request without a route.
    static let noRoute = "none"

    private struct Series: Hashable {
        let route: String
        let status: Int
    }

    /// The metrics that exist already; bounded by the routes and the statuses of HTTP.
    private struct Known {
        var counters: [Series: Counter] = [:]
        var timers: [String: CoreMetrics.Timer] = [:]
    }

    private let known = Mutex(Known())

    /// Counts an answer.
    ///
    /// - Parameter route: the route's pattern.
    func count(_ route: String, _ status: Int, since start: MonotonicTime) {
        let (counter, timer) = known.withLock { known in
            let series = Series(route: route, status: status)
            let counter =
                known.counters[series]
                ?? Counter(label: "apus_http_requests_total", dimensions: [("route", route), ("status", "\(status)")])
            let timer =
                known.timers[route]
                ?? CoreMetrics.Timer(label: "apus_http_request_seconds", dimensions: [("route", route)])
            (known.counters[series], known.timers[route]) = (counter, timer)
            return (counter, timer)
        }
        counter.increment()
        timer.recordNanoseconds((MonotonicTime.now() - start).nanoseconds)
    }
}

/// Counts the requests that the router answers.
struct CountedRequests: RouterMiddleware {
    typealias Context = HTTPContext
    let metrics: RequestMetrics

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
        // The router has no pattern, or only a word of its own, for a path without a route.
        let route = context.endpointPath.flatMap { $0.hasPrefix("/") ? $0 : nil } ?? RequestMetrics.noRoute
        metrics.count(route, status, since: start)
    }
}

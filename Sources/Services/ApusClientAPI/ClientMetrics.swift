package import ApusContract
import ApusCore
import CoreMetrics

/// Requests by name and by how they ended.
package struct ClientMetrics: Sendable {
    private struct Each: Sendable {
        let time: Timer
        let answered: Counter
        let failed: Counter

        init(_ name: String) {
            time = Timer(label: "apus_api_request_seconds", dimensions: [("request", name)])
            answered = Counter(
                label: "apus_api_requests_total", dimensions: [("request", name), ("outcome", "answered")])
            failed = Counter(label: "apus_api_requests_total", dimensions: [("request", name), ("outcome", "failed")])
        }
    }

    private let byNumber: [UInt16: Each]

    package init(_ api: ClientAPI) {
        byNumber = Dictionary(
            api.operations.map { ($0.info.number, Each($0.info.name)) }, uniquingKeysWith: { first, _ in first })
    }

    package func ended(_ info: ClientRequestInfo, after time: Duration, isFailure: Bool) {
        guard let each = byNumber[info.number] else { return }
        each.time.recordNanoseconds(time.nanoseconds)
        if isFailure { each.failed.increment() } else { each.answered.increment() }
    }
}

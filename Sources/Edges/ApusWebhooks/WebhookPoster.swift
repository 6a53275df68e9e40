package import ApusCore
import ApusHTTPClient

/// Posts JSON to HTTP endpoints: one attempt each, with a signature and without redirects.
///
/// Isolation: any task. ``shutdown()`` is called once, after the last request.
package struct WebhookPoster: Sendable {
    private let client: HTTPClient

    /// - Parameters:
    ///   - authorityFile: the certificates that `https` is checked against; nil for those of the system.
    ///   - connectionsMax: connections to one host.
    /// - Throws: 10018 if the system cannot create another thread.
    package init(authorityFile: String?, connectionsMax: Int, connectTimeout: Duration) throws(ApusError) {
        var settings = HTTPClient.Settings()
        settings.authorityFile = authorityFile
        settings.connectionsPerHostMax = connectionsMax
        settings.connectTimeout = connectTimeout
        client = try HTTPClient(settings)
    }

    package func shutdown() async { await client.shutdown() }

    /// Sends a request.
    ///
    /// - Parameters:
    ///   - id: the header `Idempotency-Key`.
    ///   - secrets: each makes a signature; without one there is no header.
    ///   - timeout: of the request and its answer together.
    ///   - wallSeconds: the time of the signature, in Unix seconds.
    ///   - answerByteCountMax: the longest answer; nil: the answer is not read.
    /// - Returns: the status, and what was read.
    /// - Throws: 21002 after the time-out, 10002 if the answer is longer; otherwise what the connection failed with.
    package func post(
        _ body: [UInt8], id: String, to url: String, secrets: [[UInt8]], timeout: Duration, wallSeconds: Int64,
        answerByteCountMax: Int? = nil
    ) async throws(ApusError) -> (status: Int, body: [UInt8]) {
        var request = HTTPClient.Request("POST", url)
        request.headers = [.init("Content-Type", "application/json"), .init("Idempotency-Key", id)]
        if !secrets.isEmpty {
            let signature = WebhookSignature.value(of: body, secrets: secrets, wallSeconds: wallSeconds)
            request.headers.append(.init(WebhookSignature.header, signature))
        }
        request.body = body
        request.timeout = timeout
        if let answerByteCountMax { request.answerByteCountMax = answerByteCountMax }
        do throws(ApusError) {
            return try await client.withAnswer(to: request) {
                (answer) async throws(ApusError) -> (status: Int, body: [UInt8]) in
                let status = answer.head.status
                guard answerByteCountMax != nil, (200..<300).contains(status) else { return (status, []) }
                var body: [UInt8] = []
                while let part = try await answer.next() { body += part }
                return (status, body)
            }
        } catch {
            guard error.code == .deadlineExceeded else { throw error }
            throw ApusError(.answerTimedOut)
        }
    }
}

package import ApusCore
import ApusHTTPClient

/// Posts JSON to HTTP endpoints. Each request is one attempt with a signature, and follows no redirects.
///
/// Isolation: any task. Call ``shutdown()`` once, after the last request.
package struct WebhookPoster: Sendable {
    /// The longest time to resolve the host's name, connect and complete TLS. It is at most half of a request's time,
    /// so that an unreachable endpoint can be distinguished from one that does not answer.
    private static let connectTimeMax = Duration.seconds(5)

    private let client: HTTPClient

    /// - Parameters:
    ///   - authorityFile: the certificates that `https` is checked against; nil: those of the system.
    ///   - connectionsMax: the most connections to one host.
    ///   - mayConnect: as ``HTTPClient/Settings/mayConnect``; nil: every address is allowed.
    /// - Throws: 10018 if the system cannot create a thread.
    package init(
        authorityFile: String?, connectionsMax: Int, mayConnect: (@Sendable ([UInt8]) -> Bool)? = nil
    ) throws(ApusError) {
        var settings = HTTPClient.Settings()
        settings.authorityFile = authorityFile
        settings.connectionsPerHostMax = connectionsMax
        settings.connectTimeout = Self.connectTimeMax
        settings.mayConnect = mayConnect
        client = try HTTPClient(settings)
    }

    package func shutdown() async { await client.shutdown() }

    /// Sends a request.
    ///
    /// - Parameters:
    ///   - id: the value of the header `Idempotency-Key`.
    ///   - secrets: the request has a signature for each; if there is no secret, it has no signature header.
    ///   - timeout: the time limit of the request and its answer together.
    ///   - wallSeconds: the time of the signature, in Unix seconds.
    ///   - answerByteCountMax: the longest answer, in bytes; nil: the answer is not read.
    /// - Returns: the status, and the body of a 2xx answer if it was read.
    /// - Throws: 21002 after the time-out, 10002 if the answer is too long; otherwise as ``HTTPClient/send(_:)``.
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
        request.connectTimeout = timeout / 2
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

import ApusCore
import AsyncHTTPClient
import Foundation
import NIOCore
import NIOHTTP1
import NIOSSL

/// Posts JSON to HTTP endpoints: one attempt each, with a signature and without redirects.
///
/// Isolation: any task. ``shutdown()`` is called once, after the last request.
package struct WebhookPoster: Sendable {
    private let client: HTTPClient

    /// - Parameters:
    ///   - authorityFile: the certificates that `https` is checked against; nil for those of the system.
    ///   - connectionsMax: connections to one host.
    package init(authorityFile: String?, connectionsMax: Int, connectTimeout: Duration) {
        var settings = HTTPClient.Configuration(
            redirectConfiguration: .disallow, timeout: .init(connect: .nanoseconds(connectTimeout.nanoseconds)))
        settings.connectionPool.concurrentHTTP1ConnectionsPerHostSoftLimit = connectionsMax
        if let authorityFile {
            var tls = TLSConfiguration.makeClientConfiguration()
            tls.trustRoots = .file(authorityFile)
            settings.tlsConfiguration = tls
        }
        client = HTTPClient(eventLoopGroupProvider: .singleton, configuration: settings)
    }

    package func shutdown() async throws { try await client.shutdown() }

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
    ) async throws -> (status: Int, body: [UInt8]) {
        var request = HTTPClientRequest(url: url)
        request.method = .POST
        request.headers.add(name: "Content-Type", value: "application/json")
        request.headers.add(name: "Idempotency-Key", value: id)
        if !secrets.isEmpty {
            request.headers.add(
                name: WebhookSignature.header,
                value: WebhookSignature.value(of: body, secrets: secrets, wallSeconds: wallSeconds))
        }
        request.body = .bytes(body)
        // The client's own time-out ends with the head of the answer.
        return try await withThrowingTaskGroup(of: (Int, [UInt8]).self) { [request] group in
            group.addTask { try await answer(to: request, timeout, answerByteCountMax) }
            group.addTask {
                try await Task.sleep(for: timeout)
                throw ApusError(.answerTimedOut)
            }
            defer { group.cancelAll() }
            guard let first = try await group.next() else { throw ApusError(.internalFailure) }
            return first
        }
    }

    private func answer(
        to request: HTTPClientRequest, _ timeout: Duration, _ byteCountMax: Int?
    ) async throws -> (Int, [UInt8]) {
        // The caller's time-out comes first, so that there is one error for it.
        let response = try await client.execute(
            request, timeout: .nanoseconds((timeout + .seconds(10)).nanoseconds))
        let status = Int(response.status.code)
        guard let byteCountMax, (200..<300).contains(status) else { return (status, []) }
        var body: [UInt8] = []
        for try await part in response.body {
            guard body.count + part.readableBytes <= byteCountMax else {
                throw ApusError(.frameTooLarge, "the answer has more than \(byteCountMax) bytes")
            }
            body += part.readableBytesView
        }
        return (status, body)
    }
}

package import ApusCore
import ApusHTTPClient
import Foundation

/// Requests to the HTTP listeners of nodes, relays and members of etcd. Each has a connection of its own: a node may
/// have been restarted since the last one.
package enum NodeHTTP {
    /// A complete answer.
    package struct Answer: Sendable {
        /// The status code.
        package var status: Int
        /// At most ``NodeHTTP/answerByteCountMax`` bytes.
        package var body: [UInt8]
        /// The entity tag, with its quotes; nil if there is none.
        package var tag: String?
        /// The size of the whole file that a range is of; nil if it is unknown.
        package var fileByteCount: Int?

        /// The body as text.
        package var text: String { String(decoding: body, as: UTF8.self) }
    }

    /// HTTPS.
    package struct TLS: Sendable {
        fileprivate let client: HTTPClient

        /// - Parameter authorityFile: a PEM file with the authorities of the servers; nil for those of the system.
        /// - Throws: 10018 if there is no memory.
        package init(authorityFile: String?) throws(ApusError) {
            client = try NodeHTTP.client { $0.authorityFile = authorityFile }
        }
    }

    /// The maximum size of an answer, in bytes.
    package static let answerByteCountMax = 16 << 20
    private static let plain = Result { () throws(ApusError) in try client() }
    private static let repetitionPause = Duration.milliseconds(5)
    /// Errors after which the same request is sent again: no node answers for the shard, the outcome is unknown, or the
    /// store of the records fails.
    private static let passingCodes: Set<Int> = [
        10_005, 10_007, 10_008, 10_009, 10_010, 10_012, 10_013, 10_017, 10_021, 21_002,
    ]

    private struct Problem: Decodable {
        var code: Int?
    }

    fileprivate static func client(
        _ change: (inout HTTPClient.Settings) -> Void = { _ in }
    ) throws(ApusError) -> HTTPClient {
        var settings = HTTPClient.Settings()
        settings.keepsConnections = false
        // The request says how long.
        settings.connectTimeout = .seconds(3_600)
        (settings.connectionsPerHostMax, settings.connectionsMax) = (1_024, 1_024)
        change(&settings)
        return try HTTPClient(settings)
    }

    /// Sends a request, and waits for the answer.
    ///
    /// - Parameters:
    ///   - body: JSON; nil for none.
    ///   - tls: for HTTPS; nil for plain HTTP.
    ///   - token: the bearer token of the header `Authorization`; nil for none.
    ///   - key: the header `Idempotency-Key`, so that a repeated request is carried out once; nil for none.
    ///   - range: the bytes of a file; nil for all.
    ///   - tag: the entity tag of the file that the range is of, with its quotes; nil for any.
    ///   - timeout: the time of the whole request. Nine tenths of it are for the connection, so that the error says
    ///     which of the two took too long.
    /// - Throws: 21022 if the connection or TLS fails, 10008 if it ends early, 10005 after the time, 10001 if the
    ///   answer is not HTTP, 10002 if it is too large, 10006 if the task is cancelled.
    package static func send(
        _ method: String, _ path: String, to address: HostPort, token: String? = nil, key: String? = nil,
        body: String? = nil, range: Range<Int>? = nil, tag: String? = nil, tls: TLS? = nil, timeout: Duration
    ) async throws(ApusError) -> Answer {
        var request = HTTPClient.Request(method, "\(tls == nil ? "http" : "https")://\(address)\(path)")
        if let body {
            request.headers.append(.init("Content-Type", "application/json"))
            request.body = Array(body.utf8)
        }
        if let token { request.headers.append(.init("Authorization", "Bearer \(token)")) }
        if let key { request.headers.append(.init("Idempotency-Key", key)) }
        if let range {
            request.headers.append(.init("Range", "bytes=\(range.lowerBound)-\(range.upperBound - 1)"))
            if let tag { request.headers.append(.init("If-Range", tag)) }
        }
        (request.timeout, request.connectTimeout) = (timeout, timeout * 9 / 10)
        request.answerByteCountMax = answerByteCountMax
        let client = if let tls { tls.client } else { try plain.get() }
        do throws(ApusError) {
            let answer = try await client.send(request)
            var whole = Answer(status: answer.head.status, body: answer.body)
            whole.tag = answer.head.headers["etag"]
            let part = answer.head.headers["content-range"]
            whole.fileByteCount = part?.split(separator: "/").last.flatMap { Int($0) }
            return whole
        } catch {
            guard error.code == .connectFailed else { throw error }
            throw ApusError(.connectFailed, "\(address) cannot be reached: \(error.message)")
        }
    }

    /// Sends a request to the nodes in turn until one of them carries it out or refuses it, as a careful app does.
    ///
    /// - Parameters:
    ///   - nodes: the addresses of their HTTP listeners; at least one.
    ///   - first: the number of the node that is asked first, modulo the number of nodes.
    ///   - key: as ``send(_:_:to:token:key:body:tls:timeout:)``; needed for a request that changes something.
    ///   - attemptTimeout: the time of one attempt.
    ///   - timeout: how long the request is repeated.
    /// - Returns: the answer; nil if it is unknown whether the request was carried out.
    package static func sendRepeatedly(
        _ method: String, _ path: String, to nodes: [HostPort], first: Int, token: String, key: String? = nil,
        body: String? = nil, attemptTimeout: Duration, timeout: Duration
    ) async -> Answer? {
        let deadline = MonotonicTime.now() + timeout
        var turn = first
        while MonotonicTime.now() < deadline, !Task.isCancelled {
            let answer = try? await send(
                method, path, to: nodes[turn % nodes.count], token: token, key: key, body: body, timeout: attemptTimeout
            )
            if let answer {
                let problem = try? JSONDecoder().decode(Problem.self, from: Data(answer.body))
                if answer.status == 200 || !passingCodes.contains(problem?.code ?? 0) { return answer }
            }
            turn += 1
            try? await Task.sleep(for: repetitionPause)
        }
        return nil
    }
}

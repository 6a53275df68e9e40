import ApusCore
import ApusCrypto
import ApusHTTPClient
import Foundation
import Synchronization

/// A request to an S3 server, before it is signed.
struct S3Request: Sendable {
    var method: String
    /// The key of an object; nil for the bucket.
    var key: String?
    var query: [(name: String, value: String)] = []
    /// Without those of the signature; names in lower case.
    var headers: [(name: String, value: String)] = []
    var body: [UInt8] = []
    /// The longest answer, in bytes.
    var answerByteCountMax = 64 << 10
    /// A status of failures that the caller reads.
    var statusAlso: Int?

    init(_ method: String, _ key: String?) { (self.method, self.key) = (method, key) }
}

/// Sends signed requests to one bucket, and repeats those whose failure may pass.
///
/// A request that changes something may have been carried out although it failed. Its caller finds that out.
///
/// Concurrency model: any task. A `Mutex` guards the keys and the clock's offset.
final class S3Client: Sendable {
    /// The lowest rate of a transfer in bytes a second. Its time is added to that of an attempt.
    private static let rateMin = 1 << 20

    private struct Signing {
        var credentials: S3Credentials
        /// The server's clock minus this machine's, in seconds.
        var offset: Int64 = 0
    }

    private let configuration: S3Configuration
    private let limits: ObjectStoreLimits
    private let metrics: ObjectStoreMetrics
    private let client: HTTPClient
    private let origin: String
    private let host: String
    private let bucketPath: String
    private let signing: Mutex<Signing>
    let place: String

    /// - Throws: 10022 if the endpoint or the keys are not valid, 10018 if the system cannot create a thread.
    init(
        _ configuration: S3Configuration, limits: ObjectStoreLimits, metrics: ObjectStoreMetrics
    ) async throws(ApusError) {
        (self.configuration, self.limits, self.metrics) = (configuration, limits, metrics)
        (origin, host, bucketPath) = try configuration.target()
        let prefix = configuration.prefix.isEmpty ? "" : "/\(configuration.prefix)"
        place = "s3://\(configuration.bucket)\(prefix) at \(origin)"
        signing = Mutex(Signing(credentials: try await Self.credentials(configuration)))
        var settings = HTTPClient.Settings()
        settings.authorityFile = configuration.authorityFile
        settings.connectionsPerHostMax = limits.runningMax
        settings.connectTimeout = min(settings.connectTimeout, limits.attemptTimeout)
        client = try HTTPClient(settings)
    }

    func shutdown() async { await client.shutdown() }

    private static func credentials(_ configuration: S3Configuration) async throws(ApusError) -> S3Credentials {
        // A file: not on the pool.
        try await offEventLoop { () throws(ApusError) in
            let environment = ProcessInfo.processInfo.environment
            return try configuration.credentials { environment[$0] }
        }
    }

    // MARK: Attempts

    /// Sends a request until an answer counts.
    ///
    /// - Parameter read: makes a value of the answer, whose status is 2xx, 404, 412 or 416. If it throws 10001, the
    ///   answer was damaged on the way, and the request is repeated.
    /// - Throws: 10021 if the server does not answer or refuses the request, 10041 if it is full; 10002, 10006.
    func send<Value: Sendable>(
        _ request: S3Request, _ read: (HTTPClient.Answer) throws(ApusError) -> Value
    ) async throws(ApusError) -> Value {
        var hasSignedAgain = false
        var reason = ""
        for attempt in 1...max(1, limits.attemptsMax) {
            if attempt > 1 { try await wait(before: attempt) }
            let (verdict, answer) = await self.attempt(request)
            switch (verdict, answer) {
            case (.answer, let answer?):
                do throws(ApusError) { return try read(answer) } catch {
                    guard error.code == .malformed else { throw error }
                    reason = error.message
                }
            case (.signAgain(let name), let answer?) where !hasSignedAgain:
                hasSignedAgain = true
                reason = name
                try await renew(answer)
            case (.signAgain(let name), _):
                throw ApusError(
                    .storageFailed,
                    "\(place) refuses the keys (\(name)); check that they are valid, and may use the bucket")
            case (.fail(let error), _): throw error
            case (.again(let name), _): reason = name
            case (.answer, nil): reason = "no answer"
            }
        }
        throw ApusError(.storageFailed, "\(place) does not carry out a request: \(reason)")
    }

    private func wait(before attempt: Int) async throws(ApusError) {
        metrics.repeated()
        let longest = Backoff.wait(after: attempt - 1, first: limits.backoffFirst, longest: limits.backoffLongest)
        // A random part of it, so that clients that failed together do not return together.
        let part = longest * Double.random(in: 0.25...1)
        guard (try? await Task.sleep(for: part)) != nil else { throw ApusError(.cancelled) }
    }

    private func attempt(_ request: S3Request) async -> (S3Verdict, HTTPClient.Answer?) {
        do throws(ApusError) {
            let answer = try await client.send(signed(request))
            // A multipart upload is completed with 200 before the outcome is known, which may be an error.
            let mayBeError = answer.head.status >= 300 || request.method.isExactly("POST")
            let document = mayBeError ? try? S3Element(reading: answer.body) : nil
            let isError = document?.name.isExactly("Error") == true
            let code = isError ? document?.text("Code") : nil
            let status = answer.head.status < 300 && isError ? 500 : answer.head.status
            let verdict = S3Verdict.of(status: status, code: code, place: place)
            if case .fail = verdict, status == request.statusAlso { return (.answer, answer) }
            return (verdict, answer)
        } catch {
            return (S3Verdict.of(error), nil)
        }
    }

    /// Reads the keys again, and takes the server's clock if this machine's differs by more than a signature may.
    private func renew(_ answer: HTTPClient.Answer) async throws(ApusError) {
        let credentials = try await Self.credentials(configuration)
        let server = answer.head.headers["date"].flatMap(S3Time.milliseconds(header:))
        signing.withLock { signing in
            signing.credentials = credentials
            guard let server else { return }
            let offset = (server - WallClock.milliseconds()) / 1000
            signing.offset = abs(offset) > 60 ? offset : 0
        }
    }

    // MARK: Signing

    private func signed(_ request: S3Request) -> HTTPClient.Request {
        let (credentials, offset) = signing.withLock { ($0.credentials, $0.offset) }
        let time = S3Time.signed(WallClock.milliseconds() / 1000 + offset)
        let path = request.key.map { "\(bucketPath)/\($0)" } ?? (bucketPath.isEmpty ? "/" : bucketPath)
        let digest = Hexadecimal.text(SHA256.hash(data: request.body))
        var headers = [("host", host), ("x-amz-content-sha256", digest), ("x-amz-date", time)]
        if let token = credentials.sessionToken { headers.append(("x-amz-security-token", token)) }
        headers += request.headers.map { ($0.name, $0.value) }
        let signature = S3Signature(credentials: credentials, region: configuration.region)
        let authorization = signature.authorization(
            of: S3Signature.Request(
                method: request.method, path: path, query: request.query, headers: headers, bodyDigest: digest),
            time: time)
        let query = request.query.isEmpty ? "" : "?\(S3Signature.query(request.query))"
        var result = HTTPClient.Request(
            request.method, "\(origin)\(S3Signature.escaped(path: path))\(query)")
        // The HTTP client sends `Host` itself.
        result.headers = headers.dropFirst().map { HTTPHead.Field($0.0, $0.1) }
        result.headers.append(HTTPHead.Field("authorization", authorization))
        result.body = request.body
        let byteCount = max(request.body.count, request.answerByteCountMax)
        result.timeout = limits.attemptTimeout + .milliseconds(byteCount * 1000 / Self.rateMin)
        result.answerByteCountMax = request.answerByteCountMax
        return result
    }
}

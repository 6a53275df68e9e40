import ApusCore
import ApusHTTPClient
import ApusStorage
import Foundation
import SwiftProtobuf
import Synchronization

/// A connection to one endpoint of etcd, and the user's token there: etcd's gRPC API over HTTP/2.
///
/// Each call is a request of one message. Its body ends there, also where etcd would take more messages: one message
/// renews a lease or opens a watch, whose answers follow until the transfer is ended.
///
/// The certificate files are read when the connection is made. A connection that failed is closed and replaced by a new
/// one, which reads them again.
///
/// Concurrency model: any task. The connection has a client with a thread of its own until ``close()``: the store is
/// used before the node's services run, and outlives them.
final class EtcdConnection: Sendable {
    /// The largest message in either direction, in bytes: a value, its keys and the framing. etcd splits larger
    /// responses of a watch at 1.5 MiB.
    static let messageByteCountMax = OwnershipLimits.valueByteCountMax * 2

    let endpoint: EtcdEndpoint
    private let client: HTTPClient
    private let token = Mutex("")

    /// Connects, authenticates if a user is configured, and makes one linearizable read.
    ///
    /// A request that follows thus reaches a member that was part of a majority a moment ago. This matters for swaps,
    /// which are not repeated at another endpoint.
    static func open(
        _ endpoint: EtcdEndpoint, _ configuration: EtcdConfiguration, reading request: EtcdTxnRequest,
        until end: MonotonicTime
    ) async throws(EtcdFailure) -> EtcdConnection {
        let connection = try EtcdConnection(endpoint, configuration)
        do throws(EtcdFailure) {
            if !configuration.user.isEmpty { try await connection.authenticate(configuration, until: end) }
            _ = try await connection.unary(EtcdMethods.transaction, request, as: EtcdTxnResponse.self, until: end)
            return connection
        } catch {
            connection.close()
            throw error
        }
    }

    private init(_ endpoint: EtcdEndpoint, _ configuration: EtcdConfiguration) throws(EtcdFailure) {
        self.endpoint = endpoint
        do throws(ApusError) {
            client = try HTTPClient(Self.settings(configuration))
        } catch {
            throw EtcdFailure(error)
        }
    }

    /// Ends all calls.
    func close() { client.close() }

    // MARK: Calls

    /// Sends a request and waits for its first answer, at most until the given time.
    func unary<Request: SwiftProtobuf.Message, Response: SwiftProtobuf.Message>(
        _ method: String, _ request: Request, as type: Response.Type, until end: MonotonicTime
    ) async throws(EtcdFailure) -> Response {
        let answer: HTTPClient.Answer
        do throws(ApusError) {
            answer = try await client.send(try self.request(method, request, until: end))
        } catch {
            throw EtcdFailure(error)
        }
        if let failure = EtcdFailure(answer.head, trailers: answer.trailers) { throw failure }
        do throws(ApusError) {
            var decoder = EtcdFrameDecoder(messageByteCountMax: Self.messageByteCountMax)
            decoder.append(answer.body)
            guard let message = try decoder.next() else { throw ApusError(.malformed, "the answer has no message") }
            return try Self.decode(message)
        } catch {
            throw EtcdFailure(error)
        }
    }

    /// Renews a lease. Returns the seconds until it ends; 0 if there is no such lease any more.
    func renew(lease: Int64, until end: MonotonicTime) async throws(EtcdFailure) -> Int64 {
        var request = EtcdLeaseKeepAliveRequest()
        request.id = lease
        return try await unary(EtcdMethods.renewLease, request, as: EtcdLeaseKeepAliveResponse.self, until: end).ttl
    }

    /// Watches until the stream ends, the task is cancelled, or the watch is not wanted any more.
    ///
    /// - Parameter received: Called for each response, in order. False ends the watch.
    func watch(
        _ request: EtcdWatchRequest, received: (EtcdWatchResponse) -> Bool
    ) async throws(EtcdFailure) {
        let failure: EtcdFailure?
        do throws(ApusError) {
            failure = try await client.withAnswer(to: try self.request(EtcdMethods.watch, request, until: nil)) {
                (answer) async throws(ApusError) -> EtcdFailure? in
                var decoder = EtcdFrameDecoder(messageByteCountMax: Self.messageByteCountMax)
                while let part = try await answer.next() {
                    decoder.append(part)
                    while let message = try decoder.next() {
                        guard received(try Self.decode(message)) else { return nil }
                    }
                }
                return EtcdFailure(answer.head, trailers: answer.trailers)
            }
        } catch {
            throw EtcdFailure(error)
        }
        if let failure { throw failure }
    }

    private func authenticate(
        _ configuration: EtcdConfiguration, until end: MonotonicTime
    ) async throws(EtcdFailure) {
        var request = EtcdAuthenticateRequest()
        request.name = configuration.user
        do {
            let text = try String(contentsOfFile: configuration.passwordFile, encoding: .utf8)
            request.password = String(text.prefix { !$0.isNewline })
        } catch {
            throw EtcdFailure(.denied, "\(configuration.passwordFile) cannot be read: \(error.localizedDescription)")
        }
        do throws(EtcdFailure) {
            let answer = try await unary(
                EtcdMethods.authenticate, request, as: EtcdAuthenticateResponse.self, until: end)
            token.withLock { $0 = answer.token }
        } catch {
            // The user is configured before etcd's authentication is enabled.
            guard error.message.contains("authentication is not enabled") else { throw error }
        }
    }

    // MARK: Requests

    private func request(
        _ method: String, _ message: some SwiftProtobuf.Message, until end: MonotonicTime?
    ) throws(ApusError) -> HTTPClient.Request {
        var request = HTTPClient.Request("POST", "\(endpoint)\(method)")
        request.headers = [
            .init("Content-Type", "application/grpc"), .init("TE", "trailers"),
            // A member without a leader refuses at once, and ends its watches (etcd 3.4, `rpctypes.MetadataHasLeader`).
            .init("hasleader", "true"),
        ]
        let token = token.withLock { $0 }
        if !token.isEmpty { request.headers.append(.init("token", token)) }
        if let end {
            let timeout = max(end - MonotonicTime.now(), .milliseconds(1))
            request.timeout = timeout
            request.headers.append(.init("grpc-timeout", "\(timeout.nanoseconds / 1_000_000)m"))
            request.answerByteCountMax = Self.messageByteCountMax + EtcdFrame.headByteCount
        }
        do {
            request.body = EtcdFrame.encode(try message.serializedBytes())
        } catch {
            throw ApusError(.internalFailure, "\(error)")
        }
        return request
    }

    private static func decode<Message: SwiftProtobuf.Message>(_ bytes: [UInt8]) throws(ApusError) -> Message {
        do {
            return try Message(serializedBytes: bytes)
        } catch {
            throw ApusError(.malformed, "\(error)")
        }
    }

    /// The certificate must name the endpoint's host or its address.
    private static func settings(_ configuration: EtcdConfiguration) -> HTTPClient.Settings {
        var settings = HTTPClient.Settings()
        settings.version = .http2
        settings.connectTimeout = configuration.timeout
        settings.bufferByteCountMax = messageByteCountMax
        if !configuration.authorityFile.isEmpty { settings.authorityFile = configuration.authorityFile }
        if !configuration.certificateFile.isEmpty {
            settings.certificateFile = configuration.certificateFile
            settings.keyFile = configuration.keyFile
        }
        return settings
    }
}

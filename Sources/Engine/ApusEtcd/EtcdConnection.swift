import ApusCore
import ApusStorage
import Foundation
import GRPCCore
import GRPCNIOTransportHTTP2Posix
import GRPCProtobuf
import NIOCore
import SwiftProtobuf
import Synchronization

/// A connection to one endpoint of etcd, and the user's token there.
///
/// The certificate files are read when the connection is made. A connection that failed is closed and replaced by a new
/// one, which reads them again.
///
/// Concurrency model: any task. The connection runs in a task of its own from its creation to ``close()``: the store is
/// used before the node's services run, and outlives them.
final class EtcdConnection: Sendable {
    /// The largest message in either direction, in bytes: a value, its keys and the framing. etcd splits larger
    /// responses of a watch at 1.5 MiB.
    static let messageByteCountMax = OwnershipLimits.valueByteCountMax * 2
    /// The interval of HTTP/2 pings on a connection with an open watch. etcd closes connections that send more than one
    /// in 5 s.
    private static let pingInterval: Duration = .seconds(10)

    let endpoint: EtcdEndpoint
    private let client: GRPCClient<HTTP2ClientTransport.Posix>
    private let running: Task<Void, Never>
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
        do {
            let client = GRPCClient(
                transport: try HTTP2ClientTransport.Posix(
                    target: Self.target(endpoint.address), transportSecurity: Self.security(endpoint, configuration),
                    config: Self.transport(configuration)))
            self.client = client
            // It ends when `close()` cancels it. Its errors are those of the calls.
            running = Task { _ = try? await client.runConnections() }
        } catch {
            throw EtcdFailure(.unreachable, "the connection cannot be prepared; check the certificate files: \(error)")
        }
    }

    func close() { running.cancel() }

    // MARK: Calls

    /// Sends a request and waits for its answer, at most until the given time.
    func unary<Request: SwiftProtobuf.Message, Response: SwiftProtobuf.Message>(
        _ method: MethodDescriptor, _ request: Request, as type: Response.Type, until end: MonotonicTime
    ) async throws(EtcdFailure) -> Response {
        var options = Self.options
        options.timeout = max(end - MonotonicTime.now(), .milliseconds(1))
        do {
            return try await client.unary(
                request: ClientRequest(message: request, metadata: metadata()), descriptor: method,
                serializer: ProtobufSerializer<Request>(), deserializer: ProtobufDeserializer<Response>(),
                options: options
            ) { response in
                try response.message
            }
        } catch {
            throw EtcdFailure(error, isCancelled: Task.isCancelled)
        }
    }

    /// Renews a lease. Returns the seconds until it ends; 0 if there is no such lease any more.
    func renew(lease: Int64, until end: MonotonicTime) async throws(EtcdFailure) -> Int64 {
        var options = Self.options
        options.timeout = max(end - MonotonicTime.now(), .milliseconds(1))
        var request = EtcdLeaseKeepAliveRequest()
        request.id = lease
        let sent = request
        do {
            return try await client.bidirectionalStreaming(
                request: StreamingClientRequest(metadata: metadata()) { try await $0.write(sent) },
                descriptor: EtcdMethods.renewLease, serializer: ProtobufSerializer<EtcdLeaseKeepAliveRequest>(),
                deserializer: ProtobufDeserializer<EtcdLeaseKeepAliveResponse>(), options: options
            ) { response in
                for try await answer in response.messages { return answer.ttl }
                throw RPCError(code: .unavailable, message: "etcdserver: no answer to the renewal of a lease")
            }
        } catch {
            throw EtcdFailure(error, isCancelled: Task.isCancelled)
        }
    }

    /// Watches until the stream ends, one of the closures throws, or the task is cancelled.
    ///
    /// - Parameters:
    ///   - sent: Sends requests. It must not return while the watch is wanted.
    ///   - received: Called for each response, in order.
    func watch(
        sending sent: @escaping @Sendable (RPCWriter<EtcdWatchRequest>) async throws -> Void,
        received: @escaping @Sendable (EtcdWatchResponse) throws -> Void
    ) async throws(EtcdFailure) {
        do {
            try await client.bidirectionalStreaming(
                request: StreamingClientRequest(metadata: metadata(), producer: sent), descriptor: EtcdMethods.watch,
                serializer: ProtobufSerializer<EtcdWatchRequest>(),
                deserializer: ProtobufDeserializer<EtcdWatchResponse>(), options: Self.options
            ) { response in
                for try await message in response.messages { try received(message) }
            }
        } catch let error as EtcdFailure {
            throw error
        } catch {
            throw EtcdFailure(error, isCancelled: Task.isCancelled)
        }
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

    private func metadata() -> Metadata {
        // A member without a leader refuses at once, and ends its watches (etcd 3.4, `rpctypes.MetadataHasLeader`).
        var metadata: Metadata = ["hasleader": "true"]
        let token = token.withLock { $0 }
        if !token.isEmpty { metadata.addString(token, forKey: "token") }
        return metadata
    }

    // MARK: The transport

    private static var options: CallOptions {
        var options = CallOptions.defaults
        options.waitForReady = false
        options.maxRequestMessageBytes = messageByteCountMax
        options.maxResponseMessageBytes = messageByteCountMax
        return options
    }

    /// A literal address is not resolved. The certificate must name the host or its address.
    private static func target(_ address: HostPort) -> any ResolvableTarget {
        guard let literal = try? NIOCore.SocketAddress(ipAddress: address.host, port: address.port) else {
            return ResolvableTargets.DNS(host: address.host, port: address.port)
        }
        guard literal.protocol == .inet6 else {
            return ResolvableTargets.IPv4.ipv4(address: address.host, port: address.port)
        }
        return ResolvableTargets.IPv6.ipv6(address: address.host, port: address.port)
    }

    private static func security(
        _ endpoint: EtcdEndpoint, _ configuration: EtcdConfiguration
    ) -> HTTP2ClientTransport.Posix.TransportSecurity {
        guard endpoint.isSecure else { return .plaintext }
        return HTTP2ClientTransport.Posix.TransportSecurity.tls(configure: { tls in
            if !configuration.authorityFile.isEmpty {
                tls.trustRoots = .certificates([.file(path: configuration.authorityFile, format: .pem)])
            }
            if !configuration.certificateFile.isEmpty {
                tls.certificateChain = [.file(path: configuration.certificateFile, format: .pem)]
                tls.privateKey = .file(path: configuration.keyFile, format: .pem)
            }
        })
    }

    private static func transport(_ configuration: EtcdConfiguration) -> HTTP2ClientTransport.Posix.Config {
        var transport = HTTP2ClientTransport.Posix.Config.defaults
        // This initializer does not delay flushes. The delay helps at high loads only.
        transport.connection = HTTP2ClientTransport.Config.Connection(
            maxIdleTime: .seconds(1800),
            keepalive: HTTP2ClientTransport.Config.Keepalive(
                time: pingInterval, timeout: configuration.timeout, allowWithoutCalls: false))
        transport.backoff = HTTP2ClientTransport.Config.Backoff(
            initial: configuration.retryDelayMin, max: configuration.retryDelayMax, multiplier: 2, jitter: 0.2)
        transport.http2.targetWindowSize = messageByteCountMax
        return transport
    }
}

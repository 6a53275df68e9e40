import ApusCore
import ApusTLS
import ApusTestKit
import ApusTransport
import Foundation
import NIOCore
import NIOEmbedded
import NIOTLS

/// An authority, and certificates of it.
struct TestAuthority {
    let issued: ClusterPKI.Issued

    init() throws { issued = try ClusterPKI.makeAuthority(cluster: ClusterID(unchecked: "test")) }

    var trust: TLSTrust { .authorities(Array(issued.certificatePEM.utf8)) }

    /// A certificate for both sides, of a node of this name.
    func node(_ name: String = "a", at now: Date = Date(), lifetime: Duration = .seconds(3600)) throws -> TLSIdentity {
        TLSIdentity(
            try ClusterPKI.issueNode(NodeName(unchecked: name), authority: issued, at: now, lifetime: lifetime))
    }

    /// A certificate for servers only.
    func endpoint(hosts: [String] = []) throws -> TLSIdentity {
        TLSIdentity(try ClusterPKI.issueClientEndpoint(hosts: hosts, authority: issued))
    }
}

extension TLSIdentity {
    init(_ issued: ClusterPKI.Issued) {
        self.init(chain: Array(issued.certificatePEM.utf8), key: Array(issued.privateKeyPEM.utf8))
    }

    var settings: OtherTLSHandler.Settings {
        var settings = OtherTLSHandler.Settings()
        settings.certificate = String(decoding: chain, as: UTF8.self)
        settings.key = String(decoding: key, as: UTF8.self)
        return settings
    }
}

/// What one side has received.
final class Side: ChannelInboundHandler {
    typealias InboundIn = ByteBuffer

    let channel = EmbeddedChannel()
    let tls: any ChannelHandler
    private(set) var received = ByteBuffer()
    private(set) var readCount = 0
    private(set) var errors: [any Error] = []
    private(set) var isSecured = false
    private(set) var isInputClosed = false
    /// Called with each content, before it is kept.
    var onRead: (Side, ByteBuffer) -> Void = { _, _ in }
    var onSecured: (Side) -> Void = { _ in }

    init(_ tls: any ChannelHandler) throws {
        self.tls = tls
        try channel.pipeline.syncOperations.addHandlers([tls, self])
    }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        var bytes = unwrapInboundIn(data)
        onRead(self, bytes)
        readCount += 1
        received.writeBuffer(&bytes)
    }

    func userInboundEventTriggered(context: ChannelHandlerContext, event: Any) {
        if case .handshakeCompleted? = event as? TLSUserEvent {
            isSecured = true
            onSecured(self)
        }
        if case .inputClosed? = event as? ChannelEvent { isInputClosed = true }
    }

    func errorCaught(context: ChannelHandlerContext, error: any Error) { errors.append(error) }

    var kinds: [TLSError.Kind] { errors.compactMap { ($0 as? TLSError)?.kind } }
    func send(_ bytes: ByteBuffer) { channel.writeAndFlush(bytes, promise: nil) }
    func send(_ text: String) { send(ByteBuffer(string: text)) }
    var text: String { String(buffer: received) }
}

/// Two channels, the bytes of which a test moves from one to the other.
final class Wire {
    let client: Side
    let server: Side
    /// On their way: what was taken from a side and is not delivered.
    private(set) var (toClient, toServer) = (ByteBuffer(), ByteBuffer())

    init(_ client: any ChannelHandler, _ server: any ChannelHandler) throws {
        self.client = try Side(client)
        self.server = try Side(server)
        let address = try SocketAddress(ipAddress: "127.0.0.1", port: 1)
        self.server.channel.connect(to: address, promise: nil)
        self.client.channel.connect(to: address, promise: nil)
    }

    private func take(_ side: Side, _ bytes: inout ByteBuffer) throws {
        while var part = try side.channel.readOutbound(as: ByteBuffer.self) { bytes.writeBuffer(&part) }
    }

    func collect() throws {
        try take(client, &toServer)
        try take(server, &toClient)
    }

    /// Delivers everything in pieces, until nothing is on its way.
    func pump(pieces size: Int = .max) throws {
        try collect()
        while toServer.readableBytes + toClient.readableBytes > 0 {
            if let piece = toServer.readSlice(length: min(size, toServer.readableBytes)), piece.readableBytes > 0 {
                deliver(piece, to: server)
            }
            if let piece = toClient.readSlice(length: min(size, toClient.readableBytes)), piece.readableBytes > 0 {
                deliver(piece, to: client)
            }
            toServer.discardReadBytes()
            toClient.discardReadBytes()
            try collect()
        }
    }

    func deliver(_ bytes: ByteBuffer, to side: Side) {
        guard side.channel.isActive else { return }
        side.channel.pipeline.fireChannelRead(bytes)
        side.channel.pipeline.fireChannelReadComplete()
        side.channel.embeddedEventLoop.run()
    }

    func dropClient() { toServer.clear() }

    /// The connection of a side ends without a farewell.
    func cut(_ side: Side) {
        side.channel.pipeline.fireChannelInactive()
        side.channel.embeddedEventLoop.run()
    }

    /// Closes both sides below TLS.
    func end() {
        for side in [client, server] {
            (try? side.channel.pipeline.syncOperations.context(handler: side.tls))?.close(promise: nil)
            side.channel.embeddedEventLoop.run()
        }
    }
}

/// Bytes of which no part is like another.
enum Noise {
    static func bytes(_ count: Int, seed: UInt64 = 1) -> ByteBuffer {
        var state = seed &* 0x9E37_79B9_7F4A_7C15 | 1
        var buffer = ByteBufferAllocator().buffer(capacity: count + 8)
        while buffer.readableBytes < count {
            state ^= state << 13
            state ^= state >> 7
            state ^= state << 17
            buffer.writeInteger(state)
        }
        return buffer.readSlice(length: count) ?? ByteBuffer()
    }
}

import ApusCore
import ApusTLS
import ApusTestKit
import Foundation
import NIOCore
import NIOEmbedded
import NIOPosix
import NIOTLS
import Synchronization
import Testing

@Suite("TLS with pre-shared keys (docs/decisions/45)", .timeLimit(.minutes(1)))
struct SharedKeyTests {
    private static let key = [UInt8](1...32)

    private static func wire(key: [UInt8], identity: String) throws -> Wire {
        try Wire(
            TLSHandler(unnamed: try TLSClientContext(sharedKey: key, identity: identity)),
            TLSHandler(try TLSServerContext(sharedKeys: { $0 == "app" ? Self.key : nil })))
    }

    @Test("Who has the key gets in, and the server knows its identity", arguments: [1, .max])
    func admitted(pieces: Int) throws {
        let wire = try Self.wire(key: Self.key, identity: "app")
        try wire.pump(pieces: pieces)
        wire.client.send(Noise.bytes(100_000))
        wire.server.send("answer")
        try wire.pump(pieces: pieces)
        #expect(wire.server.received == Noise.bytes(100_000) && wire.client.text == "answer")
        let (client, server) = try #require((wire.client.tls, wire.server.tls) as? (TLSHandler, TLSHandler))
        #expect(server.peerIdentity == "app" && client.peerCertificate == nil && server.peerCertificate == nil)
        wire.client.channel.close(promise: nil)
        try wire.pump()
        #expect(!wire.server.channel.isActive && wire.server.errors.isEmpty && wire.client.errors.isEmpty)
    }

    @Test(
        "Another key, identity or kind of client is refused",
        arguments: [([UInt8](2...33), "app"), (key, "other"), (key, ""), (key, String(repeating: "x", count: 256))])
    func refused(key: [UInt8], identity: String) throws {
        let wire = try Self.wire(key: key, identity: identity)
        try wire.pump()
        #expect(!wire.server.isSecured && !wire.client.isSecured)
        #expect(wire.server.kinds == [.protocolViolated] && wire.client.kinds == [.protocolViolated])
    }

    @Test("A client without a key is refused")
    func stranger() throws {
        let wire = try Wire(
            OtherTLSHandler(OtherTLSHandler.Settings()), TLSHandler(try TLSServerContext(sharedKeys: { _ in Self.key }))
        )
        try wire.pump()
        #expect(!wire.server.isSecured && !wire.client.isSecured && !wire.server.channel.isActive)
    }

    @Test("openssl gets in with the cipher of decision 45, and with no other", .enabled(if: TestCertificate.canBeMade))
    func openssl() async throws {
        let received = Received()
        let context = try TLSServerContext(sharedKeys: { $0 == "app" ? Self.key : nil })
        let server = try await ServerBootstrap(group: MultiThreadedEventLoopGroup.singleton)
            .childChannelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    try channel.pipeline.syncOperations.addHandlers([TLSHandler(context), ReceivingHandler(received)])
                }
            }
            .bind(host: "127.0.0.1", port: 0).get()
        let port = server.localAddress?.port ?? 0
        let hex = Self.key.map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }.joined()
        let tool = try #require(Tool.openssl)
        for (cipher, isTaken) in [("ECDHE-PSK-CHACHA20-POLY1305", true), ("PSK-AES128-GCM-SHA256", false)] {
            received.text.withLock { $0 = "" }
            let command =
                "(printf hello; sleep 1) | \(tool) s_client -connect 127.0.0.1:\(port) -tls1_2 -psk \(hex) "
                + "-psk_identity app -cipher \(cipher) -quiet -no_ign_eof"
            _ = Tool.run("/bin/sh", ["-c", command])
            #expect((received.text.withLock { $0 } == "hello") == isTaken, "\(cipher)")
        }
        try await server.close()
    }
}

/// What a server has received.
private final class Received: Sendable {
    let text = Mutex("")
}

private final class ReceivingHandler: ChannelInboundHandler {
    typealias InboundIn = ByteBuffer

    private let received: Received

    init(_ received: Received) { self.received = received }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        received.text.withLock { $0 += String(buffer: unwrapInboundIn(data)) }
    }

    func errorCaught(context: ChannelHandlerContext, error: any Error) { context.close(promise: nil) }
}

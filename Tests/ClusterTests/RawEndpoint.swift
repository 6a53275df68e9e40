import ApusTestKit
import Foundation
import NIOCore
import NIOPosix
import Synchronization

/// A client that does not keep to the protocol.
struct RawEndpoint {
    let port: Int
    let authority: String
    let group: any EventLoopGroup

    /// Sends bytes and waits for the node to close the connection; false where it did not within 8 s.
    func closesAfter(tls: Bool, bytes: [UInt8]) async throws -> Bool {
        var settings = OtherTLSHandler.Settings()
        settings.authority = try String(contentsOfFile: authority, encoding: .utf8)
        settings.address = "127.0.0.1"
        let secured = settings
        let channel = try await ClientBootstrap(group: group)
            .channelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    if tls { try channel.pipeline.syncOperations.addHandler(OtherTLSHandler(secured)) }
                }
            }
            .connect(host: "127.0.0.1", port: port).get()
        try? await channel.writeAndFlush(ByteBuffer(bytes: bytes)).get()
        let isClosed = Mutex(false)
        let closed = channel.closeFuture.map { true }
        let late = channel.eventLoop.scheduleTask(in: .seconds(8)) { isClosed.withLock { $0 } }
        let winner = channel.eventLoop.makePromise(of: Bool.self)
        closed.cascade(to: winner)
        late.futureResult.whenSuccess { _ in winner.succeed(false) }
        let result = try await winner.futureResult.get()
        late.cancel()
        if !result { try? await channel.close() }
        return result
    }

    /// Connections that never say anything.
    func openWithoutHandshake(_ count: Int) async throws -> [any Channel] {
        var channels: [any Channel] = []
        for _ in 0..<count {
            channels.append(try await ClientBootstrap(group: group).connect(host: "127.0.0.1", port: port).get())
        }
        return channels
    }
}

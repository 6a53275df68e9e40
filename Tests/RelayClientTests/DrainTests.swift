import ApusTestKit
import Foundation
import NIOCore
import NIOPosix
import Synchronization
import Testing

@Suite("What `apus relay drain` asks a relay (D13)")
struct DrainTests {
    /// Answers one request of each connection, and remembers what it was.
    private final class Answerer: ChannelInboundHandler, Sendable {
        typealias InboundIn = ByteBuffer
        typealias OutboundOut = ByteBuffer

        /// Allocations that are left when the status is asked for, one less each time.
        private let left: Mutex<Int>
        let asked = Mutex<[String]>([])

        init(left: Int) { self.left = Mutex(left) }

        func channelRead(context: ChannelHandlerContext, data: NIOAny) {
            let text = String(buffer: unwrapInboundIn(data))
            guard let line = text.split(separator: "\r\n").first, line.hasSuffix("HTTP/1.1") else { return }
            let words = line.split(separator: " ").prefix(2).joined(separator: " ")
            asked.withLock { $0.append(words) }
            let body = words == "GET /v1/status" ? status() : #"{"state":"draining"}"#
            let answer =
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: \(body.utf8.count)\r\n"
                + "Connection: close\r\n\r\n\(body)"
            let channel = context.channel
            channel.writeAndFlush(ByteBuffer(string: answer)).whenComplete { _ in channel.close(promise: nil) }
        }

        private func status() -> String {
            let count = left.withLock { left in
                defer { left = max(0, left - 1) }
                return left
            }
            return """
                {"name":"relay","incarnation":1,"state":"up","addresses":{"transport":"","clients":"","http":""},
                "shards":{"owned":0,"standby":0},"sessions":{"devices":0,"apps":0},"viewers":0,"channels":[],
                "revision":0,"members":[],"uptime_s":1,"conditions":[],
                "relay":{"allocations":\(count),"mirrors":0,"draining":true,"user_count":0,"users":[],
                "traffic":{"packets_up":0,"bytes_up":0,"packets_down":0,"bytes_down":0,"dropped":0}}}
                """
        }
    }

    @Test("It asks for a count of allocations until none is left, never for the list of them")
    func count() async throws {
        let answerer = Answerer(left: 2)
        let server = try await ServerBootstrap(group: MultiThreadedEventLoopGroup.singleton)
            .childChannelInitializer { channel in
                channel.eventLoop.makeCompletedFuture { try channel.pipeline.syncOperations.addHandler(answerer) }
            }
            .bind(host: "127.0.0.1", port: 0).get()
        let port = try #require(server.localAddress?.port)
        let folder = FileManager.default.temporaryDirectory.appending(path: "apus-drain-\(UUID().uuidString)").path
        defer { try? FileManager.default.removeItem(atPath: folder) }
        try FileManager.default.createDirectory(atPath: "\(folder)/data", withIntermediateDirectories: true)
        #expect(FileManager.default.createFile(atPath: "\(folder)/data/relay.key", contents: Data(count: 32)))
        try "data_directory: data\nhttp: 127.0.0.1:\(port)\n"
            .write(toFile: "\(folder)/relay.yaml", atomically: true, encoding: .utf8)
        let outcome = try await Outcome.of(
            [RelayProcess.apus, "relay", "drain", "--wait", "20", "--config", "\(folder)/relay.yaml"])
        #expect(outcome.status == 0, "\(outcome.all)")
        let asked = answerer.asked.withLock { $0 }
        #expect(asked == ["POST /v1/admin/drain"] + Array(repeating: "GET /v1/status", count: 3))
        try await server.close()
    }
}

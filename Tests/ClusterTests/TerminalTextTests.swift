import ApusContract
import ApusCore
import Foundation
import NIOCore
import NIOPosix
import Testing

/// Text of others on an operator's terminal (D13).
@Suite(.timeLimit(.minutes(1)))
struct TerminalTextTests {
    @Test("A user of the relay whose name is an escape sequence is shown, and the terminal does not obey it")
    func relayUsers() async throws {
        let traffic = NodeStatus.RelayTraffic(packets_up: 1, bytes_up: 1, packets_down: 1, bytes_down: 1, dropped: 0)
        var status = NodeStatus(
            name: "n1", incarnation: 1, state: "up", addresses: .init(transport: "", clients: "", http: ""),
            shards: .init(owned: 0, standby: 0), sessions: .init(devices: 0, apps: 0), viewers: 0, channels: [],
            revision: 1, members: ["n1"], uptime_s: 1)
        status.relay = NodeStatus.Relay(
            allocations: 1, mirrors: 0, standby: nil, draining: false, traffic: traffic, user_count: 1,
            users: [.init(user: "ann\u{1b}[2J\nforged", allocations: 1, traffic: traffic)])
        let body = String(decoding: try JSONEncoder().encode(status), as: UTF8.self)
        let said = try await answer(body, to: ["relay", "status"])
        #expect(said.output.contains(#"ann\u{1b}[2J\u{a}forged"#), "\(said.all)")
        #expect(!said.output.contains("\u{1b}"))
    }

    @Test(
        "What others have written does not control the terminal, in a table or in JSON",
        arguments: [([], #"\u{1b}[2J\u{9b}2Jgone"#), (["--json"], #"\u001b[2J\u009b2Jgone"#)])
    func output(form: [String], shown: String) async throws {
        // ESC [ begins a control sequence, and so does the one character U+009B, which JSON does not escape.
        let hook = #"{"hook":"orders","url":"http://a/","failure":"\u001b[2J\u009b2Jgone"}"#
        let said = try await answer(#"{"hooks":[\#(hook)]}"#, to: ["hooks"] + form, scheme: "http://")
        #expect(said.output.contains(shown), "\(said.all)")
        #expect(!said.output.unicodeScalars.contains { $0 == "\u{1b}" || $0 == "\u{9b}" })
    }

    /// The outcome of a verb whose server answers with a JSON.
    private func answer(_ body: String, to verb: [String], scheme: String = "") async throws -> Cluster.Outcome {
        let group = MultiThreadedEventLoopGroup(numberOfThreads: 1)
        let server = try await ServerBootstrap(group: group)
            .childChannelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    try channel.pipeline.syncOperations.addHandler(CannedAnswer(body: body))
                }
            }
            .bind(host: "127.0.0.1", port: 0).get()
        let port = try #require(server.localAddress?.port)
        let said = try Cluster.run(
            verb + ["--server", "\(scheme)127.0.0.1:\(port)"], environment: ["APUS_ADMIN_TOKEN": "token"])
        try await group.shutdownGracefully()
        #expect(said.status == 0, "\(said.all)")
        return said
    }
}

/// Answers every request with the same JSON.
private final class CannedAnswer: ChannelInboundHandler {
    typealias InboundIn = ByteBuffer
    typealias OutboundOut = ByteBuffer

    private let body: String

    init(body: String) { self.body = body }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: \(body.utf8.count)\r\n"
        let answer = ByteBuffer(string: head + "Connection: close\r\n\r\n" + body)
        context.writeAndFlush(wrapOutboundOut(answer), promise: nil)
    }
}

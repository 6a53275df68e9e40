import ApusCore
import NIOCore
import NIOPosix
import Synchronization

/// A TCP server on 127.0.0.1 that answers each HTTP/1.1 request with bytes that a test chooses.
///
/// Concurrency model: any task. Each connection is confined to its event loop.
final class ScriptedServer: Sendable {
    /// What the server does with a request.
    enum Reply: Sendable {
        case bytes(String)
        /// The bytes, then the end of the connection.
        case last(String)
        /// Bytes with a pause before each part.
        case parts([String], TimeAmount)
        /// The first part at once, and each further one with ``ScriptedServer/goOn()``.
        case steps([String])
        case nothing
    }

    private struct State: Sendable {
        var requests: [String] = []
        var connectionCount = 0
        var openCount = 0
        var listener: (any Channel)?
        var waiting: [(channel: any Channel, part: String)] = []
    }

    private let reply: @Sendable (String, Int) -> Reply
    private let state = Mutex(State())

    private init(_ reply: @escaping @Sendable (String, Int) -> Reply) { self.reply = reply }

    /// - Parameter reply: for the text of a request and its number, from 1.
    static func start(_ reply: @escaping @Sendable (String, Int) -> Reply) async throws -> ScriptedServer {
        let server = ScriptedServer(reply)
        let listener = try await ServerBootstrap(group: MultiThreadedEventLoopGroup.singleton)
            .serverChannelOption(.socketOption(.so_reuseaddr), value: 1)
            .serverChannelOption(.backlog, value: 512)
            .childChannelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    try channel.pipeline.syncOperations.addHandler(Answering(server))
                }
            }
            .bind(host: "127.0.0.1", port: 0).get()
        server.state.withLock { $0.listener = listener }
        return server
    }

    func stop() async throws { try await state.withLock { $0.listener.take() }?.close() }

    var port: Int { state.withLock { $0.listener?.localAddress?.port } ?? 0 }
    var url: String { "http://127.0.0.1:\(port)/" }
    var requests: [String] { state.withLock { $0.requests } }
    /// Connections since the start.
    var connectionCount: Int { state.withLock { $0.connectionCount } }
    /// Connections that are open.
    var openCount: Int { state.withLock { $0.openCount } }

    /// Sends the next part that waits.
    func goOn() {
        let next = state.withLock { $0.waiting.isEmpty ? nil : $0.waiting.removeFirst() }
        next?.channel.writeAndFlush(ByteBuffer(string: next?.part ?? ""), promise: nil)
    }

    fileprivate func wait(_ channel: any Channel, _ parts: some Sequence<String>) {
        let waiting = parts.map { (channel, $0) }
        state.withLock { $0.waiting += waiting }
    }

    fileprivate func opened() {
        state.withLock { state in
            state.connectionCount += 1
            state.openCount += 1
        }
    }

    fileprivate func closed() { state.withLock { $0.openCount -= 1 } }

    fileprivate func received(_ request: String) -> Reply {
        let number = state.withLock { state in
            state.requests.append(request)
            return state.requests.count
        }
        return reply(request, number)
    }
}

/// An answer with a body.
func httpAnswer(_ body: String, status: String = "200 OK", headers: String = "") -> String {
    "HTTP/1.1 \(status)\r\nContent-Length: \(body.utf8.count)\r\n\(headers)\r\n\(body)"
}

/// Confined to the event loop.
private final class Answering: ChannelInboundHandler {
    typealias InboundIn = ByteBuffer

    private let server: ScriptedServer
    private var text = ""

    init(_ server: ScriptedServer) { self.server = server }

    func channelActive(context: ChannelHandlerContext) { server.opened() }
    func channelInactive(context: ChannelHandlerContext) { server.closed() }
    func errorCaught(context: ChannelHandlerContext, error: any Error) { context.close(promise: nil) }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        text += String(buffer: unwrapInboundIn(data))
        while let request = takeRequest() { perform(server.received(request), context) }
    }

    /// A request with its body; nil before it is complete.
    private func takeRequest() -> String? {
        guard let end = text.firstRange(of: "\r\n\r\n") else { return nil }
        let head = text[..<end.lowerBound].lowercased()
        let length = head.firstMatch(of: /content-length: (\d+)/).flatMap { Int($0.1) } ?? 0
        let rest = text[end.upperBound...]
        guard rest.utf8.count >= length else { return nil }
        let last = rest.utf8.index(rest.startIndex, offsetBy: length)
        defer { text = String(text[last...]) }
        return String(text[..<last])
    }

    private func perform(_ reply: ScriptedServer.Reply, _ context: ChannelHandlerContext) {
        let channel = context.channel
        switch reply {
        case .bytes(let text): channel.writeAndFlush(ByteBuffer(string: text), promise: nil)
        case .last(let text):
            channel.writeAndFlush(ByteBuffer(string: text)).whenComplete { _ in channel.close(promise: nil) }
        case .parts(let parts, let pause):
            for (index, part) in parts.enumerated() {
                channel.eventLoop.scheduleTask(in: pause * (index + 1)) {
                    channel.writeAndFlush(ByteBuffer(string: part), promise: nil)
                }
            }
        case .steps(let parts):
            server.wait(channel, parts.dropFirst())
            channel.writeAndFlush(ByteBuffer(string: parts.first ?? ""), promise: nil)
        case .nothing: break
        }
    }
}

import ApusCore
import ApusTestKit
import ApusWyoming
import NIOCore
import NIOPosix
import Synchronization

/// A client of a Wyoming server, as Home Assistant is one.
final class WyomingTestClient: Sendable {
    private struct State {
        var messages: [WyomingMessage] = []
        var isClosed = false
    }

    private let channel: any Channel
    private let state: Heard

    /// What was received.
    private final class Heard: ChannelInboundHandler, @unchecked Sendable {  // SAFETY: a Mutex guards the state.
        typealias InboundIn = ByteBuffer

        let state = Mutex(State())
        private let decoder = Mutex(WyomingDecoder())

        func channelRead(context: ChannelHandlerContext, data: NIOAny) {
            let bytes = unwrapInboundIn(data)
            decoder.withLock { decoder in
                decoder.append(bytes)
                while let event = try? decoder.next() {
                    if let message = try? WyomingMessage(event) { state.withLock { $0.messages.append(message) } }
                }
            }
        }

        func channelInactive(context: ChannelHandlerContext) { state.withLock { $0.isClosed = true } }

        func errorCaught(context: ChannelHandlerContext, error: any Error) { context.close(promise: nil) }
    }

    init(_ address: WyomingAddress) async throws {
        let heard = Heard()
        let bootstrap = ClientBootstrap(group: MultiThreadedEventLoopGroup.singleton)
            .channelInitializer { $0.pipeline.addHandler(heard) }
        switch address {
        case .unix(let path): channel = try await bootstrap.connect(unixDomainSocketPath: path).get()
        case .tcp(let address): channel = try await bootstrap.connect(host: address.host, port: address.port).get()
        }
        state = heard
    }

    deinit { channel.close(promise: nil) }

    var isClosed: Bool { state.state.withLock(\.isClosed) }

    func send(_ messages: WyomingMessage...) throws {
        var bytes = ByteBuffer()
        for message in messages { try message.event.encode(into: &bytes) }
        channel.writeAndFlush(bytes, promise: nil)
    }

    func send(_ text: String) { channel.writeAndFlush(ByteBuffer(string: text), promise: nil) }

    func close() { channel.close(promise: nil) }

    /// The next message; nil if the connection was closed.
    func next() async throws -> WyomingMessage? {
        for _ in 0..<3000 {
            let (message, isClosed) = state.state.withLock { state in
                (state.messages.isEmpty ? nil : state.messages.removeFirst(), state.isClosed)
            }
            if let message { return message }
            if isClosed { return nil }
            try await Task.sleep(for: .milliseconds(10))
        }
        throw TestFailure("the server says nothing for 30 s")
    }

    /// The code of the next message, which must be an error.
    func nextCode() async throws -> String? {
        let message = try await next()
        guard case .error(_, let code) = message else {
            throw TestFailure("an error is expected, and not \(String(describing: message))")
        }
        return code
    }
}

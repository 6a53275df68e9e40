package import ApusCore
package import ApusWyoming
package import Logging
package import NIOCore
import NIOPosix
import Synchronization

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// What a server of the Wyoming protocol does with the messages of one connection.
///
/// Concurrency model: called on the connection's event loop.
package protocol WyomingServing: AnyObject {
    func received(_ message: WyomingMessage)
    /// The connection is closed. Nothing is received any more.
    func closed()
}

/// A connection of a client, as its server has it.
///
/// Concurrency model: any thread.
package struct WyomingServerConnection: Sendable {
    let channel: any Channel

    package var eventLoop: any EventLoop { channel.eventLoop }

    /// Sends a message. One that cannot be encoded closes the connection.
    package func send(_ message: WyomingMessage) {
        var buffer = ByteBuffer()
        do throws(ApusError) {
            try message.event.encode(into: &buffer)
        } catch {
            return channel.close(promise: nil)
        }
        channel.writeAndFlush(buffer, promise: nil)
    }

    /// Closes the connection, after what was sent before.
    package func close() { channel.eventLoop.execute { [channel] in channel.close(promise: nil) } }
}

/// A listener for clients of the Wyoming protocol, at a unix socket of this user or at a loopback address: the protocol
/// has no authentication and no encryption.
///
/// Bounded: as many connections as its maker says, of which each holds one event that is not complete. A connection
/// that breaks the protocol, or that does not read what is sent to it, gets an `error` and is closed.
///
/// Concurrency model: any thread.
package final class WyomingListener: Sendable {
    /// What may be written to a client that does not read, in bytes.
    private static let outboundByteCountMax = 8 << 20

    /// Where it listens; with the port that the system has chosen.
    package let address: WyomingAddress
    private let listener: any Channel
    private let connections: WyomingConnections

    /// Listens.
    ///
    /// - Parameters:
    ///   - connectionsMax: one more connection is closed at once.
    ///   - serve: makes what serves a new connection. Called on its event loop.
    /// - Throws: 10019 if the address is in use or cannot be used.
    package init(
        _ address: WyomingAddress, connectionsMax: Int, on group: any EventLoopGroup, log: Logger,
        serve: @escaping @Sendable (WyomingServerConnection) -> any WyomingServing
    ) async throws(ApusError) {
        // A client that is gone is seen by the result of the write.
        signal(SIGPIPE, SIG_IGN)
        let connections = WyomingConnections(max: connectionsMax, log: log)
        self.connections = connections
        let bootstrap = ServerBootstrap(group: group)
            .serverChannelOption(.backlog, value: 256)
            .serverChannelOption(.socketOption(.so_reuseaddr), value: 1)
            .childChannelOption(
                .writeBufferWaterMark, value: .init(low: Self.outboundByteCountMax / 4, high: Self.outboundByteCountMax)
            )
            .childChannelInitializer { channel in
                channel.eventLoop.makeCompletedFuture {
                    try channel.pipeline.syncOperations.addHandler(WyomingServerHandler(connections, serve))
                }
            }
        do {
            switch address {
            case .unix(let path):
                // A socket of a process that was killed stays behind.
                listener = try await bootstrap.bind(unixDomainSocketPath: path, cleanupExistingSocketFile: true).get()
                chmod(path, 0o600)
                self.address = address
            case .tcp(let wanted):
                listener = try await bootstrap.bind(host: wanted.host, port: wanted.port).get()
                let port = listener.localAddress?.port ?? wanted.port
                self.address = .tcp(HostPort(host: wanted.host, port: port))
            }
        } catch {
            throw ApusError(.addressInUse, "\(address) cannot be opened: \(error)")
        }
    }

    /// Takes no more connections. Those that there are stay.
    package func refuse() { connections.refuse() }

    /// Closes the listener, removes its socket, and closes the connections after what was sent on them.
    package func close() async {
        refuse()
        try? await listener.close()
        if case .unix(let path) = address { unlink(path) }
        connections.close()
    }
}

/// The connections of a listener.
///
/// Concurrency model: any thread. A `Mutex` guards them.
private final class WyomingConnections: Sendable {
    private struct State {
        var channels: [ObjectIdentifier: any Channel] = [:]
        var isRefusing = false
    }

    let log: Logger
    private let max: Int
    private let state = Mutex(State())

    init(max: Int, log: Logger) { (self.max, self.log) = (max, log) }

    /// False if there are too many, or no more are taken.
    func opened(_ channel: any Channel) -> Bool {
        state.withLock { state in
            guard state.channels.count < max, !state.isRefusing else { return false }
            state.channels[ObjectIdentifier(channel)] = channel
            return true
        }
    }

    func closed(_ channel: any Channel) { state.withLock { $0.channels[ObjectIdentifier(channel)] = nil } }

    func refuse() { state.withLock { $0.isRefusing = true } }

    func close() {
        for channel in state.withLock({ Array($0.channels.values) }) {
            WyomingServerConnection(channel: channel).close()
        }
    }
}

/// Decodes what a client sends.
///
/// Concurrency model: on its channel's event loop.
private final class WyomingServerHandler: ChannelInboundHandler {
    typealias InboundIn = ByteBuffer
    typealias OutboundOut = ByteBuffer

    private let connections: WyomingConnections
    private let serve: @Sendable (WyomingServerConnection) -> any WyomingServing
    private let reader = WyomingReader()
    /// Nil: not accepted, or closed.
    private var server: (any WyomingServing)?

    init(
        _ connections: WyomingConnections, _ serve: @escaping @Sendable (WyomingServerConnection) -> any WyomingServing
    ) {
        (self.connections, self.serve) = (connections, serve)
    }

    func channelActive(context: ChannelHandlerContext) {
        guard connections.opened(context.channel) else { return context.close(promise: nil) }
        server = serve(WyomingServerConnection(channel: context.channel))
    }

    func channelInactive(context: ChannelHandlerContext) {
        connections.closed(context.channel)
        end()
        context.fireChannelInactive()
    }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        guard server != nil else { return }
        do throws(ApusError) {
            try reader.take(unwrapInboundIn(data)) { message throws(ApusError) in
                // A client that does not read its answers gets no more of them.
                guard context.channel.isWritable else { throw ApusError(.slowReader) }
                server?.received(message)
            }
        } catch {
            fail(error, context)
        }
    }

    func errorCaught(context: ChannelHandlerContext, error: any Error) { context.close(promise: nil) }

    /// Where the next event begins is unknown after an error: the connection is closed.
    private func fail(_ error: ApusError, _ context: ChannelHandlerContext) {
        connections.log.info("A connection broke the protocol", metadata: Logger.facts(of: error))
        end()
        WyomingServerConnection(channel: context.channel)
            .send(.error(text: error.description, code: "apus-protocol"))
        context.close(promise: nil)
    }

    private func end() {
        let server = server
        self.server = nil
        server?.closed()
    }
}

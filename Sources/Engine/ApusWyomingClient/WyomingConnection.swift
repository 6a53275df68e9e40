package import ApusCore
package import ApusWyoming
package import NIOCore
import NIOPosix
import Synchronization

/// A connection to a speech provider, for one utterance or one text; or a lasting one, to a satellite.
///
/// Bounded: it receives at most ``byteCountMax`` bytes in all, a lasting one as many that nobody has taken, and one
/// event as ``WyomingDecoder`` allows. Beyond that, or at bytes that are no event, it closes.
///
/// Concurrency model: any thread. A `Mutex` guards what was received.
package final class WyomingConnection: Sendable {
    /// What a provider may send on one connection: a reply of a minute at 48,000 samples a second, with its headers.
    package static let byteCountMax = 8 << 20
    private static let connectTimeout = TimeAmount.milliseconds(500)

    private struct Received {
        var messages: [WyomingMessage] = []
        var error: ApusError?
        var byteCount = 0
        var waiter: CheckedContinuation<Void, Never>?
    }

    private let received = Mutex(Received())
    private let channel = Mutex<(any Channel)?>(nil)

    private let isLasting: Bool

    private init(isLasting: Bool) { self.isLasting = isLasting }

    deinit { channel.withLock(\.self)?.close(promise: nil) }

    /// - Throws: 21022 if the provider cannot be connected to.
    package static func open(
        _ address: WyomingAddress, on group: any EventLoopGroup, isLasting: Bool = false
    ) async throws(ApusError) -> WyomingConnection {
        let connection = WyomingConnection(isLasting: isLasting)
        let bootstrap = ClientBootstrap(group: group).connectTimeout(connectTimeout)
            .channelInitializer { [weak connection] channel in
                channel.eventLoop.makeCompletedFuture {
                    guard let connection else { return }
                    try channel.pipeline.syncOperations.addHandler(WyomingHandler(connection))
                }
            }
        do {
            let channel =
                switch address {
                case .unix(let path): try await bootstrap.connect(unixDomainSocketPath: path).get()
                case .tcp(let address): try await bootstrap.connect(host: address.host, port: address.port).get()
                }
            connection.channel.withLock { $0 = channel }
            return connection
        } catch {
            throw ApusError(.connectFailed, "\(address) cannot be connected to")
        }
    }

    /// Sends a message. One that cannot be encoded closes the connection.
    package func send(_ message: WyomingMessage) {
        var buffer = ByteBuffer()
        do throws(ApusError) {
            try message.event.encode(into: &buffer)
        } catch {
            return fail(error)
        }
        channel.withLock(\.self)?.writeAndFlush(buffer, promise: nil)
    }

    /// What has arrived since the last call.
    ///
    /// - Throws: why the connection has ended, once everything before was taken.
    package func take() throws(ApusError) -> [WyomingMessage] {
        let (messages, error) = received.withLock { received in
            defer { received.messages = [] }
            if isLasting { received.byteCount = 0 }
            return (received.messages, received.error)
        }
        if messages.isEmpty, let error { throw error }
        return messages
    }

    /// Waits until something arrives, and returns it.
    ///
    /// - Throws: why the connection has ended; 10005 at the deadline; 10006 if the task is cancelled.
    package func next(until deadline: MonotonicTime) async throws(ApusError) -> [WyomingMessage] {
        while true {
            let messages = try take()
            guard messages.isEmpty else { return messages }
            let left = try deadline.timeLeft()
            let timer = Task { [weak self] in
                try? await Task.sleep(for: left)
                self?.wake()
            }
            await withTaskCancellationHandler {
                await withCheckedContinuation { continuation in
                    let isReady = received.withLock { received in
                        guard received.messages.isEmpty, received.error == nil, !Task.isCancelled else { return true }
                        received.waiter = continuation
                        return false
                    }
                    if isReady { continuation.resume() }
                }
            } onCancel: {
                wake()
            }
            timer.cancel()
            guard !Task.isCancelled else { throw ApusError(.cancelled) }
        }
    }

    /// Closes the connection. Further calls have no effect.
    package func close() { channel.withLock(\.self)?.close(promise: nil) }

    private func wake() {
        received.withLock { received in
            defer { received.waiter = nil }
            return received.waiter
        }?.resume()
    }

    /// False if there are too many bytes.
    fileprivate func count(_ bytes: Int) -> Bool {
        received.withLock { received in
            received.byteCount += bytes
            return received.byteCount <= Self.byteCountMax
        }
    }

    fileprivate func receive(_ message: WyomingMessage) {
        received.withLock { $0.messages.append(message) }
        wake()
    }

    fileprivate func fail(_ error: ApusError) {
        received.withLock { if $0.error == nil { $0.error = error } }
        close()
        wake()
    }
}

/// Decodes what a provider sends.
private final class WyomingHandler: ChannelInboundHandler {
    typealias InboundIn = ByteBuffer

    private let connection: WyomingConnection
    private let reader = WyomingReader()

    init(_ connection: WyomingConnection) { self.connection = connection }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        let bytes = unwrapInboundIn(data)
        guard connection.count(bytes.readableBytes) else {
            return connection.fail(ApusError(.frameTooLarge, "the other side sends too much"))
        }
        do throws(ApusError) {
            try reader.take(bytes) { connection.receive($0) }
        } catch {
            connection.fail(error)
        }
    }

    func channelInactive(context: ChannelHandlerContext) {
        connection.fail(ApusError(.linkLost, "the other side has closed the connection"))
    }

    func errorCaught(context: ChannelHandlerContext, error: any Error) {
        connection.fail(ApusError(.linkLost, "the connection is lost"))
    }
}

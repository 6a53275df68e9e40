package import ApusCore
package import ApusWyoming
package import NIOCore
import NIOPosix
import Synchronization

/// A connection to a speech provider, for one utterance or one text.
///
/// Bounded: it receives at most ``byteCountMax`` bytes in all, and one event as ``WyomingDecoder`` allows. Beyond that,
/// or at bytes that are no event, it closes.
///
/// Concurrency model: any thread. A `Mutex` guards what was received.
package final class WyomingConnection: Sendable {
    /// What a provider may send on one connection: a reply of a minute at 48,000 samples a second, with its headers.
    package static let byteCountMax = 8 << 20
    private static let connectTimeout = TimeAmount.milliseconds(500)

    private struct Received {
        var messages: [WyomingMessage] = []
        var error: ApusError?
        var waiter: CheckedContinuation<Void, Never>?
    }

    private let received = Mutex(Received())
    private let channel = Mutex<(any Channel)?>(nil)

    private init() {}

    deinit { channel.withLock(\.self)?.close(promise: nil) }

    /// - Throws: 21022 if the provider cannot be connected to.
    package static func open(
        _ address: WyomingAddress, on group: any EventLoopGroup
    ) async throws(ApusError) -> WyomingConnection {
        let connection = WyomingConnection()
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
            throw ApusError(.connectFailed, "the speech provider \(address) cannot be connected to")
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
    private var decoder = WyomingDecoder()
    private var byteCount = 0

    init(_ connection: WyomingConnection) { self.connection = connection }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        let bytes = unwrapInboundIn(data)
        byteCount += bytes.readableBytes
        guard byteCount <= WyomingConnection.byteCountMax else {
            return connection.fail(ApusError(.frameTooLarge, "the speech provider sends too much"))
        }
        decoder.append(bytes)
        do throws(ApusError) {
            while let event = try decoder.next() { connection.receive(try WyomingMessage(event)) }
        } catch {
            connection.fail(error)
        }
    }

    func channelInactive(context: ChannelHandlerContext) {
        connection.fail(ApusError(.linkLost, "the speech provider has closed the connection"))
    }

    func errorCaught(context: ChannelHandlerContext, error: any Error) {
        connection.fail(ApusError(.linkLost, "the connection to the speech provider is lost"))
    }
}

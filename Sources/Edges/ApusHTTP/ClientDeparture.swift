import ApusCore
import ApusTransport
import NIOCore
import Synchronization

/// Cancels the request of an HTTP/1.1 connection when its client closes the connection, or its direction of it.
///
/// Nobody waits for such a request any more. Its client may have been answered by another node meanwhile, and must not
/// find that this node carries it out again, much later.
///
/// Concurrency model: the state is behind a `Mutex`. A connection has one request at a time.
final class ClientDeparture: Sendable {
    private struct State {
        var hasLeft = false
        var cancel: (@Sendable () -> Void)?
    }

    private let state = Mutex(State())
    private let executor: LoopTaskExecutor

    init(executor: LoopTaskExecutor) { self.executor = executor }

    /// Carries out the connection's request. The body is cancelled when the client leaves, or the caller is cancelled.
    func cancelling<Value: Sendable>(_ body: @escaping @Sendable () async -> Value) async -> Value {
        let task = Task.immediate(executorPreference: executor) { await body() }
        let hasLeft = state.withLock { state in
            state.cancel = { task.cancel() }
            return state.hasLeft
        }
        if hasLeft { task.cancel() }
        let value = await withTaskCancellationHandler {
            await task.value
        } onCancel: {
            task.cancel()
        }
        state.withLock { $0.cancel = nil }
        return value
    }

    fileprivate func left() {
        let cancel = state.withLock { state in
            state.hasLeft = true
            return state.cancel
        }
        cancel?()
    }
}

/// Notices the end of the client's direction of a connection. Confined to its event loop.
final class ClientDepartureHandler: ChannelInboundHandler, RemovableChannelHandler {
    typealias InboundIn = Any

    let departure: ClientDeparture

    init(_ departure: ClientDeparture) { self.departure = departure }

    func userInboundEventTriggered(context: ChannelHandlerContext, event: Any) {
        if case .inputClosed? = event as? ChannelEvent { departure.left() }
        context.fireUserInboundEventTriggered(event)
    }

    func channelInactive(context: ChannelHandlerContext) {
        departure.left()
        context.fireChannelInactive()
    }
}

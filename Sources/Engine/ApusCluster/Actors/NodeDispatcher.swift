package import ApusCore
package import ApusTransport
import ApusWire
import NIOCore
import SwiftProtobuf
import Synchronization

/// Receives every request of other nodes. Methods below 0x0100 address the node itself; the others go to the entity
/// that their header names (D1).
///
/// The transport is created before the registry. The dispatcher is therefore created first, and ``connect(_:)`` sets
/// the registry. Requests before that are refused with 10017.
package final class NodeDispatcher: ControlHandler {
    private typealias Handler = @Sendable (InboundRequest) -> Void

    private struct State {
        var handlers: [UInt16: Handler] = [:]
        var entities: EntityRegistry?
        /// By method, for messages of this node's own entities. Handed on in order.
        var own: [UInt16: @Sendable (any NodeMessage) -> Void] = [:]
    }

    private let state = Mutex(State())

    package init() {}

    /// Gives the registry that takes the entities' messages.
    package func connect(_ entities: EntityRegistry) {
        state.withLock { $0.entities = entities }
        entities.setOwnMessages { [weak self] message in
            self?.state.withLock { $0.own[type(of: message).method] }?(message)
        }
    }

    /// Adds a message type that this node takes itself, and that entities of any node send, this one's included
    /// (``EntityScope/tell(_:_:)``). The body must not block.
    ///
    /// - Precondition: as ``on(_:_:)``.
    package func onTell<M: NodeMessage>(_ type: M.Type, _ body: @escaping @Sendable (M) -> Void) {
        on(type) { _, message in
            body(message)
            return M.Reply()
        }
        onOwnTell(type, body)
    }

    /// Adds a message type that entities send their own node only. Other nodes are refused with 10004. The body must
    /// not block.
    package func onOwnTell<M: NodeMessage>(_ type: M.Type, _ body: @escaping @Sendable (M) -> Void) {
        state.withLock { state in
            state.own[M.method] = { message in
                if let message = message as? M { body(message) }
            }
        }
    }

    /// Adds a message type that the node itself handles. Bodies start in the order of arrival, on the connection's
    /// event loop. The part before their first suspension must be short.
    ///
    /// - Precondition: the method is below 0x0100 and has no other handler.
    package func on<M: NodeMessage>(
        _ type: M.Type, _ body: @escaping @Sendable (NodeID, M) async throws(ApusError) -> M.Reply
    ) {
        precondition(M.method < 0x0100, "method \(M.method) belongs to an entity, not to a node")
        state.withLock { state in
            precondition(state.handlers[M.method] == nil, "method \(M.method) has two handlers")
            state.handlers[M.method] = { request in
                request.run {
                    do throws(ApusError) {
                        let reply = try await body(request.peer, try M(reading: request.payload))
                        return .reply(try reply.encoded().buffer)
                    } catch {
                        return .failure(CallFailure(error))
                    }
                }
            }
        }
    }

    package func received(_ request: InboundRequest) {
        guard request.method < 0x0100 else {
            guard let entities = state.withLock({ $0.entities }) else {
                return request.fail(ApusError(.shuttingDown, "this node is not yet ready"))
            }
            return entities.received(request)
        }
        guard let handler = state.withLock({ $0.handlers[request.method] }) else {
            return request.fail(ApusError(.methodUnknown))
        }
        handler(request)
    }
}

extension Transport {
    /// Sends a message to a node and waits for the answer. Errors are as in
    /// ``Transport/ask(_:method:payload:timeout:)``, and 10001 for an answer that cannot be decoded.
    package func ask<M: NodeMessage>(
        _ peer: NodeName, _ message: M, timeout: Duration
    ) async throws(ApusError) -> M.Reply {
        let reply = try await ask(peer, method: M.method, payload: try message.encoded().buffer, timeout: timeout)
        return try M.readReply(reply)
    }

    /// Sends a message without an answer to a node.
    package func tell<M: NodeMessage>(_ peer: NodeName, _ message: M) throws(ApusError) {
        try tell(peer, method: M.method, payload: try message.encoded().buffer)
    }
}

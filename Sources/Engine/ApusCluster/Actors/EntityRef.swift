package import ApusCore
import ApusTransport
import ApusWire
import NIOCore
import SwiftProtobuf

/// A reference to an entity that does not say where it lives (D1).
///
/// A call goes to the shard's owner as this node knows it. Where that node says that the shard moved,
/// or cannot be reached, or the shard is being handed over, the call waits for a newer map and is
/// tried again until its deadline. A call that may have been carried out is only tried again where
/// its message is idempotent. To an entity on this node the message goes without being serialized.
package struct EntityRef<Entity: Actor>: Sendable {
    package let address: EntityAddress
    let registry: EntityRegistry
    /// Nil where this node has no such entities.
    let host: EntityHost<Entity>?

    /// What becomes of one try.
    private enum Try<Reply: Sendable> {
        case done(Reply)
        case failed(ApusError)
        /// The shard is not where it was thought to be.
        case elsewhere(Epoch?)
        case unreachable
    }

    /// Sends a message and waits for the answer.
    ///
    /// - Parameter timeout: for all tries together.
    /// - Throws: 10005 after the deadline, 10006 where the task was cancelled, 10007 over a bound, 10008
    ///   where the link was lost under way, 10004 for a method that is not handled, or the handler's.
    package func ask<M: EntityMessage>(
        _ message: M, timeout: Duration = .seconds(5)
    ) async throws(ApusError) -> M.Reply {
        let deadline = MonotonicTime.now() + timeout
        var delay = Duration.milliseconds(1)
        while true {
            let attempt: Try<M.Reply>
            switch registry.callRoute(address.shard) {
            case (.local(let epoch), _): attempt = await askHere(message, epoch)
            case (.remote(_, let slot, let epoch), let peer?):
                attempt = await ask(message, peer, epoch, deadline: deadline)
                if case .unreachable = attempt { registry.forgetPeer(slot: slot) }
            case (.remote, nil), (.nobody, _): attempt = .unreachable
            }
            switch attempt {
            case .done(let reply): return reply
            case .failed(let error): throw error
            case .elsewhere(let epoch?): registry.onMoved(address.shard, epoch)
            case .elsewhere(nil), .unreachable: break
            }
            guard MonotonicTime.now() + delay < deadline else {
                throw ApusError(.deadlineExceeded, "the entity's owner could not be reached before the deadline")
            }
            do {
                try await Task.sleep(for: delay)
            } catch {
                throw ApusError(.cancelled)
            }
            delay = min(delay * 2, registry.configuration.retryDelayMax)
        }
    }

    /// Sends a message that wants no answer. It is tried once: it is lost where the link or the
    /// shard's owner is lost before it was handled.
    ///
    /// - Throws: 10010 where no owner is linked, 10009 where the shard is being handed over, 10007
    ///   over a bound, 10004 where this node, the owner, does not handle the message.
    package func tell<M: EntityMessage>(_ message: M) throws(ApusError) {
        switch registry.route(address.shard) {
        case .nobody: throw ApusError(.noRoute)
        case .local(let epoch): try tellHere(message, epoch)
        case .remote(let owner, _, let epoch):
            try registry.transport.tell(owner, method: M.method, payload: try encode(message, epoch))
        }
    }

    // MARK: On this node

    private func admit<M: EntityMessage>(
        _ type: M.Type, _ epoch: Epoch
    ) throws(ApusError) -> (EntityActivation<Entity>, TypedHandler<Entity, M>, EntityHost<Entity>) {
        guard let host, let handler = host.handlers[M.method]?.typed as? TypedHandler<Entity, M> else {
            throw ApusError(.methodUnknown)
        }
        switch host.admit(address.key, address.shard, epoch) {
        case .moved: throw ApusError(.moved)
        case .overloaded: throw ApusError(.overloaded)
        case .admitted(let activation): return (activation, handler, host)
        }
    }

    private func askHere<M: EntityMessage>(_ message: M, _ epoch: Epoch) async -> Try<M.Reply> {
        do throws(ApusError) {
            let (activation, handler, host) = try admit(M.self, epoch)
            let result: Result<M.Reply, ApusError>
            do throws(ApusError) {
                result = .success(try await handler.body(activation.actor, message))
            } catch {
                result = .failure(error)
            }
            guard host.finish(activation, key: address.key) else { return .elsewhere(nil) }
            return .done(try result.get())
        } catch {
            return error.code == .moved ? .elsewhere(nil) : .failed(error)
        }
    }

    private func tellHere<M: EntityMessage>(_ message: M, _ epoch: Epoch) throws(ApusError) {
        let (activation, handler, host) = try admit(M.self, epoch)
        let key = address.key
        // Started at once, so that the order of the sender's messages is the order on the actor; the
        // mailbox bound counts it.
        Task.immediate {
            // A tell's failure has no reader.
            _ = try? await handler.body(activation.actor, message)
            _ = host.finish(activation, key: key)
        }
    }

    // MARK: On another node

    private func ask<M: EntityMessage>(
        _ message: M, _ peer: PeerRoute, _ epoch: Epoch, deadline: MonotonicTime
    ) async -> Try<M.Reply> {
        do throws(ApusError) {
            let payload = try encode(message, epoch)
            switch await peer.call(method: M.method, payload: payload, deadline: deadline) {
            case .reply(let reply):
                return .done(try M.readReply(reply))
            case .failure(let failure):
                switch failure.error.code {
                case .moved: return .elsewhere(failure.epoch)
                case .noRoute: return .unreachable
                case .linkLost where M.isIdempotent: return .unreachable
                default: return .failed(failure.error)
                }
            }
        } catch {
            return .failed(error)
        }
    }

    private func encode<M: EntityMessage>(_ message: M, _ epoch: Epoch) throws(ApusError) -> ByteBuffer {
        var bytes = try message.encoded()
        bytes.prepend(EntityHeader(kind: address.kind, shard: address.shard, epoch: epoch, key: address.key))
        return bytes.buffer
    }
}

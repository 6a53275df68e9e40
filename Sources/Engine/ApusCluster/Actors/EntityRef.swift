package import ApusCore
import ApusTransport
import ApusWire
import NIOCore
import SwiftProtobuf

/// How a try on this node failed.
private enum Obstacle: Error {
    case refused(ApusError)
    /// The shard is not here any more.
    case moved

    /// As whoever does not try again says it.
    var lastWord: ApusError {
        switch self {
        case .refused(let error): error
        case .moved: ApusError(.moved)
        }
    }
}

/// A reference to an entity that does not say where it lives (D1).
///
/// A call goes to the shard's owner as this node knows it. Where that node says that the shard moved,
/// or cannot be reached, or the shard is being handed over, the call waits for a newer map and is
/// tried again until its deadline. A call that may have been carried out is only tried again where
/// its message is idempotent or has a request id. To an entity on this node the message goes without being serialized.
package struct EntityRef<Entity: Actor>: Sendable {
    package let address: EntityAddress
    let registry: EntityRegistry
    /// Nil if this node has no such entities.
    let host: EntityHost?

    /// Sends a message and waits for the answer.
    ///
    /// - Parameters:
    ///   - timeout: for all tries together.
    ///   - call: on whose behalf it is sent, and through whom. With a request id the message is repeated where it may
    ///     have been carried out, since the entity then answers what it answered before.
    /// - Throws: 10005 after the deadline, 10006 if the task was cancelled, 10007 over a bound, 10008
    ///   if the link or the shard was lost under way, 10004 for a method that is not handled, 10013 if the asking
    ///   entity's shard has another owner, or the handler's.
    package func ask<M: EntityMessage>(
        _ message: M, timeout: Duration = .seconds(5), call: EntityCall = EntityCall()
    ) async throws(ApusError) -> M.Reply {
        let deadline = MonotonicTime.now() + timeout
        // The first try is apart from those that follow, for which much more is kept.
        if case .remote(let peer, let slot, let epoch) = registry.callRoute(address.shard) {
            let sent = try request(message, peer, epoch, call, timeLeft: timeout, deadline: deadline)
            switch await sent.outcome() {
            case .reply(let reply): return try M.readReply(reply)
            case .failure(let failure): try note(failure, slot: slot, mayRepeat: M.isIdempotent || call.request != nil)
            }
            return try await askAgain(message, call, deadline: deadline, isFirst: false)
        }
        return try await askAgain(message, call, deadline: deadline, isFirst: true)
    }

    private func askAgain<M: EntityMessage>(
        _ message: M, _ call: EntityCall, deadline: MonotonicTime, isFirst: Bool
    ) async throws(ApusError) -> M.Reply {
        let mayRepeat = M.isIdempotent || call.request != nil
        var call = call
        var delay = Duration.milliseconds(1)
        var isFirst = isFirst
        while true {
            if !isFirst {
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
            isFirst = false
            let timeLeft = deadline - MonotonicTime.now()
            switch registry.callRoute(address.shard) {
            case .local(let epoch):
                call.timeLeft = timeLeft
                do throws(Obstacle) {
                    return try await askHere(message, epoch, call)
                } catch {
                    switch error {
                    case .moved: break
                    case .refused(let error) where error.code == .linkLost && mayRepeat: break
                    case .refused(let error): throw error
                    }
                }
            case .remote(let peer, let slot, let epoch):
                let sent = try request(message, peer, epoch, call, timeLeft: timeLeft, deadline: deadline)
                switch await sent.outcome() {
                case .reply(let reply): return try M.readReply(reply)
                case .failure(let failure): try note(failure, slot: slot, mayRepeat: mayRepeat)
                }
            case .nowhere: break
            }
        }
    }

    /// Sends a message that wants no answer. It is tried once: it is lost where the link or the
    /// shard's owner is lost before it was handled.
    ///
    /// - Throws: 10010 if no owner is linked, 10009 if the shard is being handed over, 10007
    ///   over a bound, 10004 if this node, the owner, does not handle the message.
    package func tell<M: EntityMessage>(_ message: M, call: EntityCall = EntityCall()) throws(ApusError) {
        switch registry.callRoute(address.shard) {
        case .nowhere: throw ApusError(.noRoute)
        case .local(let epoch): try tellHere(message, epoch, call)
        case .remote(let peer, let slot, let epoch):
            do throws(ApusError) {
                try tell(message, peer, epoch, call)
            } catch {
                // The peer may have a new link, for its next incarnation.
                guard error.code == .noRoute else { throw error }
                registry.forgetPeer(slot: slot)
                guard case .remote(let peer, _, let epoch) = registry.callRoute(address.shard) else { throw error }
                try tell(message, peer, epoch, call)
            }
        }
    }

    // MARK: On this node

    private func admit<M: EntityMessage>(
        _ type: M.Type, _ epoch: Epoch, _ call: EntityCall
    ) throws(Obstacle) -> (EntityActivation, TypedHandler<M>, EntityHost) {
        guard let host, let handler = host.handler(of: M.method)?.typed as? TypedHandler<M> else {
            throw Obstacle.refused(ApusError(.methodUnknown))
        }
        if let error = registry.refusal(of: call.chain) { throw Obstacle.refused(error) }
        switch host.admit(address.key, address.shard, epoch) {
        case .moved: throw Obstacle.moved
        case .overloaded: throw Obstacle.refused(ApusError(.overloaded))
        case .admitted(let activation): return (activation, handler, host)
        }
    }

    private func askHere<M: EntityMessage>(
        _ message: M, _ epoch: Epoch, _ call: EntityCall
    ) async throws(Obstacle) -> M.Reply {
        let (activation, handler, host) = try admit(M.self, epoch, call)
        let result: Result<M.Reply, ApusError>
        switch handler.run {
        case .inPlace(let body):
            if activation.executor.enter() {
                result = body(activation.actor, message)
                activation.executor.leave()
            } else {
                result = await withCheckedContinuation { continuation in
                    activation.executor.later { continuation.resume(returning: body(activation.actor, message)) }
                }
            }
        case .inTask(let body):
            do throws(ApusError) {
                result = .success(try await body(activation.actor, message))
            } catch {
                result = .failure(error)
            }
        case .deferred(let body):
            // Its answer counts whatever has become of the shard.
            let answer = await withCheckedContinuation { continuation in
                activation.executor.perform {
                    body(activation.actor, message, call) { continuation.resume(returning: $0) }
                }
            }
            _ = host.finish(activation)
            return try Self.value(answer)
        }
        guard host.finish(activation) else { throw Obstacle.refused(EntityHost.leftUnderWay) }
        return try Self.value(result)
    }

    private static func value<Reply>(_ result: Result<Reply, ApusError>) throws(Obstacle) -> Reply {
        do throws(ApusError) {
            return try result.get()
        } catch {
            // A handler's own word that a shard moved is one, too.
            throw error.code == .moved ? Obstacle.moved : Obstacle.refused(error)
        }
    }

    private func tellHere<M: EntityMessage>(_ message: M, _ epoch: Epoch, _ call: EntityCall) throws(ApusError) {
        do throws(Obstacle) {
            let (activation, handler, host) = try admit(M.self, epoch, call)
            start(message, call, activation, handler, host)
        } catch {
            throw error.lastWord
        }
    }

    private func start<M: EntityMessage>(
        _ message: M, _ call: EntityCall, _ activation: EntityActivation,
        _ handler: TypedHandler<M>, _ host: EntityHost
    ) {
        // The mailbox bound counts what waits. A tell's failure has no reader.
        switch handler.run {
        case .inPlace(let body):
            // Not in place: a chain of entities that tell each other would be one of calls.
            activation.executor.later {
                _ = body(activation.actor, message)
                _ = host.finish(activation)
            }
        case .inTask(let body):
            // Started at once, so that the order of the sender's messages is the order on the actor.
            Task.immediate {
                _ = try? await body(activation.actor, message)
                _ = host.finish(activation)
            }
        case .deferred(let body):
            activation.executor.later {
                body(activation.actor, message, call) { _ in _ = host.finish(activation) }
            }
        }
    }

    // MARK: On another node

    private func request<M: EntityMessage>(
        _ message: M, _ peer: PeerRoute, _ epoch: Epoch, _ call: EntityCall, timeLeft: Duration,
        deadline: MonotonicTime
    ) throws(ApusError) -> SentRequest {
        let bytes = try message.encoded()
        let (header, milliseconds) = (makeHeader(epoch), EntityCall.milliseconds(timeLeft))
        let byteCount = header.byteCount + call.byteCount(isWaitedFor: true) + bytes.count
        return peer.request(
            lane: Int(address.shard.rawValue), method: M.method, byteCount: byteCount, deadline: deadline
        ) { buffer in
            RawWriter.append(byteCount, to: &buffer) { Self.write(header, call, milliseconds, bytes, into: &$0) }
        }
    }

    private func tell<M: EntityMessage>(
        _ message: M, _ peer: PeerRoute, _ epoch: Epoch, _ call: EntityCall
    ) throws(ApusError) {
        let bytes = try message.encoded()
        let (header, milliseconds) = (makeHeader(epoch), call.timeLeft.map(EntityCall.milliseconds))
        let byteCount = header.byteCount + call.byteCount(isWaitedFor: milliseconds != nil) + bytes.count
        try peer.tell(lane: Int(address.shard.rawValue), method: M.method, byteCount: byteCount) { buffer in
            RawWriter.append(byteCount, to: &buffer) { Self.write(header, call, milliseconds, bytes, into: &$0) }
        }
    }

    private static func write(
        _ header: EntityHeader, _ call: EntityCall, _ milliseconds: UInt32?, _ bytes: borrowing EncodedMessage,
        into writer: inout RawWriter
    ) {
        header.encode(into: &writer)
        call.encode(millisecondsLeft: milliseconds, into: &writer)
        bytes.withUnsafeBytes { writer.write($0) }
    }

    private func makeHeader(_ epoch: Epoch) -> EntityHeader {
        EntityHeader(kind: address.kind, shard: address.shard, epoch: epoch, key: address.key)
    }

    /// Prepares the next try, where the failure allows one; throws it where it does not.
    private func note(_ failure: CallFailure, slot: Int, mayRepeat: Bool) throws(ApusError) {
        switch failure.error.code {
        case .moved:
            if let epoch = failure.epoch { registry.onMoved(address.shard, epoch) }
        case .noRoute: registry.forgetPeer(slot: slot)
        case .linkLost where mayRepeat: registry.forgetPeer(slot: slot)
        default: throw failure.error
        }
    }
}

package import ApusCore
import ApusTracing
import ApusTransport
import ApusWire
import NIOCore
import SwiftProtobuf

/// Why an attempt on this node failed.
private enum Obstacle: Error {
    case refused(ApusError)
    /// The shard is no longer at this node.
    case moved

    /// The error to report if there is no further attempt.
    var lastWord: ApusError {
        switch self {
        case .refused(let error): error
        case .moved: ApusError(.moved)
        }
    }
}

/// A location-independent reference to an entity (D1).
///
/// A call goes to the shard's owner in this node's map. The call waits for a newer map, and is tried again until its
/// deadline, if the owner answers that the shard moved, the owner cannot be reached, or the shard is being handed over.
/// A call that may have been carried out is repeated only if its message is idempotent or has a request id. A message
/// to an entity on this node is not serialized.
package struct EntityRef<Entity: Actor>: Sendable {
    package let address: EntityAddress
    let registry: EntityRegistry
    /// Nil if this node does not host entities of this kind.
    let host: EntityHost?

    /// Sends a message and waits for the answer.
    ///
    /// - Parameters:
    ///   - timeout: for all attempts together.
    ///   - call: the sender and the identity on whose behalf it is sent. With a request id the message is repeated even
    ///     if it may have been carried out, since the entity then repeats its stored answer.
    /// - Throws: 10005 after the deadline, 10010 if this node is in a minority that does not hear the owner, 10006 if
    ///   the task was cancelled, 10007 if a limit is reached, 10008 if the link or the shard was lost in flight, 10004
    ///   for a method that is not handled, 10013 if the sending entity's shard has another owner, or the handler's
    ///   error.
    package func ask<M: EntityMessage>(
        _ message: M, timeout: Duration = .seconds(5), call: EntityCall = EntityCall()
    ) async throws(ApusError) -> M.Reply {
        if registry.transport.tracer != nil, call.trace == nil, let trace = TraceContext.current {
            var call = call
            call.trace = trace
            return try await ask(message, timeout: timeout, call: call)
        }
        let start = MonotonicTime.now()
        if let error = registry.view.refusal(of: address.shard, now: start) { throw error }
        let deadline = start + timeout
        // The first attempt is separate from the repetitions, which keep much more state.
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
        var delays = Backoff(first: .milliseconds(1), longest: registry.configuration.retryDelayMax)
        var isFirst = isFirst
        while true {
            if !isFirst {
                let delay = delays.next()
                guard MonotonicTime.now() + delay < deadline else {
                    throw ApusError(.deadlineExceeded, "the entity's owner could not be reached before the deadline")
                }
                do {
                    try await Task.sleep(for: delay)
                } catch {
                    throw ApusError(.cancelled)
                }
                if let error = registry.view.refusal(of: address.shard, now: .now()) { throw error }
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

    /// Sends a message without an answer. It is tried once, and is lost if the link or the shard's owner is lost before
    /// it was handled.
    ///
    /// - Throws: 10010 if no owner is linked, 10009 if the shard is being handed over, 10007 if a limit is reached,
    ///   10004 if this node is the owner and does not handle the message.
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
        if let error = registry.refusal(of: call.sender) { throw Obstacle.refused(error) }
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
            // The answer is valid even if the shard has left in the meantime.
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
            // A handler may itself answer that a shard moved.
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
        // The mailbox limit counts waiting messages. Nobody receives a tell's failure.
        switch handler.run {
        case .inPlace(let body):
            // Not in place: a chain of entities that send tells to each other would become a chain of nested calls.
            activation.executor.later {
                _ = body(activation.actor, message)
                _ = host.finish(activation)
            }
        case .inTask(let body):
            // Started at once, so that the actor receives messages in the order of the sender.
            let run = {
                _ = Task.immediate {
                    _ = try? await body(activation.actor, message)
                    _ = host.finish(activation)
                }
            }
            // The message may be sent in the task of another one. A one-way message is part of no trace.
            if registry.transport.tracer == nil { run() } else { TraceContext.within(nil, run) }
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
            lane: Int(address.shard.rawValue), method: M.method, byteCount: byteCount, deadline: deadline,
            trace: call.trace
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

    /// Prepares the next attempt if the failure allows one. Otherwise throws the failure.
    private func note(_ failure: CallFailure, slot: Int, mayRepeat: Bool) throws(ApusError) {
        switch failure.error.code {
        case .moved:
            if let epoch = failure.epoch { registry.onMoved(address.shard, epoch) }
        case .noRoute:
            // The owner is on the same side, and in the same minority.
            guard !registry.view.permission.refuses(now: .now()) else { throw failure.error }
            registry.forgetPeer(slot: slot)
        case .linkLost where mayRepeat: registry.forgetPeer(slot: slot)
        default: throw failure.error
        }
    }
}

extension EntityRegistry {
    /// A reference to an entity at any node. It is cheap to create and may be kept.
    package func ref<Entity: Actor>(_ type: Entity.Type, _ address: EntityAddress) -> EntityRef<Entity> {
        let host = host(address.kind).flatMap { $0.holds(type) ? $0 : nil }
        return EntityRef(address: address, registry: self, host: host)
    }
}

import ApusContract
package import ApusCore
import ApusSessions
import ApusThreads
package import ApusTracing
package import NIOCore

/// What all connections of a node share to serve requests.
package struct ClientServices: Sendable {
    package let api: ClientAPI
    /// Nil for a listener without topics.
    package let topics: TopicService?
    package let configuration: ClientAPIConfiguration
    package let quotas: ClientQuotas
    package let metrics: ClientMetrics
    package let audit: AuditLog
    /// Nil if this node does not trace.
    package let tracer: SpanTracer?

    package init(
        _ api: ClientAPI, topics: TopicService?, configuration: ClientAPIConfiguration, audit: AuditLog,
        tracer: SpanTracer? = nil
    ) {
        (self.api, self.topics, self.configuration, self.audit) = (api, topics, configuration, audit)
        self.tracer = tracer
        quotas = ClientQuotas(configuration)
        metrics = ClientMetrics(api)
    }

    /// When a request ends at the latest that came now.
    package func deadline(asked: Duration?, now: MonotonicTime = .now()) -> MonotonicTime {
        now + min(asked ?? configuration.requestTimeout, configuration.requestTimeoutMax)
    }

    /// A client's connection has closed.
    package func ended(_ connection: any ClientConnection) {
        topics?.ended(connection)
        for kind in api.topics { kind.ended(connection) }
    }

    /// Carries a request out, with its quota, metrics, audit line and span: the way of all three protocols.
    package func carryOut(
        _ operation: ClientOperation, _ work: ClientWork, _ call: ClientCall
    ) async -> Result<ByteBuffer, ApusError> {
        guard let tracer, let span = tracer.request(operation.info.name, of: call.trace, call.facts) else {
            return await perform(operation, work, call)
        }
        let result = await span.run { await perform(operation, work, call) }
        if case .failure(let error) = result { span.fail(error.code) }
        span.end()
        return result
    }

    private func perform(
        _ operation: ClientOperation, _ work: ClientWork, _ call: ClientCall
    ) async -> Result<ByteBuffer, ApusError> {
        let start = MonotonicTime.now()
        let result: Result<ByteBuffer, ApusError>
        do throws(ApusError) {
            result = .success(try await work.run(call))
        } catch {
            result = .failure(error)
        }
        var error: ApusError?
        if case .failure(let failure) = result { error = failure }
        metrics.ended(operation.info, after: .now() - start, isFailure: error != nil)
        if operation.info.isAudited {
            audit.note(operation.info.name, target: work.target(), by: AuditActor(call.session), error)
        }
        return result
    }
}

/// The requests of one connection, over the native protocol or WebSocket (D17).
///
/// Concurrency model: confined to the connection's event loop; the work runs in tasks that the connection's listener
/// owns.
package final class ClientCalls {
    private struct Piece: Sendable {
        let operation: ClientOperation
        let work: ClientWork
        let call: ClientCall
        let handle: CancellableWork
    }

    private let services: ClientServices
    private let eventLoop: any EventLoop
    private let spawn: (@escaping @Sendable () async -> Void) -> Void
    private let answer: (UInt32, Result<ByteBuffer, ApusError>) -> Void
    private var machine: ClientCallsStateMachine<Piece>
    private var handles: [UInt32: CancellableWork] = [:]
    private var alarm: (at: MonotonicTime, task: Scheduled<Void>)?

    /// - Parameters:
    ///   - spawn: runs a piece in a task of the listener, concurrently with all others.
    ///   - answer: sends the answer to the request of this number; called on the event loop.
    package init(
        _ services: ClientServices, on eventLoop: any EventLoop,
        spawn: @escaping (@escaping @Sendable () async -> Void) -> Void,
        answer: @escaping (UInt32, Result<ByteBuffer, ApusError>) -> Void
    ) {
        (self.services, self.eventLoop, self.spawn, self.answer) = (services, eventLoop, spawn, answer)
        machine = ClientCallsStateMachine(callsMax: services.configuration.requestsPerConnectionMax)
    }

    /// A request came; it is answered in any case.
    package func received(
        _ id: UInt32, _ operation: ClientOperation, _ payload: ByteBuffer, _ encoding: ClientEncoding,
        _ call: ClientCall
    ) {
        do throws(ApusError) {
            try services.quotas.take(operation.info, of: call.session.account)
            let work = try operation.read(payload, encoding)
            let piece = Piece(operation: operation, work: work, call: call, handle: CancellableWork())
            switch machine.received(id, key: work.orderKey, deadline: call.deadline, piece) {
            case .start(let piece): start(id, piece)
            case .wait: break
            case .refuse(let error): throw error
            }
            setAlarm()
        } catch {
            answer(id, .failure(error))
        }
    }

    /// The client has cancelled the request.
    package func cancelled(_ id: UInt32) {
        if machine.cancelled(id) { handles[id]?.cancel() }
    }

    /// The connection has closed.
    package func closed() {
        for id in machine.closed() { handles[id]?.cancel() }
        alarm?.task.cancel()
        alarm = nil
    }

    private func start(_ id: UInt32, _ piece: Piece) {
        handles[id] = piece.handle
        let bound = NIOLoopBound(self, eventLoop: eventLoop)
        let (services, eventLoop) = (services, eventLoop)
        spawn {
            let result = await piece.handle.run { await services.carryOut(piece.operation, piece.work, piece.call) }
            eventLoop.execute { bound.value.ended(id, result) }
        }
    }

    private func ended(_ id: UInt32, _ result: Result<ByteBuffer, ApusError>) {
        handles[id] = nil
        let ended = machine.ended(id)
        if ended.answers { answer(id, result) }
        if let next = ended.next { start(next.id, next.work) }
    }

    /// Sees to it that overdue requests are answered. An alarm that comes too early sets the next.
    private func setAlarm() {
        guard let next = machine.nextDeadline else { return }
        if let alarm, alarm.at <= next { return }
        alarm?.task.cancel()
        let bound = NIOLoopBound(self, eventLoop: eventLoop)
        let delay = TimeAmount.nanoseconds(max(0, (next - .now()).nanoseconds))
        alarm = (next, eventLoop.assumeIsolated().scheduleTask(in: delay) { bound.value.alarmRang() })
    }

    private func alarmRang() {
        alarm = nil
        for (id, runs) in machine.overdue(now: .now()) {
            if runs { handles[id]?.cancel() }
            answer(id, .failure(ApusError(.deadlineExceeded)))
        }
        setAlarm()
    }
}

extension ClientCall {
    /// The attributes of a request's span.
    fileprivate var facts: KeyValuePairs<String, String> {
        [
            "apus.protocol": connection?.protocolName ?? "rest", LogKey.account: session.account.rawValue,
            "apus.role": session.role.rawValue,
        ]
    }
}

package import ApusCore
package import ApusTracing
import ApusWire
import CoreMetrics
package import NIOCore
import Synchronization

/// Handles requests from other nodes.
package protocol ControlHandler: Sendable {
    /// Handles a request or a tell. Those of one sender come in the order in which it sent them.
    ///
    /// Called on the connection's event loop. Answer at once, or start work with ``InboundRequest/run(_:)`` and return.
    func received(_ request: InboundRequest)
}

/// A request from another node. It must be answered exactly once; later answers have no effect.
package struct InboundRequest: Sendable {
    /// The sender, authenticated by the handshake.
    package var peer: NodeID { connection.peer }
    package let method: UInt16
    /// A slice of the connection's read buffer. Copy it to keep it longer than the call.
    package let payload: ByteBuffer
    /// Runs tasks on the connection's event loop. Work that must keep the order of arrival starts on it.
    package var executor: LoopTaskExecutor { connection.executor }
    /// False for a tell: its answers are discarded.
    package var wantsReply: Bool { correlation != nil }
    /// The span of the request, which ends with its answer; nil if it is not traced.
    package let span: TraceSpan?

    fileprivate let correlation: UInt32?
    fileprivate let connection: ControlServer

    /// Sends the answer. Call from any thread.
    package func reply(_ payload: ByteBuffer) { finish(.reply(payload)) }

    /// Sends an answer, which the closure appends to the connection's output. Call from any thread. On the connection's
    /// event loop the answer needs no allocation.
    ///
    /// - Parameter byteCount: the number of bytes that the closure appends.
    package func reply(byteCount: Int, _ write: (inout ByteBuffer) -> Void) {
        if let correlation { connection.respond(correlation, byteCount: byteCount, write) }
    }

    /// Answers with an error. Call from any thread.
    ///
    /// - Parameters:
    ///   - epoch: with 10009, the shard's epoch in this node's map.
    ///   - owner: with 10009, the shard's owner in this node's map.
    package func fail(_ error: ApusError, epoch: Epoch? = nil, owner: NodeName? = nil) {
        finish(.failure(CallFailure(error, epoch: epoch, owner: owner)))
    }

    /// Answers with a reply or an error.
    package func finish(_ outcome: CallOutcome) {
        if let span { span.note(outcome) }
        if let correlation { connection.respond(correlation, outcome) }
    }

    /// Runs the operation in a task of its own, whose result is the answer. The task starts at once on this thread and
    /// continues on ``executor``. It belongs to the request's trace. It is cancelled if the caller cancels, if the
    /// deadline passes, or if the link is lost. The task of a tell is never cancelled. Call on the event loop.
    ///
    /// Limit: ``TransportConfiguration/inFlightMax`` tasks per connection. A further one is refused with 10007.
    ///
    /// - Returns: false if it was refused.
    @discardableResult
    package func run(_ operation: @escaping @Sendable () async -> CallOutcome) -> Bool {
        guard let span else { return connection.run(correlation, operation) }
        return TraceContext.within(span.trace) {
            connection.run(correlation) {
                let outcome = await operation()
                span.note(outcome)
                return outcome
            }
        }
    }
}

/// The serving end of a control lane. Another node dialled the lane, and sends its calls and tells over it.
///
/// Concurrency model: confined to ``loop``. Answers from other threads wait behind the `Mutex` until the loop's next
/// turn. One flush at the end of a read sends the answers given during it. Later answers schedule one flush.
final class ControlServer: LaneSession, @unchecked Sendable {  // SAFETY: `respond` and `ended` check the thread.
    private struct Running {
        var generation: UInt16 = 0
        var isOpen = false
        var task: Task<Void, Never>?
        var span: TraceSpan?
    }

    /// The outcome of a call, encoded.
    private struct Answer: Sendable {
        /// Nil for a tell.
        var correlation: UInt32?
        var flags: FrameFlags = []
        var payload = ByteBuffer()
        /// The number of tasks that ended with this answer.
        var taskCount: Int
    }

    let executor: LoopTaskExecutor
    private let loop: any EventLoop
    fileprivate let peer: NodeID
    private let limits: ControlLink.Limits
    private let metrics: TransportMetrics
    private let tracer: SpanTracer?
    private let handler: any ControlHandler
    private let codec = Mutex(ZstdCodec())
    /// Answers from other threads.
    private let foreign = Mutex<[Answer]>([])

    // Used on the loop, and never across a call to other code: checks of exclusive access cost 5 % of a call.
    @exclusivity(unchecked) private var channel: (any Channel)?
    /// Indexed by the caller's slot number, the low 16 bits of the correlation.
    @exclusivity(unchecked) private var calls: [Running] = []
    /// Tasks that have not ended, including cancelled ones.
    @exclusivity(unchecked) private var taskCount = 0
    @exclusivity(unchecked) private var output = OutputQueue()

    init(
        channel: any Channel, peer: NodeID, executor: LoopTaskExecutor, limits: ControlLink.Limits,
        metrics: TransportMetrics, tracer: SpanTracer?, handler: any ControlHandler
    ) {
        loop = channel.eventLoop
        self.channel = channel
        self.executor = executor
        self.peer = peer
        self.limits = limits
        self.metrics = metrics
        self.tracer = tracer
        self.handler = handler
    }

    // MARK: LaneSession

    func readBegan() {
        // The end of the read flushes, so answers during the read schedule no flush.
        _ = output.promiseFlush()
    }

    func received(_ frame: LinkFrame) throws(ApusError) {
        switch frame.kind {
        case .request:
            let trace = try frame.flags.contains(.traced) ? frame.trace() : nil
            let payload = try unpack(frame, codec: codec, byteCountMax: limits.frameByteCountMax)
            try open(frame.correlation)
            let span = trace == nil ? nil : startSpan(frame, trace)
            handler.received(
                InboundRequest(
                    method: frame.method, payload: payload, span: span, correlation: frame.correlation,
                    connection: self))
        case .tell:
            let payload = try unpack(frame, codec: codec, byteCountMax: limits.frameByteCountMax)
            handler.received(
                InboundRequest(
                    method: frame.method, payload: payload, span: nil, correlation: nil, connection: self))
        case .cancel:
            _ = close(frame.correlation, cancelling: true)
        default:
            throw ApusError(.malformed, "a \(frame.kind) frame on a serving lane")
        }
    }

    func batchHandled() {
        readCompleted()
        readBegan()
    }

    func readCompleted() {
        // Runs handlers that only hop to an actor, so that one write sends their answers too.
        executor.drain()
        flush()
    }

    func writabilityChanged() { flush() }

    func closed() {
        channel = nil
        output.reset()
        let (tasks, spans) = (calls.compactMap(\.task), calls.compactMap(\.span))
        calls = []
        for task in tasks { task.cancel() }
        for span in spans { span.end(.failed(.linkLost)) }
    }

    // MARK: Running calls

    private func open(_ correlation: UInt32) throws(ApusError) {
        let index = Int(correlation & 0xffff)
        guard index < limits.inFlightMax else {
            throw ApusError(.malformed, "a call's slot is over the limit of calls in flight")
        }
        while calls.count <= index { calls.append(Running()) }
        guard !calls[index].isOpen else { throw ApusError(.malformed, "a call took the slot of an open one") }
        calls[index].generation = UInt16(truncatingIfNeeded: correlation >> 16)
        calls[index].isOpen = true
    }

    /// Removes a call's entry. Returns false, without effect, if the call is not open.
    private func close(_ correlation: UInt32, cancelling: Bool = false) -> Bool {
        guard let index = openIndex(correlation) else { return false }
        calls[index].isOpen = false
        if let task = calls[index].task {
            calls[index].task = nil
            if cancelling { task.cancel() }
        }
        if let span = calls[index].span {
            calls[index].span = nil
            if cancelling { span.fail(.cancelled) }
            span.end()
        }
        return true
    }

    /// Starts the span of an open request, which ends in ``close(_:cancelling:)``. Nil if it is not traced.
    private func startSpan(_ frame: LinkFrame, _ trace: TraceContext?) -> TraceSpan? {
        guard let trace, let tracer, let index = openIndex(frame.correlation) else { return nil }
        let span = tracer.answer(to: frame.method, from: peer.name, of: trace)
        calls[index].span = span
        return span
    }

    private func openIndex(_ correlation: UInt32) -> Int? {
        let index = Int(correlation & 0xffff)
        guard index < calls.count, calls[index].isOpen,
            calls[index].generation == UInt16(truncatingIfNeeded: correlation >> 16)
        else { return nil }
        return index
    }

    fileprivate func run(_ correlation: UInt32?, _ operation: @escaping @Sendable () async -> CallOutcome) -> Bool {
        loop.preconditionInEventLoop()
        guard taskCount < limits.inFlightMax else {
            metrics.overloaded.increment()
            if let correlation {
                if let index = openIndex(correlation) { calls[index].span?.fail(.overloaded) }
                respond(correlation, .failed(.overloaded))
            }
            return false
        }
        taskCount += 1
        let task = Task.immediate(executorPreference: executor) {
            let outcome = await operation()
            self.ended(correlation, outcome)
        }
        if let correlation, let index = openIndex(correlation) { calls[index].task = task }
        return true
    }

    /// The task of a call or a tell ended.
    private func ended(_ correlation: UInt32?, _ outcome: CallOutcome) {
        guard let correlation else { return take(Answer(taskCount: 1)) }
        let (flags, payload) = pack(outcome)
        take(Answer(correlation: correlation, flags: flags, payload: payload, taskCount: 1))
    }

    // MARK: Answers

    fileprivate func respond(_ correlation: UInt32, _ outcome: CallOutcome) {
        let (flags, payload) = pack(outcome)
        take(Answer(correlation: correlation, flags: flags, payload: payload, taskCount: 0))
    }

    fileprivate func respond(_ correlation: UInt32, byteCount: Int, _ write: (inout ByteBuffer) -> Void) {
        guard loop.inEventLoop, byteCount < limits.compressionThreshold, byteCount <= limits.frameByteCountMax else {
            var payload = ByteBufferAllocator().buffer(capacity: byteCount)
            write(&payload)
            return respond(correlation, .reply(payload))
        }
        append(correlation, [], byteCount: byteCount, write)
    }

    /// Ends the call on the loop, from any thread.
    private func take(_ answer: Answer) {
        guard !loop.inEventLoop else { return apply(answer) }
        let isFirst = foreign.withLock { answers in
            answers.append(answer)
            return answers.count == 1
        }
        if isFirst { loop.execute { self.takeForeign() } }
    }

    private func takeForeign() {
        var answers: [Answer] = []
        foreign.withLock { swap(&$0, &answers) }
        for answer in answers { apply(answer) }
    }

    private func apply(_ answer: Answer) {
        taskCount -= answer.taskCount
        guard let correlation = answer.correlation else { return }
        append(correlation, answer.flags, byteCount: answer.payload.readableBytes) {
            $0.writeImmutableBuffer(answer.payload)
        }
    }

    private func append(
        _ correlation: UInt32, _ flags: FrameFlags, byteCount: Int, _ write: (inout ByteBuffer) -> Void
    ) {
        let isOver = output.byteCount + byteCount > limits.outboundByteCountMax
        if isOver, let index = openIndex(correlation) { calls[index].span?.fail(.overloaded) }
        guard close(correlation), channel != nil else { return }
        // A caller that does not read receives short refusals. The number of slots bounds them.
        if isOver {
            let refusal = ClusterFailure.payload(of: ApusError(.overloaded))
            appendFrame(correlation, .failure, byteCount: refusal.readableBytes) { $0.writeImmutableBuffer(refusal) }
        } else {
            appendFrame(correlation, flags, byteCount: byteCount, write)
        }
        if output.promiseFlush() { loop.execute { self.flush() } }
    }

    private func appendFrame(
        _ correlation: UInt32, _ flags: FrameFlags, byteCount: Int, _ write: (inout ByteBuffer) -> Void
    ) {
        output.append { buffer in
            LinkFrame.encodeHeader(
                kind: .response, flags: flags, correlation: correlation, payloadByteCount: byteCount, into: &buffer)
            write(&buffer)
        }
    }

    private func pack(_ outcome: CallOutcome) -> (FrameFlags, ByteBuffer) {
        switch outcome {
        case .failure(let failure):
            return (
                .failure, ClusterFailure.payload(of: failure.error, epoch: failure.epoch, owner: failure.owner)
            )
        case .reply(let payload):
            guard payload.readableBytes <= limits.frameByteCountMax else {
                return (.failure, ClusterFailure.payload(of: ApusError(.frameTooLarge)))
            }
            guard payload.readableBytes >= limits.compressionThreshold,
                let packed = codec.withLock({ $0.compress(payload) })
            else { return ([], payload) }
            return (.compressed, packed)
        }
    }

    private func flush() {
        // The socket is full. The flush stays scheduled until the channel is writable again.
        guard let channel, channel.isWritable, let bytes = output.take() else { return }
        channel.writeAndFlush(bytes, promise: nil)
        output.giveBack(bytes)
    }
}

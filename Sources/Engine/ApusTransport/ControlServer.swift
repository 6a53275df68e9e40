package import ApusCore
import ApusWire
import CoreMetrics
package import NIOCore
import Synchronization

/// Takes the requests of other nodes.
package protocol ControlHandler: Sendable {
    /// A request or a tell came, in the order in which its sender sent it. On the connection's event
    /// loop: answer at once, or start work with ``InboundRequest/run(_:)`` and return.
    func received(_ request: InboundRequest)
}

/// A request of another node. It is to be answered exactly once; a later answer has no effect.
package struct InboundRequest: Sendable {
    /// Who asks, as the handshake proved it.
    package var peer: NodeID { connection.peer }
    package let method: UInt16
    /// A slice of the connection's read buffer: copy it to keep it for long.
    package let payload: ByteBuffer
    /// Runs on the connection's event loop; work that keeps the order of arrival starts on it.
    package var executor: LoopTaskExecutor { connection.executor }
    /// False for a tell, whose answers go nowhere.
    package var wantsReply: Bool { correlation != nil }

    fileprivate let correlation: UInt32?
    fileprivate let connection: ControlServer

    /// Answers. From any thread.
    package func reply(_ payload: ByteBuffer) { finish(.reply(payload)) }

    /// Answers with the bytes that the closure appends to the connection's output. From any thread; on
    /// the connection's event loop nothing is allocated for them.
    ///
    /// - Parameter byteCount: how many the closure appends.
    package func reply(byteCount: Int, _ write: (inout ByteBuffer) -> Void) {
        if let correlation { connection.respond(correlation, byteCount: byteCount, write) }
    }

    /// Refuses. From any thread.
    ///
    /// - Parameters:
    ///   - epoch: with 10009, the shard's epoch as this node knows it.
    ///   - owner: with 10009, the owner as this node knows it.
    package func fail(_ error: ApusError, epoch: Epoch? = nil, owner: NodeName? = nil) {
        finish(.failure(CallFailure(error, epoch: epoch, owner: owner)))
    }

    /// Answers with either.
    package func finish(_ outcome: CallOutcome) {
        if let correlation { connection.respond(correlation, outcome) }
    }

    /// Runs the operation in a task of its own that starts at once, on this thread, and goes on on
    /// ``executor``; its result is the answer. The task is cancelled when the caller cancels, when
    /// its deadline passes and when the link is lost; a tell's task is not. Call it on the event loop.
    ///
    /// Bound: ``TransportConfiguration/inFlightMax`` tasks per connection; more are refused with 10007.
    ///
    /// - Returns: false where it was refused.
    @discardableResult
    package func run(_ operation: @escaping @Sendable () async -> CallOutcome) -> Bool {
        connection.run(correlation, operation)
    }
}

/// The serving end of a control lane: another node dialled it and sends its calls and tells over it.
///
/// Concurrency model: confined to ``loop``; answers of other threads wait behind the `Mutex` for one
/// turn of the loop. Answers given during a read leave with the flush at its end, later ones with one
/// scheduled flush.
final class ControlServer: LaneSession, @unchecked Sendable {  // SAFETY: `respond` and `ended` ask for the thread.
    private struct Running {
        var generation: UInt16 = 0
        var isOpen = false
        var task: Task<Void, Never>?
    }

    /// The end of a call, packed for the wire.
    private struct Answer: Sendable {
        /// Nil for a tell.
        var correlation: UInt32?
        var flags: FrameFlags = []
        var payload = ByteBuffer()
        /// Tasks that ended with it.
        var taskCount: Int
    }

    let executor: LoopTaskExecutor
    private let loop: any EventLoop
    fileprivate let peer: NodeID
    private let limits: ControlLink.Limits
    private let metrics: TransportMetrics
    private let handler: any ControlHandler
    private let codec = Mutex(ZstdCodec())
    /// Answers of other threads.
    private let foreign = Mutex<[Answer]>([])

    // On the loop, and never across a call of somebody else: the checks of exclusive access cost 5 % of a call.
    @exclusivity(unchecked) private var channel: (any Channel)?
    /// By the caller's slot number, the low 16 bits of the correlation.
    @exclusivity(unchecked) private var calls: [Running] = []
    /// Tasks that have not ended, cancelled ones included.
    @exclusivity(unchecked) private var taskCount = 0
    @exclusivity(unchecked) private var output = OutputQueue()

    init(
        channel: any Channel, peer: NodeID, executor: LoopTaskExecutor, limits: ControlLink.Limits,
        metrics: TransportMetrics, handler: any ControlHandler
    ) {
        loop = channel.eventLoop
        self.channel = channel
        self.executor = executor
        self.peer = peer
        self.limits = limits
        self.metrics = metrics
        self.handler = handler
    }

    // MARK: LaneSession

    func readBegan() {
        // Whoever answers during the read need not schedule a flush: the read's end is one.
        _ = output.promiseFlush()
    }

    func received(_ frame: LinkFrame) throws(ApusError) {
        switch frame.kind {
        case .request:
            let payload = try unpack(frame, codec: codec, byteCountMax: limits.frameByteCountMax)
            try open(frame.correlation)
            handler.received(
                InboundRequest(
                    method: frame.method, payload: payload, correlation: frame.correlation, connection: self))
        case .tell:
            let payload = try unpack(frame, codec: codec, byteCountMax: limits.frameByteCountMax)
            handler.received(
                InboundRequest(method: frame.method, payload: payload, correlation: nil, connection: self))
        case .cancel:
            _ = close(frame.correlation, cancelling: true)
        default:
            throw ApusError(.malformed, "a \(frame.kind) frame on a serving lane")
        }
    }

    func breathed() {
        readCompleted()
        readBegan()
    }

    func readCompleted() {
        // Handlers that only hop to an actor are done after this, so their answers leave in one write.
        executor.drain()
        flush()
    }

    func writabilityChanged() { flush() }

    func closed() {
        channel = nil
        output.reset()
        let tasks = calls.compactMap(\.task)
        calls = []
        for task in tasks { task.cancel() }
    }

    // MARK: Running calls

    private func open(_ correlation: UInt32) throws(ApusError) {
        let index = Int(correlation & 0xffff)
        guard index < limits.inFlightMax else {
            throw ApusError(.malformed, "a call's slot is over the bound of calls in flight")
        }
        while calls.count <= index { calls.append(Running()) }
        guard !calls[index].isOpen else { throw ApusError(.malformed, "a call took the slot of an open one") }
        calls[index].generation = UInt16(truncatingIfNeeded: correlation >> 16)
        calls[index].isOpen = true
    }

    /// Ends a call's entry; false, with no effect, where the call is not open.
    private func close(_ correlation: UInt32, cancelling: Bool = false) -> Bool {
        guard let index = openIndex(correlation) else { return false }
        calls[index].isOpen = false
        if let task = calls[index].task {
            calls[index].task = nil
            if cancelling { task.cancel() }
        }
        return true
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
            if let correlation { respond(correlation, .failed(.overloaded)) }
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

    /// A call's or a tell's task ended.
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

    /// Ends the call on the loop, whichever the calling thread is.
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
        guard close(correlation), channel != nil else { return }
        // A caller that does not read gets short refusals, whose number the slots bound.
        if output.byteCount + byteCount > limits.outboundByteCountMax {
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
        // While the socket is full the promise stays given: writability brings the next flush.
        guard let channel, channel.isWritable, let bytes = output.take() else { return }
        channel.writeAndFlush(bytes, promise: nil)
        output.giveBack(bytes)
    }
}

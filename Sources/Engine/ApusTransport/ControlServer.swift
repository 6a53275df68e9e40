package import ApusCore
import ApusWire
import CoreMetrics
package import NIOCore
import Synchronization

/// Takes the requests of other nodes.
package protocol ControlHandler: Sendable {
    /// A request or a tell came, in the order in which its sender sent it. On the connection's event
    /// loop: start work with ``InboundRequest/run(_:)`` and return.
    func received(_ request: InboundRequest)
}

/// A request of another node. It is to be answered exactly once; a later answer has no effect.
package struct InboundRequest: Sendable {
    /// Who asks, as the handshake proved it.
    package let peer: NodeID
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
    package func run(_ operation: @escaping @Sendable () async -> CallOutcome) {
        connection.run(correlation, operation)
    }
}

/// The serving end of a control lane: another node dialled it and sends its calls and tells over it.
///
/// Concurrency model: requests come on ``loop``; answers come from any thread. The running calls and
/// the bytes that wait stand behind one `Mutex`, held for an append or an array access only. Answers
/// given during a read leave with the flush at its end, later ones with one scheduled flush.
final class ControlServer: LaneSession, Sendable {
    private struct Running {
        var generation: UInt16 = 0
        var isOpen = false
        var task: Task<Void, Never>?
    }

    private struct State {
        var channel: (any Channel)?
        /// By the caller's slot number, the low 16 bits of the correlation.
        var calls: [Running] = []
        /// Tasks that have not ended, cancelled ones included.
        var taskCount = 0
        var output = OutputQueue()
    }

    let executor: LoopTaskExecutor
    private let loop: any EventLoop
    private let peer: NodeID
    private let limits: ControlLink.Limits
    private let metrics: TransportMetrics
    private let handler: any ControlHandler
    private let state: Mutex<State>
    private let codec = Mutex(ZstdCodec())

    init(
        channel: any Channel, peer: NodeID, executor: LoopTaskExecutor, limits: ControlLink.Limits,
        metrics: TransportMetrics, handler: any ControlHandler
    ) {
        loop = channel.eventLoop
        self.executor = executor
        self.peer = peer
        self.limits = limits
        self.metrics = metrics
        self.handler = handler
        state = Mutex(State(channel: channel))
    }

    // MARK: LaneSession

    func readBegan() {
        // Whoever answers during the read need not schedule a flush: the read's end is one.
        state.withLock { _ = $0.output.promiseFlush() }
    }

    func received(_ frame: LinkFrame) throws(ApusError) {
        switch frame.kind {
        case .request:
            let payload = try unpack(frame, codec: codec, byteCountMax: limits.frameByteCountMax)
            try open(frame.correlation)
            handler.received(
                InboundRequest(
                    peer: peer, method: frame.method, payload: payload, correlation: frame.correlation,
                    connection: self))
        case .tell:
            let payload = try unpack(frame, codec: codec, byteCountMax: limits.frameByteCountMax)
            handler.received(
                InboundRequest(
                    peer: peer, method: frame.method, payload: payload, correlation: nil, connection: self))
        case .cancel:
            let task = state.withLock { Self.close(frame.correlation, &$0) }
            task?.cancel()
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
        let tasks = state.withLock { state in
            state.channel = nil
            state.output.reset()
            let tasks = state.calls.compactMap(\.task)
            state.calls = []
            return tasks
        }
        for task in tasks { task.cancel() }
    }

    // MARK: Running calls

    private func open(_ correlation: UInt32) throws(ApusError) {
        let index = Int(correlation & 0xffff)
        guard index < limits.inFlightMax else {
            throw ApusError(.malformed, "a call's slot is over the bound of calls in flight")
        }
        let isNew = state.withLock { state in
            while state.calls.count <= index { state.calls.append(Running()) }
            guard !state.calls[index].isOpen else { return false }
            state.calls[index] = Running(generation: UInt16(truncatingIfNeeded: correlation >> 16), isOpen: true)
            return true
        }
        guard isNew else { throw ApusError(.malformed, "a call took the slot of an open one") }
    }

    /// Ends a call's entry; its task where it had one. A call that is not open has no effect.
    private static func close(_ correlation: UInt32, _ state: inout State) -> Task<Void, Never>? {
        guard let index = openIndex(correlation, state) else { return nil }
        let task = state.calls[index].task
        state.calls[index].isOpen = false
        state.calls[index].task = nil
        return task
    }

    private static func openIndex(_ correlation: UInt32, _ state: borrowing State) -> Int? {
        let index = Int(correlation & 0xffff)
        guard index < state.calls.count, state.calls[index].isOpen,
            state.calls[index].generation == UInt16(truncatingIfNeeded: correlation >> 16)
        else { return nil }
        return index
    }

    fileprivate func run(_ correlation: UInt32?, _ operation: @escaping @Sendable () async -> CallOutcome) {
        let isAdmitted = state.withLock { state in
            guard state.taskCount < limits.inFlightMax else { return false }
            state.taskCount += 1
            return true
        }
        guard isAdmitted else {
            metrics.overloaded.increment()
            if let correlation { respond(correlation, .failed(.overloaded)) }
            return
        }
        let task = Task.immediate(executorPreference: executor) {
            let outcome = await operation()
            self.taskEnded(correlation, outcome)
        }
        guard let correlation else { return }
        state.withLock { state in
            if let index = Self.openIndex(correlation, state) { state.calls[index].task = task }
        }
    }

    private func taskEnded(_ correlation: UInt32?, _ outcome: CallOutcome) {
        guard let correlation else { return state.withLock { $0.taskCount -= 1 } }
        answer(correlation, outcome, endedTaskCount: 1)
    }

    fileprivate func respond(_ correlation: UInt32, _ outcome: CallOutcome) {
        answer(correlation, outcome, endedTaskCount: 0)
    }

    private func answer(_ correlation: UInt32, _ outcome: CallOutcome, endedTaskCount: Int) {
        let (flags, payload) = pack(outcome)
        let mustFlush = state.withLock { state in
            state.taskCount -= endedTaskCount
            guard Self.openIndex(correlation, state) != nil else { return false }
            _ = Self.close(correlation, &state)
            guard state.channel != nil else { return false }
            // A caller that does not read gets short refusals, whose number the slots bound.
            if state.output.byteCount + payload.readableBytes > limits.outboundByteCountMax {
                Self.append(.failure, ClusterFailure.payload(of: ApusError(.overloaded)), correlation, &state)
            } else {
                Self.append(flags, payload, correlation, &state)
            }
            return state.output.promiseFlush()
        }
        if mustFlush { loop.execute { self.flush() } }
    }

    private static func append(
        _ flags: FrameFlags, _ payload: ByteBuffer, _ correlation: UInt32, _ state: inout State
    ) {
        state.output.append { buffer in
            LinkFrame.encodeHeader(
                kind: .response, flags: flags, correlation: correlation, payloadByteCount: payload.readableBytes,
                into: &buffer)
            buffer.writeImmutableBuffer(payload)
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
        let work = state.withLock { state -> (any Channel, ByteBuffer)? in
            guard let channel = state.channel, channel.isWritable else { return nil }
            return state.output.take().map { (channel, $0) }
        }
        guard let (channel, bytes) = work else { return }
        channel.writeAndFlush(bytes, promise: nil)
        state.withLock { $0.output.giveBack(bytes) }
    }
}

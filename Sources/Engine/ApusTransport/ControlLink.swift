import ApusCore
import ApusTracing
import ApusWire
import CoreMetrics
import NIOCore
import Synchronization

/// The calling end of a control lane. This node dialled the lane, and sends its calls and tells over it.
///
/// A payload is encoded directly behind its frame's header in the output buffer. It is not copied again, and needs no
/// allocation of its own.
///
/// Concurrency model: calls come from any thread. One `Mutex` guards the open calls and the output. It is held for an
/// append or an array access only, and continuations are resumed after its release. Writes, answers and the deadline
/// scan run on ``loop``. At most one flush is scheduled at a time, so one write sends everything appended since the
/// last one (D3).
final class ControlLink: LaneSession, @unchecked Sendable {  // SAFETY: `answers` is used on the loop only.
    private struct State {
        var channel: (any Channel)?
        var calls: CorrelationTable
        var output = OutputQueue()
        var isScanScheduled = false
    }

    struct Limits: Sendable {
        var inFlightMax: Int
        var frameByteCountMax: Int
        var outboundByteCountMax: Int
        var compressionThreshold: Int
        var deadlineScanInterval: TimeAmount
    }

    let loop: any EventLoop
    let executor: LoopTaskExecutor
    private let peer: NodeName
    private let limits: Limits
    private let metrics: TransportMetrics
    /// Nil if this node does not trace.
    private let tracer: SpanTracer?
    private let state: Mutex<State>
    private let codec = Mutex(ZstdCodec())
    /// Answers of the current read. Used on the loop only.
    @exclusivity(unchecked) private var answers: [(correlation: UInt32, outcome: CallOutcome)] = []

    init(
        loop: any EventLoop, peer: NodeName, executor: LoopTaskExecutor, limits: Limits, metrics: TransportMetrics,
        tracer: SpanTracer?
    ) {
        self.loop = loop
        self.peer = peer
        self.executor = executor
        self.limits = limits
        self.metrics = metrics
        self.tracer = tracer
        state = Mutex(State(calls: CorrelationTable(countMax: limits.inFlightMax)))
    }

    /// The handshake on this channel is complete. Call on the loop.
    func opened(_ channel: any Channel) { state.withLock { $0.channel = channel } }

    /// True from the end of the handshake to the end of the connection.
    var isOpen: Bool { state.withLock { $0.channel != nil } }

    // MARK: Calls

    /// Sends a request and waits for its outcome; see ``outcome(of:)``. If the calling task is traced, so is the
    /// request.
    func call(method: UInt16, payload: ByteBuffer, deadline: MonotonicTime) async -> CallOutcome {
        let span = tracer == nil ? nil : startSpan(of: method, TraceContext.current)
        let sent = request(method: method, byteCount: payload.readableBytes, deadline: deadline, span) {
            $0.writeImmutableBuffer(payload)
        }
        let outcome: CallOutcome
        switch sent {
        case .refused(let code): outcome = .failed(code)
        case .sent(let correlation): outcome = await self.outcome(of: correlation)
        }
        if let span { span.end(outcome) }
        return outcome
    }

    /// Starts the span of a request; nil if it is not traced.
    func startSpan(of method: UInt16, _ trace: TraceContext?) -> TraceSpan? {
        guard let tracer, let trace else { return nil }
        return tracer.call(of: method, to: peer, of: trace)
    }

    /// Sends a request. The closure appends the payload to the output. If the request was sent, the caller must call
    /// ``outcome(of:)`` exactly once.
    ///
    /// - Parameters:
    ///   - byteCount: the number of bytes that the closure appends.
    ///   - span: goes into the frame's header.
    func request(
        method: UInt16, byteCount: Int, deadline: MonotonicTime, _ span: TraceSpan?,
        _ write: (inout ByteBuffer) -> Void
    ) -> OnSend {
        send(.request(deadline: deadline.nanoseconds, span), method, byteCount, write)
    }

    /// Waits for the outcome of a request that was sent. If the task is cancelled, the call ends with 10006 within
    /// ``Limits/deadlineScanInterval``, and a cancellation is sent to the peer.
    func outcome(of correlation: UInt32) async -> CallOutcome {
        await withUnsafeContinuation { wait(for: correlation, $0) }
    }

    /// As ``outcome(of:)``, with a continuation.
    func wait(for correlation: UInt32, _ continuation: CorrelationTable.Continuation) {
        let task = CallingTask.current()
        if task.isCancelled { cancel(correlation) }
        // The answer may have arrived already.
        let outcome = state.withLock { $0.calls.wait(correlation, continuation: continuation, task: task) }
        if let outcome { continuation.resume(returning: outcome) }
    }

    /// Sends a message without an answer. The closure appends its payload to the output.
    ///
    /// - Throws: 10010 without a link, 10007 if too many bytes wait, 10002 if the message is too large.
    func tell(method: UInt16, byteCount: Int, _ write: (inout ByteBuffer) -> Void) throws(ApusError) {
        if case .refused(let code) = send(.tell, method, byteCount, write) { throw ApusError(code) }
    }

    private enum Outgoing {
        case request(deadline: UInt64, TraceSpan?)
        case tell

        /// The context of a traced request; nil where only the request fits into the frame.
        func trace(ifFitting byteCount: Int) -> TraceContext? {
            guard case .request(_, let span?) = self, byteCount >= LinkFrame.traceByteCount else { return nil }
            return span.trace
        }
    }

    enum OnSend: Sendable {
        /// The correlation is 0 for a tell.
        case sent(correlation: UInt32)
        case refused(ErrorCode)
    }

    private func send(
        _ kind: Outgoing, _ method: UInt16, _ byteCount: Int, _ write: (inout ByteBuffer) -> Void
    ) -> OnSend {
        guard byteCount >= limits.compressionThreshold else { return append(kind, [], method, byteCount, write) }
        var payload = ByteBufferAllocator().buffer(capacity: byteCount)
        write(&payload)
        let packed = codec.withLock { $0.compress(payload) }
        return append(kind, packed == nil ? [] : .compressed, method, (packed ?? payload).readableBytes) {
            $0.writeImmutableBuffer(packed ?? payload)
        }
    }

    private func append(
        _ kind: Outgoing, _ flags: FrameFlags, _ method: UInt16, _ byteCount: Int, _ write: (inout ByteBuffer) -> Void
    ) -> OnSend {
        guard byteCount <= limits.frameByteCountMax else { return .refused(.frameTooLarge) }
        let trace = kind.trace(ifFitting: limits.frameByteCountMax - byteCount)
        let frameByteCount = trace == nil ? byteCount : byteCount + LinkFrame.traceByteCount
        let flags = trace == nil ? flags : flags.union(.traced)
        var mustFlush = false
        var mustScan = false
        let result = state.withLock { state -> OnSend in
            guard state.channel != nil else { return .refused(.noRoute) }
            guard state.output.byteCount + byteCount <= limits.outboundByteCountMax else {
                return .refused(.overloaded)
            }
            var correlation: UInt32 = 0
            var frame = FrameKind.tell
            if case .request(let deadline, _) = kind {
                guard let opened = state.calls.open(deadline: deadline) else { return .refused(.overloaded) }
                (correlation, frame) = (opened, .request)
                mustScan = !state.isScanScheduled
                state.isScanScheduled = true
            }
            state.output.append { buffer in
                LinkFrame.encodeHeader(
                    kind: frame, flags: flags, method: method, correlation: correlation,
                    payloadByteCount: frameByteCount, into: &buffer)
                if let trace { trace.encode(into: &buffer) }
                write(&buffer)
            }
            mustFlush = state.output.promiseFlush()
            return .sent(correlation: correlation)
        }
        if case .refused(.overloaded) = result { metrics.overloaded.increment() }
        if mustScan { loop.execute { self.scheduleScan() } }
        if mustFlush { scheduleFlush() }
        return result
    }

    private func cancel(_ correlation: UInt32) {
        let mustFlush = state.withLock { state in
            guard state.calls.cancel(correlation) else { return false }
            state.output.append { LinkFrame(kind: .cancel, correlation: correlation).encode(into: &$0) }
            return state.output.promiseFlush()
        }
        if mustFlush { scheduleFlush() }
    }

    // MARK: On the loop

    private func scheduleFlush() { loop.execute { self.flush() } }

    private func flush() {
        let work = state.withLock { state -> (any Channel, ByteBuffer)? in
            // The socket is full. The flush stays scheduled until the channel is writable again.
            guard let channel = state.channel, channel.isWritable else { return nil }
            return state.output.take().map { (channel, $0) }
        }
        guard let (channel, bytes) = work else { return }
        channel.writeAndFlush(bytes, promise: nil)
        state.withLock { $0.output.giveBack(bytes) }
    }

    private func scheduleScan() {
        loop.scheduleTask(in: limits.deadlineScanInterval) { self.scan() }
    }

    private func scan() {
        let now = MonotonicTime.now().nanoseconds
        let (expired, mustFlush, goesOn) = state.withLock { state in
            let expired = state.calls.expire(at: now)
            for call in expired where state.channel != nil {
                state.output.append { LinkFrame(kind: .cancel, correlation: call.correlation).encode(into: &$0) }
            }
            state.isScanScheduled = state.calls.count > 0
            return (expired, !expired.isEmpty && state.output.promiseFlush(), state.isScanScheduled)
        }
        if goesOn { scheduleScan() }
        if mustFlush { flush() }
        let lateCount = expired.count(where: { $0.code == .deadlineExceeded })
        if lateCount > 0 { metrics.deadlineExceeded.increment(by: Int64(lateCount)) }
        for call in expired { call.continuation?.resume(returning: .failed(call.code)) }
    }

    // MARK: LaneSession

    func readBegan() {
        // Callers on this loop may call again within the read. The end of the read flushes for them.
        state.withLock { _ = $0.output.promiseFlush() }
    }

    func batchHandled() {
        readCompleted()
        readBegan()
    }

    func received(_ frame: LinkFrame) throws(ApusError) {
        guard frame.kind == .response else { throw ApusError(.malformed, "a \(frame.kind) frame on a calling lane") }
        let payload = try unpack(frame, codec: codec, byteCountMax: limits.frameByteCountMax)
        let outcome: CallOutcome =
            frame.flags.contains(.failure) ? .failure(ClusterFailure.read(payload)) : .reply(payload)
        answers.append((frame.correlation, outcome))
    }

    func readCompleted() {
        executor.drain(after: resumeAnswered)
        flush()
    }

    private func resumeAnswered() {
        guard !answers.isEmpty else { return }
        var batch: [(correlation: UInt32, outcome: CallOutcome)] = []
        swap(&batch, &answers)
        let waiting = state.withLock { state in batch.map { state.calls.finish($0.correlation, $0.outcome) } }
        for (continuation, answer) in zip(waiting, batch) { continuation?.resume(returning: answer.outcome) }
        batch.removeAll(keepingCapacity: true)
        answers = batch
    }

    func writabilityChanged() { flush() }

    func closed() {
        resumeAnswered()
        end()
    }

    /// Ends the link: every open call fails with 10008. Call from any thread.
    func end() {
        let waiting = state.withLock { state in
            state.channel = nil
            state.output.reset()
            return state.calls.finishAll(.failed(.linkLost))
        }
        for continuation in waiting { continuation.resume(returning: .failed(.linkLost)) }
    }
}

/// The payload without the trace context, decompressed if it is compressed.
///
/// - Throws: 10002 and 10001 as `ZstdCodec.decompress`.
func unpack(
    _ frame: LinkFrame, codec: borrowing Mutex<ZstdCodec>, byteCountMax: Int
) throws(ApusError) -> ByteBuffer {
    var payload = frame.payload
    if frame.flags.contains(.traced) {
        guard payload.readableBytes >= LinkFrame.traceByteCount else { throw ApusError(.malformed) }
        payload.moveReaderIndex(forwardBy: LinkFrame.traceByteCount)
    }
    guard frame.flags.contains(.compressed) else { return payload }
    let compressed = payload
    return try codec.withLock { codec throws(ApusError) in
        try codec.decompress(compressed, byteCountMax: byteCountMax)
    }
}

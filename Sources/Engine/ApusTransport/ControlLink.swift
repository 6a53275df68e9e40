import ApusCore
import ApusWire
import CoreMetrics
import NIOCore
import Synchronization

/// The calling end of a control lane: this node dialled it and sends its calls and tells over it.
///
/// Concurrency model: calls come from any thread. The open calls and the bytes that wait stand
/// behind one `Mutex`, held for an append or an array access only; continuations are resumed after
/// it was left. Writing, answers and the deadline scan happen on ``loop``. One flush at most is
/// scheduled at any time, so that all that was appended since leaves with one write (D3).
final class ControlLink: LaneSession, Sendable {
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
    private let limits: Limits
    private let metrics: TransportMetrics
    private let state: Mutex<State>
    private let codec = Mutex(ZstdCodec())
    private let answers: NIOLoopBoundBox<[(UInt32, CallOutcome)]>

    init(loop: any EventLoop, executor: LoopTaskExecutor, limits: Limits, metrics: TransportMetrics) {
        self.loop = loop
        self.executor = executor
        self.limits = limits
        self.metrics = metrics
        state = Mutex(State(calls: CorrelationTable(countMax: limits.inFlightMax)))
        answers = NIOLoopBoundBox.makeBoxSendingValue([], eventLoop: loop)
    }

    /// The handshake finished on this channel. On the loop.
    func opened(_ channel: any Channel) { state.withLock { $0.channel = channel } }

    /// Whether the handshake is done and the connection has not ended.
    var isOpen: Bool { state.withLock { $0.channel != nil } }

    // MARK: Calls

    /// Sends a request and waits for its end. Cancelling the task ends the call with 10006 and tells
    /// the other side.
    func call(method: UInt16, payload: ByteBuffer, deadline: MonotonicTime) async -> CallOutcome {
        let (flags, payload) = pack(payload)
        guard payload.readableBytes <= limits.frameByteCountMax else { return .failed(.frameTooLarge) }
        let (correlation, refusal) = state.withLock { state -> (UInt32?, ErrorCode) in
            guard state.channel != nil else { return (nil, .noRoute) }
            guard state.output.byteCount + payload.readableBytes <= limits.outboundByteCountMax else {
                return (nil, .overloaded)
            }
            return (state.calls.reserve(), .overloaded)
        }
        guard let correlation else {
            if refusal == .overloaded { metrics.overloaded.increment() }
            return .failed(refusal)
        }
        return await withTaskCancellationHandler {
            await withUnsafeContinuation { continuation in
                submit(correlation, continuation, deadline.nanoseconds) { buffer in
                    LinkFrame.encodeHeader(
                        kind: .request, flags: flags, method: method, correlation: correlation,
                        payloadByteCount: payload.readableBytes, into: &buffer)
                    buffer.writeImmutableBuffer(payload)
                }
            }
        } onCancel: {
            cancel(correlation)
        }
    }

    /// Sends a message that has no answer.
    ///
    /// - Throws: 10010 without a link, 10007 over the bound of waiting bytes, 10002 for one too large.
    func tell(method: UInt16, payload: ByteBuffer) throws(ApusError) {
        let (flags, payload) = pack(payload)
        guard payload.readableBytes <= limits.frameByteCountMax else { throw ApusError(.frameTooLarge) }
        let (refusal, mustFlush) = state.withLock { state -> (ErrorCode?, Bool) in
            guard state.channel != nil else { return (.noRoute, false) }
            guard state.output.byteCount + payload.readableBytes <= limits.outboundByteCountMax else {
                return (.overloaded, false)
            }
            state.output.append { buffer in
                LinkFrame.encodeHeader(
                    kind: .tell, flags: flags, method: method, payloadByteCount: payload.readableBytes, into: &buffer)
                buffer.writeImmutableBuffer(payload)
            }
            return (nil, state.output.promiseFlush())
        }
        if let refusal {
            if refusal == .overloaded { metrics.overloaded.increment() }
            throw ApusError(refusal)
        }
        if mustFlush { scheduleFlush() }
    }

    private enum OnSubmit {
        case sent(mustFlush: Bool, mustScan: Bool)
        case over(ErrorCode)
    }

    private func submit(
        _ correlation: UInt32, _ continuation: CorrelationTable.Continuation, _ deadline: UInt64,
        write: (inout ByteBuffer) -> Void
    ) {
        let result = state.withLock { state -> OnSubmit in
            guard state.channel != nil else {
                state.calls.abandon(correlation)
                return .over(.noRoute)
            }
            guard state.calls.wait(correlation, continuation: continuation, deadline: deadline) else {
                return .over(.cancelled)
            }
            state.output.append(write)
            let mustScan = !state.isScanScheduled
            state.isScanScheduled = true
            return .sent(mustFlush: state.output.promiseFlush(), mustScan: mustScan)
        }
        switch result {
        case .sent(let mustFlush, let mustScan):
            if mustScan { loop.execute { self.scheduleScan() } }
            if mustFlush { scheduleFlush() }
        case .over(let code):
            continuation.resume(returning: .failed(code))
        }
    }

    private func cancel(_ correlation: UInt32) {
        let (continuation, mustFlush) = state.withLock { state -> (CorrelationTable.Continuation?, Bool) in
            guard let continuation = state.calls.cancel(correlation) else { return (nil, false) }
            state.output.append { LinkFrame(kind: .cancel, correlation: correlation).encode(into: &$0) }
            return (continuation, state.output.promiseFlush())
        }
        if mustFlush { scheduleFlush() }
        continuation?.resume(returning: .failed(.cancelled))
    }

    private func pack(_ payload: ByteBuffer) -> (FrameFlags, ByteBuffer) {
        guard payload.readableBytes >= limits.compressionThreshold,
            let packed = codec.withLock({ $0.compress(payload) })
        else { return ([], payload) }
        return (.compressed, packed)
    }

    // MARK: On the loop

    private func scheduleFlush() { loop.execute { self.flush() } }

    private func flush() {
        let work = state.withLock { state -> (any Channel, ByteBuffer)? in
            // While the socket is full the promise stays given: writability brings the next flush.
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
        if !expired.isEmpty { metrics.deadlineExceeded.increment(by: Int64(expired.count)) }
        for call in expired { call.continuation.resume(returning: .failed(.deadlineExceeded)) }
    }

    // MARK: LaneSession

    func readBegan() {
        // Callers that run on the loop call again within the read: its end flushes for them.
        state.withLock { _ = $0.output.promiseFlush() }
    }

    func breathed() {
        readCompleted()
        readBegan()
    }

    func received(_ frame: LinkFrame) throws(ApusError) {
        guard frame.kind == .response else { throw ApusError(.malformed, "a \(frame.kind) frame on a calling lane") }
        let payload = try unpack(frame, codec: codec, byteCountMax: limits.frameByteCountMax)
        let outcome: CallOutcome =
            frame.flags.contains(.failure) ? .failure(ClusterFailure.read(payload)) : .reply(payload)
        answers.value.append((frame.correlation, outcome))
    }

    func readCompleted() {
        resumeAnswered()
        executor.drain()
        flush()
    }

    private func resumeAnswered() {
        guard !answers.value.isEmpty else { return }
        var batch: [(UInt32, CallOutcome)] = []
        swap(&batch, &answers.value)
        let waiting = state.withLock { state in batch.map { state.calls.finish($0.0) } }
        for (continuation, answer) in zip(waiting, batch) { continuation?.resume(returning: answer.1) }
        batch.removeAll(keepingCapacity: true)
        answers.value = batch
    }

    func writabilityChanged() { flush() }

    func closed() {
        resumeAnswered()
        end()
    }

    /// The link is gone: every open call fails with 10008. From any thread.
    func end() {
        let waiting = state.withLock { state in
            state.channel = nil
            state.output.reset()
            return state.calls.finishAll()
        }
        for continuation in waiting { continuation.resume(returning: .failed(.linkLost)) }
    }
}

/// The payload as the sender had it.
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

import ApusCore
import ApusWire
import CoreMetrics
import NIOCore
import Synchronization

/// The calling end of a control lane: this node dialled it and sends its calls and tells over it.
///
/// A payload is written where it leaves from, behind its frame's header: what a caller encoded is copied
/// once, and nothing is allocated for it.
///
/// Concurrency model: calls come from any thread. The open calls and the bytes that wait stand
/// behind one `Mutex`, held for an append or an array access only; continuations are resumed after
/// it was left. Writing, answers and the deadline scan happen on ``loop``. One flush at most is
/// scheduled at any time, so that all that was appended since leaves with one write (D3).
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
    private let limits: Limits
    private let metrics: TransportMetrics
    private let state: Mutex<State>
    private let codec = Mutex(ZstdCodec())
    /// Answers of the read that is under way; on the loop.
    @exclusivity(unchecked) private var answers: [(correlation: UInt32, outcome: CallOutcome)] = []

    init(loop: any EventLoop, executor: LoopTaskExecutor, limits: Limits, metrics: TransportMetrics) {
        self.loop = loop
        self.executor = executor
        self.limits = limits
        self.metrics = metrics
        state = Mutex(State(calls: CorrelationTable(countMax: limits.inFlightMax)))
    }

    /// The handshake finished on this channel. On the loop.
    func opened(_ channel: any Channel) { state.withLock { $0.channel = channel } }

    /// Whether the handshake is done and the connection has not ended.
    var isOpen: Bool { state.withLock { $0.channel != nil } }

    // MARK: Calls

    /// Sends a request and waits for its end; see ``outcome(of:)``.
    func call(method: UInt16, payload: ByteBuffer, deadline: MonotonicTime) async -> CallOutcome {
        let sent = request(method: method, byteCount: payload.readableBytes, deadline: deadline) {
            $0.writeImmutableBuffer(payload)
        }
        switch sent {
        case .refused(let code): return .failed(code)
        case .sent(let correlation): return await outcome(of: correlation)
        }
    }

    /// Sends a request, whose payload the closure appends to what is about to leave. Where it was sent,
    /// ``outcome(of:)`` has to follow, once.
    ///
    /// - Parameter byteCount: how many bytes the closure appends.
    func request(
        method: UInt16, byteCount: Int, deadline: MonotonicTime, _ write: (inout ByteBuffer) -> Void
    ) -> OnSend {
        send(.request(deadline: deadline.nanoseconds), method, byteCount, write)
    }

    /// Waits for the end of a request that was sent. Cancelling the task ends it with 10006 within
    /// ``Limits/deadlineScanInterval``, and tells the other side.
    func outcome(of correlation: UInt32) async -> CallOutcome {
        await withUnsafeContinuation { wait(for: correlation, $0) }
    }

    /// As ``outcome(of:)``, whose continuation it is.
    func wait(for correlation: UInt32, _ continuation: CorrelationTable.Continuation) {
        let task = CallingTask.current()
        if task.isCancelled { cancel(correlation) }
        // The answer may be here by now.
        let outcome = state.withLock { $0.calls.wait(correlation, continuation: continuation, task: task) }
        if let outcome { continuation.resume(returning: outcome) }
    }

    /// Sends a message that has no answer; the closure appends its payload to what is about to be sent.
    ///
    /// - Throws: 10010 without a link, 10007 over the bound of waiting bytes, 10002 for one too large.
    func tell(method: UInt16, byteCount: Int, _ write: (inout ByteBuffer) -> Void) throws(ApusError) {
        if case .refused(let code) = send(.tell, method, byteCount, write) { throw ApusError(code) }
    }

    private enum Outgoing {
        case request(deadline: UInt64)
        case tell
    }

    enum OnSend: Sendable {
        /// With 0 for a tell.
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
        var mustFlush = false
        var mustScan = false
        let result = state.withLock { state -> OnSend in
            guard state.channel != nil else { return .refused(.noRoute) }
            guard state.output.byteCount + byteCount <= limits.outboundByteCountMax else {
                return .refused(.overloaded)
            }
            var correlation: UInt32 = 0
            var frame = FrameKind.tell
            if case .request(let deadline) = kind {
                guard let opened = state.calls.open(deadline: deadline) else { return .refused(.overloaded) }
                (correlation, frame) = (opened, .request)
                mustScan = !state.isScanScheduled
                state.isScanScheduled = true
            }
            state.output.append { buffer in
                LinkFrame.encodeHeader(
                    kind: frame, flags: flags, method: method, correlation: correlation, payloadByteCount: byteCount,
                    into: &buffer)
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
        let lateCount = expired.count(where: { $0.code == .deadlineExceeded })
        if lateCount > 0 { metrics.deadlineExceeded.increment(by: Int64(lateCount)) }
        for call in expired { call.continuation?.resume(returning: .failed(call.code)) }
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

    /// The link is gone: every open call fails with 10008. From any thread.
    func end() {
        let waiting = state.withLock { state in
            state.channel = nil
            state.output.reset()
            return state.calls.finishAll(.failed(.linkLost))
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

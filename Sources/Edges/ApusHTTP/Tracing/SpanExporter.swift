package import ApusCore
package import ApusTracing
import CoreMetrics
import Logging
package import NIOCore
import NIOHTTP1
import NIOPosix
import ServiceLifecycle
import Synchronization

/// Sends a node's finished spans to a collector: OTLP over HTTP, in JSON (https://opentelemetry.io/docs/specs/otlp/).
///
/// ``SpanQueueStateMachine`` decides what is sent when. Each batch has a connection of its own. When the node stops,
/// what waits is sent, for at most ``drainTimeout``.
///
/// Concurrency model: spans come from any thread. A `Mutex` guards the machine. Batches are written and sent on the
/// event loop.
package final class SpanExporter: Service {
    package typealias Queue = SpanQueueStateMachine<FinishedSpan>

    private struct State {
        var queue: Queue
        /// Of ``drain()``.
        var drained: EventLoopPromise<Void>?
    }

    private static let drainTimeout = TimeAmount.seconds(2)

    private let endpoint: TracingConfiguration.Endpoint
    private let sampleRatio: Double
    private let resource: [(name: String, value: String)]
    private let loop: any EventLoop
    private let timeout: TimeAmount
    private let limited: LogLimiter
    private let state: Mutex<State>
    /// Spans that the collector took.
    private let exported = Counter(label: "apus_trace_spans_exported_total")
    /// Spans that were not sent: the queue was full, or the collector refused them or did not answer.
    private let dropped = Counter(label: "apus_trace_spans_dropped_total")
    /// Requests to the collector that failed.
    private let failed = Counter(label: "apus_trace_exports_failed_total")

    /// Nil if the node does not trace.
    ///
    /// - Parameters:
    ///   - loop: writes and sends the batches: not one of the media's.
    ///   - timeout: of the connection to the collector, and then of its answer.
    package init?(
        _ configuration: TracingConfiguration, cluster: ClusterID, node: NodeID, on loop: any EventLoop,
        limits: Queue.Limits = Queue.Limits(), timeout: TimeAmount = .seconds(5), limited: LogLimiter
    ) {
        guard let endpoint = configuration.endpoint else { return nil }
        (self.endpoint, sampleRatio) = (endpoint, configuration.sampleRatio)
        resource = [
            ("service.name", "apus"), ("service.namespace", cluster.rawValue), ("service.instance.id", "\(node)"),
        ]
        (self.loop, self.timeout, self.limited) = (loop, timeout, limited)
        var limits = limits
        limits.countMax = configuration.queueMax
        state = Mutex(State(queue: Queue(limits)))
    }

    /// The node's tracer, whose spans come here.
    package func makeTracer() -> SpanTracer { SpanTracer(sampleRatio: sampleRatio) { self.record($0) } }

    /// Takes a finished span. Call from any thread.
    package func record(_ span: FinishedSpan) { handle { $0.finished(span) } }

    /// Runs until the node stops.
    package func run() async throws {
        // A node that is cancelled drains as well.
        try? await gracefulShutdown()
        await drain()
    }

    /// Sends what waits. Spans that finish later are dropped.
    package func drain() async {
        let drained = loop.makePromise(of: Void.self)
        state.withLock { $0.drained = drained }
        let alarm = loop.scheduleTask(in: Self.drainTimeout) { self.handle { $0.abandon() } }
        handle { $0.drain() }
        try? await drained.futureResult.get()
        alarm.cancel()
    }

    private func handle(_ input: (inout Queue) -> Queue.Outcome) {
        let outcome = state.withLock { input(&$0.queue) }
        if outcome.exportedCount > 0 { exported.increment(by: Int64(outcome.exportedCount)) }
        if outcome.droppedCount > 0 { dropped.increment(by: Int64(outcome.droppedCount)) }
        switch outcome.step {
        case .none: break
        case .startTimer(let number, let wait):
            loop.scheduleTask(in: .nanoseconds(wait.nanoseconds)) { self.handle { $0.timerFired(number) } }
        case .send(let batch): loop.execute { self.send(batch) }
        case .drained: state.withLock { $0.drained.take() }?.succeed(())
        }
    }

    // MARK: On the loop

    private func send(_ batch: [FinishedSpan]) {
        let body = ByteBuffer(string: TraceExport.json(batch, resource: resource))
        let headers: HTTPHeaders = [
            "Host": endpoint.address.description, "Connection": "close", "Content-Type": "application/json",
            "Content-Length": "\(body.readableBytes)",
        ]
        let head = HTTPRequestHead(version: .http1_1, method: .POST, uri: endpoint.path, headers: headers)
        let status = loop.makePromise(of: Int.self)
        status.futureResult.whenComplete { self.answered($0) }
        ClientBootstrap(group: loop)
            .connectTimeout(timeout)
            .connect(host: endpoint.address.host, port: endpoint.address.port)
            .flatMapThrowing { [timeout] channel in
                let pipeline = channel.pipeline.syncOperations
                try pipeline.addHTTPClientHandlers()
                try pipeline.addHandler(ExportHandler(head: head, body: body, status: status, timeout: timeout))
            }
            .whenFailure { status.fail($0) }
    }

    private func answered(_ result: Result<Int, any Error>) {
        var answer = Queue.Answer.accepted
        var facts: Logger.Metadata = [LogKey.address: "\(endpoint.address)"]
        switch result {
        case .success(200..<300): break
        case .success(let status):
            // The four that OTLP/HTTP allows to send again.
            answer = [429, 502, 503, 504].contains(status) ? .unavailable : .refused
            facts[LogKey.reason] = "HTTP \(status)"
        case .failure(let error):
            answer = .unavailable
            facts.merge(Logger.facts(of: error)) { $1 }
        }
        if answer != .accepted {
            failed.increment()
            limited.log(.warning, "The collector did not take spans", metadata: facts)
        }
        handle { $0.answered(answer) }
    }
}

/// Sends one batch on a connection that is open, and takes the status of the answer. Confined to the event loop.
private final class ExportHandler: ChannelInboundHandler {
    typealias InboundIn = HTTPClientResponsePart
    typealias OutboundOut = HTTPClientRequestPart

    private let head: HTTPRequestHead
    private let body: ByteBuffer
    private let status: EventLoopPromise<Int>
    private let timeout: TimeAmount
    private var code = 0

    init(head: HTTPRequestHead, body: ByteBuffer, status: EventLoopPromise<Int>, timeout: TimeAmount) {
        (self.head, self.body, self.status, self.timeout) = (head, body, status, timeout)
    }

    func handlerAdded(context: ChannelHandlerContext) {
        let (channel, status) = (context.channel, status)
        let deadline = context.eventLoop.scheduleTask(in: timeout) {
            status.fail(ApusError(.deadlineExceeded))
            channel.close(promise: nil)
        }
        channel.closeFuture.whenComplete { _ in
            deadline.cancel()
            status.fail(ApusError(.linkLost))
        }
        context.write(wrapOutboundOut(.head(head)), promise: nil)
        context.write(wrapOutboundOut(.body(.byteBuffer(body))), promise: nil)
        context.writeAndFlush(wrapOutboundOut(.end(nil)), promise: nil)
    }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        switch unwrapInboundIn(data) {
        case .head(let head): code = Int(head.status.code)
        case .body: break
        case .end:
            status.succeed(code)
            context.close(promise: nil)
        }
    }

    func errorCaught(context: ChannelHandlerContext, error: any Error) { context.close(promise: nil) }
}

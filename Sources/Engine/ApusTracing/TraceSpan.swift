package import ApusCore
import Synchronization
package import Tracing

private enum TraceContextKey: ServiceContextKey {
    typealias Value = TraceContext
}

extension ServiceContext {
    /// The span that the work is part of; nil if it is not traced.
    package var trace: TraceContext? {
        get { self[TraceContextKey.self] }
        set { self[TraceContextKey.self] = newValue }
    }
}

extension TraceContext {
    /// That of the calling task.
    package static var current: TraceContext? { ServiceContext.current?.trace }

    /// Runs the body as a part of this span, or of none. Tasks that it creates inherit that. It may run outside a task.
    package static func within<Value>(_ trace: TraceContext?, _ body: () -> Value) -> Value {
        var context = ServiceContext.current ?? .topLevel
        context.trace = trace
        return ServiceContext.$current.withValue(context, operation: body)
    }
}

/// A span of a trace that is recorded, or a stand-in of one that is not.
///
/// Events and links are not kept.
///
/// Concurrency model: a `Mutex` guards the state. After ``end()`` nothing has an effect.
package final class TraceSpan: Tracing.Span {
    private struct State {
        var name: String
        var attributes: SpanAttributes
        var isFailure = false
        /// Nil after the end, and in a stand-in.
        var ended: (@Sendable (FinishedSpan) -> Void)?
    }

    package let context: ServiceContext
    /// Passed to whatever the span causes.
    package let trace: TraceContext
    private let parent: UInt64?
    private let kind: SpanKind
    private let start: UInt64
    private let began = MonotonicTime.now()
    private let state: Mutex<State>

    /// - Parameters:
    ///   - context: of the caller.
    ///   - ended: receives the span at its end; nil for a stand-in.
    init(
        _ name: String, _ kind: SpanKind, trace: TraceContext, parent: UInt64?, in context: ServiceContext,
        start: UInt64, attributes: SpanAttributes, ended: (@Sendable (FinishedSpan) -> Void)?
    ) {
        var context = context
        context.trace = trace
        (self.context, self.trace, self.parent) = (context, trace, parent)
        (self.kind, self.start) = (kind, start)
        state = Mutex(State(name: name, attributes: attributes, ended: ended))
    }

    /// Runs the body as a part of the span: ``TraceContext/current`` is ``trace``.
    package func run<Value: Sendable>(_ body: @Sendable () async -> Value) async -> Value {
        await ServiceContext.$current.withValue(context) { await body() }
    }

    /// Notes that the work has failed.
    package func fail(_ code: ErrorCode) {
        state.withLock { state in
            state.isFailure = true
            state.attributes.set(LogKey.code, value: .int(Int64(code.number)))
        }
    }

    /// Ends the span now. Its duration is that of the monotonic clock, so a step of the wall clock does not change it.
    package func end() { finish(at: start + UInt64(max(0, (MonotonicTime.now() - began).nanoseconds))) }

    // MARK: Span

    package var isRecording: Bool { state.withLock { $0.ended != nil } }

    package var operationName: String {
        get { state.withLock { $0.name } }
        set { state.withLock { $0.name = newValue } }
    }

    package var attributes: SpanAttributes {
        get { state.withLock { $0.attributes } }
        set { state.withLock { $0.attributes = newValue } }
    }

    package func setStatus(_ status: SpanStatus) { state.withLock { $0.isFailure = status.code == .error } }

    package func addEvent(_ event: SpanEvent) {}

    package func addLink(_ link: SpanLink) {}

    package func recordError<Instant: TracerInstant>(
        _ error: any Error, attributes: SpanAttributes, at instant: @autoclosure () -> Instant
    ) {
        fail((error as? ApusError)?.code ?? .internalFailure)
    }

    package func end<Instant: TracerInstant>(at instant: @autoclosure () -> Instant) {
        finish(at: max(start, instant().nanosecondsSinceEpoch))
    }

    private func finish(at end: UInt64) {
        let state = state.withLock { state in
            defer { state.ended = nil }
            return state
        }
        guard let ended = state.ended else { return }
        ended(
            FinishedSpan(
                trace: trace, parent: parent, name: state.name, kind: kind, start: start, end: end,
                attributes: state.attributes, isFailure: state.isFailure))
    }
}

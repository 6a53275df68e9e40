package import ApusContract
package import ApusCore
import ApusDiagnosis
import ApusMedia
package import Logging
import Synchronization

/// The shell of ``PlaySteps``: it guards the steps of one play session, and writes their lines.
///
/// Concurrency model: any thread. A `Mutex` guards the steps; lines are written outside of it.
package final class PlayTrace: Sendable {
    private let steps: Mutex<PlaySteps>
    private let log: Logger
    /// The trace id of the session.
    package let trace: TraceContext

    package init(device: String, source: UInt16, log: Logger, now: MonotonicTime = .now()) {
        let trace = Self.newTrace()
        var log = log
        log[metadataKey: LogKey.play] = "\(trace.traceID)"
        log[metadataKey: LogKey.device] = "\(device)"
        log[metadataKey: LogKey.source] = "\(source)"
        (self.trace, self.log) = (trace, log)
        steps = Mutex(PlaySteps(session: trace.traceID, device: device, source: source, now: now))
    }

    private static func newTrace() -> TraceContext {
        func id() -> UInt64 { UInt64.random(in: 1...(.max)) }
        // Its ids are not 0.
        guard let trace = TraceContext(traceHigh: id(), traceLow: id(), span: id(), isSampled: true) else {
            preconditionFailure("an id of a trace is 0")
        }
        return trace
    }

    /// True if lines for each packet are wanted.
    var isTracing: Bool { log.logLevel <= .trace }

    package func note(_ body: (inout PlaySteps) -> [PlaySteps.Line]) {
        for line in steps.withLock({ body(&$0) }) { write(line) }
    }

    package func reached(_ step: PlaySteps.Step, now: MonotonicTime = .now()) { note { $0.reached(step, now: now) } }

    package func change(_ body: (inout PlaySteps) -> Void) { steps.withLock { body(&$0) } }

    /// The report that is due; nil: none is.
    func nextReport() -> ClientPlayReport? { steps.withLock { $0.nextReport(now: .now()) } }

    /// The session at this time.
    package var report: ClientPlayReport { steps.withLock { $0.report(now: .now()) } }

    private func write(_ line: PlaySteps.Line) {
        var facts: Logger.Metadata = [:]
        for fact in line.facts { facts[fact.key] = "\(fact.value)" }
        if line.isFolded { facts[LogKey.folded] = "1" }
        switch line.level {
        case .trace: log.trace("\(line.text)", metadata: facts)
        case .info: log.info("\(line.text)", metadata: facts)
        case .warning: log.warning("\(line.text)", metadata: facts)
        }
    }
}

/// What a ``MediaRenderer`` notes of the frames that it decodes and renders (IV-G3, steps 5 to 9, 11 and 12).
///
/// Isolation: called on the renderer's thread.
struct RenderObserver: Sendable {
    let trace: PlayTrace

    func codecMade() { trace.reached(.codecs) }
    func codecMissing(_ codec: Codec) { trace.note { $0.decoderMissing(codec) } }
    func rendererStarted() { trace.reached(.renderers) }

    func decoded(_ pts: Int64, isPicture: Bool) {
        let isTracing = trace.isTracing
        trace.note { $0.decoded(pts: pts, isPicture: isPicture, isTracing: isTracing, now: .now()) }
    }

    func rendered(_ pts: Int64, isPicture: Bool) {
        let isTracing = trace.isTracing
        trace.note { $0.rendered(pts: pts, isPicture: isPicture, isTracing: isTracing, now: .now()) }
    }

    func dropped(_ count: UInt64) { trace.change { $0.dropped(count) } }
    func failed(_ part: PlaySteps.Part, _ error: ApusError) { trace.note { $0.failed(part, error) } }
}

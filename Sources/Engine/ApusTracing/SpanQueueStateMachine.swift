import DequeModule

/// Finished spans on their way to the collector: when they are sent, when a batch is sent again, and what is dropped.
///
/// A batch is sent when the oldest span has waited for ``Limits/batchWait``, or when the batch is full. One batch is
/// in progress at a time. A collector that cannot be reached gets it again after each of ``Limits/retryWaits``; then it
/// is dropped. A collector that refuses it does not get it again.
///
/// **Bound.** At most ``Limits/countMax`` spans wait or are in progress. The newest one is dropped beyond that.
///
/// States: `idle` (no span) → `gathering` (a timer runs) → `sending` ⇄ `waiting` (a timer runs) → `idle` or
/// `gathering`; `ended` after a drain.
///
/// Pure: the shell owns the timers and reports when one fires. A timer that fires late, in another state, is ignored.
package struct SpanQueueStateMachine<Element: Sendable>: Sendable {
    /// Limits of the queue.
    package struct Limits: Sendable {
        /// Key `tracing.queue_max`.
        package var countMax = 4096
        package var batchCountMax = 512
        package var batchWait = Duration.seconds(1)
        package var retryWaits: [Duration] = [.seconds(1), .seconds(2), .seconds(4)]
        package init() {}
    }

    /// What the shell does next.
    package enum Step: Sendable {
        case none
        /// Call ``timerFired(_:)`` with this number after this time.
        case startTimer(number: Int, Duration)
        /// Send these, and call ``answered(_:)``.
        case send([Element])
        /// The drain is complete.
        case drained
    }

    /// What happened to spans, and what to do next.
    package struct Outcome: Sendable {
        package var exportedCount = 0
        package var droppedCount = 0
        package var step = Step.none
    }

    /// How sending a batch ended.
    package enum Answer: Sendable, Hashable {
        case accepted
        /// The collector will not take it.
        case refused
        /// There was no answer, or one that asks for another attempt.
        case unavailable
    }

    private enum State {
        case idle
        case gathering
        case sending([Element], attempt: Int)
        case waiting([Element], attempt: Int)
        case ended
    }

    private let limits: Limits
    private var state = State.idle
    private var queue = Deque<Element>()
    /// The number of the newest timer; earlier ones have no effect.
    private var timer = 0
    private var isDraining = false

    package init(_ limits: Limits) { self.limits = limits }

    /// Spans that wait or are in progress.
    package var count: Int {
        switch state {
        case .idle, .gathering, .ended: queue.count
        case .sending(let batch, _), .waiting(let batch, _): queue.count + batch.count
        }
    }

    /// A span has finished.
    package mutating func finished(_ span: Element) -> Outcome {
        if case .ended = state { return Outcome(droppedCount: 1) }
        guard count < limits.countMax else { return Outcome(droppedCount: 1) }
        queue.append(span)
        switch state {
        case .idle, .gathering: return Outcome(step: next())
        case .sending, .waiting, .ended: return Outcome()
        }
    }

    package mutating func timerFired(_ number: Int) -> Outcome {
        guard number == timer else { return Outcome() }
        switch state {
        case .gathering: return Outcome(step: send())
        case .waiting(let batch, let attempt):
            state = .sending(batch, attempt: attempt)
            return Outcome(step: .send(batch))
        case .idle, .sending, .ended: return Outcome()
        }
    }

    /// The sending of the batch has ended.
    package mutating func answered(_ answer: Answer) -> Outcome {
        guard case .sending(let batch, let attempt) = state else { return Outcome() }
        if answer == .unavailable, !isDraining, attempt < limits.retryWaits.count {
            state = .waiting(batch, attempt: attempt + 1)
            return Outcome(step: startTimer(limits.retryWaits[attempt]))
        }
        state = .idle
        let isExported = answer == .accepted
        return Outcome(
            exportedCount: isExported ? batch.count : 0, droppedCount: isExported ? 0 : batch.count, step: next())
    }

    /// The node stops: everything is sent at once, each batch one last time.
    package mutating func drain() -> Outcome {
        isDraining = true
        switch state {
        case .idle, .gathering: return Outcome(step: next())
        case .waiting(let batch, let attempt):
            state = .sending(batch, attempt: attempt)
            return Outcome(step: .send(batch))
        case .sending: return Outcome()
        case .ended: return Outcome(step: .drained)
        }
    }

    /// The time of the drain is over: what is left is dropped.
    package mutating func abandon() -> Outcome {
        if case .ended = state { return Outcome(step: .drained) }
        defer {
            queue.removeAll()
            state = .ended
        }
        return Outcome(droppedCount: count, step: .drained)
    }

    /// From `idle` or `gathering`.
    private mutating func next() -> Step {
        if queue.isEmpty {
            state = isDraining ? .ended : .idle
            return isDraining ? .drained : .none
        }
        if isDraining || queue.count >= limits.batchCountMax { return send() }
        if case .gathering = state { return .none }
        state = .gathering
        return startTimer(limits.batchWait)
    }

    private mutating func send() -> Step {
        let batch = Array(queue.prefix(limits.batchCountMax))
        queue.removeFirst(batch.count)
        state = .sending(batch, attempt: 0)
        return .send(batch)
    }

    private mutating func startTimer(_ wait: Duration) -> Step {
        timer += 1
        return .startTimer(number: timer, wait)
    }
}

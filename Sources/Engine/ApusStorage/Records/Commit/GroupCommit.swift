import ApusCore
import CoreMetrics
import Dispatch
import Synchronization

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Groups the steps of many callers into durable commits, one at a time (``GroupCommitStateMachine``).
///
/// Concurrency model: results are delivered by callbacks. Commits run on a dispatch queue of their own, never on the
/// Swift pool. A `Mutex` guards the machine.
final class GroupCommit: Sendable {
    typealias Outcome = Result<[UInt64], ApusError>
    typealias Completion = @Sendable ([Outcome]) -> Void

    private struct Item {
        var steps: [RecordStep]
        var completion: Completion
    }

    /// The longest wait for the callers of the last commit. The actual wait is a part of that commit's duration.
    private static let waitMax = Duration.microseconds(500)
    private static let waitPart = 4

    private let limits: RecordStoreLimits
    private let execute: @Sendable ([RecordStep]) throws(ApusError) -> [Outcome]
    private let queue = DispatchQueue(label: "apus.records.commit")
    private let machine: Mutex<GroupCommitStateMachine<Item>>
    private let metrics = RecordMetrics()

    /// - Parameter execute: Commits the steps as one transaction and returns their outcomes. It throws if the
    ///   transaction is not known to be committed. Called on one thread at a time.
    init(limits: RecordStoreLimits, execute: @escaping @Sendable ([RecordStep]) throws(ApusError) -> [Outcome]) {
        self.limits = limits
        self.execute = execute
        machine = Mutex(GroupCommitStateMachine(limits: limits))
    }

    /// Commits the steps together with those of other callers. Completions are called on the queue of the commits, in
    /// order.
    func commit(_ steps: [RecordStep], then completion: @escaping Completion) {
        let refusals = steps.map { $0.refusal(limits) }
        guard refusals.contains(where: { $0 != nil }) else {
            return submit(Item(steps: steps, completion: completion))
        }
        let sound = zip(steps, refusals).filter { $0.1 == nil }.map(\.0)
        let merge: Completion = { made in
            var made = made[...]
            completion(refusals.map { refusal in refusal.map { .failure($0) } ?? made.removeFirst() })
        }
        if sound.isEmpty { merge([]) } else { submit(Item(steps: sound, completion: merge)) }
    }

    /// Waits until all submitted steps are committed. No steps are accepted from then on.
    func close() async {
        machine.withLock { $0.closed() }
        await withCheckedContinuation { done in queue.async { done.resume() } }
    }

    private func submit(_ item: Item) {
        guard !item.steps.isEmpty else { return item.completion([]) }
        let byteCount = item.steps.reduce(0) { $0 + $1.byteCount }
        let next = machine.withLock { $0.submitted(item, stepCount: item.steps.count, byteCount: byteCount) }
        switch next {
        case .waits: break
        case .waitsForRun: queue.async { [self] in run() }
        case .refused:
            metrics.refused.increment(by: item.steps.count)
            fail(item, ApusError(.overloaded, "too many steps wait for the record store"))
        case .isClosed: fail(item, ApusError(.storageFailed, "the record store was closed"))
        }
    }

    private func run() {
        while let items = machine.withLock({ $0.nextCommit() }) {
            let start = MonotonicTime.now()
            do throws(ApusError) {
                let outcomes = try execute(items.flatMap(\.steps))
                let time = MonotonicTime.now() - start
                metrics.committed(outcomes, in: time)
                machine.withLock { $0.committed() }
                var rest = outcomes[...]
                for item in items {
                    item.completion(Array(rest.prefix(item.steps.count)))
                    rest = rest.dropFirst(item.steps.count)
                }
                waitForAnswered(min(time / Self.waitPart, Self.waitMax))
            } catch {
                metrics.failed.increment()
                for item in items + machine.withLock({ $0.commitFailed() }) { fail(item, error) }
            }
            let (steps, bytes) = machine.withLock { ($0.waitingStepCount, $0.waitingByteCount) }
            metrics.waitingSteps.record(steps)
            metrics.waitingBytes.record(bytes)
        }
    }

    private func waitForAnswered(_ time: Duration) {
        let deadline = MonotonicTime.now() + time
        while machine.withLock({ $0.isWorthWaiting }), MonotonicTime.now() < deadline { usleep(10) }
    }

    private func fail(_ item: Item, _ error: ApusError) {
        item.completion(item.steps.map { _ in .failure(error) })
    }
}

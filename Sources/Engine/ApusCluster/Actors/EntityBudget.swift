import ApusCore
import CoreMetrics
import Synchronization

/// Counts the live entities of a node against their bound, and runs what is left to do for those
/// that were let go.
final class EntityBudget: Sendable {
    typealias Work = @Sendable () async -> Void

    private let countMax: Int
    private let count = Atomic<Int>(0)
    private let active = Meter(label: "apus_entities_active")
    private let activated = Counter(label: "apus_entities_activated_total")
    private let refused = Counter(label: "apus_entities_refused_total")
    private let later: AsyncStream<Work>.Continuation
    /// Taken once, by whoever runs it.
    let work: AsyncStream<Work>

    init(countMax: Int) {
        self.countMax = countMax
        // One entry per live entity at most is in here, so the number of entities bounds it.
        (work, later) = AsyncStream.makeStream(of: Work.self, bufferingPolicy: .bufferingOldest(countMax))
    }

    /// Counts one more; false at the bound.
    func take() -> Bool {
        guard count.add(1, ordering: .relaxed).newValue <= countMax else {
            count.subtract(1, ordering: .relaxed)
            refused.increment()
            return false
        }
        active.increment()
        activated.increment()
        return true
    }

    func giveBack(_ given: Int) {
        count.subtract(given, ordering: .relaxed)
        active.decrement(by: Double(given))
    }

    func runLater(_ work: @escaping Work) { later.yield(work) }
}

import ApusCore
import CoreMetrics
import Synchronization

/// Counts the active entities of a node against their limit, and runs the remaining work of released ones.
final class EntityBudget: Sendable {
    typealias Work = @Sendable () async -> Void

    private let countMax: Int
    private let count = Atomic<Int>(0)
    private let active = Meter(label: "apus_entities_active")
    private let activated = Counter(label: "apus_entities_activated_total")
    private let refused = Counter(label: "apus_entities_refused_total")
    private let work: WorkQueue<Work>

    init(countMax: Int) {
        self.countMax = countMax
        // It has at most one entry per active entity, so the number of entities bounds it.
        work = WorkQueue(countMax: countMax)
    }

    /// Counts one more entity. Returns false at the limit.
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

    func runLater(_ piece: @escaping Work) { work.add(piece) }

    /// Runs what is left to do, one piece after another, until the task is cancelled. Called once.
    func run() async { await work.runInOrder { await $0() } }
}

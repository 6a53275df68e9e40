import ApusCore
import Synchronization

/// Counts the live entities of a node against their bound, and runs what is left to do for those
/// that were let go.
final class EntityBudget: Sendable {
    typealias Work = @Sendable () async -> Void

    private let countMax: Int
    private let count = Atomic<Int>(0)
    private let work: WorkQueue<Work>

    init(countMax: Int) {
        self.countMax = countMax
        // One entry per live entity at most is in here, so the number of entities bounds it.
        work = WorkQueue(countMax: countMax)
    }

    /// Counts one more; false at the bound.
    func take() -> Bool {
        guard count.add(1, ordering: .relaxed).newValue <= countMax else {
            count.subtract(1, ordering: .relaxed)
            return false
        }
        return true
    }

    func giveBack(_ given: Int) { count.subtract(given, ordering: .relaxed) }

    func runLater(_ piece: @escaping Work) { work.add(piece) }

    /// Runs what is left to do, one piece after another, until the task is cancelled. Called once.
    func run() async { await work.runInOrder { await $0() } }
}

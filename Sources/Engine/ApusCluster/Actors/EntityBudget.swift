import ApusCore
import Synchronization

/// Counts the live entities of a node against their bound, and runs what is left to do for those
/// that were let go.
final class EntityBudget: Sendable {
    typealias Work = @Sendable () async -> Void

    private let countMax: Int
    private let count = Atomic<Int>(0)
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
            return false
        }
        return true
    }

    func giveBack(_ given: Int) { count.subtract(given, ordering: .relaxed) }

    func runLater(_ work: @escaping Work) { later.yield(work) }
}

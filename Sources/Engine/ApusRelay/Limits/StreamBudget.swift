import Synchronization

/// The client connections of all planes of a node together. Each plane may have more than an even share, but the sum
/// never exceeds the node's limit (D13).
///
/// Concurrency model: any thread; one atomic number.
package final class StreamBudget: Sendable {
    private let countMax: Int
    private let count = Atomic<Int>(0)

    /// - Parameter countMax: the most connections of the node; no limit by default.
    package init(countMax: Int = .max) { self.countMax = countMax }

    var isFull: Bool { count.load(ordering: .relaxed) >= countMax }

    /// Takes one. Returns false if all are taken.
    func take() -> Bool {
        let before = count.wrappingAdd(1, ordering: .relaxed).oldValue
        guard before >= countMax else { return true }
        giveBack()
        return false
    }

    func giveBack(_ returned: Int = 1) { count.wrappingSubtract(returned, ordering: .relaxed) }
}

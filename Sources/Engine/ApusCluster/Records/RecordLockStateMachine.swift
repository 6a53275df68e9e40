/// Decides whether to kill a process that keeps others from writing records (docs/decisions/21).
/// A running process holds the lock for one commit. A process that was declared dead is stopped if it holds the lock
/// for the same turn at two successive checks. The checks continue: the dead process may hold the gate while a live
/// one holds the lock, or take the lock when it resumes for a moment, long after its death. A dead process that is
/// running out takes one turn after the other, and is left alone.
/// **Memory.** The newest ``deadCountMax`` deaths. Pure.
package struct RecordLockStateMachine: Sendable {
    /// The maximum number of deaths that are remembered. The oldest is dropped first.
    package static let deadCountMax = 256

    /// A process that holds the lock, the mark of its incarnation, and the number of its turn.
    package struct Holder: Sendable, Equatable {
        package var process: Int32
        package var mark: UInt64
        package var turn: UInt16

        package init(process: Int32, mark: UInt64, turn: UInt16) {
            (self.process, self.mark, self.turn) = (process, mark, turn)
        }
    }

    /// By mark, oldest first.
    private var dead: [(mark: UInt64, name: String)] = []
    /// A dead process that held the lock at the last check.
    private var suspect: Holder?

    package init() {}

    /// True if there was a death, so that checks are useful.
    package var isWatching: Bool { !dead.isEmpty }

    /// Notes that a node was declared dead.
    package mutating func died(_ name: String, mark: UInt64) {
        guard !dead.contains(where: { $0.mark == mark }) else { return }
        if dead.count == Self.deadCountMax { dead.removeFirst() }
        dead.append((mark, name))
    }

    /// Processes a check of the lock; nil if no other process holds it. Returns the process to kill, and its node.
    package mutating func looked(_ holder: Holder?) -> (process: Int32, node: String)? {
        guard let holder, let node = dead.first(where: { $0.mark == holder.mark })?.name else {
            suspect = nil
            return nil
        }
        guard suspect == holder else {
            suspect = holder
            return nil
        }
        suspect = nil
        return (holder.process, node)
    }
}

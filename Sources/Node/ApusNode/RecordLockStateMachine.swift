/// Decides which process that keeps others from writing records is to be ended (docs/decisions/21).
///
/// A process that runs holds the lock for one commit. One that was declared dead and has it at two looks for the same
/// turn is stopped. Each look asks anew: the dead one may hold the gate while a live one holds the lock, or take the
/// lock when it goes on for a moment, long after its death. One that goes on and comes to its end takes one turn after
/// the other, and is left alone.
///
/// **Memory.** The newest ``deadCountMax`` deaths. Pure.
package struct RecordLockStateMachine: Sendable {
    /// Deaths that are remembered; the oldest is forgotten first.
    package static let deadCountMax = 256

    /// A process that holds the lock, the mark of the incarnation that it is, and which of its turns it is.
    package struct Holder: Sendable, Equatable {
        package var process: Int32
        package var mark: UInt64
        package var turn: UInt16

        package init(process: Int32, mark: UInt64, turn: UInt16) {
            (self.process, self.mark, self.turn) = (process, mark, turn)
        }
    }

    /// By mark, the oldest first.
    private var dead: [(mark: UInt64, name: String)] = []
    /// A dead one that held the lock at the last look.
    private var suspect: Holder?

    package init() {}

    /// Somebody has died: looks are of use.
    package var isWatching: Bool { !dead.isEmpty }

    /// A node was declared dead.
    package mutating func died(_ name: String, mark: UInt64) {
        guard !dead.contains(where: { $0.mark == mark }) else { return }
        if dead.count == Self.deadCountMax { dead.removeFirst() }
        dead.append((mark, name))
    }

    /// The lock was looked at; nil: no other process holds it. Answers the process to end, and the node that it was.
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

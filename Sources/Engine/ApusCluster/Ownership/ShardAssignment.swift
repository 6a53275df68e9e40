public import ApusCore

/// Who owns a shard, who stands by, and the fencing token.
///
/// **What a standby may lack.** A planned move names only a node that has everything, and without which the owner
/// acknowledges nothing (D18). After a death, and where nobody stood by, a node is named for want of another: it may
/// hold a copy of an earlier time, and the owner does not know yet that it must wait for it. A node that sees only
/// some of the maps cannot tell one from the other by what it saw, so the assignment says it, for the standby and,
/// where that became the owner, for the owner: the first revision of the map that had it. What an owner says under
/// this revision or a later one, it says of the standby that is named now.
public struct ShardAssignment: Sendable, Hashable {
    public var owner: MemberSlot
    public var standby: MemberSlot
    /// Grows with every change of ``owner``; a change of the standby alone leaves it.
    public var epoch: Epoch
    /// The map's revision in which the standby was named for want of another; 0 if a planned move named it.
    public var standbyNamedIn: UInt64
    /// As ``standbyNamedIn``, for the owner as the standby that it was under the epoch before, or as the owner where
    /// there was none; 0 after a planned hand-over.
    public var ownerNamedIn: UInt64

    public init(
        owner: MemberSlot = .none, standby: MemberSlot = .none, epoch: Epoch = 0, standbyNamedIn: UInt64 = 0,
        ownerNamedIn: UInt64 = 0
    ) {
        self.owner = owner
        self.standby = standby
        self.epoch = epoch
        self.standbyNamedIn = standbyNamedIn
        self.ownerNamedIn = ownerNamedIn
    }

    // MARK: After a death

    /// The standby is gone.
    package mutating func loseStandby() {
        standby = .none
        standbyNamedIn = 0
    }

    /// The owner is gone: the standby takes its place, where there is one.
    package mutating func loseOwner() {
        owner = standby
        ownerNamedIn = standbyNamedIn
        epoch += 1
        loseStandby()
    }

    /// A member becomes the owner under the epoch, though it did not stand by.
    package mutating func nameOwner(_ member: MemberSlot, in revision: UInt64) {
        owner = member
        ownerNamedIn = member == .none ? 0 : revision
    }

    /// A member stands by from now on, whatever it holds.
    package mutating func nameStandby(_ member: MemberSlot, in revision: UInt64) {
        standby = member
        standbyNamedIn = member == .none ? 0 : revision
    }

    // MARK: As planned

    /// A member that has everything stands by in the place of another.
    package mutating func moveStandby(to member: MemberSlot) {
        guard member != standby else { return }
        standby = member
        standbyNamedIn = 0
    }

    /// The standby, which has everything, becomes the owner; the owner stands by with what it had.
    package mutating func handOver() {
        (owner, standby) = (standby, owner)
        (ownerNamedIn, standbyNamedIn) = (0, 0)
        epoch += 1
    }
}

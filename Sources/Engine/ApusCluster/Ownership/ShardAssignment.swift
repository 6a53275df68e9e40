public import ApusCore

/// The owner of a shard, its two standbys, and the fencing token.
///
/// **The second standby** has a third copy of the replicated states, so that they survive if the owner and the standby
/// fail together. A cluster of fewer than ``ClusterMap/secondStandbyMemberCountMin`` members names none. If the standby
/// fails, the second standby takes its place.
///
/// **What a standby may lack.** A planned move names a node only if it has everything, and the owner then acknowledges
/// nothing without it (D18). After a death, and if there was no standby, a node is named without that condition: it may
/// hold an older copy, and the owner does not know yet that it must wait for it. A node that sees only some of the maps
/// cannot distinguish the two cases. The assignment therefore records, for the standby and for an owner that was such a
/// standby, the first revision of the map that named it. What an owner reports under this revision or a later one
/// applies to the standby that is named now.
public struct ShardAssignment: Sendable, Hashable {
    public var owner: MemberSlot
    public var standby: MemberSlot
    /// Grows with every change of ``owner``. A change of the standby alone does not change it.
    public var epoch: Epoch
    /// The revision of the map that named the standby without a planned move; 0 if a planned move named it.
    public var standbyNamedIn: UInt64
    /// As ``standbyNamedIn``, for the owner: the revision that named it standby under the epoch before, or owner if it
    /// was not the standby; 0 after a planned hand-over.
    public var ownerNamedIn: UInt64
    public var secondStandby: MemberSlot
    /// As ``standbyNamedIn``, for the second standby.
    public var secondStandbyNamedIn: UInt64

    public init(
        owner: MemberSlot = .none, standby: MemberSlot = .none, epoch: Epoch = 0, standbyNamedIn: UInt64 = 0,
        ownerNamedIn: UInt64 = 0, secondStandby: MemberSlot = .none, secondStandbyNamedIn: UInt64 = 0
    ) {
        self.owner = owner
        self.standby = standby
        self.epoch = epoch
        self.standbyNamedIn = standbyNamedIn
        self.ownerNamedIn = ownerNamedIn
        self.secondStandby = secondStandby
        self.secondStandbyNamedIn = secondStandbyNamedIn
    }

    /// The member that has the role.
    package subscript(role: ShardRole) -> MemberSlot {
        switch role {
        case .owner: owner
        case .standby: standby
        case .secondStandby: secondStandby
        }
    }

    /// True if the member has a role.
    package func isHeld(by member: MemberSlot) -> Bool {
        owner == member || standby == member || secondStandby == member
    }

    // MARK: After a death

    /// Removes the standby. The second standby takes its place, if there is one.
    package mutating func loseStandby() {
        (standby, standbyNamedIn) = (secondStandby, secondStandbyNamedIn)
        loseSecondStandby()
    }

    /// Removes the second standby.
    package mutating func loseSecondStandby() {
        (secondStandby, secondStandbyNamedIn) = (.none, 0)
    }

    /// Removes the owner. The standby takes its place, if there is one.
    package mutating func loseOwner() {
        owner = standby
        ownerNamedIn = standbyNamedIn
        epoch += 1
        loseStandby()
    }

    /// Gives a role to a member, whatever it holds.
    package mutating func name(_ member: MemberSlot, as role: ShardRole, in revision: UInt64) {
        let namedIn = member == .none ? 0 : revision
        switch role {
        case .owner: (owner, ownerNamedIn) = (member, namedIn)
        case .standby: (standby, standbyNamedIn) = (member, namedIn)
        case .secondStandby: (secondStandby, secondStandbyNamedIn) = (member, namedIn)
        }
    }

    // MARK: Planned moves

    /// Replaces the standby by a member that has everything. If that is the second standby, the two change places.
    ///
    /// - Parameter isKept: The former standby, which has everything too, becomes the second standby.
    package mutating func moveStandby(to member: MemberSlot, keepingFormer isKept: Bool = false) {
        guard member != standby else { return }
        if isKept || member == secondStandby { (secondStandby, secondStandbyNamedIn) = (standby, standbyNamedIn) }
        standby = member
        standbyNamedIn = 0
    }

    /// Replaces the second standby by a member that has everything.
    package mutating func moveSecondStandby(to member: MemberSlot) {
        guard member != secondStandby else { return }
        (secondStandby, secondStandbyNamedIn) = (member, 0)
    }

    /// Makes the standby, which has everything, the owner. The owner becomes the standby and has what it had.
    package mutating func handOver() {
        (owner, standby) = (standby, owner)
        (ownerNamedIn, standbyNamedIn) = (0, 0)
        epoch += 1
    }
}

/// What a member is to a shard.
package enum ShardRole: Sendable, CaseIterable {
    case owner, standby, secondStandby
}

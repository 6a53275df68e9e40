package import ApusCore

/// One change of the cluster map. A node decides it and applies it with one compare-and-swap (D4, D5).
package enum OwnershipDecision: Sendable, Equatable {
    /// A node starts as ``ClusterMap/nextIncarnation(of:)``. An earlier incarnation of its name that still counts as
    /// alive is dead by this. The node listens before it joins, so it can be reached from its first moment in the map.
    /// The process is the number that this start of the node drew: of two processes that join as one incarnation, one
    /// does.
    case join(NodeID, addresses: NodeAddresses, weight: UInt32, watchRule: WatchRule? = nil, process: UInt64 = 0)
    /// The detector confirmed deaths. The shards go to their standbys.
    case declareDead([NodeID])
    /// A node accepts no new shards and hands over its own.
    case drain(NodeID)
    /// A node's drain ends: it accepts shards again.
    case undrain(NodeID)
    /// A node leaves. The shards that it still owns go to the standbys.
    case leave(NodeID)
    /// Another standby for shards, of the same owner and epoch.
    case setStandby([ShardMove])
    /// Another second standby for shards, of the same owner and epoch. It has everything.
    case setSecondStandby([ShardMove])
    /// The standby becomes the owner. It has everything.
    case handOver([ShardMove])
    /// A member was perhaps about to be declared dead. The same map follows, so that whatever was decided on this one
    /// fails (``PromiseStateMachine``). The only decision that replaces a map by an equal one.
    case confirm(NodeID)
    /// A node gets no new shards, or gets them again. It applies to the name: the node's later incarnations are
    /// cordoned too.
    case cordon(NodeName, Bool)
    /// A node's weight, until it joins again.
    case weigh(NodeName, UInt32)
    /// A member's rule was lost when a node of an earlier version replaced the map.
    case setWatchRule(NodeID, WatchRule)
}

/// One shard's planned move from its owner to another node, or to a new standby.
package struct ShardMove: Sendable, Hashable {
    package var shard: ShardID
    /// The epoch under which the move was planned. Under any other epoch the move is void.
    package var epoch: Epoch
    /// The owner that plans the move.
    package var owner: NodeID
    /// The node that becomes the standby, and in a hand-over then the owner.
    package var target: NodeID

    package init(shard: ShardID, epoch: Epoch, owner: NodeID, target: NodeID) {
        self.shard = shard
        self.epoch = epoch
        self.owner = owner
        self.target = target
    }
}

extension ClusterMap {
    /// The map that results from a decision; nil if the decision changes nothing (any more).
    ///
    /// Applied to its own result, a decision changes nothing. The exception is ``OwnershipDecision/confirm(_:)``, which
    /// always results in the same map.
    ///
    /// - Throws: 10025 if the deciding member is no longer alive in this map, or another process of its name took its
    ///   incarnation; 10007 if there is no slot for another name; 8002 for the cordon or weight of an unknown name.
    package func applying(_ decision: OwnershipDecision) throws(ApusError) -> ClusterMap? {
        var next = self
        switch decision {
        case .join(let node, let addresses, let weight, let watchRule, let process):
            if let slot = aliveSlot(of: node) {
                guard member(at: slot)?.process == process else { throw ApusError(.fenced) }
                return nil
            }
            try next.join(
                Member(
                    id: node, state: .up, addresses: addresses, weight: weight, watchRule: watchRule,
                    process: process))
        case .declareDead(let nodes): next.retire(nodes, as: .dead)
        case .drain(let node):
            guard let slot = aliveSlot(of: node) else { throw ApusError(.fenced) }
            next.members[Int(slot.rawValue)].state = .draining
            for index in next.shards.indices where next.shards[index].secondStandby == slot {
                next.shards[index].loseSecondStandby()
            }
            next.fillSecondStandbys()
        case .undrain(let node):
            guard let slot = aliveSlot(of: node) else { throw ApusError(.fenced) }
            next.members[Int(slot.rawValue)].state = .up
            next.fillStandbys()
            next.fillSecondStandbys()
        case .leave(let node):
            guard aliveSlot(of: node) != nil || members.contains(where: { $0.id == node && $0.state == .left }) else {
                throw ApusError(.fenced)
            }
            next.retire([node], as: .left)
        case .setStandby(let moves):
            for move in moves { next.setStandby(move) }
            next.fillSecondStandbys()
        case .setSecondStandby(let moves):
            for move in moves { next.setSecondStandby(move) }
        case .handOver(let moves):
            for move in moves { next.handOver(move) }
        case .confirm(let node):
            guard aliveSlot(of: node) != nil else { throw ApusError(.fenced) }
            return self
        case .cordon(let name, let isCordoned):
            guard let slot = slot(of: name) else { throw ApusError(.targetUnknown, "there is no node \(name)") }
            next.members[Int(slot.rawValue)].isCordoned = isCordoned
            if !isCordoned {
                next.fillStandbys()
                next.fillSecondStandbys()
            }
        case .weigh(let name, let weight):
            guard let slot = slot(of: name) else { throw ApusError(.targetUnknown, "there is no node \(name)") }
            next.members[Int(slot.rawValue)].weight = weight
        case .setWatchRule(let node, let rule):
            guard let slot = aliveSlot(of: node) else { throw ApusError(.fenced) }
            next.members[Int(slot.rawValue)].watchRule = rule
        }
        return next == self ? nil : next
    }

    /// The members of which a node must reach one before it joins: the others that are alive, if they declared the last
    /// incarnation of its name dead. Otherwise none. A node that is cut off from all of them, but not from the store,
    /// would be declared dead again and again.
    package func membersToReach(from name: NodeName) -> [Member] {
        guard member(named: name)?.state == .dead else { return [] }
        return members.filter { $0.state.isAlive && $0.id.name != name }
    }

    /// The incarnation of a node of that name that starts now: one after its last.
    package func nextIncarnation(of name: NodeName) -> NodeID {
        NodeID(name: name, incarnation: (member(named: name)?.id.incarnation ?? 0) + 1)
    }

    /// The slot of exactly this incarnation, if it is alive.
    package func aliveSlot(of node: NodeID) -> MemberSlot? {
        guard let slot = slot(of: node.name), let member = member(at: slot), member.id == node, member.state.isAlive
        else { return nil }
        return slot
    }

    /// True if the node holds nothing that another could take: it owns no shard, and is standby only where no other
    /// member is up to be one.
    package func isDrained(_ node: NodeID) -> Bool {
        guard let slot = aliveSlot(of: node) else { return true }
        let canReplace = members.count { $0.acceptsShards && $0.id != node } > 1
        return !shards.contains { $0.owner == slot || (canReplace && $0.standby == slot) }
    }

    // MARK: Steps

    private mutating func join(_ member: Member) throws(ApusError) {
        let node = member.id
        if let earlier = self.member(named: node.name)?.id {
            guard earlier.incarnation < node.incarnation else { throw ApusError(.fenced) }
            // The slot stays with the name, so the earlier incarnation must keep nothing under its epochs. If no other
            // member can take a shard, it has no owner until the new incarnation takes it below.
            retire([earlier], as: .dead)
        }
        var member = member
        member.isCordoned = self.member(named: node.name)?.isCordoned ?? false
        let slot: MemberSlot
        if let existing = self.slot(of: node.name) {
            slot = existing
            members[Int(slot.rawValue)] = member
        } else {
            guard members.count < Self.memberCountMax else {
                throw ApusError(.overloaded, "the cluster map has no slot for another name")
            }
            slot = MemberSlot(rawValue: UInt16(members.count))
            members.append(member)
        }
        for index in shards.indices {
            if shards[index].owner == .none {
                shards[index].name(slot, as: .owner, in: nextRevision)
                shards[index].epoch += 1
            } else if shards[index].standby == .none, member.acceptsShards {
                shards[index].name(slot, as: .standby, in: nextRevision)
            }
        }
        fillStandbys()
        fillSecondStandbys()
    }

    /// Removes nodes and their assignments. The standby becomes owner under the next epoch, and the second standby
    /// takes its place. If all three are removed, the best remaining member becomes owner.
    private mutating func retire(_ nodes: [NodeID], as state: Member.State) {
        var gone: [MemberSlot] = []
        for node in nodes {
            guard let slot = aliveSlot(of: node) else { continue }
            members[Int(slot.rawValue)].state = state
            gone.append(slot)
        }
        guard !gone.isEmpty else { return }
        for index in shards.indices {
            var shard = shards[index]
            if gone.contains(shard.secondStandby) { shard.loseSecondStandby() }
            if gone.contains(shard.standby) { shard.loseStandby() }
            if gone.contains(shard.owner) {
                shard.loseOwner()
                if shard.owner == .none { shard.name(bestOwner(of: index), as: .owner, in: nextRevision) }
            }
            shards[index] = shard
        }
        fillStandbys()
        fillSecondStandbys()
    }

    private func bestOwner(of shard: Int) -> MemberSlot {
        // A cordoned node is better than none.
        best(for: shard, where: \.acceptsShards) ?? best(for: shard) { $0.state.isAlive } ?? .none
    }

    private func best(for shard: Int, where isWanted: (Member) -> Bool) -> MemberSlot? {
        var ranking = ShardPlacement.Ranking(of: self, where: isWanted)
        ranking.rank(shard: shard)
        return ranking.best()
    }

    /// Assigns to every shard without a standby the best member that accepts shards.
    private mutating func fillStandbys() { fill(.standby) }

    /// The same for the second standbys, in a cluster of at least ``secondStandbyMemberCountMin`` members that accept
    /// shards. With fewer members, those that exist are kept.
    private mutating func fillSecondStandbys() {
        if wantsSecondStandbys { fill(.secondStandby) }
    }

    private var wantsSecondStandbys: Bool {
        members.count(where: \.acceptsShards) >= Self.secondStandbyMemberCountMin
    }

    /// Fills an empty role of the shards that have an owner. If the best member has more than its share of the role,
    /// the best that has less comes first.
    private mutating func fill(_ role: ShardRole) {
        guard members.contains(where: \.acceptsShards),
            shards.contains(where: { $0[role] == .none && $0.owner != .none })
        else { return }
        let revision = nextRevision
        var counts = Array(repeating: 0, count: members.count)
        for shard in shards where shard[role] != .none { counts[Int(shard[role].rawValue)] += 1 }
        let weightSum = members.filter(\.acceptsShards).reduce(0) { $0 + Double(max(1, $1.weight)) }
        let countsMax = members.map {
            Int(Double(shards.count) * Double(max(1, $0.weight)) / weightSum * ShardPlacement.loadMax) + 1
        }
        var ranking = ShardPlacement.Ranking(of: self, where: \.acceptsShards)
        for index in shards.indices where shards[index][role] == .none && shards[index].owner != .none {
            ranking.rank(shard: index)
            let shard = shards[index]
            let free = ranking.best { !shard.isHeld(by: $0) && counts[Int($0.rawValue)] < countsMax[Int($0.rawValue)] }
            guard let best = free ?? ranking.best(where: { !shard.isHeld(by: $0) }) else { continue }
            shards[index].name(best, as: role, in: revision)
            counts[Int(best.rawValue)] += 1
        }
    }

    private mutating func setStandby(_ move: ShardMove) {
        guard let (index, target) = place(of: move), target != shards[index].owner else { return }
        let former = member(at: shards[index].standby)
        shards[index].moveStandby(
            to: target, keepingFormer: former?.state == .up && wantsSecondStandbys)
        if member(at: shards[index].secondStandby)?.state == .draining { shards[index].loseSecondStandby() }
    }

    private mutating func setSecondStandby(_ move: ShardMove) {
        guard let (index, target) = place(of: move), !shards[index].isHeld(by: target) else { return }
        shards[index].moveSecondStandby(to: target)
    }

    /// Only a standby of the shard can become its owner: no other node has its state.
    private mutating func handOver(_ move: ShardMove) {
        guard let (index, target) = place(of: move), shards[index].standby == target else { return }
        shards[index].handOver()
    }

    /// The index and target slot of a move, if it is still valid: the same owner under the same epoch, and a target
    /// that accepts shards.
    private func place(of move: ShardMove) -> (index: Int, target: MemberSlot)? {
        let index = Int(move.shard.rawValue)
        guard shards.indices.contains(index), let owner = aliveSlot(of: move.owner),
            shards[index].owner == owner, shards[index].epoch == move.epoch,
            let target = aliveSlot(of: move.target), member(at: target)?.acceptsShards == true
        else { return nil }
        return (index, target)
    }
}

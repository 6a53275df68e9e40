import ApusCluster
import ApusCore
import NIOCore

/// What happens to the nodes, to the map and to the packets.
extension ReplicaSimulation {
    // MARK: The map

    mutating func decide(_ change: (inout ClusterMap) -> Void) {
        var newer = map
        newer.revision += 1
        change(&newer)
        for shard in Self.shards { mutate(&newer[shard], from: map[shard]) }
        maps.append(newer)
    }

    private func mutate(_ assignment: inout ShardAssignment, from earlier: ShardAssignment) {
        switch mutant {
        case .forgetsNamings: assignment.standbyNamedIn = 0
        case .forgetsSecondNamings: assignment.secondStandbyNamedIn = 0
        case .promotesUnnamed: assignment.ownerNamedIn = 0
        case .mistakesMoves where assignment.epoch == earlier.epoch && assignment.standby != earlier.standby:
            assignment.standbyNamedIn = map.nextRevision
        default: break
        }
    }

    mutating func seeMap(_ slot: Int) {
        guard var seen = nodes[slot]?.seenCount, seen < maps.count else { return }
        while skipsMaps, seen + 1 < maps.count, random.next() % 2 == 0 { seen += 1 }
        nodes[slot]?.seenCount = seen + 1
        nodes[slot]?.standby.mapChanged(maps[seen])
        if let effects = nodes[slot]?.owner.mapChanged(maps[seen]) { settle(effects, slot) }
    }

    /// Any node that is up and not among these.
    private mutating func anyone(_ map: ClusterMap, but others: [MemberSlot]) -> MemberSlot {
        let slots = map.members.indices.map { MemberSlot(rawValue: UInt16($0)) }
            .filter { map.member(at: $0)?.state.isAlive == true && !others.contains($0) }
        return slots.randomElement(using: &random) ?? .none
    }

    private mutating func declareDead(_ slots: [Int]) {
        let gone = slots.map { MemberSlot(rawValue: UInt16($0)) }
        var newer = map
        for slot in slots { newer.members[slot].state = .dead }
        for shard in Self.shards {
            var assignment = newer[shard]
            if gone.contains(assignment.secondStandby) { assignment.loseSecondStandby() }
            if gone.contains(assignment.standby) { assignment.loseStandby() }
            if gone.contains(assignment.owner) {
                assignment.loseOwner()
                if assignment.owner == .none {
                    assignment.name(anyone(newer, but: []), as: .owner, in: map.nextRevision)
                }
            }
            // The store may name the next standby at once, or when a node joins.
            if assignment.standby == .none, assignment.owner != .none, random.next() % 4 > 0 {
                assignment.name(anyone(newer, but: [assignment.owner]), as: .standby, in: map.nextRevision)
            }
            newer[shard] = assignment
        }
        decide { map in
            map.members = newer.members
            map.shards = newer.shards
        }
    }

    /// Names second standbys where there are none, and now and then another in the place of one that there is.
    mutating func nameSecondStandbys() {
        guard hasSecondStandbys else { return }
        var newer = map
        for shard in Self.shards where newer[shard].standby != .none {
            if newer[shard].secondStandby != .none, random.next() % 2 > 0 { continue }
            let second = anyone(newer, but: [newer[shard].owner, newer[shard].standby])
            guard second != newer[shard].secondStandby else { continue }
            newer[shard].name(second, as: .secondStandby, in: map.nextRevision)
        }
        guard newer.shards != map.shards else { return }
        decide { $0.shards = newer.shards }
    }

    // MARK: Nodes

    mutating func kill() {
        let alive = nodes.indices.filter { nodes[$0] != nil && map.members[$0].state.isAlive }
        let count = hasSecondStandbys && random.next() % 2 == 0 ? 2 : 1
        guard !isGentle || (stepsSinceDeath > 20 && areCopiesComplete), alive.count > count else { return }
        stepsSinceDeath = 0
        let slots =
            count > 1
            ? Array(alive.shuffled(using: &random).prefix(count))
            : [alive.randomElement(using: &random)].compactMap { $0 }
        // A node that is paused, or was seen so, may be declared dead while it is not.
        for slot in slots where random.next() % 4 > 0 {
            for waiters in nodes[slot]?.waiters.values.map({ $0 }) ?? [] {
                var waiters = waiters
                for number in waiters.takeAll() { tell(number) }
            }
            nodes[slot] = nil
        }
        declareDead(slots)
    }

    private var areCopiesComplete: Bool {
        Self.shards.allSatisfy { shard in
            guard let owner = map.owner(of: shard)?.id, let standby = map.standby(of: shard)?.id else { return false }
            if hasSecondStandbys {
                guard let second = map.secondStandby(of: shard)?.id, let slot = slot(of: owner),
                    haveSeen(slot, shard), let machine = self[owner]?.owner
                else { return false }
                return machine.isCaughtUp(shard, standby) && machine.isCaughtUp(shard, second)
            }
            // The former owner has what it had, and the new one acknowledges nothing without it.
            if handedOver[shard] == map[shard] { return true }
            // A move names nobody who has not caught up, whether the owner has heard of it or not.
            if planned[shard] == Move(owner: owner, target: standby, epoch: map[shard].epoch) { return true }
            return self[owner]?.owner.isCaughtUp(shard, standby) ?? false
        }
    }

    mutating func restart() {
        guard let slot = map.members.indices.filter({ !map.members[$0].state.isAlive }).randomElement(using: &random)
        else { return }
        if let former = nodes[slot] {
            for shard in Self.shards {
                var waiters = former.waiters[shard] ?? ReplicaWaiters()
                for number in waiters.takeAll() { tell(number) }
            }
        }
        var member = map.members[slot]
        member.id.incarnation += 1
        member.state = .up
        decide { map in
            map.members[slot] = member
            for shard in Self.shards where map[shard].standby == .none {
                if map[shard].owner != MemberSlot(rawValue: UInt16(slot)) {
                    map[shard].name(MemberSlot(rawValue: UInt16(slot)), as: .standby, in: map.revision)
                }
            }
        }
        nodes[slot] = newNode(member.id)
    }

    mutating func pause() {
        guard let slot = nodes.indices.randomElement(using: &random) else { return }
        nodes[slot]?.isPaused.toggle()
    }

    /// Nothing arrives from a node at another; the way back may be open.
    mutating func cut() {
        let way = Way(from: Int(random.next() % 4), to: Int(random.next() % 4))
        if !cuts.contains(way) { cuts.append(way) }
    }

    // MARK: Planned moves

    mutating func beginMove() {
        guard let shard = Self.shards.randomElement(using: &random), moves[shard] == nil,
            let owner = map.owner(of: shard)?.id, let slot = slot(of: owner), nodes[slot]?.owner[shard] != nil,
            haveSeen(slot, shard)
        else { return }
        let target = anyone(map, but: [map[shard].owner])
        guard let target = map.member(at: target)?.id else { return }
        moves[shard] = Move(owner: owner, target: target, epoch: map[shard].epoch)
        if let effects = nodes[slot]?.owner.setCandidate(shard, target) { settle(effects, slot) }
    }

    /// The node has seen the newest assignment of the shard: an owner knows what it asked for before it asks for more.
    func haveSeen(_ slot: Int, _ shard: ShardID) -> Bool {
        guard let seen = nodes[slot]?.seenCount, let last = maps.lastIndex(where: { $0[shard] != map[shard] }) else {
            return true
        }
        return seen > last + 1
    }

    /// A move is given up, but not what may have been decided.
    mutating func giveUp(_ shard: ShardID) {
        guard let move = moves[shard] else { return }
        if move.isProposed, let slot = slot(of: move.owner), !haveSeen(slot, shard) { return }
        abandon(shard)
    }

    mutating func abandon(_ shard: ShardID) {
        guard let move = moves.removeValue(forKey: shard), let slot = slot(of: move.owner),
            let effects = nodes[slot]?.owner.setCandidate(shard, nil)
        else { return }
        settle(effects, slot)
    }

    /// A move goes on as its owner sees it.
    mutating func advance(_ shard: ShardID) {
        guard let move = moves[shard] else { return }
        guard !isCalm else { return giveUp(shard) }
        guard let owner = self[move.owner], map.owner(of: shard)?.id == move.owner, map[shard].epoch == move.epoch,
            map.isAlive(move.target), let target = map.slot(of: move.target.name)
        else { return giveUp(shard) }
        guard !owner.isPaused else { return }
        let isCaughtUp = owner.owner.isCaughtUp(shard, move.target)
        if map[shard].standby != target {
            if isCaughtUp || mutant == .namesStandbyEarly {
                moves[shard]?.isProposed = true
                planned[shard] = map.standby(of: shard) == nil ? nil : move
                decide { $0[shard].moveStandby(to: target) }
            }
            return
        }
        guard let slot = slot(of: move.owner), haveSeen(slot, shard), random.next() % 4 == 0 else { return }
        moves[shard]?.isHeld = true
        let position = owner.owner[shard]?.position ?? 0
        let isDone = isCaughtUp && owner.owner[shard]?.isConfirmed(position, by: move.target) == true
        guard isDone || mutant == .handsOverEarly else { return }
        decide { $0[shard].handOver() }
        handedOver[shard] = map[shard]
        abandon(shard)
    }

    // MARK: Packets

    mutating func send(_ slot: Int) {
        guard let id = nodes[slot]?.id else { return }
        for (target, message) in nodes[slot]?.owner.nextMessages(now: now) ?? [] {
            // No link: the sender is told.
            if !isCalm, random.next() % 40 == 0 {
                nodes[slot]?.owner.failed(message.number, to: target, now: now)
                continue
            }
            post(message.encoded(), from: id, to: target, isAnswer: false)
            guard mutant == .acknowledgesEarly else { continue }
            let answers = message.batches.map {
                ReplicaAnswer(
                    shard: $0.shard, term: $0.term, sequence: $0.sequence, verdict: .next($0.sequence + 1))
            }
            let forged = ReplicaAnswers(number: message.number, answers: answers)
            post(forged.encoded(), from: target, to: id, isAnswer: true)
        }
    }

    private mutating func post(_ bytes: ByteBuffer, from: NodeID, to: NodeID, isAnswer: Bool) {
        let chance = isCalm ? 50 : random.next() % 100
        guard chance >= 10 else { return }
        for _ in 0..<(chance < 20 ? 2 : 1) {
            let isSlow = !isCalm && random.next() % 20 == 0
            let delay = Duration.milliseconds(Int(random.next() % (isSlow ? 200 : 12)) + 1)
            packets.append(Packet(time: now + delay, from: from, to: to, isAnswer: isAnswer, bytes: bytes))
        }
    }

    mutating func deliver() {
        let due = packets.filter { $0.time <= now }.sorted { $0.time < $1.time }
        packets.removeAll { $0.time <= now }
        for packet in due {
            // A link leads to the incarnation that holds the name now.
            guard let slot = nodes.firstIndex(where: { $0?.id.name == packet.to.name }) else { continue }
            if let from = map.slot(of: packet.from.name), cuts.contains(Way(from: Int(from.rawValue), to: slot)) {
                continue
            }
            guard nodes[slot]?.isPaused == false else {
                var later = packet
                later.time = now + .milliseconds(10)
                packets.append(later)
                continue
            }
            if packet.isAnswer { take(answers: packet, slot) } else { take(message: packet, slot) }
        }
    }

    private mutating func take(message packet: Packet, _ slot: Int) {
        guard var message = try? ReplicaMessage(decoding: packet.bytes), let id = nodes[slot]?.id else {
            return violate("a message cannot be read")
        }
        for index in message.batches.indices { mutate(&message.batches[index], at: id) }
        guard var answers = nodes[slot]?.standby.received(message, from: packet.from) else { return }
        for index in answers.answers.indices {
            let answer = answers.answers[index]
            if case .next(let next) = answer.verdict {
                expectations[id, default: [:]][answer.shard] = Expectation(term: answer.term, next: next)
            }
            mutate(&answers.answers[index])
        }
        post(answers.encoded(), from: id, to: packet.from, isAnswer: true)
    }

    private func mutate(_ batch: inout ReplicaBatch, at node: NodeID) {
        let expected = expectations[node]?[batch.shard]
        switch mutant {
        case .completesEarly where batch.sequence == 1:
            batch.completes = true
            batch.isBinding = true
        case .forgetsRemovals: batch.records.removeAll { $0.state == nil }
        case .dropsRecords where batch.records.count > 1: batch.records.removeLast()
        case .appliesOutOfOrder:
            guard let expected, batch.term == expected.term, batch.sequence > expected.next else { break }
            batch.sequence = expected.next
        case .appliesTwice:
            guard let expected, batch.term == expected.term, batch.sequence < expected.next else { break }
            batch.sequence = expected.next
        case .takesStaleTerms:
            guard let expected, batch.term < expected.term else { break }
            (batch.term, batch.sequence) = (expected.term, expected.next)
        case .none, .acknowledgesEarly, .completesEarly, .dropsRecords, .ignoresRestarts, .namesStandbyEarly,
            .handsOverEarly, .ignoresBounds, .hidesLosses, .forgetsNamings, .forgetsSecondNamings,
            .promotesUnnamed, .mistakesMoves:
            break
        }
    }

    private func mutate(_ answer: inout ReplicaAnswer) {
        switch (mutant, answer.verdict) {
        case (.takesStaleTerms, .older), (.ignoresRestarts, .restart):
            answer.verdict = .next(answer.sequence + 1)
        default: break
        }
    }

    private mutating func take(answers packet: Packet, _ slot: Int) {
        guard nodes[slot]?.id == packet.to else { return }
        guard let answers = try? ReplicaAnswers(decoding: packet.bytes) else {
            return violate("answers cannot be read")
        }
        if let effects = nodes[slot]?.owner.answered(answers, by: packet.from, now: now) { settle(effects, slot) }
    }
}

import ApusCluster
import ApusCore

/// The invariants after every step, and at the end.
extension ClusterSimulation {
    // MARK: Maps

    /// Checks a map that was just made.
    func checkMap(after old: ClusterMap, by maker: SimulatedProcess) {
        let new = store.map
        checkMembers(of: new, after: old, by: maker)
        for index in new.shards.indices {
            let (before, after) = (old.shards[index], new.shards[index])
            fold(UInt64(after.epoch) << 32 | UInt64(after.owner.rawValue) << 16 | UInt64(after.standby.rawValue))
            if after.epoch < before.epoch {
                fail("shard \(index) went back from epoch \(before.epoch) to \(after.epoch), by \(maker.id)")
            }
            let owner = new.member(at: after.owner)
            if owner?.id != old.member(at: before.owner)?.id, after.epoch <= before.epoch {
                fail("shard \(index) has another owner under the same epoch \(after.epoch), by \(maker.id)")
            }
            if owner?.id != old.member(at: before.owner)?.id { checkTakeover(of: index, after: old, by: maker) }
            if let owner, !owner.state.isAlive { fail("shard \(index) is owned by \(owner.id), which is not alive") }
            checkStandby(of: index, after: old, by: maker)
            checkCordon(of: index, after: old, by: maker)
            let standby = new.member(at: after.standby)
            if after.owner != .none, after.owner == after.standby { fail("shard \(index) has its owner as standby") }
            if let standby, !standby.state.isAlive { fail("shard \(index)'s standby \(standby.id) is not alive") }
            if owner == nil, new.members.contains(where: { $0.state.isAlive }) {
                fail("shard \(index) has no owner while a member is alive")
            }
            if standby == nil, let owner, new.members.contains(where: { $0.acceptsShards && $0.id != owner.id }) {
                fail("shard \(index) has no standby while another member accepts it")
            }
        }
    }

    /// Checks a shard that a member got: it was not cordoned, or nobody else accepted it, or it was the shard's
    /// standby.
    private func checkCordon(of index: Int, after old: ClusterMap, by maker: SimulatedProcess) {
        let (before, after) = (old.shards[index], store.map.shards[index])
        let isCordoned: (MemberSlot) -> Bool = { slot in
            // A node that this map uncordons may stand by at once.
            guard let before = old.member(at: slot), let now = self.store.map.member(at: slot) else { return false }
            return before.isCordoned && now.isCordoned && now.state == .up
        }
        // A node that joins with this map could not take a shard before.
        let others = store.map.members.filter { $0.acceptsShards && old.isAlive($0.id) }
        if after.owner != before.owner, isCordoned(after.owner), !before.isHeld(by: after.owner), !others.isEmpty {
            fail("shard \(index) went to the cordoned owner \(after.owner.rawValue), by \(maker.id)")
        }
        if after.standby != before.standby, isCordoned(after.standby), !before.isHeld(by: after.standby) {
            fail("shard \(index) went to the cordoned standby \(after.standby.rawValue), by \(maker.id)")
        }
        let second = after.secondStandby
        if second != before.secondStandby, isCordoned(second), !before.isHeld(by: second) {
            fail("shard \(index) went to the cordoned second standby \(second.rawValue), by \(maker.id)")
        }
    }

    /// Checks a shard whose standby changed: if the earlier standby is alive, the new one has everything.
    private func checkStandby(of index: Int, after old: ClusterMap, by maker: SimulatedProcess) {
        let (before, after) = (old.shards[index], store.map.shards[index])
        guard before.epoch == after.epoch, let earlier = old.member(at: before.standby)?.id,
            let later = store.map.member(at: after.standby)?.id, later != earlier, store.map.isAlive(earlier)
        else { return }
        guard !caughtUp[index].contains(where: { $0.epoch == after.epoch && $0.target == later }) else { return }
        fail("shard \(index) went from standby \(earlier) to \(later), which has not caught up, by \(maker.id)")
    }

    /// Checks a shard with a new owner: if the old owner is alive, it held the shard first, and its calls had ended.
    private func checkTakeover(of index: Int, after old: ClusterMap, by maker: SimulatedProcess) {
        let before = old.shards[index]
        guard let loser = old.member(at: before.owner)?.id, store.map.isAlive(loser) else { return }
        let winner = store.map.member(at: store.map.shards[index].owner)?.id
        let place = heldMoves[index].firstIndex { $0.epoch == before.epoch && $0.target == winner }
        guard let place else { return fail("shard \(index) moved from \(loser) without a hold, by \(maker.id)") }
        heldMoves[index][place].isHandedOver = true
        let held = heldMoves[index][place]
        if let write = lastWrites[index], write.epoch == before.epoch, write.issuedAt > held.at {
            fail("\(write.writer) wrote to shard \(index) after it was held for \(held.target)")
        }
    }

    private func checkMembers(of new: ClusterMap, after old: ClusterMap, by maker: SimulatedProcess) {
        if new.members.count < old.members.count { fail("a member vanished from the map, by \(maker.id)") }
        for (slot, member) in new.members.enumerated() {
            if member.state.isAlive, ended.contains(member.id) {
                fail("\(member.id) returned after its death, by \(maker.id)")
            }
            guard slot < old.members.count else { continue }
            let before = old.members[slot]
            if before.id.name != member.id.name || before.id.incarnation > member.id.incarnation {
                fail("slot \(slot) changed from \(before.id) to \(member.id)")
            }
            guard before.state.isAlive, member.id != before.id || !member.state.isAlive else { continue }
            ended.append(before.id)
            guard member.state != .left else { continue }
            // A new incarnation of the name ended the old one. No node declared it dead.
            guard member.id == before.id else {
                noteDeposed(before.id, by: maker)
                continue
            }
            deathCount += 1
            checkSide(of: maker, against: before.id)
            checkVictim(before.id, by: maker)
            if let process = runningProcess(of: before.id) { checkPermission(of: process) }
            tell("\(before.id) was declared dead by \(maker.id)")
            if !profile.hasDeaths {
                falseEvictionCount += 1
                fail("\(before.id) is alive and was declared dead by \(maker.id)")
            }
        }
    }

    /// In a run of partitions only nodes that were cut off with a minority may be declared dead, and not by each other.
    private func checkSide(of maker: SimulatedProcess, against victim: NodeID) {
        guard profile == .partitions else { return }
        guard let name = nameIndex(of: victim.name), isolatedNames.contains(name),
            !isolatedNames.contains(maker.nameIndex)
        else { return fail("\(victim) was reached by most nodes and was declared dead by \(maker.id)") }
        if isolatedDeaths.contains(name) { fail("\(victim) was declared dead again in the same cut, by \(maker.id)") }
        isolatedDeaths.append(name)
    }

    /// Checks a process that runs: if it is dead in the store's map, its shards have other owners, so it may not
    /// answer.
    func checkPermission(of process: SimulatedProcess) {
        // One that leaves handed its shards over before.
        let hasLeft = store.map.members.contains { $0.id == process.id && $0.state == .left }
        guard process.isRunning, process.pausedUntil == nil, process.leavesAt == nil, !hasLeft, mayAnswer(process),
            ended.contains(process.id)
        else { return }
        // Not covered: it waits for the store, and does not know that several members have joined meanwhile
        // (PromiseStateMachine).
        let unknownCount = store.map.members.count { $0.state.isAlive && !process.view.isAlive($0.id) }
        guard unknownCount < 2 || !process.ownership.isBusy else { return }
        let until = process.membership.promises.permissionEnd
        fail("\(process.id) may answer for its entities after it was declared dead, for \(until - now)")
    }

    private func mayAnswer(_ process: SimulatedProcess) -> Bool {
        mutant == .answersWithoutPromises || process.membership.promises.permissionEnd > now
    }

    /// Checks that a minority that was cut off, in any direction, was declared dead. The store must not be slow.
    func checkIsolation() {
        guard !isHealed, now >= network.storeSlowUntil + .seconds(1) else { return }
        for name in isolatedNames {
            guard let process = runningProcess(named: name), process.isMember, store.map.isAlive(process.id),
                !isolatedDeaths.contains(name)
            else { continue }
            fail("\(process.id) is not dead 800 ms after it was cut off")
        }
    }

    /// Checks that a link between two nodes goes around their cut path. In a crowd either may be paused by another
    /// fault, or may have started again; otherwise all nodes run in such a run.
    func checkPath(_ from: Int, _ to: Int) {
        guard let process = runningProcess(named: from), let peer = runningProcess(named: to), process.isMember,
            peer.isMember, process.pausedUntil == nil, peer.pausedUntil == nil
        else { return }
        let isUp =
            process.linked.contains(peer.id) && isReachable(to, from: process, through: process.helpers[peer.id])
        if !isUp { fail("\(process.id) has no link to \(peer.id) since their path was cut") }
    }

    /// Checks a map that a process applies as the newest.
    func checkAdoption(of map: ClusterMap, by process: SimulatedProcess) {
        if map.revision < process.view.revision {
            fail("\(process.id) goes back from revision \(process.view.revision) to \(map.revision)")
        }
        guard map.revision < UInt64(store.history.count) else {
            return fail("\(process.id) holds revision \(map.revision), which the store never made")
        }
        let stored = store.history[Int(map.revision)]
        // A node of an earlier version reads no rules, and writes none.
        guard process.isEarlier ? stored.withoutRules == map.withoutRules : stored == map else {
            return fail("\(process.id) holds another map of revision \(map.revision) than the store")
        }
    }

    /// Checks a process that becomes a member: its incarnation must be unused.
    func checkIncarnation(of process: SimulatedProcess) {
        if let other = lives.first(where: { $0.id == process.id }), other.process != process.index {
            fail("\(process.id) is the incarnation of two processes")
        }
        lives.append((process.id, process.index))
    }

    // MARK: Writes

    func checkWrite(_ write: FencedWrite, after before: SimulatedFencedStore.Row) {
        if write.epoch < before.epoch {
            fail("shard \(write.shard)'s store took a write under epoch \(write.epoch) after one under \(before.epoch)")
        }
        if write.epoch == before.epoch, before.process >= 0, before.process != write.process {
            fail("shard \(write.shard) was written by two processes under epoch \(write.epoch)")
        }
        let held = heldMoves[write.shard].last { $0.isHandedOver && $0.epoch == write.epoch }
        if let held, write.issuedAt > held.at {
            fail("a write of \(write.writer) to shard \(write.shard) came after it was handed over to \(held.target)")
        }
        let owner = store.owner(of: write.shard, under: write.epoch)
        if owner != write.writer {
            let rightful = owner.map { "\($0)'s" } ?? "nobody's"
            fail("\(write.writer) wrote to shard \(write.shard) under epoch \(write.epoch), which is \(rightful)")
        }
    }

    // MARK: The end

    /// Checks every 50 ms after the last fault that the cluster is stable. A run that stays stable for 400 ms ends.
    func checkSettled() {
        let mapUnrest = unrest()
        if mapUnrest != nil { lastMapUnrest = now }
        guard let unrest = mapUnrest ?? workload?.unrest(mapIsAtRestSince: lastMapUnrest) else {
            guard now - lastUnrest > .milliseconds(400) else { return later(.check, after: .milliseconds(50)) }
            settleTime = lastUnrest - healedAt
            workload?.checkEnd()
            isOver = true
            return
        }
        lastUnrest = now
        guard now - healedAt < settings.settleTimeMax else {
            return fail("\(settings.settleTimeMax) after the last fault \(unrest)")
        }
        later(.check, after: .milliseconds(50))
    }

    /// What is not yet as it should be after the faults; nil if everything is.
    private func unrest() -> String? {
        let map = store.map
        let running = processes.filter(\.isRunning)
        for process in running {
            if process.isTwinAlive, !process.isMember, let other = map.member(named: names[process.nameIndex]),
                runningProcess(of: other.id)?.isMember == true
            {
                continue
            }
            guard process.isMember, map.isAlive(process.id) else { return "\(process.id) is no member" }
            guard process.ownership.store == .sound else { return "\(process.id) finds the store unsound" }
            guard process.leavesAt == nil else { return "\(process.id) has not left" }
            guard process.membership.promises.permissionEnd > now else { return "\(process.id) may not answer" }
            guard process.view.revision == map.revision else {
                return "\(process.id) holds revision \(process.view.revision) instead of \(map.revision)"
            }
        }
        for member in map.members where member.state.isAlive {
            guard running.contains(where: { $0.id == member.id }) else { return "\(member.id) does not run" }
        }
        let placement = ShardPlacement(of: map)
        let isSettled = placement.isSettled(map)
        for index in map.shards.indices {
            let shard = map.shards[index]
            guard let owner = map.member(at: shard.owner), owner.state.isAlive else {
                return "shard \(index) is not owned"
            }
            let hasCandidate = map.members.contains { $0.acceptsShards && $0.id != owner.id }
            guard running.count < 2 || !hasCandidate || map.member(at: shard.standby) != nil else {
                return "shard \(index) has no standby"
            }
            guard isSettled || !placement.isMisplaced(index, in: map) else {
                return "shard \(index) is not at its place"
            }
        }
        return nil
    }
}

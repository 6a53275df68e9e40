import ApusCluster
import ApusCore

/// Faults, and their end.
extension ClusterSimulation {
    /// Injects one fault and schedules the next.
    func makeFault() {
        guard !isHealed else { return }
        switch profile {
        case .lossy: return
        case .stutter:
            if let process = anyRunning() {
                tell("\(process.id) stutters")
                process.stuttersUntil = now + span(400...900)
            }
            later(.fault, after: span(950...1400))
        case .starved:
            // Between two pauses a process runs for long enough to be heard.
            if let process = anyRunning(), now - process.resumedAt > .milliseconds(100) {
                pause(process, for: span(100...600), isStarved: true)
            }
            // Less than a starvation lasts, so two or three processes get no processor at the same time.
            later(.fault, after: span(150...700))
        case .chaos, .entities:
            makeChaos()
            later(.fault, after: span(60...600))
        case .cordons:
            if chance(0.3) { cordonSomebody() } else { makeChaos() }
            later(.fault, after: span(60...600))
        case .ring:
            makeRingFault()
            later(.fault, after: span(60...600))
        case .crowd:
            makeCrowdFault()
            later(.fault, after: span(2500...3000))
        case .twins:
            makeTwinFault()
            later(.fault, after: span(100...1500))
        case .kills: killSomebody()
        case .pairs: loseTwo()
        case .partitions:
            cutSomething()
            later(.fault, after: span(3000...4000))
        }
    }

    /// Cuts the path between two nodes, in one direction or both, or a minority from all others, for up to two seconds.
    private func cutSomething() {
        let members = processes.filter { $0.isRunning && $0.isMember }
        guard members.count == settings.nodeCount else { return }
        let (one, other) = (below(settings.nodeCount), below(settings.nodeCount))
        (isolatedNames, isolatedDeaths) = ([], [])
        // Decisions are then on their way when the cut ends.
        if chance(0.4) { network.storeSlowUntil = now + span(300...1500) }
        if chance(0.4) {
            isolatedNames = [one]
            if settings.nodeCount > 4, one != other, chance(0.6) { isolatedNames.append(other) }
            let duration = span(chance(0.5) ? 200...500 : 500...2000)
            isolate(isolatedNames, Direction.allCases[below(3)], withStore: chance(0.3), for: duration)
            if duration > .milliseconds(1000) { later(.isolationSettled, after: .milliseconds(800)) }
            return
        }
        guard one != other else { return }
        let duration = span(900...2000)
        block(one, other, isMutual: chance(0.5), for: duration)
        later(.pathsSettled(one, other), after: .milliseconds(800))
        later(.pathsSettled(other, one), after: .milliseconds(800))
    }

    /// Kills a node at a moment when nothing is lost by it. Ends the faults after the last kill.
    private func killSomebody() {
        let members = processes.filter { $0.isRunning && $0.isMember }
        guard killCount < settings.killCountMax else { return heal() }
        guard members.count > 2, workload?.isSafe ?? true else { return later(.fault, after: span(5...30)) }
        let process = members[below(members.count)]
        killCount += 1
        stop(process, "crashes")
        later(.start(name: process.nameIndex), after: span(5...600))
        later(.fault, after: span(20...200))
    }

    /// Kills two nodes at once, or cuts them off together until they are declared dead.
    private func loseTwo() {
        let members = processes.filter { $0.isRunning && $0.isMember }
        guard killCount < settings.killCountMax else { return heal() }
        guard members.count == settings.nodeCount, workload?.isSafe ?? true else {
            return later(.fault, after: span(5...30))
        }
        let first = members[below(members.count)]
        let others = members.filter { $0 !== first }
        let pair = [first, others[below(others.count)]]
        killCount += 1
        var pause = span(20...200)
        if chance(0.5) {
            for process in pair {
                stop(process, "crashes")
                later(.start(name: process.nameIndex), after: span(5...600))
            }
        } else {
            let duration = span(800...2000)
            isolate(pair.map(\.nameIndex), withStore: chance(0.3), for: duration)
            pause += duration
        }
        later(.fault, after: pause)
    }

    private func anyRunning() -> SimulatedProcess? {
        let running = processes.filter(\.isRunning)
        return running.isEmpty ? nil : running[below(running.count)]
    }

    /// A member cordons a node of its map, or ends that.
    private func cordonSomebody() {
        let members = processes.filter { $0.isRunning && $0.isMember }
        guard !members.isEmpty else { return }
        let maker = members[below(members.count)]
        guard !maker.view.members.isEmpty else { return }
        let member = maker.view.members[below(maker.view.members.count)]
        tell("\(maker.id) \(member.isCordoned ? "uncordons" : "cordons") \(member.id.name)")
        propose(.cordon(member.id.name, !member.isCordoned), waiter: .cordon, at: maker)
    }

    func makeChaos() {
        if let workload, chance(0.25) { return workload.makeFault() }
        guard let process = anyRunning() else { return startSomebody() }
        switch below(17) {
        case 0, 1:
            stop(process, "crashes")
            if chance(0.8) { later(.start(name: process.nameIndex), after: span(5...2000)) }
        case 2: restartAtOnce(process)
        case 3: pause(process, for: span(20...400))
        case 4: pause(process, for: span(100...600), isStarved: true)
        case 5: pause(process, for: span(400...3000))
        case 6:
            tell("\(process.id) stutters")
            process.stuttersUntil = now + span(200...900)
        case 7: isolate([process.nameIndex], withStore: false, for: span(100...1500))
        case 8: isolate([process.nameIndex], withStore: true, for: span(100...2500))
        case 9: block(process.nameIndex, below(names.count), isMutual: false, for: span(100...2000))
        case 10: block(process.nameIndex, below(names.count), isMutual: true, for: span(100...2000))
        case 11:
            network.burstLossRate = 0.3 + 0.6 * random.nextUnit()
            network.burstUntil = now + span(50...400)
            tell("a burst of loss")
        case 12: network.surgeUntil = now + span(100...500)
        case 13: disturbStore()
        case 14: if workload == nil, profile == .chaos { damageStore() }
        case 15: drain(process)
        default: startSomebody()
        }
    }

    private func disturbStore() {
        switch below(3) {
        case 0:
            network.storeDownUntil = now + (chance(0.3) ? span(3000...5000) : span(100...1500))
            tell("the store is down")
        case 1:
            network.storeStoppedUntil = now + span(100...2500)
            tell("the store is stopped")
        default:
            network.storeSlowUntil = now + span(100...1500)
            tell("the store is slow")
        }
    }

    /// The store shows an older map than every member has seen, or is replaced by an empty one. Earlier requests are
    /// answered first.
    private func damageStore() {
        let members = processes.filter { $0.isRunning && $0.isMember }
        let oldest = members.map(\.view.revision).min() ?? 0
        guard store.damage == nil, oldest > 1, chance(0.5) else { return }
        // A process that is not a member yet has nothing to compare with.
        for process in processes where process.isRunning && !process.isMember {
            stop(process, "ends")
            later(.start(name: process.nameIndex), after: span(20...100))
        }
        for name in names.indices {
            guard let seen = memories[name], seen.revision < oldest else { continue }
            // The copy is older than every node's memory: a node that was away for longer could not detect it.
            memories[name] = store.history[Int(oldest)]
        }
        if chance(0.5) {
            store.damage(.rolledBack, revision: UInt64(1 + below(Int(oldest - 1))))
            tell("an older copy replaces the store, of revision \(store.map.revision)")
        } else {
            store.damage(.replaced, revision: 0)
            tell("an empty store replaces the store")
        }
        damagedAt = now
        later(.damageSeen, after: .seconds(2))
        later(.restore, after: span(5000...6000))
    }

    /// All requests from before the damage have been answered by now, or never will be. No node acted on a map that no
    /// node applied.
    func restoreStore() {
        guard store.damage != nil else { return }
        let held = memories.compactMap { $0 }
        let newest = held.max { $0.revision < $1.revision }
        let chosen = mutant == .restoresAnyMap ? held.min { $0.revision < $1.revision } : newest
        guard let newest, let chosen else { return fail("no node holds a map to restore") }
        store.restore(chosen)
        restoreCount += 1
        tell("the map of revision \(chosen.revision) is restored under \(store.map.revision)")
        for index in newest.shards.indices where store.map.shards[index].epoch < newest.shards[index].epoch {
            return fail("the restore took shard \(index) back to epoch \(store.map.shards[index].epoch)")
        }
        forget(after: newest)
        // Nodes that left while the store was damaged are members again, and count for the majority. The operator
        // starts them; each ends its earlier incarnation.
        for name in names.indices
        where newest.members.contains(where: { $0.state.isAlive && $0.id.name == names[name] }) {
            later(.start(name: name), after: span(0...300))
        }
    }

    /// Revisions that no node applied were lost with the store. Their deaths and hand-overs never happened.
    private func forget(after newest: ClusterMap) {
        ended.removeAll { newest.isAlive($0) }
        for index in newest.shards.indices {
            for place in heldMoves[index].indices where heldMoves[index][place].epoch >= newest.shards[index].epoch {
                heldMoves[index][place].isHandedOver = false
            }
        }
    }

    /// Checks every member that ran and reached the store since the damage.
    func checkDamageIsSeen() {
        guard store.damage != nil, now - damagedAt >= .seconds(2) else { return }
        for process in processes where process.isMember && process.ownership.local != nil {
            guard process.pausedUntil == nil, process.resumedAt < damagedAt, process.stuttersUntil < damagedAt else {
                continue
            }
            if process.ownership.store == .sound { fail("\(process.id) does not say that the store is damaged") }
        }
    }

    /// Simulates a supervisor that is quicker than any detector.
    private func restartAtOnce(_ process: SimulatedProcess) {
        stop(process, "crashes and starts at once")
        later(.start(name: process.nameIndex), after: span(1...20))
    }

    /// The direction of the packets that do not pass.
    enum Direction: String, CaseIterable {
        case both = "in both directions"
        case inward, outward
    }

    func isolate(_ cut: [Int], _ direction: Direction = .both, withStore: Bool, for duration: Duration) {
        let who = cut.map { names[$0].rawValue }.joined(separator: " and ")
        tell("\(who) cut off \(direction.rawValue)\(withStore ? ", also from the store," : "") for \(duration)")
        for name in cut {
            for other in names.indices where !cut.contains(other) {
                if direction != .inward { network.blockedUntil[name][other] = now + duration }
                if direction != .outward { network.blockedUntil[other][name] = now + duration }
            }
            if withStore { network.storeCutUntil[name] = now + duration }
        }
    }

    func block(_ from: Int, _ to: Int, isMutual: Bool, for duration: Duration) {
        guard from != to else { return }
        let way = isMutual ? "between \(names[from]) and" : "from \(names[from]) to"
        tell("nothing passes \(way) \(names[to]) for \(duration)")
        network.blockedUntil[from][to] = now + duration
        if isMutual { network.blockedUntil[to][from] = now + duration }
    }

    private func drain(_ process: SimulatedProcess) {
        guard process.isMember, process.leavesAt == nil else { return }
        tell("\(process.id) is drained")
        process.leavesAt = now + .seconds(4)
        propose(.drain(process.id), waiter: .drain, at: process)
    }

    /// Starts a node that does not run, as a new one or a returning one.
    private func startSomebody() {
        start(below(names.count))
    }

    /// Ends all faults.
    func heal() {
        guard !isHealed else { return }
        tell("all faults end")
        isHealed = true
        healedAt = now
        lastUnrest = now
        network = SimulatedNetwork(nameCount: names.count)
        workload?.heal()
        for process in processes where process.isRunning {
            process.stuttersUntil = .zero
            guard process.pausedUntil != nil else { continue }
            process.pausedUntil = now
            later(.resume, process: process.index, after: span(0...5))
        }
        // Which of the stopped nodes return is random. At least one node runs.
        for name in names.indices.prefix(settings.nodeCount) where chance(0.5) || name == 0 {
            later(.start(name: name), after: span(0...300))
        }
        later(.check, after: .milliseconds(350))
    }
}

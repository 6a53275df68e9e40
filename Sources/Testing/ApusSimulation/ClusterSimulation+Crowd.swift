import ApusCluster
import ApusCore

/// A node of a crowd that is killed, stopped or cut off, and must be declared dead.
package struct SimulatedVictim {
    var id: NodeID
    var since: MonotonicTime
    var isKilled: Bool
    /// A majority of its watchers does not hear it.
    var certainAt: MonotonicTime?
    var deadAt: MonotonicTime?
}

/// Clusters that are larger than a full mesh (``WatchPlan``): their faults, and the bounds of detection.
extension ClusterSimulation {
    /// A killed node is dead in the map within this time.
    static let killedBound = Duration.milliseconds(200)
    /// The death of a silent node is certain within this time.
    static let silentBound = Duration.milliseconds(450)

    // MARK: Faults

    /// Chaos, and cuts of several nodes from all others, some of them in one direction.
    func makeRingFault() {
        guard chance(0.25) else { return makeChaos() }
        let count = 1 + below(max(1, settings.nodeCount / 2))
        var names = Array(0..<settings.nodeCount)
        for index in 0..<count { names.swapAt(index, index + below(names.count - index)) }
        let direction = chance(0.5) ? .both : Direction.allCases[below(3)]
        isolate(Array(names.prefix(count)), direction, withStore: chance(0.6), for: span(300...3000))
    }

    /// One fault at a time.
    func makeCrowdFault() {
        let members = processes.filter { $0.isRunning && $0.isMember && $0.pausedUntil == nil }
        guard members.count > settings.nodeCount - 2 else { return }
        let process = members[below(members.count)]
        let other = members[below(members.count)]
        switch below(8) {
        case 0, 1:
            expectDeath(of: process, isKilled: true)
            stop(process, "crashes")
            later(.start(name: process.nameIndex), after: span(500...1000))
        case 2, 3:
            expectDeath(of: process, isKilled: false)
            pause(process, for: span(1500...2200))
        case 4:
            expectDeath(of: process, isKilled: false)
            isolate([process.nameIndex], withStore: chance(0.5), for: span(1000...2000))
        case 5: cutPath(process, other)
        case 6:
            tell("several nodes do not reach the store")
            for member in members where chance(0.3) {
                network.storeCutUntil[member.nameIndex] = now + span(1000...2000)
            }
        default: pause(process, for: span(50...150))
        }
    }

    /// Cuts a path for long enough to be found, whether the two watch each other or not.
    private func cutPath(_ process: SimulatedProcess, _ other: SimulatedProcess) {
        guard process !== other else { return }
        let turn = settings.membership.heartbeatInterval * settings.nodeCount
        block(process.nameIndex, other.nameIndex, isMutual: chance(0.5), for: turn + .milliseconds(1500))
        later(.pathsSettled(process.nameIndex, other.nameIndex), after: turn + .milliseconds(1200))
        later(.pathsSettled(other.nameIndex, process.nameIndex), after: turn + .milliseconds(1200))
    }

    private func expectDeath(of process: SimulatedProcess, isKilled: Bool) {
        victims.append(SimulatedVictim(id: process.id, since: now, isKilled: isKilled))
        later(.bound(process.id), after: isKilled ? Self.killedBound : Self.silentBound)
    }

    // MARK: Checks

    func noteCertain(_ id: NodeID) {
        guard let index = victims.lastIndex(where: { $0.id == id }), victims[index].certainAt == nil else { return }
        victims[index].certainAt = now
        silentTimeMax = max(silentTimeMax, now - victims[index].since)
    }

    /// Only victims may be declared dead.
    func checkVictim(_ id: NodeID, by maker: SimulatedProcess) {
        guard profile == .crowd else { return }
        guard let index = victims.lastIndex(where: { $0.id == id }) else {
            return fail("\(id) had no fault and was declared dead by \(maker.id)")
        }
        victims[index].deadAt = now
        if victims[index].isKilled { killedTimeMax = max(killedTimeMax, now - victims[index].since) }
    }

    func checkBound(of id: NodeID) {
        guard !isHealed, let victim = victims.last(where: { $0.id == id }) else { return }
        if victim.isKilled, victim.deadAt == nil { fail("\(id) was killed \(Self.killedBound) ago and is not dead") }
        if !victim.isKilled, victim.certainAt == nil {
            fail("\(id) is silent for \(Self.silentBound), and its death is not certain")
        }
    }

    /// Counts the datagrams of a second without faults.
    func measure(isEnd: Bool) {
        guard isEnd else { return datagramCount = 0 }
        let members = processes.count { $0.isRunning && $0.isMember }
        guard members == settings.nodeCount else { return fail("only \(members) nodes have joined") }
        datagramRate = Double(datagramCount) / Double(members)
        isOver = isMeasuredOnly
    }
}

extension ClusterMap {
    /// The map as a node of an earlier version writes it.
    var withoutRules: ClusterMap {
        var map = self
        for index in map.members.indices { map.members[index].watchRule = nil }
        return map
    }
}

import ApusCluster
import ApusCore

/// Processes that wait to join, and two processes of one node (``SimulationProfile/twins``).
extension ClusterSimulation {
    // MARK: Places

    /// The places at which a process of that name may run.
    func places(of name: NodeName) -> [Int] {
        guard let home = nameIndex(of: name) else { return [] }
        guard let twin, names[twin] == name else { return [home] }
        return [home, twin]
    }

    func isTwin(_ place: Int) -> Bool { twin.map { names[$0] == names[place] } ?? false }

    /// The address that a process advertises.
    func address(of process: SimulatedProcess) -> HostPort {
        let isCopy = process.nameIndex == twin && !settings.sharesAddress
        return HostPort(host: names[process.nameIndex].rawValue + (isCopy ? "-copy" : ""), port: 7400)
    }

    /// The machine that a process reaches at a member's address. Where two machines have one address, it is the one
    /// whose process the member is, or else one with a process.
    func place(of id: NodeID, at process: SimulatedProcess) -> Int? {
        place(of: id, in: process.view)
    }

    private func place(of id: NodeID, in map: ClusterMap) -> Int? {
        let places = places(of: id.name)
        guard places.count > 1 else { return places.first }
        guard settings.sharesAddress else {
            let isCopy = map.member(named: id.name)?.addresses.transport.host.hasSuffix("-copy") ?? false
            return isCopy ? twin : places[0]
        }
        return places.first { runningProcess(named: $0)?.id == id }
            ?? places.first { runningProcess(named: $0) != nil } ?? places[0]
    }

    // MARK: Joining

    /// The process read the map: it joins, waits, or starts again, as a node's shell does.
    func decideJoin(of process: SimulatedProcess, map: ClusterMap) {
        var id = map.nextIncarnation(of: names[process.nameIndex])
        if mutant == .reusesIncarnation, id.incarnation > 1 { id.incarnation -= 1 }
        if mutant == .joinsBesideTwin || mutant == .reusesIncarnation || mutant == .joinsUnreachable {
            return join(process, as: id, map: map)
        }
        let proposed = process.proposed ?? id
        process.proposed = proposed
        var machine =
            process.joining
            ?? JoinStateMachine(
                local: proposed, address: address(of: process), endedProcesses: endedProcesses(of: process, map: map),
                configuration: settings.joining)
        var action = machine.mapRead(map)
        while true {
            switch action {
            case .reach(let members):
                action = machine.answered(members.map { ($0, answer(of: $0, to: process, map: map)) })
            case .readLeases:
                let holders = Set(leases.filter { $0.value > now }.keys)
                action = machine.leasesRead(mutant == .ignoresTwinsLease ? [] : holders, now: now)
            case .wait(let obstacle, let pause):
                process.joining = machine
                process.isTwinAlive = if case .unreachable = obstacle { false } else { true }
                if case .duplicate = obstacle { twinWaitCount += 1 }
                tell("process \(process.index) waits to join as \(proposed)")
                return later(.joinRetried, process: process.index, after: pause)
            case .join: return join(process, as: proposed, map: map)
            case .fenced:
                stop(process, "finds its incarnation taken and starts again")
                isRestarting[process.nameIndex] = true
                return later(.start(name: process.nameIndex), after: span(20...100))
            }
        }
    }

    /// The numbers of processes that have ended, as the record of the process's place shows.
    private func endedProcesses(of process: SimulatedProcess, map: ClusterMap) -> Set<UInt64> {
        let earlier = processes.prefix(process.index).filter { $0.nameIndex == process.nameIndex }
        var numbers = Set(earlier.map(\.number))
        if mutant == .trustsItsAddress, let former = map.member(named: names[process.nameIndex]),
            former.addresses.transport == address(of: process)
        {
            numbers.insert(former.process)
        }
        return numbers
    }

    private func join(_ process: SimulatedProcess, as id: NodeID, map: ClusterMap) {
        checkFormer(of: process, map: map)
        process.isTwinAlive = false
        open(process, as: id, map: map)
    }

    private func answer(
        of member: Member, to process: SimulatedProcess, map: ClusterMap
    ) -> JoinStateMachine.Answer {
        guard let place = place(of: member.id, in: map) else { return .silent }
        guard !isBlocked(from: process.nameIndex, to: place), !isBlocked(from: place, to: process.nameIndex) else {
            return .silent
        }
        // A process listens once it has read the map.
        guard let holder = runningProcess(named: place), holder.proposed != nil || holder.phase != .opening else {
            return .refused
        }
        guard holder.pausedUntil == nil else { return .silent }
        return holder.id == member.id ? .accepted : .another
    }

    // MARK: Faults

    /// Machines with one configuration are started, stopped, paused and cut off.
    func makeTwinFault() {
        guard let twin else { return }
        twinFaultCount += 1
        let places = chance(0.5) ? [0, twin] : [twin, 0]
        let running = places.compactMap { runningProcess(named: $0) }
        switch below(10) {
        case 0, 1:
            for process in running { stop(process, "loses its power") }
            let base = span(5...1500)
            for place in places { later(.start(name: place), after: base + span(0...20)) }
        case 2, 3:
            memories[places[0]] = memories[places[0]] ?? memories[places[1]]
            start(places[0])
        case 4, 5:
            // Its node is declared dead. It finds that when it goes on.
            guard let process = running.first(where: \.isMember) else { return start(places[0]) }
            pause(process, for: span(300...5000))
            later(.start(name: places[0] == process.nameIndex ? places[1] : places[0]), after: span(0...1000))
        case 6:
            guard let process = running.first else { return start(places[0]) }
            stop(process, "crashes")
            if chance(0.7) { later(.start(name: process.nameIndex), after: span(1...2000)) }
        case 7: isolate([places[0]], withStore: chance(0.5), for: span(100...4000))
        case 8: block(0, twin, isMutual: chance(0.5), for: span(100...4000))
        default: makeChaos()
        }
    }

    // MARK: Checks

    /// Checks a process that is about to join: no other one is its node.
    private func checkFormer(of process: SimulatedProcess, map: ClusterMap) {
        guard let former = map.member(named: names[process.nameIndex]), former.state.isAlive,
            let other = runningProcess(of: former.id), other !== process, leases[former.id, default: .zero] > now
        else { return }
        fail("process \(process.index) joins while \(former.id) runs and holds a lease")
    }

    /// A later incarnation ended this one, which may not answer any more. Each start and each fault of a twin ends one
    /// that runs at most.
    func noteDeposed(_ id: NodeID, by maker: SimulatedProcess) {
        guard let process = runningProcess(of: id), process !== maker else { return }
        deposedCount += 1
        tell("\(id) is ended by another process of its node, \(maker.id)")
        checkPermission(of: process)
        if deposedCount > twinFaultCount {
            fail("\(id) is the \(deposedCount)th process that a twin ended, after \(twinFaultCount) starts and faults")
        }
    }
}

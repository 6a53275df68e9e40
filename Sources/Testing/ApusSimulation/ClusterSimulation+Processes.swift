import ApusCluster
import ApusCore
import ApusWire

/// Starts and stops processes, and delivers events to them.
extension ClusterSimulation {
    func nameIndex(of name: NodeName) -> Int? { nameIndexes[name] }

    /// The process that runs under a name, if its incarnation is the given one.
    func runningProcess(of id: NodeID) -> SimulatedProcess? {
        for place in places(of: id.name) {
            if let process = runningProcess(named: place), process.id == id { return process }
        }
        return nil
    }

    func runningProcess(named name: Int) -> SimulatedProcess? {
        newest[name].flatMap { $0.isRunning ? $0 : nil }
    }

    /// Starts a process under a name without a running process.
    func start(_ name: Int) {
        guard runningProcess(named: name) == nil else { return }
        // A node that was never a member cannot detect a damaged store.
        guard store.damage == nil || memories[name] != nil else {
            return later(.start(name: name), after: span(200...400))
        }
        let none = NodeID(name: names[name], incarnation: 0)
        let process = SimulatedProcess(
            index: processes.count, nameIndex: name, id: none, map: store.history[0], settings: settings)
        process.isRestart = isRestarting[name]
        isRestarting[name] = false
        if isTwin(name), !process.isRestart { twinFaultCount += 1 }
        process.isEarlier = chance(settings.earlierRate)
        processes.append(process)
        newest[name] = process
        tell("a process \(process.index) starts as \(none.name)")
        submit(.read, by: process)
        later(.tick, process: process.index, after: span(1...10))
    }

    /// The process ends at once. What it has sent is still in flight.
    func stop(_ process: SimulatedProcess, _ reason: String) {
        guard process.isRunning else { return }
        tell("\(process.id) \(reason)")
        process.phase = .stopped
        process.inbox = []
        process.pausedUntil = nil
        workload?.stopped(process)
        dropLinks(of: process)
    }

    /// - Parameter isStarved: True if the process is runnable and gets no processor; false if a signal stopped it.
    func pause(_ process: SimulatedProcess, for duration: Duration, isStarved: Bool = false) {
        guard process.isRunning, process.pausedUntil == nil else { return }
        tell("\(process.id) is \(isStarved ? "starved" : "paused") for \(duration)")
        process.isStarved = isStarved
        process.pausedUntil = now + duration
        later(.resume, process: process.index, after: duration)
    }

    /// The vitals that a process of the same machine sends with each datagram.
    func vitals(of process: SimulatedProcess) -> HeartbeatVitals {
        HeartbeatVitals(
            wallMilliseconds: now.nanoseconds / 1_000_000,
            latenessMilliseconds: UInt16(clamping: process.membership.lateness.nanoseconds / 1_000_000),
            process: .init(host: settings.host, number: UInt32(process.index), thread: 0, started: 0))
    }

    /// The machine's report about the process that sends a peer's heartbeats.
    func processState(of peer: NodeID) -> MembershipStateMachine.ProcessState {
        guard let process = runningProcess(of: peer) else { return .gone }
        guard process.pausedUntil != nil else { return .idle }
        guard process.isStarved else { return .stopped }
        return mutant == .ignoresStarvation ? .idle : .waiting
    }

    /// The process continues. Which of its threads runs first, the one with the timer or those that read, is random.
    func resume(_ process: SimulatedProcess) {
        guard process.isRunning, let until = process.pausedUntil, until <= now else { return }
        tell("\(process.id) goes on")
        process.pausedUntil = nil
        process.resumedAt = now
        checkPermission(of: process)
        let inbox = process.inbox
        process.inbox = []
        let isTimerFirst = chance(0.5)
        for event in inbox where event.isTick == isTimerFirst { handle(event, at: process) }
        for event in inbox where event.isTick != isTimerFirst { handle(event, at: process) }
    }

    /// Delivers an event to a process, now or when it continues.
    func deliver(_ event: SimulationEvent, to process: SimulatedProcess) {
        guard process.isRunning else { return }
        if case .resume = event { return resume(process) }
        let isDatagram = if case .datagram = event { true } else { false }
        // While it stutters, datagrams wait in the socket until it comes to read them.
        let waits = process.pausedUntil != nil || (isDatagram && now < process.stuttersUntil)
        guard waits else { return handle(event, at: process) }
        guard !isDatagram || process.inbox.count < SimulatedProcess.inboxCountMax else { return }
        process.inbox.append(event)
    }

    private func handle(_ event: SimulationEvent, at process: SimulatedProcess) {
        guard process.isRunning else { return }
        switch event {
        case .tick: tick(process)
        case .datagram(let message, let sender, let vitals):
            membership(.received(message, from: sender, vitals), at: process)
        case .linkUp(let peer):
            membership(.linkUp(peer), at: process)
            workload?.linkUp(peer, at: process)
        case .linkLost(let peer): membership(.linkLost(peer), at: process)
        case .connectRefused(let peer): membership(.connectRefused(peer), at: process)
        case .dial(let peer): dial(peer, by: process)
        case .answer(let answer): answered(answer, to: process)
        case .announced(let revision, let sender): announced(revision, from: sender, to: process)
        case .replicaReady(let move): replicaReady(move, at: process)
        case .callsEnded(let move, let deadline): callsEnded(move, until: deadline, at: process)
        case .holdAnswered(let move, let isDone): handover(isDone ? .held(move) : .holdFailed(move), at: process)
        case .askedToOwn(let move): write(to: Int(move.shard.rawValue), epoch: move.epoch + 1, by: process)
        case .writeRefused: ownership(.refresh, at: process)
        case .replicaAwaited(let move, let deadline): awaitReplica(move, until: deadline, at: process)
        case .quietAwaited(let move, let deadline): awaitQuiet(move, until: deadline, at: process)
        case .joinRetried: if case .opening = process.phase { submit(.read, by: process) }
        case .work(let work): work.run()
        case .start, .apply, .write, .resume, .fault, .heal, .check, .damageSeen, .pathsSettled,
            .isolationSettled, .restore, .measure, .bound:
            break
        }
    }

    private func announced(_ revision: UInt64, from sender: NodeID, to process: SimulatedProcess) {
        guard process.isMember else { return }
        membership(.heard(sender), at: process)
        if mutant == .adoptsStaleMap, revision < UInt64(store.history.count), chance(0.1) {
            adopted(store.history[Int(revision)], by: process)
        } else if revision > process.view.revision {
            ownership(.reported(revision), at: process)
        }
    }

    // MARK: Time at a process

    private func tick(_ process: SimulatedProcess) {
        if now < process.stuttersUntil {
            later(.tick, process: process.index, after: span(60...140))
            process.ticksUntilRead -= 1
        } else {
            later(.tick, process: process.index, after: .milliseconds(10) + span(0...1))
            process.ticksUntilRead = 0
        }
        guard process.phase != .opening else { return }
        membership(.tick, at: process)
        if process.ticksUntilRead <= 0, process.pausedUntil == nil, !process.inbox.isEmpty {
            let inbox = process.inbox
            process.inbox = []
            for event in inbox { handle(event, at: process) }
        }
        if now < process.stuttersUntil, process.ticksUntilRead <= 0 { process.ticksUntilRead = 2 + below(5) }
        if process.ownership.isBusy { ownership(.tick, at: process) }
        guard process.isMember else { return }
        poll(process)
        if now >= process.nextRenewal {
            process.nextRenewal = now + Self.leaseDuration / 3
            submit(.renewLease, by: process)
        }
        if now >= process.nextHandoverTick {
            process.nextHandoverTick = now + .milliseconds(20)
            handover(.tick, at: process)
        }
        if now >= process.nextWrite {
            process.nextWrite = now + span(10...40)
            writeSomewhere(process)
        }
        workload?.tick(process)
        leaveWhenDrained(process)
    }

    private func poll(_ process: SimulatedProcess) {
        guard now >= process.nextPoll else { return }
        process.nextPoll = now + .milliseconds(100)
        if !process.isPolling {
            process.isPolling = true
            process.pollingSince = now
            submit(.revision, by: process)
        } else if now - process.pollingSince >= process.ownership.configuration.answerTimeout / 2 {
            ownership(.refresh, at: process)
        }
    }

    /// Writes to one of the shards that the process owns in its map.
    private func writeSomewhere(_ process: SimulatedProcess) {
        guard process.isMember, let slot = process.view.aliveSlot(of: process.id) else { return }
        let first = below(SimulationSettings.shardCount)
        for offset in 0..<SimulationSettings.shardCount {
            let shard = (first + offset) % SimulationSettings.shardCount
            guard process.view.shards[shard].owner == slot, !process.held.contains(ShardID(UInt16(shard))) else {
                continue
            }
            return write(to: shard, epoch: process.view.shards[shard].epoch, by: process)
        }
    }

    func write(to shard: Int, epoch: Epoch, by process: SimulatedProcess) {
        let write = FencedWrite(
            shard: shard, epoch: epoch, writer: process.id, process: process.index, issuedAt: now)
        lastWrites[shard] = write
        later(.write(write), after: chance(0.1) ? span(50...2500) : span(1...8))
    }

    private func leaveWhenDrained(_ process: SimulatedProcess) {
        guard let leavesAt = process.leavesAt, !process.isLeaving else { return }
        let isAlone = !process.view.members.contains { $0.state == .up }
        guard process.view.isDrained(process.id) || isAlone || now >= leavesAt else { return }
        process.isLeaving = true
        propose(.leave(process.id), waiter: .leave, at: process)
    }
}

extension SimulationEvent {
    /// True for the events of a process's own timer.
    fileprivate var isTick: Bool {
        if case .tick = self { true } else { false }
    }
}

import ApusCluster
import ApusCore
import ApusWire

/// The network between the nodes, by their indexes among the names.
struct SimulatedNetwork {
    /// Nothing passes from a node to another until this time.
    var blockedUntil: [[MonotonicTime]]
    /// A node does not reach the ownership store until this time.
    var storeCutUntil: [MonotonicTime]
    var storeDownUntil = MonotonicTime.zero
    var storeSlowUntil = MonotonicTime.zero
    /// The store accepts requests and answers none of them until this time.
    var storeStoppedUntil = MonotonicTime.zero
    var burstUntil = MonotonicTime.zero
    var burstLossRate = 0.0
    var surgeUntil = MonotonicTime.zero

    init(nameCount: Int) {
        storeCutUntil = Array(repeating: .zero, count: nameCount)
        blockedUntil = Array(repeating: storeCutUntil, count: nameCount)
    }
}

extension ClusterSimulation {
    func isBlocked(from: Int, to: Int) -> Bool { now < network.blockedUntil[from][to] }

    private func wayDelay() -> Duration {
        let longest = Int(settings.delayMax.nanoseconds / 1000)
        var delay = Duration.microseconds(50 + below(longest))
        if now < network.surgeUntil { delay += span(0...150) }
        return delay
    }

    // MARK: Datagrams

    /// Sends a datagram to the process with this name now. A process of another incarnation drops it, as the seal does.
    func send(_ message: HeartbeatMessage, from sender: SimulatedProcess, to id: NodeID) {
        datagramCount += 1
        if mutant == .countsFewPromises { sendToUncounted(message, from: sender, to: id) }
        guard let receiver = runningProcess(of: id) else { return }
        guard !isBlocked(from: sender.nameIndex, to: receiver.nameIndex) else { return }
        let vitals = vitals(of: sender)
        let lossRate = now < network.burstUntil ? network.burstLossRate : isHealed ? 0 : settings.lossRate
        if chance(lossRate) { return }
        let message = altered(message)
        later(.datagram(message, from: sender.id, vitals), process: receiver.index, after: wayDelay())
        // Delays differ, so datagrams are reordered. A duplicate is late.
        if chance(settings.duplicateRate) {
            later(
                .datagram(message, from: sender.id, vitals), process: receiver.index, after: wayDelay() + span(0...20))
        }
    }

    /// A node that counts the promises of one watcher sends its heartbeats to all of them nevertheless.
    private func sendToUncounted(_ message: HeartbeatMessage, from sender: SimulatedProcess, to id: NodeID) {
        guard case .promise(let promise) = message, promise.isAmongWatchers, sender.watchers == [id] else { return }
        for watcher in sender.view.watchPlan.watchers(of: sender.id) ?? [] where watcher != id {
            guard let receiver = runningProcess(of: watcher),
                !isBlocked(from: sender.nameIndex, to: receiver.nameIndex)
            else { continue }
            let isHeard = !isBlocked(from: receiver.nameIndex, to: sender.nameIndex) && receiver.pausedUntil == nil
            let copy = HeartbeatPromise(
                sentNanoseconds: promise.sentNanoseconds, echoNanoseconds: isHeard ? now.nanoseconds : 0,
                isAmongWatchers: true)
            later(
                .datagram(.promise(copy), from: sender.id, vitals(of: sender)), process: receiver.index,
                after: wayDelay())
        }
    }

    /// The message after a deliberate error of its sender.
    private func altered(_ message: HeartbeatMessage) -> HeartbeatMessage {
        guard case .promise(var promise) = message else { return message }
        switch mutant {
        case .votesBeforeItsPromiseEnds where promise.promisedMilliseconds > 0: promise.promisedMilliseconds += 300
        case .concealsVotes: promise.vote = 0
        case .echoesUnheard: (promise.echoNanoseconds, promise.heldMicroseconds) = (now.nanoseconds, 0)
        default: break
        }
        return .promise(promise)
    }

    // MARK: Links

    /// Delivers over a link, if it is up in this direction. Data that a partition stops is lost with its link.
    func sendOverLink(_ event: SimulationEvent, from: SimulatedProcess, to: SimulatedProcess) {
        guard to.isRunning, isReachable(to.nameIndex, from: from, through: from.helpers[to.id]) else { return }
        later(event, process: to.index, after: wayDelay())
    }

    /// True if packets pass in both directions, directly or through the helper.
    func isReachable(_ target: Int, from process: SimulatedProcess, through helper: NodeID?) -> Bool {
        func isOpen(_ one: Int, _ other: Int) -> Bool {
            !isBlocked(from: one, to: other) && !isBlocked(from: other, to: one)
        }
        guard let helper else { return isOpen(process.nameIndex, target) }
        guard let middle = runningProcess(of: helper), middle.pausedUntil == nil else { return false }
        return isOpen(process.nameIndex, middle.nameIndex) && isOpen(middle.nameIndex, target)
    }

    /// Dials the peer another way from now on. The present link is closed.
    func setHelper(_ helper: NodeID?, of peer: NodeID, at process: SimulatedProcess) {
        process.helpers[peer] = helper
        guard let place = process.linked.firstIndex(of: peer) else { return }
        process.linked.remove(at: place)
        later(.linkLost(peer), process: process.index, after: .zero)
        later(.dial(peer), process: process.index, after: span(0...2))
    }

    /// One attempt to reach a peer. Repeated while there is no link.
    func dial(_ id: NodeID, by process: SimulatedProcess) {
        guard process.isMember, process.peers.contains(id) else { return }
        guard let target = place(of: id, at: process) else { return }
        guard isReachable(target, from: process, through: process.helpers[id]) else {
            return later(.dial(id), process: process.index, after: span(50...150))
        }
        let holder = processes.last { $0.nameIndex == target && $0.isRunning }
        if let holder, holder.id == id {
            // The kernel accepts the connection of a stopped process. Its handshake does not complete.
            if holder.pausedUntil != nil || !holder.isMember {
                return later(.dial(id), process: process.index, after: span(50...150))
            }
            guard !process.linked.contains(id) else { return }
            process.linked.append(id)
            later(.linkUp(id), process: process.index, after: wayDelay())
            if !holder.linked.contains(process.id), holder.peers.contains(process.id) {
                holder.linked.append(process.id)
                later(.linkUp(process.id), process: holder.index, after: wayDelay())
            }
            return
        }
        if let gone = process.linked.firstIndex(of: id) {
            process.linked.remove(at: gone)
            later(.linkLost(id), process: process.index, after: .zero)
        }
        // A process of another incarnation answers on the port, and is rejected. That is not a refused connection.
        if holder == nil { later(.connectRefused(id), process: process.index, after: span(0...2)) }
        later(.dial(id), process: process.index, after: span(20...100))
    }

    /// The kernel ends all connections of a process that is gone.
    func dropLinks(of gone: SimulatedProcess) {
        for peer in processes where peer.isRunning && peer !== gone && peer.linked.contains(gone.id) {
            let delay =
                isBlocked(from: gone.nameIndex, to: peer.nameIndex) ? span(200...400) : wayDelay() + span(0...5)
            later(.dial(gone.id), process: peer.index, after: delay)
        }
    }

    // MARK: The ownership store

    func submit(_ request: StoreRequest, by process: SimulatedProcess) {
        let latency = now < network.storeSlowUntil ? span(50...800) : span(1...8)
        let isPoll = if case .revision = request { true } else { false }
        let number = requests.count
        if now < network.storeDownUntil || now < network.storeCutUntil[process.nameIndex] {
            switch request {
            case .renewLease, .leases: return
            case .read, .compareAndSwap, .revision: break
            }
            later(.answer(.failed(isPoll: isPoll)), process: process.index, after: span(5...60))
            return
        }
        if case .compareAndSwap(let expected, _) = request, mutant == .acknowledgesBeforeApply {
            requests.append((process.index, request, true))
            later(.apply(request: number), after: latency + span(0...20))
            later(.answer(.swapWon(revision: expected + 1)), process: process.index, after: latency / 2)
            return
        }
        let isLease = if case .renewLease = request { true } else if case .leases = request { true } else { false }
        let isFailing = !isLease && !isHealed && chance(settings.storeFailureRate)
        requests.append((process.index, request, isFailing))
        if isFailing {
            // Reported as failed. Half of these are made nevertheless, before the report or after it.
            later(.answer(.failed(isPoll: isPoll)), process: process.index, after: latency)
            if chance(0.5) { later(.apply(request: number), after: span(0...40)) }
            return
        }
        later(.apply(request: number), after: latency / 2)
    }

    /// A stopped store carries out earlier requests when it continues.
    func apply(_ number: Int) {
        guard now >= network.storeStoppedUntil else {
            let (process, request, _) = requests[number]
            if mutant == .takesSilenceForYes, case .compareAndSwap(let expected, _) = request {
                later(.answer(.swapWon(revision: expected + 1)), process: process, after: span(5...60))
            }
            return later(.apply(request: number), after: network.storeStoppedUntil - now + span(0...5))
        }
        let (index, request, isSilent) = requests[number]
        // A map is large, so it is released early.
        requests[number].request = .revision
        let answer: StoreAnswer
        switch request {
        case .read where isForeign(to: processes[index]): answer = .foreign(isPoll: false)
        case .compareAndSwap where isForeign(to: processes[index]): answer = .foreign(isPoll: false)
        case .revision where isForeign(to: processes[index]): answer = .foreign(isPoll: true)
        case .read: answer = .read(store.map)
        case .revision: answer = .revision(store.map.revision)
        case .renewLease:
            leases[processes[index].id] = now + Self.leaseDuration
            return
        case .leases: answer = .leases(Set(leases.filter { $0.value > now }.keys))
        case .compareAndSwap(let expected, let map):
            if store.damage != nil, expected == store.map.revision {
                fail("\(processes[index].id) decides on a store that is damaged")
            }
            let old = store.map
            let compares = mutant != .swapsWithoutComparing
            if let revision = store.compareAndSwap(expected: expected, map, compares: compares) {
                tell("\(processes[index].id) made revision \(revision)")
                if isTraced { workload?.made(store.map, after: old) }
                checkMap(after: old, by: processes[index])
                answer = .swapWon(revision: revision)
            } else {
                answer = .swapLost
            }
        }
        guard !isSilent else { return }
        if case .leases = answer { return later(.answer(answer), process: index, after: span(0...4)) }
        if now < network.storeDownUntil {
            // The store went down with the request. Its outcome is never reported.
            let isPoll = if case .revision = request { true } else { false }
            return later(.answer(.failed(isPoll: isPoll)), process: index, after: span(5...60))
        }
        later(.answer(answer), process: index, after: span(0...4))
    }

    /// A process keeps to the store that it opened. A process that has not opened one yet accepts what it finds.
    private func isForeign(to process: SimulatedProcess) -> Bool {
        if case .replaced = store.damage, process.phase != .opening { return mutant != .joinsEmptyStore }
        return false
    }

    // MARK: The fenced store

    func take(_ write: FencedWrite) {
        let before = fenced.rows[write.shard]
        writeCount += 1
        guard fenced.accept(write) else {
            refusedWriteCount += 1
            if processes[write.process].isRunning {
                later(.writeRefused, process: write.process, after: wayDelay())
            }
            return
        }
        checkWrite(write, after: before)
    }
}

import ApusCluster
import ApusCore
import NIOCore

/// The replicated entities of a node, as ``ReplicaService`` and ``ReplicatedShards`` drive their machines.
extension EntityNode {
    // MARK: Shards

    /// Opens gained shards soon after.
    func openLater(_ shards: [ShardID]) {
        guard !shards.isEmpty else { return }
        let isNew = unopened.isEmpty
        unopened += shards
        if isNew { later(7, after: world.simulation.span(0...4)) { self.openAll() } }
    }

    private func openAll() {
        let shards = unopened
        unopened = []
        for shard in shards { open(shard) }
        let waiting = whenOpen
        whenOpen = []
        for wait in waiting { wait() }
    }

    /// Has no effect if the shard is open, or is not at this node.
    func open(_ shard: ShardID) {
        let epoch = process.view[shard].epoch
        guard isLocal(shard, epoch: epoch), owner.canOpen(shard, epoch: epoch),
            var promotion = standby.promote(shard, epoch: epoch)
        else { return }
        switch world.mutant {
        case .hidesLosses: promotion.isComplete = true
        case .promotesEmpty: promotion.table = ReplicaTable()
        default: break
        }
        world.simulation.tell(
            "\(id) opens shard \(shard) under epoch \(epoch) with \(promotion.table.count) entities"
                + (promotion.isComplete ? "" : ", which may lack some changes"))
        world.checkPromotion(promotion, of: shard, epoch: epoch, at: self)
        replicatedReminders.closed(shard)
        if world.mutant != .dropsRemindersAtPromotion {
            replicatedReminders.opened(shard, promotion.table.records)
        }
        settle(owner.open(shard, epoch: epoch, table: promotion.table))
    }

    // MARK: States

    func loadReplica(_ cell: SimulatedCell) {
        let (shard, key) = (cell.address.shard, ReplicaKey(kind: cell.address.kind, key: cell.address.key))
        // The message arrived before the shard was opened.
        if owner.position(of: shard, epoch: cell.epoch) == nil { open(shard) }
        do throws(ApusError) {
            let found =
                world.mutant == .answersUnconfirmed
                ? owner.state(of: key, in: shard).map { (state: $0, isConfirmed: true) }
                : try owner.load(key, of: shard, epoch: cell.epoch)
            let stored = found.flatMap { EntityWorkload.stored($0.state, of: cell.address) }
            completions.append {
                self.loaded(cell, stored, version: 0, isConfirmed: found?.isConfirmed ?? true)
            }
        } catch {
            completions.append { self.perform(cell, cell.machine.loadFailed(ApusError(.moved))) }
        }
    }

    func keepReplica(_ state: Machine.State, _ cell: SimulatedCell) {
        let (shard, version) = (cell.address.shard, cell.version)
        let key = ReplicaKey(kind: cell.address.kind, key: cell.address.key)
        do throws(ApusError) {
            let stored = StoredEntity(
                content: try state.content.encoded(), memory: state.memory, reminders: state.reminders)
            let record = ReplicaRecord(key, ByteBuffer(bytes: try stored.encoded()))
            var effects = ReplicaOwnerStateMachine.Effects()
            let number = try owner.change(shard, epoch: cell.epoch, record, &effects)
            if world.mutant == .acknowledgesEarly {
                completions.append { self.kept(cell, .confirmed(version + 1)) }
            } else {
                wait(shard, number) { self.kept(cell, KeepOutcome(replicated: $0, after: version)) }
            }
            settle(effects)
            if owned[shard] == cell.epoch { replicatedReminders.changed(cell.address, state.reminders) }
        } catch {
            completions.append { self.kept(cell, KeepOutcome(refused: error)) }
        }
    }

    private func wait(_ shard: ShardID, _ number: UInt64, _ completion: @escaping (ApusError?) -> Void) {
        if let acknowledged = owner.acknowledged(of: shard), number <= acknowledged {
            completions.append { completion(nil) }
        } else if owner.isSuperseded(shard) {
            completions.append { completion(ApusError(.staleEpoch)) }
        } else {
            lastWaiter += 1
            waiting[lastWaiter] = completion
            waiters[shard, default: ReplicaWaiters()].add(
                lastWaiter, for: number, until: now + owner.configuration.confirmTimeout)
        }
    }

    private func complete(_ numbers: [Int], _ error: ApusError?) {
        for number in numbers {
            guard let completion = waiting.removeValue(forKey: number) else { continue }
            completions.append { completion(error) }
        }
    }

    // MARK: What follows

    func settle(_ effects: ReplicaOwnerStateMachine.Effects) {
        for shard in effects.acknowledged {
            guard let acknowledged = owner.acknowledged(of: shard) else { continue }
            complete(waiters[shard]?.take(upTo: acknowledged) ?? [], nil)
        }
        for (shard, _) in effects.superseded {
            complete(waiters[shard]?.takeAll() ?? [], ApusError(.staleEpoch))
            refresh()
        }
        for closed in effects.closed {
            complete(waiters[closed.shard]?.takeAll() ?? [], ApusError(.staleEpoch))
            standby.keep(closed.shard, table: closed.table, ownedUnder: closed.epoch)
        }
    }

    /// Sends what can be sent.
    func pump() {
        while true {
            let messages = owner.nextMessages(now: now)
            guard !messages.isEmpty else { return }
            for (target, sent) in messages {
                let message = world.mutant == .starvesSecondStandby ? starved(sent, for: target) : sent
                guard let node = world.node(of: target), process.linked.contains(target) else {
                    owner.failed(message.number, to: target, now: now)
                    continue
                }
                send(to: node, 8) { node.received(message, from: self) }
            }
        }
    }

    private func starved(_ message: ReplicaMessage, for target: NodeID) -> ReplicaMessage {
        var message = message
        for index in message.batches.indices
        where process.view.secondStandby(of: message.batches[index].shard)?.id == target {
            message.batches[index].records = []
        }
        return message
    }

    private func received(_ message: ReplicaMessage, from sender: EntityNode) {
        let answers = standby.received(message, from: sender.id)
        if standby.takeAhead() != nil { refresh() }
        guard let answers else { return }
        send(to: sender, 9) {
            sender.settle(sender.owner.answered(answers, by: self.id, now: self.now))
        }
    }

    /// Every 10 ms.
    func tickReplicas() {
        owner.tick(now: now)
        guard now >= nextExpiry else { return }
        nextExpiry = now + .milliseconds(100)
        for shard in waiters.keys.sorted() {
            complete(waiters[shard]?.takeExpired(at: now) ?? [], ApusError(.deadlineExceeded))
            if waiters[shard]?.isEmpty == true { waiters[shard] = nil }
        }
    }
}

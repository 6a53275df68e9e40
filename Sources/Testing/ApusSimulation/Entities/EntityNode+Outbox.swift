import ApusCluster
import ApusCore
import ApusStorage

/// The outboxes of a node's shards, as ``OutboxService`` drives their machine.
extension EntityNode {
    private static let pageCountMax = 3

    func tickOutbox() {
        guard now >= nextOutboxTick else { return }
        nextOutboxTick = now + .milliseconds(100)
        handle(.tick)
    }

    /// The entries of a change that is about to be made.
    func entries(of call: SimulatedCall, _ content: SimulatedContent) -> [OutboxEntry] {
        guard world.hasOutbox, call.entity.isRecorded else { return [] }
        let payload = SimulatedContent.bytes(of: call.number)
        return [OutboxEntry(entity: call.entity, number: UInt64(content.count), payload: payload)]
    }

    /// Entries are durable.
    func stored(_ entries: [OutboxEntry]) {
        guard !entries.isEmpty, world.mutant != .deliversUnstored else { return }
        handle(.stored(entries))
    }

    func handle(_ input: OutboxStateMachine.Input) {
        guard world.hasOutbox else { return }
        switch (world.mutant, input) {
        case (.trustsRecords, .claimed), (.trustsRecords, .loaded): return
        case (.dropsOutbox, .lost(let shards)): dropEntries(of: shards)
        default: break
        }
        tell(input)
        for action in outbox.handle(input, now: now) {
            switch action {
            case .read(let cursor): read(after: cursor)
            case .deliver(let entry):
                if world.mutant == .removesUndelivered { remove([entry.id]) }
                deliver(entry)
            case .remove(let ids): remove(ids)
            }
        }
    }

    private func tell(_ input: OutboxStateMachine.Input) {
        switch input {
        case .tick, .loaded: break
        case .stored(let entries), .read(let entries, next: _):
            let named = entries.map { "\($0.entity.key)/\($0.number)" }.joined(separator: " ")
            if case .stored = input { say("has stored \(named)") } else { say("reads \(named)") }
        case .gained(let shards): say("gains \(shards)")
        case .lost(let shards): say("loses \(shards)")
        default: say("\(input)")
        }
    }

    private func say(_ text: String) { world.simulation.tell("    outbox of \(id): \(text)") }

    private func read(after cursor: OutboxEntry.ID?) {
        let scan = OutboxRecords.scan(after: cursor, limit: Self.pageCountMax)
        if world.mutant == .forgetsOutbox { return later(25, after: .zero) { self.handle(.read([], next: nil)) } }
        world.records.request(by: process) {
            $0.page(scan)
        } then: { page in
            if let page {
                let entries = page.records.compactMap { OutboxRecords.entry($0) }
                self.handle(.read(entries, next: page.next == nil ? nil : entries.last?.id))
            } else {
                self.handle(.readFailed)
            }
            self.settle()
        }
    }

    /// A delivery takes time. It fails at times, and has then reached its receiver in half of the cases.
    private func deliver(_ entry: OutboxEntry) {
        let epoch = process.view[entry.entity.shard].epoch
        let (fails, arrives) = (world.simulation.below(8) == 0, world.simulation.below(2) == 0)
        later(23, after: world.simulation.span(0...20)) {
            if !fails || arrives { self.arrive(entry, epoch) }
            self.later(24, after: self.world.simulation.span(0...10)) {
                if !fails { self.deliveredEntries[entry.id] = epoch }
                self.handle(fails ? .deliveryFailed(entry.id) : .delivered(entry.id))
                if !fails, self.world.mutant == .deliversTwice { self.arrive(entry, epoch) }
            }
        }
    }

    /// An entry that was delivered is delivered again by a later owner only, or by one that was superseded.
    private func arrive(_ entry: OutboxEntry, _ epoch: Epoch) {
        if deliveredEntries[entry.id] == epoch {
            world.fail("\(id) delivers change \(entry.number) of \(entry.entity) again, which it has delivered")
        }
        world.received(entry, from: self)
    }

    private func dropEntries(of shards: [ShardID]) {
        let stored = world.records.tables.page(OutboxRecords.scan(after: nil, limit: 1000)).records
        remove(stored.compactMap { OutboxRecords.entry($0)?.id }.filter { shards.contains($0.entity.shard) })
    }

    private func remove(_ ids: [OutboxEntry.ID]) {
        let removal = OutboxRemoval(ids) { RecordFence(epoch: process.view[$0].epoch, writer: "\(id)") }
        commit(removal.steps) { outcomes in
            for case .failure(let error) in outcomes where error.code == .staleEpoch { self.deliveredEntries = [:] }
            for input in removal.inputs(outcomes) { self.handle(input) }
        }
    }
}

/// The receiver of all entries, and what it checks.
extension EntityWorkload {
    func received(_ entry: OutboxEntry, from node: EntityNode) {
        let number = SimulatedContent.number(of: entry.payload)
        let numbers = truth(of: entry.entity)?.content.numbers ?? []
        let index = Int(entry.number) - 1
        guard numbers.indices.contains(index), numbers[index] == number else {
            return fail("\(node.id) delivers \(number) of \(entry.entity), which is not stored")
        }
        let count = receivedCounts[entry.entity] ?? 0
        guard index <= count else {
            return fail("\(node.id) delivers change \(entry.number) of \(entry.entity) before \(count + 1)")
        }
        if index < count { repeatedCount += 1 } else { receivedCounts[entry.entity] = count + 1 }
    }

    /// An entry that was not delivered or not removed.
    var undelivered: String? {
        guard hasOutbox else { return nil }
        if let record = records.tables.page(OutboxRecords.scan(after: nil, limit: 1)).records.first {
            return "\(record.key) is in the outbox"
        }
        for entity in entities where entity.isRecorded {
            let (count, received) = (truth(of: entity)?.content.count ?? 0, receivedCounts[entity] ?? 0)
            if count != received { return "\(entity) has \(count) changes, and \(received) were delivered" }
        }
        return nil
    }
}

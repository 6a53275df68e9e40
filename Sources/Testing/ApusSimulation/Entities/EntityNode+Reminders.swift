import ApusCluster
import ApusCore
import ApusStorage

/// The reminders of a node's shards, as ``ReminderService`` drives their machines: one for recorded entities, one for
/// replicated ones.
extension EntityNode {
    private static let pageCountMax = 4

    func noteOwned(_ map: ClusterMap) {
        let new = OwnedShards(of: id, in: map)
        let differences = new.differences(from: owned)
        let (lost, gained) = new.turnover(since: owned)
        owned = new
        for (shard, _, epoch) in differences {
            gainedAt[shard] = epoch == nil ? nil : now
            if epoch == nil { replicatedReminders.closed(shard) }
        }
        openLater(differences.filter { $0.new != nil }.map(\.shard))
        for isRecorded in [true, false] {
            if !lost.isEmpty { handle(.lost(lost), isRecorded) }
            if !gained.isEmpty { handle(.gained(gained), isRecorded) }
        }
        let (left, came) = (differences.filter { $0.old != nil }, differences.filter { $0.new != nil })
        if !left.isEmpty { handle(.lost(left.map(\.shard))) }
        if !came.isEmpty { handle(.gained(came.map(\.shard))) }
    }

    func tickReminders() {
        guard now >= nextReminderTick else { return }
        nextReminderTick = now + .milliseconds(100)
        for isRecorded in [true, false] { handle(.tick, isRecorded) }
    }

    /// An entity has set, cancelled or carried out reminders, and that is durable.
    func note(_ changes: [ReminderChange], of entity: EntityAddress) {
        guard world.mutant != .forgetsReminders else { return }
        for change in changes {
            switch change {
            case .set(let reminder): handle(.set(reminder), entity.isRecorded)
            case .cancel(let entity, let name): handle(.cancelled(entity, name: name), entity.isRecorded)
            case .delivered(let reminder): handle(.delivered(reminder), entity.isRecorded)
            }
        }
    }

    func handle(_ input: ReminderStateMachine.Input, _ isRecorded: Bool) {
        let wall = wallMilliseconds + (world.mutant == .remindsEarly ? 200 : 0)
        for action in reminders[isRecorded]?.handle(input, now: wall) ?? [] {
            switch action {
            case .read(let cursor, let upTo):
                if isRecorded { readRecords(cursor, upTo) } else { readReplicas(cursor, upTo) }
            case .deliver(let reminder): completions.append { self.deliver(reminder) }
            }
        }
    }

    private func readRecords(_ cursor: ReminderStateMachine.Cursor?, _ upTo: Int64) {
        let limit = world.isLarge ? 512 : Self.pageCountMax
        let scan = ReminderRecords.scan(after: cursor, upTo: upTo, limit: limit)
        world.records.request(by: process) {
            $0.page(scan)
        } then: { page in
            if let page {
                let reminders = page.records.compactMap { ReminderRecords.reminder($0) }
                self.handle(.read(reminders, isLast: page.next == nil), true)
            } else {
                self.handle(.readFailed, true)
            }
            self.settle()
        }
    }

    private func readReplicas(_ cursor: ReminderStateMachine.Cursor?, _ upTo: Int64) {
        let limit = world.isLarge ? 512 : Self.pageCountMax
        let read = {
            let page = self.replicatedReminders.due(after: cursor, upTo: upTo, limit: limit)
            self.later(10, after: self.world.simulation.span(0...1)) {
                self.handle(.read(page.reminders, isLast: page.isLast), false)
            }
        }
        if unopened.isEmpty { completions.append(read) } else { whenOpen.append(read) }
    }

    private func deliver(_ reminder: Reminder) {
        let epoch = process.view[reminder.entity.shard].epoch
        let call = SimulatedCall(
            entity: reminder.entity, number: SimulatedContent.number(of: reminder.payload), id: reminder.id,
            operation: .reminded(reminder), origin: .reminder(reminder))
        guard admit(call, epoch: epoch) else {
            return delivered(reminder, .refused(ApusError(.moved), knownEpoch: nil))
        }
    }

    /// A delivery has its outcome.
    func delivered(_ reminder: Reminder, _ outcome: SimulatedOutcome) {
        if case .answered = outcome {
            handle(.delivered(reminder), reminder.entity.isRecorded)
        } else {
            handle(.deliveryFailed(reminder.id), reminder.entity.isRecorded)
        }
    }
}

import ApusCluster
import ApusCore
import ApusStorage

/// The invariants of the entities after every step, and at the end.
extension EntityWorkload {
    /// The most that a reminder may be late, after its time or after its shard was gained, in milliseconds.
    private static let latenessMax: Int64 = 1000

    // MARK: On the way

    /// Checks a message that is about to be carried out.
    func checkRun(_ call: SimulatedCall, _ content: SimulatedContent, at node: EntityNode) {
        let numbers = content.numbers
        if numbers.contains(call.number) { fail("\(node.id) does \(call.number) to \(call.entity) twice") }
        let shard = call.entity.shard
        let epoch = node.process.view[shard].epoch
        if settings.checksEachOwner, simulation.store.map[shard].epoch == epoch, node.isLocal(shard, epoch: epoch),
            let missing = ledger.missing(from: numbers, of: call.entity)
        {
            fail("\(node.id) continues \(call.entity) without \(missing), which was acknowledged")
        }
        guard case .reminded(let reminder) = call.operation else { return }
        firedCount += 1
        let wall = wallMilliseconds
        if wall < reminder.due { fail("\(node.id) reminds \(call.entity) \(reminder.due - wall) ms too early") }
        guard simulation.profile == .kills, !simulation.isHealed, let gained = node.gainedAt[shard] else { return }
        let lateness = wall - max(reminder.due, Int64(gained.nanoseconds / 1_000_000))
        if lateness > Self.latenessMax { fail("\(node.id) reminds \(call.entity) \(lateness) ms too late") }
    }

    /// Checks the states with which a node takes over a shard.
    func checkPromotion(
        _ promotion: ReplicaStandbyStateMachine.Promotion, of shard: ShardID, epoch: Epoch, at node: EntityNode
    ) {
        guard shards.contains(shard) else { return }
        promotionCount += 1
        // Where two die at once, a promotion may report a loss that is none, but nothing may be missing.
        guard promotion.isComplete || simulation.profile == .pairs else {
            lossCount += 1
            ledger.noteLoss(of: shard, epoch: epoch)
            simulation.tell("\(node.id) may have lost changes of shard \(shard) before epoch \(epoch)")
            if simulation.profile == .kills { fail("\(node.id) reports a loss of shard \(shard), and one node died") }
            return
        }
        guard settings.checksEachOwner, simulation.store.map[shard].epoch == epoch else { return }
        for entity in entities where entity.shard == shard && !entity.isRecorded {
            let bytes = promotion.table[ReplicaKey(kind: entity.kind, key: entity.key)]
            let numbers = bytes.flatMap { Self.stored($0, of: entity)?.content.numbers } ?? []
            guard let missing = ledger.missing(from: numbers, of: entity) else { continue }
            fail("\(node.id) takes \(entity) over without \(missing), which was acknowledged, under epoch \(epoch)")
        }
    }

    /// Checks the initial state of an activation.
    func checkLoad(_ stored: Stored?, of cell: SimulatedCell, at node: EntityNode) {
        guard settings.checksEachOwner, simulation.store.map[cell.address.shard].epoch == cell.epoch,
            let missing = ledger.missing(from: stored?.content.numbers ?? [], of: cell.address)
        else { return }
        fail("\(node.id) starts \(cell.address) without \(missing), which was acknowledged")
    }

    /// Checks a step that the records accepted.
    func checkStep(_ step: RecordStep) {
        for write in step.writes {
            guard case .unsigned(let shard)? = write.id.key.parts?.first else { continue }
            if case .check = write.change { continue }
            let claim = claims[shard] ?? 0
            if write.fence.epoch < claim {
                fail("the records take \(write.id) under epoch \(write.fence.epoch), after \(claim) claimed its shard")
            }
            if write.id.collection == "shard-claims" { claims[shard] = max(claim, write.fence.epoch) }
        }
    }

    // MARK: The end

    func unrest(mapIsAtRestSince: MonotonicTime) -> String? {
        if let call = clients.unanswered { return "\(call.number) to \(call.entity) is not answered" }
        if let shard = unsafeShard { return "shard \(shard) has no complete copy" }
        if let node = busyNode { return "\(node.id) has changes that are not confirmed" }
        let restedSince = Int64(max(mapIsAtRestSince, simulation.healedAt).nanoseconds / 1_000_000)
        for entity in entities {
            guard let reminder = truth(of: entity)?.reminders.min(by: { $0.due < $1.due }) else { continue }
            let storeRestedSince = Int64(records.restsAt.nanoseconds / 1_000_000)
            let since = entity.isRecorded ? max(restedSince, storeRestedSince) : restedSince
            let lateness = wallMilliseconds - max(reminder.due, since)
            if lateness > Self.latenessMax {
                fail("\(entity) was not reminded, \(lateness) ms after its time and the last change of the map")
            }
            return "\(entity) is to be reminded"
        }
        return undelivered ?? service?.unrest()
    }

    func checkEnd() {
        var contents: [EntityAddress: [Int]] = [:]
        for entity in entities {
            let stored = truth(of: entity)
            let numbers = stored?.content.numbers ?? []
            contents[entity] = numbers
            let held = Set(numbers)
            lostCount += (ledger.acknowledged[entity] ?? []).count { !held.contains($0) }
            check(numbers, of: entity)
            checkReminders(numbers, stored?.reminders ?? [], of: entity)
        }
        for entity in entities { checkTellings(contents[entity] ?? [], of: entity, contents) }
        checkIndexes()
        checkReminderRecords()
        service?.checkEnd()
    }

    private func check(_ numbers: [Int], of entity: EntityAddress) {
        if let missing = ledger.missing(from: numbers, of: entity) {
            fail("\(entity) has lost \(missing), which was acknowledged")
        }
        if Set(numbers).count != numbers.count { fail("\(entity) did something twice: \(numbers)") }
        for number in numbers {
            let entry = ledger.entries[number]
            if entry.entity != entity { fail("\(entity) has \(number), which was sent to \(entry.entity)") }
            if entry.hasThrown { fail("\(entity) has \(number), which threw") }
        }
    }

    /// Every reminder that was set was fired, cancelled or replaced, once.
    private func checkReminders(_ numbers: [Int], _ held: [Reminder], of entity: EntityAddress) {
        var pending: [String: Int] = [:]
        for number in numbers {
            switch ledger.entries[number].operation {
            case .remind(let name, _): pending[name] = number
            case .cancelReminder(let name): pending[name] = nil
            default:
                guard case .reminder(let request) = ledger.entries[number].cause,
                    let reminder = ledger.entries[number].reminder
                else { continue }
                if pending[reminder.name] != request {
                    fail("\(entity) was reminded by \(number) of \(request), which it had cancelled or replaced")
                }
                pending[reminder.name] = nil
            }
        }
        let expected = Set(pending.values)
        let found = Set(held.compactMap { ledger.request(ofReminder: SimulatedContent.number(of: $0.payload)) })
        if expected != found {
            fail("\(entity) is to be reminded of \(expected.sorted()), and its state says \(found.sorted())")
        }
    }

    /// A message to an entity comes from a change that was made.
    private func checkTellings(_ numbers: [Int], of entity: EntityAddress, _ contents: [EntityAddress: [Int]]) {
        for number in numbers {
            guard case .telling(let request) = ledger.entries[number].cause else { continue }
            let source = ledger.entries[request].entity
            guard contents[source]?.contains(request) != true, !ledger.isExcused(telling: number) else { continue }
            fail("\(entity) received \(number) from \(source), which has no change \(request)")
        }
    }

    /// Every entry of an index has its record, and every record its entries.
    private func checkIndexes() {
        let right = Self.makeCollection(.none)
        var expected: [String: Set<RecordToken>] = [:]
        for entity in entities where entity.isRecorded {
            let key = EntityCollection<SimulatedContent>.key(of: entity)
            guard let record = records.tables.record(RecordID(right.name, key)),
                let entries = try? right.entries(record)
            else { continue }
            for entry in entries {
                expected[entry.index, default: []].insert(RecordToken(value: entry.value, key: key))
            }
        }
        for index in right.indexNames {
            let found = Set(records.tables.entries(of: right.name, by: index))
            let (more, less) = (found.subtracting(expected[index] ?? []), (expected[index] ?? []).subtracting(found))
            if let entry = more.first {
                fail("the index \(index) has \(entry.value) for \(entry.key), which the record does not have")
            }
            if let entry = less.first { fail("the index \(index) does not lead from \(entry.value) to \(entry.key)") }
        }
    }

    /// The reminder records match the reminders in the entities' states.
    private func checkReminderRecords() {
        var held: Set<RequestID> = []
        for entity in entities where entity.isRecorded {
            for reminder in truth(of: entity)?.reminders ?? [] { held.insert(reminder.id) }
        }
        let page = records.tables.page(ReminderRecords.scan(after: nil, upTo: .max))
        let found = Set(page.records.compactMap { ReminderRecords.reminder($0)?.id })
        if held != found { fail("the states have \(held.count) reminders, and the records \(found.count) others") }
    }
}

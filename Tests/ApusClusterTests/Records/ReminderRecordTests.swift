import ApusCluster
import ApusCore
import ApusStorage
import ApusTestKit
import Testing

@Suite("Reminders as records (D15, D16)")
struct ReminderRecordTests {
    private static let fence = RecordFence(epoch: 2, writer: "n1#1")

    private static func reminder(_ number: Int, due: Int64, shard: Int = 3) -> Reminder {
        let entity = EntityAddress(
            kind: EntityKind(rawValue: 9), key: "e\(number)", shard: ShardID(UInt16(shard)))
        // Ids do not go up with the times, and use all bits.
        return Reminder(
            entity: entity, name: "n", id: RequestID(high: .max - UInt64(number % 3), low: UInt64(number)), due: due)
    }

    private static func set(_ reminders: [Reminder], _ store: any RecordStore) async throws {
        var steps: [RecordStep] = []
        for reminder in reminders { steps.append(RecordStep(try ReminderRecords.set(reminder, fence: fence))) }
        for outcome in await store.commit(steps) { _ = try outcome.get() }
    }

    private static func all(
        _ records: ReminderRecords, of shard: ShardID? = nil, upTo: Int64, limit: Int
    ) async throws -> [Reminder] {
        var (found, cursor) = ([Reminder](), ReminderRecords.Cursor?.none)
        while true {
            let page = try await records.page(of: shard, after: cursor, upTo: upTo, limit: limit)
            #expect(page.reminders.count <= limit)
            found += page.reminders.map(\.reminder)
            guard !page.isLast, let last = page.reminders.last else { return found }
            cursor = ReminderRecords.Cursor(last.reminder)
        }
    }

    @Test(
        "Pages follow the order of the machine that holds them, from any place, over all shards and of one",
        arguments: EntityStoreKind.allCases)
    func pages(kind: EntityStoreKind) async throws {
        let folder = Folder()
        defer { withExtendedLifetime(folder) {} }
        let store = try await kind.store(folder)
        let records = ReminderRecords(store)
        // Several at one time, and times before 1970 sort first.
        let reminders = (0..<60).map { Self.reminder($0, due: Int64($0 / 4 * 100 - 300), shard: $0 % 5) }
        try await Self.set(reminders.shuffled(), store)
        let sorted = reminders.sorted { ReminderRecords.Cursor($0) < ReminderRecords.Cursor($1) }
        for limit in [1, 7, 60, 1000] {
            #expect(try await Self.all(records, upTo: .max, limit: limit) == sorted)
            #expect(try await Self.all(records, upTo: 500, limit: limit) == sorted.filter { $0.due <= 500 })
            for shard in [ShardID(0), ShardID(4), ShardID(5)] {
                #expect(
                    try await Self.all(records, of: shard, upTo: 800, limit: limit)
                        == sorted.filter { $0.entity.shard == shard && $0.due <= 800 })
            }
        }
        // After the place of one that is gone by now.
        let gone = sorted[20]
        try await store.commit(ReminderRecords.remove(gone.entity, name: "n", fence: Self.fence))
        let rest = try await records.page(after: ReminderRecords.Cursor(gone), upTo: .max, limit: 5)
        #expect(rest.reminders.map(\.reminder) == Array(sorted[21..<26]) && !rest.isLast)
        await store.close()
    }

    @Test("A reminder that is set again stands once, at its new time", arguments: EntityStoreKind.allCases)
    func replaced(kind: EntityStoreKind) async throws {
        let folder = Folder()
        defer { withExtendedLifetime(folder) {} }
        let store = try await kind.store(folder)
        let records = ReminderRecords(store)
        var reminder = Self.reminder(1, due: 100)
        reminder.payload = [1, 2, 3]
        try await Self.set([reminder], store)
        var later = reminder
        (later.due, later.id) = (900, RequestID(high: 9, low: 9))
        try await Self.set([later], store)
        #expect(try await Self.all(records, upTo: 500, limit: 10).isEmpty)
        let held = try #require(try await records.page(after: nil, upTo: 900).reminders.first)
        #expect(held == ReminderRecords.Held(reminder: later, version: 2, epoch: 2))
        // What was delivered is removed only where it is still what it was.
        await #expect(throws: ApusError(.versionConflict)) {
            try await store.commit(
                ReminderRecords.remove(reminder.entity, name: "n", fence: Self.fence, if: .version(1)))
        }
        try await store.commit(ReminderRecords.remove(reminder.entity, name: "n", fence: Self.fence, if: .version(2)))
        #expect(try await records.reminder(of: reminder.entity, name: "n") == nil)
        #expect(try await Self.all(records, upTo: .max, limit: 10).isEmpty)
        await store.close()
    }

    @Test("A record that is no reminder is passed over, and the others are still found")
    func unreadable() async throws {
        let store = MemoryRecordStore()
        let reminders = (0..<3).map { Self.reminder($0, due: Int64($0)) }
        try await Self.set(reminders, store)
        // No protobuf, and a shard that there is not.
        let bodies: [[UInt8]] = [[0xFF], [0x08, 0xFF, 0xFF, 0x7F]]
        for (number, body) in bodies.enumerated() {
            let due = OrderedKey(.signed(Int64(number)), .unsigned(0), .unsigned(0))
            try await store.commit(
                RecordWrite(
                    RecordID("reminders", OrderedKey(.text("bad\(number)"))),
                    .put(body: body, layout: 1, entries: [RecordEntry(index: "due", value: due)]), fence: .none,
                    condition: .any))
        }
        #expect(try await Self.all(ReminderRecords(store), upTo: 10, limit: 10) == reminders)
        await #expect(throws: ApusError(.frameTooLarge)) {
            var long = reminders[0]
            long.name = String(repeating: "n", count: 64)
            try await Self.set([long], store)
        }
    }

    @Test("Over the records the machine delivers each reminder once, in order", arguments: EntityStoreKind.allCases)
    func machine(kind: EntityStoreKind) async throws {
        let folder = Folder()
        defer { withExtendedLifetime(folder) {} }
        let store = try await kind.store(folder)
        let records = ReminderRecords(store)
        let reminders = (0..<40).map { Self.reminder($0, due: Int64(1_000 + $0 / 3 * 50), shard: $0 % 2) }
        try await Self.set(reminders.shuffled(), store)
        var configuration = ReminderStateMachine.Configuration()
        (configuration.horizon, configuration.loadedCountMax, configuration.deliveringCountMax) = (300, 10, 3)
        var machine = ReminderStateMachine(configuration: configuration)
        var now: Int64 = 900
        var actions = machine.handle(.gained([ShardID(0), ShardID(1)]), now: now)
        var delivered: [Reminder] = []
        for _ in 0..<500 where delivered.count < reminders.count {
            guard !actions.isEmpty else {
                now += 50
                actions = machine.handle(.tick, now: now)
                continue
            }
            switch actions.removeFirst() {
            case .read(let cursor, let upTo):
                let page = try await records.page(after: cursor, upTo: upTo, limit: 4)
                actions += machine.handle(.read(page.reminders.map(\.reminder), isLast: page.isLast), now: now)
            case .deliver(let reminder):
                #expect(reminder.due <= now)
                delivered.append(reminder)
                try await store.commit(ReminderRecords.remove(reminder.entity, name: "n", fence: Self.fence))
                actions += machine.handle(.delivered(reminder), now: now)
            }
        }
        #expect(delivered == reminders.sorted { ReminderRecords.Cursor($0) < ReminderRecords.Cursor($1) })
        #expect(try await records.page(after: nil, upTo: .max).reminders.isEmpty)
        await store.close()
    }
}

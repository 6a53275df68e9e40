import ApusCluster
import ApusCore
import ApusStorage
import ApusTestKit
import SwiftProtobuf
import Testing

/// Both stores under what the cluster keeps.
enum EntityStoreKind: String, CaseIterable, Sendable {
    case memory, files

    func store(_ folder: Folder) async throws -> any RecordStore {
        switch self {
        case .memory: MemoryRecordStore()
        case .files:
            try await SQLiteRecordStore(
                path: folder.file("records.sqlite"), cluster: ClusterID(unchecked: "test"),
                catalogue: RecordCatalogue(
                    merging: [ClusterRecords.catalogue, RecordCatalogue([EntityRecordTests.clocks])]))
        }
    }
}

/// A service's own kind, which the storage does not know.
@Suite("States of entities as records (D15, D16)")
struct EntityRecordTests {
    static let clocks = EntityCollection<Google_Protobuf_Timestamp>(
        "clocks", kind: EntityKind(rawValue: 9), layout: 1,
        indexes: [RecordIndex("nanos") { [OrderedKey(.signed(Int64($0.nanos)))] }])

    private let clock = EntityAddress(kind: EntityKind(rawValue: 9), key: "hall", shard: ShardID(7))
    private let fence = RecordFence(epoch: 4, writer: "n1#1")

    private static func time(_ seconds: Int64, _ nanos: Int32 = 0) -> Google_Protobuf_Timestamp {
        Google_Protobuf_Timestamp(seconds: seconds, nanos: nanos)
    }

    private func reminder(_ name: String, _ id: UInt64) -> Reminder {
        Reminder(entity: clock, name: name, id: RequestID(high: 1, low: id), due: 1_000, payload: [7])
    }

    @Test("What an entity keeps and has answered is read as it was written", arguments: EntityStoreKind.allCases)
    func roundTrip(kind: EntityStoreKind) async throws {
        let folder = Folder()
        defer { withExtendedLifetime(folder) {} }
        let store = try await kind.store(folder)
        #expect(try await Self.clocks.load(clock, from: store) == nil)
        var memory = RequestMemory()
        let id = RequestID(high: 3, low: 4)
        memory.remember(id, .reply([1, 2]))
        #expect(try await Self.clocks.save(clock, Self.time(5, 6), memory, after: 0, fence: fence, in: store) == 1)
        let found = try #require(try await Self.clocks.load(clock, from: store))
        #expect(found.content == Self.time(5, 6) && found.version == 1)
        let again = found.memory
        #expect(again.find(id) == .answered(.reply([1, 2])))
        #expect(try await Self.clocks.save(clock, Self.time(8), again, after: 1, fence: fence, in: store) == 2)
        await #expect(throws: ApusError(.versionConflict)) {
            try await Self.clocks.save(clock, Self.time(9), again, after: 1, fence: fence, in: store)
        }
        // The service's own index, and what an operator sees.
        let stored = try await store.page(
            RecordScan("clocks", index: "nanos", from: OrderedKey(.signed(0)), below: OrderedKey(.signed(1))))
        let json = try Self.clocks.json(try #require(stored.records.first))
        #expect(json == #"{"shard":7,"key":"hall","content":"1970-01-01T00:00:08Z","answeredCount":1}"#)
        _ = try await store.commit(Self.clocks.removal(clock, after: 2, fence: fence))
        #expect(try await Self.clocks.load(clock, from: store) == nil)
        await store.close()
    }

    @Test("A state and its reminders are one step: both stand, or neither", arguments: EntityStoreKind.allCases)
    func oneStep(kind: EntityStoreKind) async throws {
        let folder = Folder()
        defer { withExtendedLifetime(folder) {} }
        let store = try await kind.store(folder)
        let reminders = ReminderRecords(store)
        let set = try ReminderRecords.set(reminder("ring", 1), fence: fence)
        try await Self.clocks.save(
            clock, Self.time(1), RequestMemory(), after: 0, fence: fence, reminders: [set], in: store)
        #expect(try await reminders.reminder(of: clock, name: "ring")?.reminder == reminder("ring", 1))
        // The state is another one by now: the reminder stays as it is.
        for change in [
            try ReminderRecords.set(reminder("ring", 2), fence: fence),
            ReminderRecords.remove(clock, name: "ring", fence: fence),
        ] {
            await #expect(throws: ApusError(.versionConflict)) {
                try await Self.clocks.save(
                    clock, Self.time(2), RequestMemory(), after: 0, fence: fence, reminders: [change], in: store)
            }
        }
        #expect(try await reminders.reminder(of: clock, name: "ring")?.reminder.id == RequestID(high: 1, low: 1))
        // The reminder is another one by now: the state stays as it is.
        await #expect(throws: ApusError(.versionConflict)) {
            try await Self.clocks.save(
                clock, Self.time(2), RequestMemory(), after: 1, fence: fence,
                reminders: [ReminderRecords.remove(clock, name: "ring", fence: fence, if: .version(9))], in: store)
        }
        #expect(try await Self.clocks.load(clock, from: store)?.content == Self.time(1))
        try await Self.clocks.save(
            clock, Self.time(3), RequestMemory(), after: 1, fence: fence,
            reminders: [ReminderRecords.remove(clock, name: "ring", fence: fence, if: .version(1))], in: store)
        #expect(try await reminders.reminder(of: clock, name: "ring") == nil)
        await store.close()
    }

    @Test(
        "An owner that was superseded writes nothing, not even an entity that was never there or is no more (10013)",
        arguments: EntityStoreKind.allCases)
    func superseded(kind: EntityStoreKind) async throws {
        let folder = Folder()
        defer { withExtendedLifetime(folder) {} }
        let store = try await kind.store(folder)
        let (shard, next) = (clock.shard, RecordFence(epoch: 5, writer: "n2#1"))
        #expect(await ShardClaims.claim([shard: 4], writer: "n1#1", in: store).isEmpty)
        try await Self.clocks.save(clock, Self.time(1), RequestMemory(), after: 0, fence: fence, in: store)
        #expect(await ShardClaims.claim([shard: 5, ShardID(8): 2], writer: "n2#1", in: store).isEmpty)
        try await Self.clocks.save(clock, Self.time(2), RequestMemory(), after: 1, fence: next, in: store)
        _ = try await store.commit(Self.clocks.removal(clock, after: 2, fence: next))
        // The old owner goes on: with what is no more, with what never was, with a reminder, with a claim.
        let other = EntityAddress(kind: EntityKind(rawValue: 9), key: "attic", shard: shard)
        for entity in [clock, other] {
            await #expect(throws: ApusError(.staleEpoch)) {
                try await Self.clocks.save(entity, Self.time(3), RequestMemory(), after: 0, fence: fence, in: store)
            }
            #expect(try await Self.clocks.load(entity, from: store) == nil)
        }
        await #expect(throws: ApusError(.staleEpoch)) {
            try await store.commit(
                RecordStep(
                    ShardClaims.check(shard, fence: fence), try ReminderRecords.set(reminder("ring", 1), fence: fence)))
        }
        #expect(await ShardClaims.claim([shard: 4], writer: "n1#1", in: store)[shard]?.code == .staleEpoch)
        #expect(await ShardClaims.claim([shard: 5], writer: "n3#1", in: store)[shard]?.code == .staleEpoch)
        #expect(try await ReminderRecords(store).page(after: nil, upTo: .max).reminders.isEmpty)
        // Its own claim once more is as before.
        #expect(await ShardClaims.claim([shard: 5], writer: "n2#1", in: store).isEmpty)
        await store.close()
    }

    @Test("All shards of a cluster are claimed in one call", arguments: EntityStoreKind.allCases)
    func allShards(kind: EntityStoreKind) async throws {
        let folder = Folder()
        defer { withExtendedLifetime(folder) {} }
        let store = try await kind.store(folder)
        let all = Dictionary(uniqueKeysWithValues: (0..<ShardID.count).map { (ShardID(UInt16($0)), Epoch(3)) })
        #expect(await ShardClaims.claim(all, writer: "n1#1", in: store).isEmpty)
        let refused = await ShardClaims.claim(all, writer: "n2#1", in: store)
        #expect(refused.count == ShardID.count && refused.values.allSatisfy { $0.code == .staleEpoch })
        await store.close()
    }
}

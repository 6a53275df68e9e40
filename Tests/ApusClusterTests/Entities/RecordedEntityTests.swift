import ApusCluster
import ApusCore
import ApusStorage
import ApusTestKit
import ApusWire
import Logging
import SwiftProtobuf
import Synchronization
import Testing

/// The receiver of the outboxes of both nodes, which may refuse those of one.
private final class Received: Sendable {
    private let state = Mutex<(numbers: [UInt64], refused: String?)>(([], nil))

    var numbers: [UInt64] { state.withLock(\.numbers) }

    func refuse(_ node: String?) { state.withLock { $0.refused = node } }

    func take(_ entry: OutboxEntry, at node: String) throws(ApusError) {
        let isRefused = state.withLock { state in
            guard state.refused != node else { return true }
            state.numbers.append(entry.number)
            return false
        }
        if isRefused { throw ApusError(.overloaded) }
    }
}

private struct Receiver: OutboxReceiver {
    let node: String
    let received: Received

    func deliver(_ entry: OutboxEntry) async throws(ApusError) { try received.take(entry, at: node) }
}

/// Two nodes, each with a store of its own on one file, as two processes have.
private final class RecordedPair: Sendable {
    static let collection = EntityCollection<ProbeReported>("counters", kind: .probe, layout: 1)

    let folder = Folder()
    let stores: [any RecordStore]
    let outboxes: [OutboxService]
    let received: Received
    let pair: EntityPair

    private init(stores: [any RecordStore], outboxes: [OutboxService], received: Received, pair: EntityPair) {
        (self.stores, self.outboxes, self.received, self.pair) = (stores, outboxes, received, pair)
    }

    static func with(_ body: (RecordedPair) async throws -> Void) async throws {
        let folder = Folder()
        defer { withExtendedLifetime(folder) {} }
        var stores: [any RecordStore] = []
        for _ in 0..<2 {
            stores.append(
                try await SQLiteRecordStore(
                    path: folder.file("records.sqlite"), cluster: ClusterID(unchecked: "test"),
                    catalogue: RecordCatalogue(merging: [ClusterRecords.catalogue, RecordCatalogue([collection])])))
        }
        // Nodes are made in the order of their names.
        var made = 0
        let opened = stores
        var outboxes: [OutboxService] = []
        let received = Received()
        try await EntityPair.with(register: { registry in
            let shards = RecordedShards(store: opened[made], local: node(["a", "b"][made]))
            let outbox = OutboxService(shards, registry: registry, logger: Logger(label: "test"))
            let name = ["a", "b"][made]
            outbox.use(.probe, Receiver(node: name, received: received))
            outboxes.append(outbox)
            made += 1
            register(registry, RecordedStates(shards, collection), outbox)
        }) { pair in
            pair.adopt(pair.map(revision: 1, owner: pair.b, epoch: 1))
            try await body(RecordedPair(stores: opened, outboxes: outboxes, received: received, pair: pair))
        }
        for store in stores { await store.close() }
    }

    private static func register(
        _ registry: EntityRegistry, _ states: RecordedStates<ProbeReported>, _ outbox: OutboxService
    ) {
        var definition = EntityDefinition<ProbeReported>(.probe, name: "counter", durability: .recorded)
        definition.passivateAfter = .milliseconds(200)
        definition.on(ProbeEcho.self) { content, message, scope throws(ApusError) in
            if message.name == "remind" { try scope.remind("ring", at: scope.wallMilliseconds + 50) }
            if message.name == "forget" { scope.cancelReminder("ring") }
            content.count += message.number
            if message.name == "send" { try scope.enqueue([UInt8(content.count)], number: content.count) }
            if message.name == "fail" { throw ApusError(.badParameter) }
            return ProbeEcho.with { $0.number = content.count }
        }
        definition.onReading(ProbeReport.self) { content, _, _ throws(ApusError) in content }
        definition.onReminder { content, _, _ throws(ApusError) in content.count += 100 }
        registry.register(definition, states: states, outbox: outbox)
    }

    func ref(_ node: EntityNode, _ key: String) -> EntityRef<EntityCell<ProbeReported>> {
        node.registry.ref(EntityCell<ProbeReported>.self, EntityAddress(kind: .probe, key: key))
    }
}

private func add(_ number: UInt64, _ name: String = "") -> ProbeEcho {
    ProbeEcho.with {
        $0.number = number
        $0.name = name
    }
}

private func call(_ id: UInt64) -> EntityCall {
    var call = EntityCall()
    call.request = RequestID(high: 7, low: id)
    return call
}

@Suite("Entities whose changes are records (D15, D16)", .timeLimit(.minutes(2)))
struct RecordedEntityTests {
    @Test("What was acknowledged is there at the next owner, and a request that comes again is done once")
    func moved() async throws {
        try await RecordedPair.with { test in
            let pair = test.pair
            let first = try await test.ref(pair.a, "one").ask(add(7), call: call(1)).number
            pair.adopt(pair.map(revision: 2, owner: pair.a, epoch: 2))
            let again = try await test.ref(pair.b, "one").ask(add(7), call: call(1)).number
            let other = try await test.ref(pair.b, "one").ask(add(1), call: call(2)).number
            #expect([first, again, other] == [7, 7, 8])
        }
    }

    @Test("A former owner that has not heard of its end writes nothing, and its callers get to the owner that is")
    func formerOwner() async throws {
        try await RecordedPair.with { test in
            let pair = test.pair
            _ = try await test.ref(pair.b, "one").ask(add(1))
            pair.a.view.update(pair.map(revision: 2, owner: pair.a, epoch: 2))
            #expect(try await test.ref(pair.a, "one").ask(add(10)).number == 11)
            // Of an entity that nobody has yet the claim of the shard alone says who may make it.
            #expect(try await test.ref(pair.a, "two").ask(add(0)).number == 0)
            let late = Task { try await test.ref(pair.b, "one").ask(add(100)).number }
            let new = Task { try await test.ref(pair.b, "two").ask(add(5)).number }
            try await Task.sleep(for: .milliseconds(100))
            pair.b.view.update(pair.map(revision: 2, owner: pair.a, epoch: 2))
            #expect(try await late.value == 111)
            #expect(try await new.value == 5)
        }
    }

    @Test("A reminder fires at the node that owns the shard by then; one that was taken back does not")
    func reminders() async throws {
        try await RecordedPair.with { test in
            let pair = test.pair
            let services = zip([pair.a, pair.b], test.stores).map { node, store in
                ReminderService(
                    source: ReminderRecords(store), registry: node.registry, logger: Logger(label: "test"))
            }
            for service in services { service.use() }
            let running = services.map { service in Task { await service.run() } }
            defer { for task in running { task.cancel() } }
            _ = try await test.ref(pair.a, "kept").ask(add(0, "remind"))
            _ = try await test.ref(pair.a, "cancelled").ask(add(0, "remind"))
            _ = try await test.ref(pair.a, "cancelled").ask(add(1, "forget"))
            pair.adopt(pair.map(revision: 2, owner: pair.a, epoch: 2))
            try await eventually("the reminder was carried out") {
                try await test.ref(pair.b, "kept").ask(ProbeReport()).count == 100
            }
            let page = try await ReminderRecords(test.stores[0]).page(after: nil, upTo: .max, limit: 10)
            #expect(page.reminders.isEmpty)
            #expect(try await test.ref(pair.b, "cancelled").ask(ProbeReport()).count == 1)
        }
    }

    @Test("What an entity sends through its outbox is delivered by the next owner if the first one cannot, in order")
    func outbox() async throws {
        try await RecordedPair.with { test in
            let pair = test.pair
            let running = test.outboxes.map { outbox in Task { await outbox.run() } }
            defer { for task in running { task.cancel() } }
            test.received.refuse("b")
            for _ in 0..<3 { _ = try await test.ref(pair.a, "door").ask(add(1, "send")) }
            await #expect(throws: ApusError(.badParameter)) {
                _ = try await test.ref(pair.a, "door").ask(add(1, "fail"))
            }
            let stored = try await OutboxRecords(test.stores[0]).page(after: nil, limit: 10).entries
            #expect(stored.map(\.number) == [1, 2, 3] && test.received.numbers.isEmpty)
            pair.adopt(pair.map(revision: 2, owner: pair.a, epoch: 2))
            _ = try await test.ref(pair.b, "door").ask(add(1, "send"))
            try await eventually("the entries are delivered, and removed") {
                let left = try await OutboxRecords(test.stores[1]).page(after: nil, limit: 10).entries
                return test.received.numbers == [1, 2, 3, 4] && left.isEmpty
            }
        }
    }

    @Test("While shards go back and forth, nothing acknowledged is lost and no request is done twice")
    func backAndForth() async throws {
        try await RecordedPair.with { test in
            let pair = test.pair
            let moving = Task {
                var random = SeededRandom(seed: 1)
                for revision in UInt64(2)..<30 {
                    let owner = revision.isMultiple(of: 2) ? pair.a : pair.b
                    let map = pair.map(revision: revision, owner: owner, epoch: Epoch(revision))
                    // One hears of it first; until the other does, both think that they own the shards.
                    let first = Bool.random(using: &random) ? pair.a : pair.b
                    first.view.update(map)
                    try await Task.sleep(for: .milliseconds(Int64.random(in: 0...40, using: &random)))
                    pair.adopt(map)
                    try await Task.sleep(for: .milliseconds(Int64.random(in: 10...60, using: &random)))
                }
            }
            try await withThrowingTaskGroup(of: Void.self) { group in
                for caller in 0..<16 {
                    group.addTask {
                        let node = caller.isMultiple(of: 2) ? pair.a : pair.b
                        for number in 0..<40 {
                            let id = UInt64(caller * 1000 + number)
                            let ref = test.ref(node, "counter-\(caller % 5)")
                            try await Self.untilAcknowledged { () async throws(ApusError) in
                                _ = try await ref.ask(add(1), timeout: .seconds(2), call: call(id))
                            }
                        }
                    }
                }
                try await group.waitForAll()
            }
            try await moving.value
            for counter in 0..<5 {
                let callers = (0..<16).count { $0 % 5 == counter }
                let count = try await test.ref(pair.a, "counter-\(counter)").ask(ProbeReport()).count
                #expect(count == UInt64(callers * 40), "counter \(counter)")
            }
        }
    }

    /// As a caller with a request id does: the same request until it is answered.
    private static func untilAcknowledged(_ body: () async throws(ApusError) -> Void) async throws {
        for _ in 0..<100 {
            do throws(ApusError) {
                return try await body()
            } catch {
                try #require(
                    [.deadlineExceeded, .linkLost, .storageFailed, .overloaded, .staleEpoch].contains(error.code),
                    "\(error)")
            }
        }
        Issue.record("a request was never answered")
    }
}

import ApusCluster
import ApusCore
import ApusTestKit
import ApusWire
import Logging
import NIOCore
import SwiftProtobuf
import Testing

/// A counter: `count` is what was added.
private struct Counter {
    static let first = EntityAddress(kind: .probe, key: "counter-1")
    static let second = EntityAddress(kind: .probe, key: "counter-2")

    let states = KeptStates()

    func register(_ registry: EntityRegistry, passivateAfter: Duration? = nil) {
        var definition = EntityDefinition<ProbeReported>(.probe, name: "counter", durability: .replicated)
        definition.passivateAfter = passivateAfter
        definition.on(ProbeEcho.self) { content, message, scope throws(ApusError) in
            switch message.name {
            case "fail": throw ApusError(.targetOffline)
            case "tell": try scope.tell(ProbeReported.self, Self.second, Self.add(message.number))
            case "remind": try scope.remind("ring", at: scope.wallMilliseconds)
            case "above zero" where content.count == 0: scope.isAnswerKept = false
            default: content.count += message.number
            }
            return ProbeEcho.with { $0.number = content.count }
        }
        definition.onReading(ProbeReport.self) { content, _, _ throws(ApusError) in content }
        definition.onReminder { content, _, _ throws(ApusError) in content.count += 100 }
        registry.register(definition, states: states)
    }

    static func add(_ number: UInt64, _ name: String = "") -> ProbeEcho {
        ProbeEcho.with {
            $0.number = number
            $0.name = name
        }
    }
}

extension EntityNode {
    fileprivate func ref(_ address: EntityAddress) -> EntityRef<EntityCell<ProbeReported>> {
        registry.ref(EntityCell<ProbeReported>.self, address)
    }
}

private func call(_ id: UInt64) -> EntityCall {
    var call = EntityCall()
    call.request = RequestID(high: 1, low: id)
    return call
}

@Suite("Entities whose state outlives them (D15)", .timeLimit(.minutes(1)))
struct EntityCellTests {
    /// Two nodes that have counters, whose owner is b.
    private func withPair(
        passivateAfter: Duration? = nil, _ body: (EntityPair, KeptStates) async throws -> Void
    ) async throws {
        let counter = Counter()
        try await EntityPair.with(register: { counter.register($0, passivateAfter: passivateAfter) }) { pair in
            pair.adopt(pair.map(revision: 1, owner: pair.b, epoch: 1))
            try await body(pair, counter.states)
        }
    }

    private func isError(_ code: ErrorCode, _ body: () async throws -> Void) async -> Bool {
        do {
            try await body()
            return false
        } catch {
            return (error as? ApusError)?.code == code
        }
    }

    @Test("A change is answered once it is confirmed, wherever the caller is")
    func confirmation() async throws {
        try await withPair { pair, states in
            for node in [pair.a, pair.b] {
                states.hold()
                let before = states.writeCount
                let reply = Task { try await node.ref(Counter.first).ask(Counter.add(5)).number }
                try await eventually("the change is written") { states.writeCount > before && states.heldCount > 0 }
                let reading = Task { try await node.ref(Counter.first).ask(ProbeReport()).count }
                // Were either answered now, the other node's answer to the next question would come after it.
                _ = try await node.ref(Counter.second).ask(ProbeReport())
                states.release()
                let (changed, read) = (try await reply.value, try await reading.value)
                #expect(changed == read && changed % 5 == 0)
            }
            let total = try await pair.a.ref(Counter.first).ask(ProbeReport()).count
            #expect(total == 10)
        }
    }

    @Test("A message that fails changes nothing and is told so")
    func failure() async throws {
        try await withPair { pair, states in
            #expect(
                await isError(.targetOffline) { _ = try await pair.a.ref(Counter.first).ask(Counter.add(1, "fail")) })
            #expect(states.writeCount == 0)
        }
    }

    @Test("The state is there after passivation, and after the owner is another node")
    func restored() async throws {
        try await withPair(passivateAfter: .milliseconds(40)) { pair, _ in
            _ = try await pair.a.ref(Counter.first).ask(Counter.add(7), call: call(1))
            try await eventually("the entity is released") { pair.b.registry.entityCount == 0 }
            #expect(try await pair.a.ref(Counter.first).ask(ProbeReport()).count == 7)
            pair.adopt(pair.map(revision: 2, owner: pair.a, epoch: 2))
            #expect(try await pair.b.ref(Counter.first).ask(ProbeReport()).count == 7)
            #expect(pair.a.registry.entityCount == 1)
        }
    }

    @Test("An answer that holds for one message only is not kept: a repetition of the request is carried out, once")
    func answerNotKept() async throws {
        try await withPair { pair, states in
            let message = Counter.add(7, "above zero")
            for _ in 0..<2 {
                #expect(try await pair.a.ref(Counter.first).ask(message, call: call(1)).number == 0)
            }
            #expect(states.writeCount == 0)
            _ = try await pair.a.ref(Counter.first).ask(Counter.add(1), call: call(2))
            for node in [pair.a, pair.b] {
                #expect(try await node.ref(Counter.first).ask(message, call: call(1)).number == 8)
            }
        }
    }

    @Test("A request with an id is carried out once, also where its repetition reaches the next owner")
    func once() async throws {
        try await withPair { pair, _ in
            let first = try await pair.a.ref(Counter.first).ask(Counter.add(7), call: call(1)).number
            let again = try await pair.a.ref(Counter.first).ask(Counter.add(7), call: call(1)).number
            pair.adopt(pair.map(revision: 2, owner: pair.a, epoch: 2))
            let later = try await pair.a.ref(Counter.first).ask(Counter.add(7), call: call(1)).number
            let other = try await pair.a.ref(Counter.first).ask(Counter.add(7), call: call(2)).number
            #expect([first, again, later, other] == [7, 7, 7, 14])
        }
    }

    @Test("A former owner changes nothing any more, and its callers get to the owner that is")
    func formerOwner() async throws {
        try await withPair { pair, states in
            _ = try await pair.b.ref(Counter.first).ask(Counter.add(1))
            // Only a hears of the new map: both think that they own the shard.
            pair.a.view.update(pair.map(revision: 2, owner: pair.a, epoch: 2))
            #expect(try await pair.a.ref(Counter.first).ask(Counter.add(10)).number == 11)
            let late = Task { try await pair.b.ref(Counter.first).ask(Counter.add(100)).number }
            try await eventually("the former owner's change was refused") { states.writeCount >= 3 }
            pair.b.view.update(pair.map(revision: 2, owner: pair.a, epoch: 2))
            #expect(try await late.value == 111)
        }
    }

    @Test("A change whose write was lost is said to have been lost, and the next message finds what is kept")
    func lost() async throws {
        try await withPair { pair, states in
            _ = try await pair.a.ref(Counter.first).ask(Counter.add(1))
            states.fail(Counter.first, .lost(ApusError(.storageFailed)))
            #expect(await isError(.storageFailed) { _ = try await pair.a.ref(Counter.first).ask(Counter.add(5)) })
            #expect(try await pair.a.ref(Counter.first).ask(Counter.add(2)).number == 3)
        }
    }

    @Test("A message that only reads is carried out again when it is repeated, and writes nothing")
    func readings() async throws {
        try await withPair { pair, states in
            for number in UInt64(1)...2 {
                _ = try await pair.a.ref(Counter.first).ask(Counter.add(1))
                let writeCount = states.writeCount
                for node in [pair.a, pair.b] {
                    #expect(try await node.ref(Counter.first).ask(ProbeReport(), call: call(1)).count == number)
                }
                #expect(states.writeCount == writeCount)
            }
        }
    }

    @Test("What a former owner's entity sends is refused where a later epoch is known (10013)")
    func staleSender() async throws {
        try await withPair { pair, _ in
            var stale = EntityCall()
            stale.sender = EntityHeader(kind: .probe, shard: Counter.second.shard, epoch: 1, key: "counter-2")
            _ = try await pair.a.ref(Counter.first).ask(Counter.add(1), call: stale)
            pair.adopt(pair.map(revision: 2, owner: pair.b, epoch: 2))
            #expect(
                await isError(.staleEpoch) {
                    _ = try await pair.a.ref(Counter.first).ask(Counter.add(1), call: stale)
                })
            #expect(
                await isError(.staleEpoch) {
                    _ = try await pair.b.ref(Counter.first).ask(Counter.add(1), call: stale)
                })
            #expect(try await pair.a.ref(Counter.first).ask(ProbeReport()).count == 1)
        }
    }

    @Test("What a message tells others leaves with its answer")
    func tells() async throws {
        try await withPair { pair, states in
            _ = try await pair.a.ref(Counter.first).ask(Counter.add(3, "tell"))
            try await eventually("the other was told") {
                try await pair.a.ref(Counter.second).ask(ProbeReport()).count == 3
            }
            // Nothing of a message whose change was lost leaves.
            states.fail(Counter.first, .lost(ApusError(.storageFailed)))
            #expect(
                await isError(.storageFailed) {
                    _ = try await pair.a.ref(Counter.first).ask(Counter.add(3, "tell"), call: call(5))
                })
            _ = try await pair.b.ref(Counter.first).ask(Counter.add(1))
            #expect(try await pair.b.ref(Counter.second).ask(ProbeReport()).count == 3)
        }
    }

    @Test("A reminder is written with its message, and carried out once however often it is delivered")
    func reminder() async throws {
        try await withPair { pair, states in
            _ = try await pair.a.ref(Counter.first).ask(Counter.add(1, "remind"))
            let reminder = try #require(states.reminders.first)
            #expect(reminder.entity == Counter.first && reminder.name == "ring")
            for _ in 0..<3 {
                let error = await withCheckedContinuation { continuation in
                    pair.b.registry.remind(reminder) { continuation.resume(returning: $0) }
                }
                #expect(error == nil)
            }
            #expect(try await pair.a.ref(Counter.first).ask(ProbeReport()).count == 100)
            #expect(states.reminders.isEmpty)
            // Another node than the owner does not take it, and no node takes one from another.
            let elsewhere = await withCheckedContinuation { continuation in
                pair.a.registry.remind(reminder) { continuation.resume(returning: $0) }
            }
            #expect(elsewhere?.code == .moved)
            let forged = EntityReminded.with { $0.name = "ring" }
            #expect(
                await isError(.malformed) {
                    _ = try await pair.a.ref(Counter.first).ask(forged, call: call(77))
                })
        }
    }

    @Test("A reminder that was replaced while it was on its way does nothing, and the new one stays")
    func replacedReminder() async throws {
        try await withPair { pair, states in
            _ = try await pair.a.ref(Counter.first).ask(Counter.add(0, "remind"))
            let replaced = try #require(states.reminders.first)
            _ = try await pair.a.ref(Counter.first).ask(Counter.add(0, "remind"))
            let current = try #require(states.reminders.first)
            #expect(states.reminders == [current] && current.id != replaced.id)
            for (reminder, count) in [(replaced, 0), (current, 100), (current, 100)] {
                let error = await withCheckedContinuation { continuation in
                    pair.b.registry.remind(reminder) { continuation.resume(returning: $0) }
                }
                #expect(error == nil)
                #expect(try await pair.a.ref(Counter.first).ask(ProbeReport()).count == UInt64(count))
            }
            #expect(states.reminders.isEmpty)
        }
    }

    @Test("A reminder finds its entity at the node that owns the shard when it is due")
    func reminderAfterMove() async throws {
        try await withPair { pair, states in
            let services = [pair.a, pair.b].map {
                ReminderService(source: states, registry: $0.registry, logger: Logger(label: "test"))
            }
            for service in services { service.use() }
            let running = services.map { service in Task { await service.run() } }
            defer { for task in running { task.cancel() } }
            // Its node does not hear of it: the next owner finds it in what is kept.
            _ = try await pair.a.ref(Counter.first).ask(Counter.add(0, "remind"))
            pair.adopt(pair.map(revision: 2, owner: pair.a, epoch: 2))
            try await eventually("the reminder was carried out") {
                try await pair.b.ref(Counter.first).ask(ProbeReport()).count == 100
            }
            #expect(states.reminders.isEmpty)
        }
    }
}

import ApusCluster
import ApusCore
import Testing

private typealias Action = OutboxStateMachine.Action

private let here = ShardID(1)

private func entry(_ number: UInt64, of key: String = "door", bytes: Int = 1, shard: ShardID = here) -> OutboxEntry {
    OutboxEntry(
        entity: EntityAddress(kind: .probe, key: key, shard: shard), number: number,
        payload: [UInt8](repeating: 0, count: bytes))
}

private func at(_ milliseconds: Int64) -> MonotonicTime { .zero + .milliseconds(milliseconds) }

/// A machine that owns ``here``, with read records.
private func ready(_ change: (inout OutboxStateMachine.Configuration) -> Void = { _ in }) -> OutboxStateMachine {
    var configuration = OutboxStateMachine.Configuration()
    change(&configuration)
    var machine = OutboxStateMachine(configuration: configuration)
    _ = machine.handle(.gained([here]), now: at(0))
    _ = machine.handle(.read([], next: nil), now: at(0))
    return machine
}

/// The end of a page that is not the last.
private let token = entry(9, of: "page").id

@Suite("Outboxes of entities, decided (D15)")
struct OutboxStateMachineTests {
    @Test("The entries of an entity are delivered one after the other, those of others beside them, and then removed")
    func order() {
        var machine = ready()
        #expect(machine.handle(.stored([entry(1), entry(2)]), now: at(1)) == [.deliver(entry(1))])
        #expect(machine.handle(.stored([entry(7, of: "gate")]), now: at(1)) == [.deliver(entry(7, of: "gate"))])
        #expect(machine.handle(.delivered(entry(1).id), now: at(2)) == [.deliver(entry(2))])
        #expect(machine.handle(.delivered(entry(2).id), now: at(3)).isEmpty)
        #expect(machine.handle(.tick, now: at(100)) == [.remove([entry(1).id, entry(2).id])])
        #expect(machine.handle(.delivered(entry(7, of: "gate").id), now: at(101)).isEmpty)
        #expect(machine.handle(.tick, now: at(200)).isEmpty, "one removal is under way at a time")
        _ = machine.handle(.removalFailed([entry(1).id, entry(2).id]), now: at(201))
        let all = [entry(7, of: "gate").id, entry(1).id, entry(2).id]
        #expect(machine.handle(.tick, now: at(300)) == [.remove(all)])
        _ = machine.handle(.removed(all), now: at(301))
        #expect(machine.isIdle)
    }

    @Test("A delivery that failed is repeated after a pause, which doubles; what comes after it waits")
    func retries() {
        var machine = ready()
        _ = machine.handle(.stored([entry(1), entry(2)]), now: at(0))
        #expect(machine.handle(.deliveryFailed(entry(1).id), now: at(0)).isEmpty)
        #expect(machine.handle(.tick, now: at(200)).isEmpty)
        #expect(machine.handle(.tick, now: at(250)) == [.deliver(entry(1))])
        _ = machine.handle(.deliveryFailed(entry(1).id), now: at(250))
        #expect(machine.handle(.stored([entry(3)]), now: at(300)).isEmpty)
        #expect(machine.handle(.tick, now: at(700)).isEmpty)
        #expect(machine.handle(.tick, now: at(750)) == [.deliver(entry(1))])
        #expect(machine.handle(.delivered(entry(1).id), now: at(751)) == [.deliver(entry(2))])
    }

    @Test("A node that gains a shard delivers what is in its records, and nothing of other nodes' shards")
    func gained() {
        var machine = OutboxStateMachine()
        #expect(machine.handle(.gained([here]), now: at(0)) == [.read(after: nil)])
        let elsewhere = entry(1, shard: ShardID(2))
        let first = machine.handle(.read([entry(1), elsewhere], next: token), now: at(1))
        #expect(first == [.read(after: token), .deliver(entry(1))])
        #expect(machine.handle(.read([entry(2)], next: nil), now: at(2)).isEmpty)
        #expect(machine.handle(.delivered(entry(1).id), now: at(3)) == [.deliver(entry(2))])
        #expect(machine.heldCount == 1)
    }

    @Test("A step that was not confirmed may be made until its entity is loaded: then the records are read again")
    func unconfirmed() {
        var machine = ready()
        _ = machine.handle(.unconfirmed(entry(1).entity), now: at(500))
        #expect(machine.handle(.loaded(entry(1, of: "gate").entity), now: at(501)).isEmpty)
        #expect(machine.handle(.loaded(entry(1).entity), now: at(502)) == [.read(after: nil)])
        #expect(machine.handle(.stored([entry(3)]), now: at(503)).isEmpty)
        #expect(machine.handle(.read([entry(2)], next: nil), now: at(504)) == [.deliver(entry(2))])
        #expect(machine.handle(.delivered(entry(2).id), now: at(505)) == [.deliver(entry(3))])
        #expect(machine.handle(.loaded(entry(1).entity), now: at(900)).isEmpty)
    }

    @Test("A shard that was claimed is read again first, and what a former owner has stored goes before what is new")
    func claimed() {
        var machine = ready()
        #expect(machine.handle(.claimed(here), now: at(500)) == [.read(after: nil)])
        #expect(machine.handle(.stored([entry(5)]), now: at(501)).isEmpty)
        #expect(machine.handle(.read([entry(4)], next: nil), now: at(502)) == [.deliver(entry(4))])
        #expect(machine.handle(.delivered(entry(4).id), now: at(503)) == [.deliver(entry(5))])
        _ = machine.handle(.tick, now: at(504))
        // Another claim while the records are read: the page may be older than it.
        _ = machine.handle(.claimed(here), now: at(700))
        _ = machine.handle(.claimed(here), now: at(701))
        _ = machine.handle(.stored([entry(1, of: "gate")]), now: at(702))
        #expect(machine.handle(.read([], next: nil), now: at(703)).isEmpty)
        #expect(machine.handle(.tick, now: at(800)) == [.read(after: nil)])
        #expect(machine.handle(.read([], next: nil), now: at(801)) == [.deliver(entry(1, of: "gate"))])
    }

    @Test("A shard that is gained while records are read waits for the next reading: earlier pages had more of it")
    func gainedWhileReading() {
        var machine = OutboxStateMachine()
        let other = ShardID(2)
        _ = machine.handle(.gained([other]), now: at(0))
        #expect(machine.handle(.read([entry(1)], next: token), now: at(1)) == [.read(after: token)])
        #expect(machine.handle(.gained([here]), now: at(2)).isEmpty)
        #expect(machine.handle(.read([entry(2)], next: nil), now: at(3)).isEmpty)
        #expect(machine.handle(.tick, now: at(100)) == [.read(after: nil)])
        #expect(machine.handle(.read([entry(1), entry(2)], next: nil), now: at(101)) == [.deliver(entry(1))])
    }

    @Test("A page that is older than a delivery or a removal brings nothing back")
    func olderPage() {
        var machine = ready()
        _ = machine.handle(.stored([entry(1), entry(2), entry(1, of: "gate")]), now: at(1))
        _ = machine.handle(.delivered(entry(1).id), now: at(2))
        _ = machine.handle(.tick, now: at(100))
        #expect(machine.handle(.tick, now: at(5_000)) == [.read(after: nil)])
        _ = machine.handle(.delivered(entry(2).id), now: at(5_001))
        _ = machine.handle(.removed([entry(1).id]), now: at(5_002))
        let page = [entry(1), entry(2), entry(1, of: "gate")]
        #expect(machine.handle(.read(page, next: nil), now: at(5_003)).isEmpty)
        #expect(machine.heldCount == 1)
    }

    @Test("What a step with an unknown outcome has stored is found within 5 s")
    func reread() {
        var machine = ready()
        #expect(machine.handle(.tick, now: at(4_900)).isEmpty)
        #expect(machine.handle(.tick, now: at(5_000)) == [.read(after: nil)])
        #expect(machine.handle(.read([entry(3)], next: nil), now: at(5_001)) == [.deliver(entry(3))])
    }

    @Test("A read that failed is repeated; nothing of the shard is delivered before it succeeds")
    func readFailed() {
        var machine = OutboxStateMachine()
        _ = machine.handle(.gained([here]), now: at(0))
        _ = machine.handle(.readFailed, now: at(10))
        #expect(machine.handle(.stored([entry(1)]), now: at(20)).isEmpty)
        #expect(machine.handle(.tick, now: at(200)).isEmpty)
        #expect(machine.handle(.tick, now: at(300)) == [.read(after: nil)])
        #expect(machine.handle(.read([], next: nil), now: at(301)) == [.deliver(entry(1))])
    }

    @Test("A shard that left takes its entries along, and a delivery that ends later changes nothing")
    func lost() {
        var machine = ready()
        _ = machine.handle(.stored([entry(1), entry(2)]), now: at(1))
        _ = machine.handle(.lost([here]), now: at(2))
        #expect(machine.heldCount == 0 && machine.heldByteCount == 0)
        #expect(machine.handle(.delivered(entry(1).id), now: at(3)).isEmpty)
        #expect(machine.handle(.tick, now: at(100)).isEmpty)
        #expect(machine.handle(.stored([entry(3)]), now: at(101)).isEmpty && machine.isIdle)
    }

    @Test("An entity is full at its bound, and all are at the node's, in entries or in bytes")
    func bounds() {
        var machine = ready { configuration in
            (configuration.entityCountMax, configuration.heldCountMax) = (3, 5)
            configuration.heldByteCountMax = 1_000
        }
        let (door, gate) = (entry(1).entity, entry(1, of: "gate").entity)
        _ = machine.handle(.stored([entry(1), entry(2)]), now: at(1))
        #expect(!machine.isFull(door, unstored: 0) && machine.isFull(door, unstored: 1))
        #expect(!machine.isFull(gate, unstored: 2))
        _ = machine.handle(.stored([entry(1, of: "gate", bytes: 998)]), now: at(2))
        #expect(machine.isFull(gate, unstored: 0), "1,000 bytes are held")
        _ = machine.handle(.delivered(entry(1, of: "gate").id), now: at(3))
        #expect(!machine.isFull(gate, unstored: 0))
        _ = machine.handle(.stored([entry(2, of: "gate"), entry(1, of: "lamp")]), now: at(4))
        #expect(machine.isFull(entry(1, of: "fan").entity, unstored: 0), "four wait, and one is to be removed")
    }

    @Test("More entries than may be held are read when there is room, in order")
    func beyondTheBound() {
        var machine = OutboxStateMachine(
            configuration: {
                var configuration = OutboxStateMachine.Configuration()
                configuration.heldCountMax = 1
                return configuration
            }())
        _ = machine.handle(.gained([here]), now: at(0))
        let page = (1...3).map { entry($0) }
        #expect(machine.handle(.read(page, next: nil), now: at(1)) == [.deliver(entry(1))])
        #expect(machine.handle(.delivered(entry(1).id), now: at(2)) == [.deliver(entry(2))])
        _ = machine.handle(.delivered(entry(2).id), now: at(3))
        // What this node stores waits for what is not read yet.
        #expect(machine.handle(.stored([entry(4)]), now: at(4)).isEmpty)
        #expect(machine.handle(.tick, now: at(100)) == [.remove([entry(1).id, entry(2).id])])
        _ = machine.handle(.removed([entry(1).id, entry(2).id]), now: at(101))
        #expect(machine.handle(.tick, now: at(251)) == [.read(after: nil)])
        let rest = [entry(3), entry(4)]
        #expect(machine.handle(.read(rest, next: nil), now: at(252)) == [.deliver(entry(3))])
        #expect(machine.handle(.delivered(entry(3).id), now: at(253)) == [.deliver(entry(4))])
    }

    @Test("A hundred are removed at a time, the next ones as soon as these are")
    func removals() throws {
        var machine = ready()
        var actions: [Action] = []
        for number in UInt64(1)...250 {
            let one = entry(1, of: "door-\(number)")
            _ = machine.handle(.stored([one]), now: at(1))
            actions += machine.handle(.delivered(one.id), now: at(1))
        }
        guard case .remove(let first)? = actions.last, actions.count == 1 else {
            Issue.record("\(actions.count) actions")
            return
        }
        #expect(first.count == 100)
        let next = machine.handle(.removed(first), now: at(2))
        guard case .remove(let second)? = next.first else {
            Issue.record("nothing is removed")
            return
        }
        #expect(second.count == 100 && Set(first).isDisjoint(with: second))
        // One that fails is repeated at the next tick, and not at once: the store may be full.
        #expect(machine.handle(.removalFailed(second), now: at(3)).isEmpty)
        #expect(machine.handle(.tick, now: at(100)).count == 1)
    }

    @Test("An entry that is reported after it was read and delivered is not delivered again")
    func reportedLate() {
        var machine = ready()
        _ = machine.handle(.tick, now: at(5_000))
        #expect(machine.handle(.read([entry(1)], next: nil), now: at(5_001)) == [.deliver(entry(1))])
        _ = machine.handle(.delivered(entry(1).id), now: at(5_002))
        #expect(machine.handle(.stored([entry(1)]), now: at(5_003)).isEmpty && machine.heldCount == 0)
    }
}

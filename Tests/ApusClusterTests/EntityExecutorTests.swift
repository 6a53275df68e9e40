import ApusCluster
import ApusCore
import ApusTestKit
import ApusTransport
import ApusWire
import NIOCore
import NIOPosix
import SwiftProtobuf
import Synchronization
import Testing

private func count(_ number: UInt64) -> ProbeCount {
    var count = ProbeCount()
    count.number = number
    return count
}

private func echo(_ number: UInt64) -> ProbeEcho {
    var echo = ProbeEcho()
    echo.number = number
    return echo
}

/// What handlers saw.
private final class Facts: Sendable {
    struct Values: Sendable {
        var onLoop = 0
        var inTask = 0
        var numbers: [UInt64] = []
        var overlaps = 0
    }
    let values = Mutex(Values())
    func read<Value: Sendable>(_ path: KeyPath<Values, Value>) -> Value {
        let values = values.withLock { $0 }
        return values[keyPath: path]
    }
}

/// Handlers that do not suspend beside one that does.
private actor PlacedEntity {
    private let executor: TurnExecutor
    nonisolated var unownedExecutor: UnownedSerialExecutor { executor.asUnownedSerialExecutor() }
    private var isInside = false
    private(set) var sum: UInt64 = 0
    private let facts: Facts

    init(_ context: EntityContext, _ facts: Facts) {
        executor = context.executor
        self.facts = facts
    }

    /// Notes where it runs, and whether anything else is at it.
    func note(_ number: UInt64) {
        let wasInside = isInside
        isInside = true
        let isOnLoop = MultiThreadedEventLoopGroup.currentEventLoop != nil
        let isInTask = withUnsafeCurrentTask { $0 != nil }
        facts.values.withLock { facts in
            facts.overlaps += wasInside ? 1 : 0
            facts.onLoop += isOnLoop ? 1 : 0
            facts.inTask += isInTask ? 1 : 0
            facts.numbers.append(number)
        }
        sum += number
        isInside = false
    }

    /// `ProbeCount` does not suspend; `ProbeEcho` does, first and at a number of 1 for long; `ProbeReport` fails.
    static func register(in registry: EntityRegistry, _ facts: Facts) {
        registry.register(.probe, make: { PlacedEntity($0, facts) }, passivateAfter: nil) { handlers in
            handlers.onSync(ProbeCount.self) { entity, message throws(ApusError) in
                entity.note(message.number)
                return ProbeReport()
            }
            handlers.on(ProbeEcho.self) { entity, message async throws(ApusError) in
                await entity.note(message.number)
                return echo(await entity.sum)
            }
            handlers.onSync(ProbeReport.self) { _, _ throws(ApusError) in throw ApusError(.notAllowed) }
        }
    }
}

@Suite("Handlers that do not suspend run where their message arrives", .timeLimit(.minutes(2)))
struct EntityExecutorTests {
    private func with(_ body: (EntityPair, Facts) async throws -> Void) async throws {
        let facts = Facts()
        try await EntityPair.with(register: { PlacedEntity.register(in: $0, facts) }) { pair in
            pair.adopt(pair.map(revision: 1, owner: pair.b, epoch: 1))
            try await body(pair, facts)
        }
    }

    @Test("Calls and tells of another node run on the connection's event loop, without a task")
    func inPlace() async throws {
        try await with { pair, facts in
            let ref = pair.a.registry.ref(PlacedEntity.self, EntityPair.probe)
            for number in UInt64(1)...10 { _ = try await ref.ask(count(number)) }
            for number in UInt64(11)...20 { try ref.tell(count(number)) }
            try await eventually("all came") { facts.read(\.numbers).count == 20 }
            #expect(facts.read(\.numbers) == Array(1...20))
            #expect(facts.read(\.onLoop) == 20)
            #expect(facts.read(\.inTask) == 0)
        }
    }

    @Test("What a handler throws reaches the caller, here and there")
    func failure() async throws {
        try await with { pair, _ in
            for node in [pair.a, pair.b] {
                let ref = node.registry.ref(PlacedEntity.self, EntityPair.probe)
                #expect(await code { _ = try await ref.ask(ProbeReport()) } == .notAllowed)
            }
        }
    }

    @Test("Messages of both kinds of handlers keep the order of their sender", arguments: [true, false])
    func mixedOrder(isRemote: Bool) async throws {
        try await with { pair, facts in
            let ref = (isRemote ? pair.a : pair.b).registry.ref(PlacedEntity.self, EntityPair.probe)
            for number in UInt64(0)..<3000 {
                if number % 3 == 1 { try ref.tell(echo(number)) } else { try ref.tell(count(number)) }
            }
            try await eventually("all came") { facts.read(\.numbers).count == 3000 }
            #expect(facts.read(\.numbers) == Array(0..<3000))
        }
    }

    @Test("Callers of two nodes and of many threads never meet inside an entity, and none is lost")
    func exclusion() async throws {
        try await with { pair, facts in
            try await withThrowingTaskGroup(of: Void.self) { group in
                for caller in 0..<32 {
                    let node = caller % 2 == 0 ? pair.a : pair.b
                    group.addTask {
                        let ref = node.registry.ref(PlacedEntity.self, EntityPair.probe)
                        for number in 0..<200 {
                            if number % 20 == 19 {
                                _ = try await ref.ask(echo(1))
                            } else {
                                _ = try await ref.ask(count(1))
                            }
                        }
                    }
                }
                try await group.waitForAll()
            }
            let sum = try await pair.a.registry.ref(PlacedEntity.self, EntityPair.probe).ask(echo(0)).number
            #expect(sum == 6400)
            #expect(facts.read(\.overlaps) == 0)
        }
    }

    @Test("A chain of entities that tell each other is not a chain of calls on one stack")
    func chain() async throws {
        let (last, facts) = (UInt64(50_000), Facts())
        let register: (EntityRegistry) -> Void = { registry in
            registry.register(.probe, make: { PlacedEntity($0, facts) }, passivateAfter: nil) { handlers in
                handlers.onSync(ProbeCount.self) { [weak registry] entity, message throws(ApusError) in
                    guard let registry, message.number < last else {
                        entity.note(message.number)
                        return ProbeReport()
                    }
                    let next = EntityAddress(kind: .probe, key: "\(message.number % 1000)")
                    try registry.ref(PlacedEntity.self, next).tell(count(message.number + 1))
                    return ProbeReport()
                }
            }
        }
        try await EntityPair.with(register: register) { pair in
            pair.adopt(pair.map(revision: 1, owner: pair.b, epoch: 1))
            try pair.a.registry.ref(PlacedEntity.self, EntityPair.probe).tell(count(0))
            try await eventually("the last one was told") { facts.read(\.numbers) == [last] }
        }
    }

    @Test("What an entity answers to the message with which it is released is sent, and it is asked once")
    func lastAnswer() async throws {
        let facts = Facts()
        let register: (EntityRegistry) -> Void = { registry in
            registry.register(.probe, make: { PlacedEntity($0, facts) }, passivateAfter: nil) { handlers in
                handlers.onSync(ProbeCount.self) { [weak registry] entity, message throws(ApusError) in
                    entity.note(message.number)
                    registry?.passivate(EntityPair.probe)
                    return ProbeReport()
                }
                handlers.on(ProbeEcho.self) { [weak registry] entity, message async throws(ApusError) in
                    await entity.note(message.number)
                    registry?.passivate(EntityPair.probe)
                    return message
                }
            }
        }
        try await EntityPair.with(register: register) { pair in
            pair.adopt(pair.map(revision: 1, owner: pair.b, epoch: 1))
            for node in [pair.a, pair.b] {
                let ref = node.registry.ref(PlacedEntity.self, EntityPair.probe)
                _ = try await ref.ask(count(1))
                _ = try await ref.ask(echo(2))
            }
            #expect(facts.read(\.numbers) == [1, 2, 1, 2])
            #expect(pair.b.registry.entityCount == 0)
        }
    }

    @Test(
        "A message over the short form's length arrives whole, and so does its answer",
        arguments: [239, 240, 241, 70_000])
    func long(byteCount: Int) async throws {
        try await EntityPair.with { pair in
            pair.adopt(pair.map(revision: 1, owner: pair.b, epoch: 1))
            var message = ProbeEcho()
            message.name = String(repeating: "x", count: byteCount - 8)
            while (try message.serializedBytes() as [UInt8]).count < byteCount { message.name.append("x") }
            let reply = try await pair.a.registry.ref(ProbeEntity.self, EntityPair.probe).ask(message)
            #expect(reply == message)
        }
    }
}

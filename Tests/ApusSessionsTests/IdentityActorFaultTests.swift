import ApusCluster
import ApusCore
import ApusSessions
import ApusStorage
import ApusTestKit
import ApusWire
import Logging
import SwiftProtobuf
import Synchronization
import Testing

@Suite("An identity at its owner, where something fails (D6)")
struct IdentityActorFaultTests {
    /// What an actor asked for, and what it is answered.
    private final class World: Sendable {
        struct State {
            var kicks: [String] = []
            var pushed: [Presence.Online] = []
            var remembered: [PresenceStateMachine.Memory] = []
            var memory: PresenceStateMachine.Memory?
            var isMemoryReadable = true
            var memoryReads = 0
            /// Reads of the memory wait while this is true.
            var isMemorySlow = false
            var isOwner = true
            var idleCount = 0
        }

        let state = Mutex(State())

        func read() async throws(ApusError) -> PresenceStateMachine.Memory? {
            state.withLock { $0.memoryReads += 1 }
            while state.withLock({ $0.isMemorySlow }) { await Task.yield() }
            return try state.withLock { state throws(ApusError) -> PresenceStateMachine.Memory? in
                guard state.isMemoryReadable else { throw ApusError(.storageFailed) }
                return state.memory
            }
        }
    }

    private func actor(
        _ world: World, kind: EntityKind = .device, records: any RecordStore = MemoryRecordStore(),
        subscribersMax: Int = 8
    ) -> IdentityActor {
        var configuration = SessionConfiguration()
        configuration.presence.grace = .zero
        configuration.presence.placesMax = 2
        configuration.presence.subscribersMax = subscribersMax
        return IdentityActor(
            address: EntityAddress(kind: kind, key: "cam"), epoch: 4,
            context: IdentityContext(
                configuration: configuration, records: SessionRecords(records, writer: "n1#1"),
                kick: { place, code, _, epoch in
                    world.state.withLock { $0.kicks.append("\(place.session) \(code.number) \(epoch)") }
                },
                push: { _, presence, _, _ in world.state.withLock { $0.pushed.append(presence.online) } },
                isOwner: { _, _ in world.state.withLock { $0.isOwner } }, wake: { _, _ in },
                isIdle: { _, isIdle in world.state.withLock { $0.idleCount += isIdle ? 1 : 0 } },
                remember: { _, memory in world.state.withLock { $0.remembered.append(memory) } },
                memory: { _ throws(ApusError) in try await world.read() }),
            log: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() })
    }

    private func place(_ session: String, node: String = "n1") -> ApusWire.SessionPlace {
        .with {
            $0.node = node
            $0.incarnation = 1
            $0.session = session
        }
    }

    private func registration(_ session: String, account: String = "acme", instance: UInt64 = 7) -> SessionRegister {
        .with {
            $0.place = place(session)
            $0.account = account
            $0.instance = instance
        }
    }

    private func inspection(_ session: String? = nil, account: String = "acme") -> SessionInspect {
        .with {
            $0.account = account
            guard let session else { return }
            $0.subscribe = true
            $0.place = place(session)
        }
    }

    private func unregistration(_ session: String) -> SessionUnregister {
        .with {
            $0.place = place(session)
            $0.resumable = true
        }
    }

    // MARK: - Binding

    @Test("A device that is bound to another account is refused with 8023, at this owner and at the next")
    func boundToOther() async throws {
        let records = MemoryRecordStore()
        let world = World()
        let first = actor(world, records: records)
        _ = try await first.register(registration("a"))
        for owner in [first, actor(world, records: records)] {
            let other = registration("b", account: "other", instance: 8)
            #expect(await code { _ = try await owner.register(other) } == .boundToOtherUser)
            #expect(await code { _ = try await owner.inspect(inspection(account: "other")) } == .illegalRelation)
        }
        #expect(world.state.withLock { $0.kicks } == [], "the client that is here stays")
        #expect(try await first.inspect(inspection()).online == 1)
    }

    @Test("A device that nobody bound is not to be watched: 8002, and it may be bound afterwards")
    func unbound() async throws {
        let actor = actor(World())
        #expect(await code { _ = try await actor.inspect(inspection("app")) } == .targetUnknown)
        _ = try await actor.register(registration("a"))
        #expect(try await actor.inspect(inspection("app")).online == 1)
    }

    @Test("Where the records cannot be written nobody is bound and nobody is registered")
    func bindingFails() async throws {
        let records = FailingRecords()
        let world = World()
        let actor = actor(world, records: records)
        #expect(await code { _ = try await actor.register(registration("a")) } == .storageFailed)
        #expect(world.state.withLock { $0.remembered } == [])
        records.isFailing.withLock { $0 = false }
        _ = try await actor.register(registration("b", account: "other"))
        #expect(await code { _ = try await actor.register(registration("a")) } == .boundToOtherUser)
    }

    @Test("An app is bound to nothing")
    func apps() async throws {
        let actor = actor(World(), kind: .app, records: FailingRecords())
        #expect(try await !actor.register(registration("a")).superseded)
    }

    @Test("After a change of unknown outcome an account that lost its right is refused, whatever stood before")
    func unknownOutcome() async throws {
        let records = FailingRecords(isFailing: false)
        let actor = actor(World(), records: records)
        // By an operator, so that it needs no acceptance.
        let share = SessionRelate.with { ($0.change, $0.other) = (.share, "guest") }
        let unshare = SessionRelate.with { ($0.account, $0.change, $0.other) = ("acme", .unshare, "guest") }
        _ = try await actor.register(registration("a"))
        _ = try await actor.relate(share)
        _ = try await actor.inspect(inspection(account: "guest"))
        // It is written, and the answer is lost.
        records.isUnsure.withLock { $0 = true }
        #expect(await code { _ = try await actor.relate(unshare) } == .deadlineExceeded)
        #expect(await code { _ = try await actor.inspect(inspection(account: "guest")) } == .illegalRelation)
        #expect(await code { _ = try await actor.relate(share) } == .deadlineExceeded)
        _ = try await actor.inspect(inspection(account: "guest"))
        records.isUnsure.withLock { $0 = false }
        // One that is written only after the record was read again.
        records.isFailing.withLock { $0 = true }
        #expect(await code { _ = try await actor.relate(unshare) } == .storageFailed)
        _ = try await actor.inspect(inspection(account: "guest"))
        records.isFailing.withLock { $0 = false }
        _ = try await self.actor(World(), records: records).relate(unshare)
        #expect(await code { _ = try await actor.inspect(inspection(account: "guest")) } == .illegalRelation)
    }

    @Test("A first registration of unknown outcome binds the device, and its account may use it at once")
    func unknownBinding() async throws {
        let records = FailingRecords(isFailing: false)
        let actor = actor(World(), records: records)
        _ = try await SessionRecords(records).bind(DeviceRecord(device: DeviceID(unchecked: "cam"), epoch: 1))
        #expect(await code { _ = try await actor.inspect(inspection()) } == .illegalRelation)
        records.isUnsure.withLock { $0 = true }
        #expect(await code { _ = try await actor.register(registration("a")) } == .deadlineExceeded)
        #expect(try await actor.inspect(inspection()).online == 0)
    }

    // MARK: - Release

    @Test("An identity that no message has found a use for is released with each of them, and a used one is not")
    func released() async throws {
        let world = World()
        let actor = actor(world)
        func idles(_ body: () async throws -> Void) async rethrows -> Int {
            let before = world.state.withLock { $0.idleCount }
            try await body()
            return world.state.withLock { $0.idleCount } - before
        }
        let unbind = SessionRelate.with { ($0.account, $0.change) = ("acme", .unbind) }
        #expect(await idles { _ = await code { _ = try await actor.inspect(inspection()) } } == 1)
        #expect(await idles { _ = await code { _ = try await actor.inspect(inspection("app")) } } == 1)
        #expect(await idles { _ = await code { _ = try await actor.relate(unbind) } } == 1)
        #expect(await idles { _ = await code { _ = try await actor.register(registration("a", account: "")) } } == 1)
        #expect(try await idles { _ = try await actor.register(registration("a")) } == 0)
        #expect(try await idles { _ = try await actor.inspect(inspection()) } == 0)
        #expect(await idles { _ = await code { _ = try await actor.inspect(inspection(account: "other")) } } == 0)
    }

    @Test("An identity whose change may still be carried out stays in memory, although nothing uses it")
    func inDoubt() async throws {
        let (records, world) = (FailingRecords(isFailing: false), World())
        _ = try await self.actor(World(), records: records).register(registration("a"))
        let actor = self.actor(world, records: records)
        let share = SessionRelate.with { ($0.account, $0.change, $0.other) = ("acme", .share, "guest") }
        records.isUnsure.withLock { $0 = true }
        #expect(await code { _ = try await actor.relate(share) } == .deadlineExceeded)
        #expect(await code { _ = try await actor.inspect(inspection(account: "other")) } == .illegalRelation)
        #expect(world.state.withLock { $0.idleCount } == 0)
    }

    @Test("A device that its account reads stays in memory for a while, and one that others try to read does not")
    func read() async throws {
        let (records, world) = (MemoryRecordStore(), World())
        _ = try await self.actor(World(), records: records).register(registration("a"))
        let actor = self.actor(world, records: records)
        #expect(await code { _ = try await actor.inspect(inspection(account: "other")) } == .illegalRelation)
        #expect(world.state.withLock { $0.idleCount } == 1)
        let time = try await actor.inspect(inspection()).time
        #expect(await code { _ = try await actor.inspect(inspection(account: "other")) } == .illegalRelation)
        #expect(world.state.withLock { $0.idleCount } == 1)
        #expect(try await actor.inspect(inspection()).time == time)
    }

    // MARK: - Memory

    @Test("Where the memory cannot be read a session is judged by what is known, and the next one asks again")
    func memoryUnreadable() async throws {
        let world = World()
        let older = SessionOrder(epoch: 3, sequence: 1)
        world.state.withLock {
            $0.isMemoryReadable = false
            $0.memory = PresenceStateMachine.Memory(
                newest: SessionOrder(epoch: 3, sequence: 9), instance: 9, superseded: [8])
        }
        let actor = actor(world, kind: .app)
        var resumed = registration("a", instance: 6)
        resumed.order = ApusWire.SessionOrder.with {
            $0.epoch = older.epoch
            $0.sequence = older.sequence
        }
        #expect(try await !actor.register(resumed).superseded, "nothing else is known")
        world.state.withLock { $0.isMemoryReadable = true }
        // It is read with the next registration, whosever that is.
        #expect(try await actor.register(registration("b", instance: 8)).superseded)
        #expect(world.state.withLock { $0.memoryReads } == 2)
        _ = try await actor.register(registration("c", instance: 10))
        #expect(world.state.withLock { $0.memoryReads } == 2, "what was read is known")
        #expect(world.state.withLock { $0.kicks } == ["a 12003 4"])
    }

    @Test("What is remembered is written where it changed, and only there")
    func remembered() async throws {
        let world = World()
        let actor = actor(world, kind: .app)
        var first = registration("a")
        first.order = try await actor.register(first).order
        #expect(world.state.withLock { $0.remembered.count } == 1)
        first.again = true
        _ = try await actor.register(first)
        _ = try await actor.unregister(unregistration("a"))
        #expect(world.state.withLock { $0.remembered.count } == 1)
        _ = try await actor.register(registration("b", instance: 8))
        #expect(world.state.withLock { $0.remembered.count } == 2)
    }

    // MARK: - Words to the edges

    @Test("One place more than a client may have releases the oldest, under the owner's epoch")
    func releasedPlace() async throws {
        let world = World()
        let actor = actor(world, kind: .app)
        for session in ["a", "b", "c"] { _ = try await actor.register(registration(session)) }
        #expect(world.state.withLock { $0.kicks } == ["a \(ErrorCode.linkLost.number) 4"])
    }

    @Test("An owner whose shard left says nothing when its time comes, and nothing of nodes that died")
    func shardLeft() async throws {
        for isOwner in [true, false] {
            let world = World()
            let actor = actor(world)
            _ = try await actor.register(registration("a"))
            _ = try await actor.inspect(inspection("app"))
            _ = try await actor.unregister(unregistration("a"))
            world.state.withLock { $0.isOwner = isOwner }
            await actor.nodeLost(NodeID(name: NodeName(unchecked: "n1"), incarnation: 1))
            await actor.tick()
            // With its subscriber's node gone nobody hears of it, and it has nothing left to do.
            #expect(world.state.withLock { $0.pushed } == [])
            #expect(world.state.withLock { $0.idleCount } == (isOwner ? 1 : 0))
        }
    }

    @Test("One session more than may hear of a device is refused with 10007")
    func subscribers() async throws {
        let actor = actor(World(), subscribersMax: 1)
        _ = try await actor.register(registration("a"))
        _ = try await actor.inspect(inspection("app-1"))
        #expect(await code { _ = try await actor.inspect(inspection("app-2")) } == .overloaded)
        _ = try await actor.forget(.with { $0.place = place("app-1") })
        _ = try await actor.inspect(inspection("app-2"))
    }

    @Test("A place that cannot be read is refused with 10001")
    func malformed() async throws {
        let actor = actor(World(), kind: .app)
        for session in ["", String(repeating: "s", count: 65)] {
            #expect(await code { _ = try await actor.register(registration(session)) } == .malformed)
        }
        var nowhere = registration("a")
        nowhere.place = place("a", node: "no such name")
        #expect(await code { _ = try await actor.register(nowhere) } == .malformed)
    }

    // MARK: - Messages that overtake others

    @Test(
        "A session that ends, or whose node dies, while its registration waits for the records is not registered",
        arguments: [true, false])
    func unregisteredMeanwhile(isNodeLost: Bool) async throws {
        let world = World()
        world.state.withLock { $0.isMemorySlow = true }
        let actor = actor(world)
        async let registered = code { _ = try await actor.register(registration("a")) }
        try await eventually("the memory is read") { world.state.withLock { $0.memoryReads } == 1 }
        if isNodeLost {
            await actor.nodeLost(NodeID(name: NodeName(unchecked: "n1"), incarnation: 1))
        } else {
            _ = try await actor.unregister(unregistration("a"))
        }
        world.state.withLock { $0.isMemorySlow = false }
        #expect(await registered == .cancelled)
        #expect(try await actor.inspect(inspection()).online == 0)
        // It may come back.
        _ = try await actor.register(registration("a"))
        #expect(try await actor.inspect(inspection()).online == 1)
    }

    @Test("A session that unsubscribes while its subscription waits for the records hears nothing afterwards")
    func forgottenMeanwhile() async throws {
        let records = FailingRecords(isFailing: false)
        let world = World()
        _ = try await actor(world, records: records).register(registration("a"))
        let actor = actor(world, records: records, subscribersMax: 1)
        records.isSlow.withLock { $0 = true }
        async let subscribed = code { _ = try await actor.inspect(inspection("app-1")) }
        try await eventually("the record is read") { records.readCount.withLock { $0 } > 0 }
        _ = try await actor.forget(.with { $0.place = place("app-1") })
        records.isSlow.withLock { $0 = false }
        #expect(await subscribed == .cancelled)
        _ = try await actor.inspect(inspection("app-2"))
    }
}

/// Records that fail, or take their time, as long as a test wants.
private final class FailingRecords: RecordStore {
    let isFailing: Mutex<Bool>
    let isSlow = Mutex(false)
    /// What is written is answered with 10005.
    let isUnsure = Mutex(false)
    /// Reads while it was slow.
    let readCount = Mutex(0)
    private let records = MemoryRecordStore()

    init(isFailing: Bool = true) { self.isFailing = Mutex(isFailing) }

    func commit(
        _ steps: [RecordStep], then completion: @escaping @Sendable ([Result<[UInt64], ApusError>]) -> Void
    ) {
        if isFailing.withLock({ $0 }) { return completion(steps.map { _ in .failure(ApusError(.storageFailed)) }) }
        guard isUnsure.withLock({ $0 }) else { return records.commit(steps, then: completion) }
        records.commit(steps) { _ in completion(steps.map { _ in .failure(ApusError(.deadlineExceeded)) }) }
    }

    func records(_ collection: String, _ keys: [OrderedKey]) async throws(ApusError) -> [StoredRecord?] {
        if isSlow.withLock({ $0 }) { readCount.withLock { $0 += 1 } }
        while isSlow.withLock({ $0 }) { await Task.yield() }
        return try await records.records(collection, keys)
    }

    func page(_ scan: RecordScan) async throws(ApusError) -> RecordPage { try await records.page(scan) }

    func lockHolder() async -> RecordLockHolder? { nil }

    func close() async {}
}

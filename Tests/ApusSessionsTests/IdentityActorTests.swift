import ApusCluster
import ApusCore
import ApusSessions
import ApusStorage
import ApusWire
import Logging
import SwiftProtobuf
import Synchronization
import Testing

@Suite("An identity at its owner (D6)")
struct IdentityActorTests {
    /// What an actor asked for, and whether its node still owns the shard.
    private final class World: Sendable {
        let isOwner = Mutex(true)
        let pushed = Mutex<[Presence.Online]>([])
        let remembered = Mutex<PresenceStateMachine.Memory?>(nil)
    }

    private static let node = NodeID(name: NodeName(unchecked: "n1"), incarnation: 1)

    private func actor(_ world: World, records: any RecordStore = MemoryRecordStore()) -> IdentityActor {
        var configuration = SessionConfiguration()
        configuration.presence.grace = .zero
        return IdentityActor(
            address: EntityAddress(kind: .device, key: "cam"), epoch: 4,
            context: IdentityContext(
                configuration: configuration, records: SessionRecords(records, writer: "n1#1"), kick: { _, _, _, _ in },
                push: { _, presence, _, epoch in
                    #expect(epoch == 4, "the word carries its owner's epoch")
                    world.pushed.withLock { $0.append(presence.online) }
                },
                isOwner: { _, _ in world.isOwner.withLock { $0 } }, wake: { _, _ in }, isIdle: { _, _ in },
                remember: { _, memory in world.remembered.withLock { $0 = memory } },
                memory: { _ in world.remembered.withLock { $0 } }),
            log: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() })
    }

    private func place(_ session: String) -> ApusWire.SessionPlace {
        .with {
            $0.node = Self.node.name.rawValue
            $0.incarnation = Self.node.incarnation
            $0.session = session
        }
    }

    private func registration(_ session: String, account: String = "acme", instance: UInt64) -> SessionRegister {
        .with {
            $0.place = place(session)
            $0.account = account
            $0.instance = instance
        }
    }

    @Test("A token from before a device was transferred is refused with 12001, and a new one is accepted (IV-B10)")
    func transfer() async throws {
        let actor = actor(World())
        func register(_ account: String, issued: Int64) async throws(ApusError) {
            var message = registration("s", account: account, instance: 7)
            message.issuedS = issued
            _ = try await actor.register(message)
        }
        func failure(_ body: () async throws(ApusError) -> Void) async -> ErrorCode? {
            do throws(ApusError) {
                try await body()
                return nil
            } catch {
                return error.code
            }
        }
        func right(of account: String, control: Bool = false) async -> ErrorCode? {
            await failure { () throws(ApusError) in
                _ = try await actor.inspect(.with { ($0.account, $0.control) = (account, control) })
            }
        }
        func registering(_ account: String, issued: Int64) async -> ErrorCode? {
            await failure { () throws(ApusError) in try await register(account, issued: issued) }
        }
        #expect(await right(of: "acme") == .targetUnknown)
        try await register("acme", issued: 10)
        _ = try await actor.relate(.with { ($0.account, $0.change, $0.other) = ("acme", .share, "guest") })
        #expect(await right(of: "guest") == .illegalRelation, "it was invited, and has not accepted")
        _ = try await actor.relate(.with { ($0.account, $0.change, $0.other) = ("guest", .accept, "guest") })
        #expect(await right(of: "guest") == nil)
        #expect(await right(of: "guest", control: true) == .notAllowed)
        #expect(await right(of: "acme", control: true) == nil)
        #expect(await right(of: "other") == .illegalRelation)
        _ = try await actor.relate(.with { ($0.account, $0.change, $0.other) = ("acme", .transfer, "other") })
        for account in ["acme", "guest"] { #expect(await right(of: account) == .illegalRelation) }
        #expect(await right(of: "other") == nil)
        for account in ["acme", "other"] { #expect(await registering(account, issued: 10) == .tokenInvalid) }
        #expect(await registering("other", issued: .max) == nil)
        #expect(await registering("acme", issued: .max) == .boundToOtherUser)
        let empty = await failure { () throws(ApusError) in
            _ = try await actor.relate(.with { $0.account = "other" })
        }
        #expect(empty == .malformed)
    }

    @Test(
        "An actor whose shard went elsewhere says nothing when its time comes or a node dies", arguments: [true, false])
    func formerOwner(isOwner: Bool) async throws {
        let world = World()
        let actor = actor(world)
        _ = try await actor.register(registration("s", instance: 7))
        _ = try await actor.inspect(
            .with {
                $0.account = "acme"
                $0.subscribe = true
                $0.place = place("app")
            })
        world.isOwner.withLock { $0 = isOwner }
        _ = try await actor.unregister(
            .with {
                $0.place = place("s")
                $0.resumable = true
            })
        await actor.tick()
        await actor.nodeLost(NodeID(name: NodeName(unchecked: "n9"), incarnation: 1))
        await actor.tick()
        #expect(world.pushed.withLock { $0 } == (isOwner ? [.offline] : []))
    }

    @Test("What is remembered outlives the actor: a superseded client is refused by the next one (IV-A5)")
    func memory() async throws {
        let world = World()
        let records = MemoryRecordStore()
        let first = actor(world, records: records)
        var older = registration("a", instance: 7)
        older.order = try await first.register(older).order
        _ = try await first.register(registration("b", instance: 8))
        let next = actor(world, records: records)
        older.again = true
        #expect(try await next.register(older).superseded)
        older.instance = 0
        #expect(try await next.register(older).superseded)
    }

    @Test("Of two first registrations with different accounts one succeeds, and the other is told 8023")
    func binding() async throws {
        for _ in 0..<20 {
            let actor = actor(World(), records: SlowRecords())
            let codes = await withTaskGroup(of: ErrorCode?.self) { group in
                for number in 0..<2 {
                    let message = registration("s\(number)", account: "account-\(number)", instance: UInt64(number + 1))
                    group.addTask {
                        do throws(ApusError) {
                            _ = try await actor.register(message)
                            return nil
                        } catch {
                            return error.code
                        }
                    }
                }
                return await group.reduce(into: [ErrorCode?]()) { $0.append($1) }
            }
            #expect(codes.count { $0 == nil } == 1 && codes.contains(.boundToOtherUser), "\(codes)")
        }
    }
}

/// Records whose answers take long enough for others to come between.
private struct SlowRecords: RecordStore {
    private let records = MemoryRecordStore()

    private func wait() async {
        for _ in 0..<20 { await Task.yield() }
    }

    func commit(
        _ steps: [RecordStep], then completion: @escaping @Sendable ([Result<[UInt64], ApusError>]) -> Void
    ) {
        Task {
            await wait()
            records.commit(steps, then: completion)
        }
    }

    func records(_ collection: String, _ keys: [OrderedKey]) async throws(ApusError) -> [StoredRecord?] {
        await wait()
        return try await records.records(collection, keys)
    }

    func page(_ scan: RecordScan) async throws(ApusError) -> RecordPage { try await records.page(scan) }

    func lockHolder() async -> RecordLockHolder? { nil }

    func close() async {}
}

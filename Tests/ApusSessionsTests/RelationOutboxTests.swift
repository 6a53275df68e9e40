import ApusCluster
import ApusCore
import ApusSessions
import ApusStorage
import ApusTestKit
import ApusTransport
import ApusWire
import Logging
import NIOPosix
import SwiftProtobuf
import Synchronization
import Testing

@Suite("Changes of rights in the outbox (IV-B10, D15)")
struct RelationOutboxTests {
    /// An owner of all shards, with an identity of a device.
    private struct Owner {
        let actor: IdentityActor
        let service: OutboxService
        let deliveries: Deliveries

        init(_ records: some RecordStore, _ change: (inout OutboxStateMachine.Configuration) -> Void = { _ in }) {
            let log = Logger(label: "test") { _ in SwiftLogNoOpLogHandler() }
            let local = NodeID(name: NodeName(unchecked: "n1"), incarnation: 1)
            let none = TransportTLS(authority: .bytes([]), certificateChain: .bytes([]), privateKey: .bytes([]))
            let transport = Transport(
                configuration: TransportConfiguration(bind: HostPort(host: "127.0.0.1", port: 0), tls: none),
                identity: local, cluster: ClusterID(unchecked: "test"), group: MultiThreadedEventLoopGroup.singleton,
                control: NodeDispatcher(), media: IdleMediaLanes(), onEvent: { _ in }, logger: log)
            var map = ClusterMap(cluster: ClusterID(unchecked: "test"))
            map.revision = 4
            let address = HostPort(host: "127.0.0.1", port: 1)
            let addresses = NodeAddresses(transport: address, clients: address, http: address)
            map.members = [Member(id: local, state: .up, addresses: addresses)]
            map.shards = Array(
                repeating: ShardAssignment(owner: MemberSlot(rawValue: 0), epoch: 4), count: ShardID.count)
            let view = ClusterView(local: local, map: map)
            let shards = RecordedShards(store: records, local: local)
            var configuration = OutboxStateMachine.Configuration()
            change(&configuration)
            service = OutboxService(
                configuration: configuration, shards,
                registry: EntityRegistry(view: view, transport: transport, logger: log), logger: log)
            deliveries = Deliveries()
            service.use(.device, deliveries)
            actor = IdentityActor(
                address: EntityAddress(kind: .device, key: "cam"), epoch: 4,
                context: IdentityContext(
                    configuration: SessionConfiguration(), records: SessionRecords(records, writer: "\(local)"),
                    kick: { _, _, _, _ in }, push: { _, _, _, _ in }, isOwner: { _, _ in true }, wake: { _, _ in },
                    isIdle: { _, _ in }, remember: { _, _ in }, outbox: OwnedOutbox(shards, service),
                    memory: { _ throws(ApusError) in nil }), log: log)
        }

        func relate(
            _ change: SessionRelate.Change, _ other: String = "", publish: Bool = true
        ) async throws(ApusError) {
            let message = SessionRelate.with { ($0.change, $0.other, $0.publish) = (change, other, publish) }
            let answer = try await actor.relate(message)
            #expect(answer.published == publish)
        }
    }

    /// What was delivered.
    private final class Deliveries: OutboxReceiver {
        let numbers = Mutex<[UInt64]>([])

        func deliver(_ entry: OutboxEntry) async throws(ApusError) { numbers.withLock { $0.append(entry.number) } }
    }

    /// Records whose steps are made or not, with an unknown outcome.
    private final class UnsureRecords: RecordStore {
        enum Mode { case sure, made, notMade }
        let mode = Mutex(Mode.sure)
        let records = MemoryRecordStore()

        func commit(
            _ steps: [RecordStep], then completion: @escaping @Sendable ([Result<[UInt64], ApusError>]) -> Void
        ) {
            let unsure = steps.map { _ in Result<[UInt64], ApusError>.failure(ApusError(.deadlineExceeded)) }
            switch mode.withLock({ $0 }) {
            case .sure: records.commit(steps, then: completion)
            case .made: records.commit(steps) { _ in completion(unsure) }
            case .notMade: completion(unsure)
            }
        }

        func records(_ collection: String, _ keys: [OrderedKey]) async throws(ApusError) -> [StoredRecord?] {
            try await records.records(collection, keys)
        }
        func page(_ scan: RecordScan) async throws(ApusError) -> RecordPage { try await records.page(scan) }
        func lockHolder() async -> RecordLockHolder? { nil }
        func close() async {}
    }

    private func numbers(in store: some RecordStore) async throws -> [UInt64] {
        try await OutboxRecords(store).page(after: nil, limit: 100).entries.map(\.number)
    }

    @Test("A change is stored with one entry, whose numbers grow; what changes nothing, or has no event, has none")
    func entries() async throws {
        let records = MemoryRecordStore()
        let owner = Owner(records)
        try await owner.relate(.bind, "acme")
        try await owner.relate(.share, "guest")
        try await owner.relate(.share, "guest")
        try await owner.relate(.unshare, "another")
        #expect(try await numbers(in: records).count == 2)
        try await owner.relate(.unshare, "guest")
        // The node of an earlier release publishes the event itself.
        try await owner.relate(.disable, publish: false)
        let numbers = try await numbers(in: records)
        #expect(numbers.count == 3 && numbers == numbers.sorted() && Set(numbers).count == 3)
        #expect(await code { try await owner.relate(.transfer, "acme") } == .boundToThisUser)
        #expect(try await self.numbers(in: records).count == 3)
    }

    @Test("The entries of a device are delivered in their order, each once, and removed")
    func delivered() async throws {
        let records = MemoryRecordStore()
        let owner = Owner(records)
        try await withThrowingTaskGroup { group in
            group.addTask { await owner.service.run() }
            for change in [SessionRelate.Change.bind, .share, .unshare] {
                try await owner.relate(change, change == .bind ? "acme" : "guest")
            }
            try await eventually("they are delivered") { owner.deliveries.numbers.withLock { $0.count } == 3 }
            let all = owner.deliveries.numbers.withLock { $0 }
            #expect(all == all.sorted() && Set(all).count == 3)
            try await eventually("they are removed") { try await numbers(in: records).isEmpty }
            #expect(owner.deliveries.numbers.withLock { $0 } == all)
            group.cancelAll()
        }
    }

    @Test("A change of unknown outcome has its entry exactly if it was made, before that of the next change")
    func unknownOutcome() async throws {
        for isMade in [true, false] {
            let records = UnsureRecords()
            let owner = Owner(records)
            try await withThrowingTaskGroup { group in
                group.addTask { await owner.service.run() }
                try await owner.relate(.bind, "acme")
                records.mode.withLock { $0 = isMade ? .made : .notMade }
                #expect(await code { try await owner.relate(.share, "guest") } == .deadlineExceeded)
                records.mode.withLock { $0 = .sure }
                try await owner.relate(.unshare, "guest")
                try await owner.relate(.share, "other")
                let count = isMade ? 4 : 2
                try await eventually("\(count) are delivered") {
                    owner.deliveries.numbers.withLock { $0.count } == count
                }
                let numbers = owner.deliveries.numbers.withLock { $0 }
                #expect(numbers == numbers.sorted() && Set(numbers).count == count)
                group.cancelAll()
            }
        }
    }

    @Test("An overloaded outbox refuses a share with 10007, and no change that takes rights away")
    func overloaded() async throws {
        // Nothing is delivered, since the outbox does not run and has not read the records.
        let records = MemoryRecordStore()
        let owner = Owner(records) { $0.heldCountMax = 2 }
        try await owner.relate(.bind, "acme")
        try await owner.relate(.share, "guest")
        try await eventually("all are held") {
            await code { try await owner.relate(.share, "other") } == .overloaded
        }
        try await owner.relate(.unshare, "guest")
        try await owner.relate(.disable)
        #expect(await code { try await owner.relate(.enable) } == .overloaded)
    }
}

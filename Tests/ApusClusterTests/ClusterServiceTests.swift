import ApusCluster
import ApusCore
import ApusStorage
import ApusTestKit
import ApusTransport
import ApusWire
import Logging
import NIOCore
import Synchronization
import Testing

/// Links within one process: a message is handled by the other's service.
private final class TestNetwork: Sendable {
    let services = Mutex<[NodeName: ClusterService]>([:])

    func service(_ name: NodeName) throws(ApusError) -> ClusterService {
        guard let service = services.withLock({ $0[name] }) else { throw ApusError(.noRoute) }
        return service
    }
}

private struct TestLinks: ClusterLinks {
    let network: TestNetwork

    func setPeers(_ peers: [Peer]) {}

    func setPath(to peer: NodeName, via helper: NodeName?) {}

    func wireVersion(of peer: NodeID) -> UInt32? { WireVersion.current }

    func reach(_ peer: Peer, timeout: Duration) async -> NodeReach { .reached }

    func tell(_ peer: NodeName, lane: Int, method: UInt16, payload: ByteBuffer) throws(ApusError) {
        let service = try network.service(peer)
        guard method == ClusterMethod.mapChanged else {
            Issue.record("the method \(method) was sent to \(peer)")
            return
        }
        _ = Task { service.noteMapChanged(payload) }
    }
}

/// A store that reports its changes.
private struct WatchedStore: OwnershipStore {
    let inner = MemoryOwnershipStore()

    var identity: StoreID { inner.identity }

    func read() async throws(ApusError) -> OwnershipValue? { try await inner.read() }

    func compareAndSwap(expected: UInt64, value: [UInt8]) async throws(ApusError) -> UInt64? {
        try await inner.compareAndSwap(expected: expected, value: value)
    }

    func revision() async throws(ApusError) -> UInt64 { try await inner.revision() }

    func renewLease(of node: NodeID, for duration: Duration) async throws(ApusError) {
        try await inner.renewLease(of: node, for: duration)
    }

    func leaseHolders() async throws(ApusError) -> Set<NodeID> { try await inner.leaseHolders() }

    func watch(_ changed: @escaping @Sendable (UInt64) -> Void) async {
        var last: UInt64 = 0
        while !Task.isCancelled {
            let revision = (try? await inner.revision()) ?? 0
            if revision != last { changed(revision) }
            last = revision
            try? await Task.sleep(for: .milliseconds(2))
        }
    }
}

/// A node of a test: its service, running, and what its hooks saw.
private final class TestNode: Sendable {
    struct Facts {
        var held: Set<ShardID> = []
        var released: Set<ShardID> = []
        var isFenced = false
        var isBehind = false
        /// Calls to entities do not end.
        var isBusy = false
    }

    let service: ClusterService
    let running: Task<Void, any Error>
    let facts: SharedFacts

    final class SharedFacts: Sendable {
        let value = Mutex(Facts())
    }

    init(
        _ name: String, store: any OwnershipStore, network: TestNetwork, poll: Duration = .milliseconds(250)
    ) async throws {
        let facts = SharedFacts()
        var configuration = ClusterConfiguration(
            cluster: ClusterID(unchecked: "test"), node: NodeName(unchecked: name),
            key: [UInt8](repeating: 3, count: 32))
        configuration.leavesOnShutdown = false
        configuration.revisionPollInterval = poll
        var hooks = ClusterHooks()
        hooks.holdEntities = { shard throws(ApusError) in
            let isBusy = facts.value.withLock { facts in
                facts.held.insert(shard)
                return facts.isBusy
            }
            if isBusy { throw ApusError(.deadlineExceeded) }
        }
        hooks.releaseEntities = { shard in facts.value.withLock { _ = $0.released.insert(shard) } }
        hooks.replicaCaughtUp = { _, _ in !facts.value.withLock { $0.isBehind } }
        hooks.fenced = { facts.value.withLock { $0.isFenced = true } }
        service = try await ClusterService.open(
            configuration, store: store, hooks: hooks, logger: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() })
        self.facts = facts
        let port = try FreePort.next()
        let addresses = NodeAddresses(
            transport: HostPort(host: "127.0.0.1", port: port), clients: HostPort(host: "127.0.0.1", port: 1),
            http: HostPort(host: "127.0.0.1", port: 2))
        let service = service
        network.services.withLock { $0[NodeName(unchecked: name)] = service }
        try await service.join(over: TestLinks(network: network), addresses: addresses)
        running = Task { try await service.run() }
    }

    /// Ends the node as a crash does: it does not leave.
    func crash() async {
        running.cancel()
        _ = await running.result
    }
}

@Suite("A node's part in the cluster (D4, D5)", .serialized)
struct ClusterServiceTests {
    private func eventually(
        within seconds: Int = 10, _ condition: () async -> Bool
    ) async throws -> Bool {
        let deadline = MonotonicTime.now() + .seconds(seconds)
        while MonotonicTime.now() < deadline {
            if await condition() { return true }
            try await Task.sleep(for: .milliseconds(10))
        }
        return false
    }

    @Test("Three nodes join one after the other, take their shares of held shards, and come to rest")
    func join() async throws {
        let (store, network) = (MemoryOwnershipStore(), TestNetwork())
        let a = try await TestNode("a", store: store, network: network)
        let b = try await TestNode("b", store: store, network: network)
        let c = try await TestNode("c", store: store, network: network)
        try await c.service.waitUntilStable(timeout: .seconds(60))
        let map = c.service.view.map
        for name in ["a", "b", "c"] {
            #expect(abs(map.ownedCount(name) - ShardID.count / 3) <= ShardID.count / 15)
        }
        // Every shard that went to c was held by its owner.
        let moved = map.shards.indices.filter { map.owner(of: ShardID(UInt16($0)))?.id == c.service.identity }
        #expect(!moved.isEmpty)
        let held = [a, b].reduce(into: Set<ShardID>()) { held, node in
            held.formUnion(node.facts.value.withLock { $0.held })
        }
        #expect(held.isSuperset(of: moved.map { ShardID(UInt16($0)) }))
        #expect(try await eventually { a.service.view.map == map && b.service.view.map == map })
        let status = await a.service.status()
        #expect(status.misplacedCount == 0 && status.store == .sound)
        #expect(status.peers.map(\.health) == [.alive, .alive])
        for node in [a, b, c] { await node.crash() }
    }

    @Test("A shard whose calls do not end stays where it is, is released, and moves later")
    func busy() async throws {
        let (store, network) = (MemoryOwnershipStore(), TestNetwork())
        let a = try await TestNode("a", store: store, network: network)
        a.facts.value.withLock { $0.isBusy = true }
        let b = try await TestNode("b", store: store, network: network)
        #expect(try await eventually { a.facts.value.withLock { $0.released.count > 64 } })
        #expect(b.service.view.map.ownedCount("b") == 0)
        let facts = a.facts.value.withLock { $0 }
        #expect(facts.held.isSuperset(of: facts.released))
        a.facts.value.withLock { $0.isBusy = false }
        try await b.service.waitUntilStable(timeout: .seconds(60))
        #expect(b.service.view.map.ownedCount("b") > ShardID.count / 3)
        for node in [a, b] { await node.crash() }
    }

    @Test("Of three nodes two declare a silent one dead within a second")
    func majority() async throws {
        let (store, network) = (MemoryOwnershipStore(), TestNetwork())
        let a = try await TestNode("a", store: store, network: network)
        let b = try await TestNode("b", store: store, network: network)
        let c = try await TestNode("c", store: store, network: network)
        for node in [a, b, c] { try await node.service.waitUntilStable(timeout: .seconds(60)) }
        await c.crash()
        #expect(try await eventually(within: 1) { !a.service.view.map.isAlive(c.service.identity) })
        #expect(a.service.view.map.ownedCount("c") == 0)
        for node in [a, b] { await node.crash() }
    }

    @Test("Of two nodes a silent one keeps its shards for the time of its lease; its next life gets its share back")
    func crash() async throws {
        let (store, network) = (MemoryOwnershipStore(), TestNetwork())
        let a = try await TestNode("a", store: store, network: network)
        let b = try await TestNode("b", store: store, network: network)
        try await b.service.waitUntilStable(timeout: .seconds(60))
        let before = b.service.view.map
        await b.crash()
        try await Task.sleep(for: .seconds(1))
        #expect(a.service.view.map == before)
        #expect(try await eventually(within: 3) { a.service.view.map.ownedCount("a") == ShardID.count })
        let after = a.service.view.map
        #expect(after.shards.indices.allSatisfy { after.shards[$0].epoch >= before.shards[$0].epoch })
        let reborn = try await TestNode("b", store: store, network: network)
        #expect(reborn.service.identity == node("b", 2))
        try await reborn.service.waitUntilStable(timeout: .seconds(60))
        #expect(reborn.service.view.map.shards.map(\.owner) == before.shards.map(\.owner))
        await reborn.crash()
        await a.crash()
    }

    @Test("A lost link and a refused connection move the shards at once")
    func processGone() async throws {
        let (store, network) = (MemoryOwnershipStore(), TestNetwork())
        let a = try await TestNode("a", store: store, network: network)
        let b = try await TestNode("b", store: store, network: network)
        let victim = b.service.identity
        for node in [a, b] { try await node.service.waitUntilStable(timeout: .seconds(60)) }
        #expect(try await eventually { a.service.view.map.isAlive(victim) })
        a.service.received(.linkUp(victim, .control))
        a.service.received(.linkLost(victim, .control))
        let began = MonotonicTime.now()
        a.service.received(.connectRefused(victim))
        #expect(try await eventually(within: 5) { !a.service.view.map.isAlive(victim) })
        #expect(MonotonicTime.now() - began < .milliseconds(200))
        // The victim lives on here, so it must find itself fenced.
        #expect(try await eventually(within: 5) { b.facts.value.withLock { $0.isFenced } })
        await b.crash()
        await a.crash()
    }

    @Test("A drained node holds nothing, and then leaves without anybody taking it for dead")
    func drain() async throws {
        let (store, network) = (MemoryOwnershipStore(), TestNetwork())
        let a = try await TestNode("a", store: store, network: network)
        let b = try await TestNode("b", store: store, network: network)
        try await b.service.waitUntilStable(timeout: .seconds(60))
        try await b.service.drain()
        #expect(b.service.view.map.isDrained(b.service.identity))
        await b.service.leave()
        #expect(try await eventually { a.service.view.map.member(named: NodeName(unchecked: "b"))?.state == .left })
        #expect(a.service.view.map.ownedCount("a") == ShardID.count)
        #expect(!b.facts.value.withLock { $0.isFenced })
        await b.crash()
        await a.crash()
    }

    @Test("A drain can be ended, also while it is in progress; a node that leaves refuses that")
    func undrain() async throws {
        let (store, network) = (MemoryOwnershipStore(), TestNetwork())
        let a = try await TestNode("a", store: store, network: network)
        let b = try await TestNode("b", store: store, network: network)
        try await b.service.waitUntilStable(timeout: .seconds(60))
        // Without a drain it changes nothing.
        try await b.service.undrain()
        try await b.service.drain()
        #expect(b.service.view.map.ownedCount("b") == 0)
        try await b.service.undrain()
        try await b.service.waitUntilStable(timeout: .seconds(60))
        #expect(b.service.view.map.ownedCount("b") > ShardID.count / 4)

        // No shard can go while the other node's copies are behind.
        b.facts.value.withLock { $0.isBehind = true }
        try await b.service.beginDraining()
        let waiting = Task { await code { try await b.service.waitUntilDrained() } }
        try await b.service.undrain()
        #expect(await waiting.value == .cancelled)
        b.facts.value.withLock { $0.isBehind = false }
        await b.service.leave()
        await #expect(throws: ApusError(.unavailable)) { try await b.service.undrain() }
        await b.crash()
        await a.crash()
    }

    @Test("An order to drain is taken at once, however long the hand-over lasts")
    func beginDraining() async throws {
        let (store, network) = (MemoryOwnershipStore(), TestNetwork())
        let a = try await TestNode("a", store: store, network: network)
        let b = try await TestNode("b", store: store, network: network)
        try await b.service.waitUntilStable(timeout: .seconds(60))
        // No shard can go while the other node's copies are behind.
        b.facts.value.withLock { $0.isBehind = true }
        let begun = MonotonicTime.now()
        try await b.service.beginDraining()
        #expect(MonotonicTime.now() - begun < .seconds(10))
        #expect(!b.service.view.map.isDrained(b.service.identity))
        b.facts.value.withLock { $0.isBehind = false }
        try await b.service.waitUntilDrained()
        #expect(b.service.view.map.isDrained(b.service.identity))
        await b.crash()
        await a.crash()
    }

    @Test("A change that the store reports is adopted long before the next poll")
    func watch() async throws {
        let store = WatchedStore()
        let a = try await TestNode("a", store: store, network: TestNetwork(), poll: .seconds(600))
        // As another node does whose announcement is lost.
        try await Task.sleep(for: .milliseconds(100))
        let value = try #require(try await store.read())
        let map = try ClusterMap(
            decoding: value.bytes, revision: value.revision, cluster: ClusterID(unchecked: "test"))
        let next = try #require(try map.applying(.join(node("b"), addresses: addresses("b"), weight: 100)))
        let swap = try await store.compareAndSwap(expected: value.revision, value: try next.encoded())
        let revision = try #require(swap)
        #expect(try await eventually { a.service.view.map.revision >= revision })
        await a.crash()
    }

    @Test("While the store fails nothing is decided and the node says so; it goes on when the store is back")
    func storeFails() async throws {
        let (store, network) = (MemoryOwnershipStore(), TestNetwork())
        let a = try await TestNode("a", store: store, network: network)
        #expect(try await eventually { await a.service.status().store == .sound })
        store.fail(with: ApusError(.storageFailed))
        #expect(try await eventually { await a.service.status().store != .sound })
        await #expect(throws: ApusError(.noOwnership)) { try await a.service.propose(.drain(a.service.identity)) }
        store.fail(with: nil)
        #expect(try await eventually { await a.service.status().store == .sound })
        await a.crash()
        await #expect(throws: ApusError(.shuttingDown)) { try await a.service.propose(.drain(a.service.identity)) }
    }
}

import ApusCluster
import ApusCore
import ApusStorage
import ApusTestKit
import ApusTransport
import ApusWire
import Logging
import NIOCore
import NIOPosix
import SwiftProtobuf
import Synchronization
import Testing

/// All that a node has below its services: transport, replication, entities and the runtime.
private final class RuntimeNode: Sendable {
    let id: NodeID
    let view: ClusterView
    let replicas: ReplicaService
    let transport: Transport
    let registry: EntityRegistry
    private let running: Mutex<Task<Void, Never>?>

    init(_ name: String, authority: ClusterPKI.Issued, map: ClusterMap, records: any RecordStore) throws {
        id = NodeID(name: NodeName(unchecked: name), incarnation: 1)
        let issued = try ClusterPKI.issueNode(id.name, authority: authority)
        let tls = TransportTLS(
            authority: .bytes(Array(authority.certificatePEM.utf8)),
            certificateChain: .bytes(Array(issued.certificatePEM.utf8)),
            privateKey: .bytes(Array(issued.privateKeyPEM.utf8)))
        let logger = Logger(label: "test") { _ in SwiftLogNoOpLogHandler() }
        let group = MultiThreadedEventLoopGroup.singleton
        view = ClusterView(local: id, map: map)
        let replicas = ReplicaService(view: view, loop: group.next(), logger: logger)
        self.replicas = replicas
        let dispatcher = NodeDispatcher()
        transport = Transport(
            configuration: TransportConfiguration(bind: HostPort(host: "127.0.0.1", port: 0), tls: tls), identity: id,
            cluster: ClusterID(unchecked: "test"), group: group,
            control: ReplicaRouter(replicas, next: dispatcher), media: IdleMediaLanes(),
            onEvent: { replicas.received($0) }, logger: logger)
        replicas.connect(transport)
        registry = EntityRegistry(view: view, transport: transport, logger: logger)
        let runtime = EntityRuntime(registry: registry, replicas: replicas, records: records, logger: logger)
        Self.register(runtime)
        dispatcher.connect(registry)
        running = Mutex(
            Task { [registry] in
                await withDiscardingTaskGroup { group in
                    group.addTask { await registry.run() }
                    group.addTask { await runtime.run() }
                }
            })
    }

    private static func register(_ runtime: EntityRuntime) {
        var definition = EntityDefinition<ProbeReported>(.probe, name: "counter", durability: .replicated)
        definition.passivateAfter = .milliseconds(200)
        definition.on(ProbeEcho.self) { content, message, scope throws(ApusError) in
            if message.name == "remind" {
                try scope.remind("ring", at: scope.wallMilliseconds + Int64(message.number))
            } else {
                content.count += message.number
            }
            return ProbeEcho.with { $0.number = content.count }
        }
        definition.onReading(ProbeReport.self) { content, _, _ throws(ApusError) in content }
        definition.onReminder { content, reminder, scope throws(ApusError) in
            // The second number counts what came too early.
            if scope.wallMilliseconds < reminder.due { content.outOfOrder += 1 }
            content.count += 100
        }
        runtime.register(definition)
    }

    func ref(_ key: String) -> EntityRef<EntityCell<ProbeReported>> {
        registry.ref(EntityCell<ProbeReported>.self, EntityAddress(kind: .probe, key: key))
    }

    func stop() async {
        running.withLock { $0 }?.cancel()
        replicas.stop()
        await transport.stop()
    }
}

/// Nodes a, b and c with links between all of them, and maps that a test makes.
private struct RuntimeCluster {
    static let names = ["a", "b", "c"]
    let nodes: [RuntimeNode]

    /// One node owns every shard, the next one stands by; those before it are dead.
    static func map(_ revision: UInt64, owner: Int, ids: [NodeID]) -> ClusterMap {
        var map = ClusterMap(cluster: ClusterID(unchecked: "test"))
        map.revision = revision
        map.members = ids.enumerated().map { index, id in
            Member(id: id, state: index < owner ? .dead : .up, addresses: addresses(id.name.rawValue))
        }
        let standby = owner + 1 < ids.count ? MemberSlot(rawValue: UInt16(owner + 1)) : MemberSlot.none
        map.shards = Array(
            repeating: ShardAssignment(
                owner: MemberSlot(rawValue: UInt16(owner)), standby: standby, epoch: Epoch(revision)),
            count: ShardID.count)
        return map
    }

    static func with(_ body: (RuntimeCluster) async throws -> Void) async throws {
        let authority = try ClusterPKI.makeAuthority(cluster: ClusterID(unchecked: "test"))
        let ids = names.map { NodeID(name: NodeName(unchecked: $0), incarnation: 1) }
        let records = MemoryRecordStore()
        var nodes: [RuntimeNode] = []
        var peers: [Peer] = []
        for name in names {
            let node = try RuntimeNode(
                name, authority: authority, map: map(1, owner: 0, ids: ids), records: records)
            nodes.append(node)
            peers.append(Peer(id: node.id, address: try await node.transport.start()))
        }
        for node in nodes { node.transport.setPeers(peers.filter { $0.id != node.id }) }
        let started = nodes
        let result: Result<Void, any Error>
        do {
            for node in started {
                try await eventually("the nodes are linked") {
                    started.allSatisfy { $0.id == node.id || node.transport.isLinked(to: $0.id.name) }
                }
            }
            result = .success(try await body(RuntimeCluster(nodes: started)))
        } catch {
            result = .failure(error)
        }
        for node in started { await node.stop() }
        try result.get()
    }

    /// The owner dies without a word, and the others hear of it.
    func kill(_ owner: Int) async {
        await nodes[owner].transport.stop()
        let map = Self.map(UInt64(owner + 2), owner: owner + 1, ids: nodes.map(\.id))
        for node in nodes.dropFirst(owner + 1) { node.view.update(map) }
    }
}

private final class Count: Sendable {
    let value = Atomic<Int>(0)
}

private func add(_ number: UInt64, _ name: String = "") -> ProbeEcho {
    ProbeEcho.with {
        $0.number = number
        $0.name = name
    }
}

@Suite("Entities whose changes the standby holds too (D15, D18)", .timeLimit(.minutes(2)))
struct ReplicatedEntityTests {
    @Test("Through two deaths of owners, nothing acknowledged is lost and no request is done twice")
    func deaths() async throws {
        try await RuntimeCluster.with { cluster in
            let acknowledged = Count()
            try await withThrowingTaskGroup(of: Void.self) { group in
                for caller in 0..<16 {
                    group.addTask {
                        for number in 0..<150 {
                            var call = EntityCall()
                            call.request = RequestID(high: UInt64(caller), low: UInt64(number))
                            try await Self.untilAcknowledged { () async throws(ApusError) in
                                _ = try await cluster.nodes[2].ref("counter-\(caller % 5)")
                                    .ask(add(1), timeout: .seconds(1), call: call)
                            }
                            acknowledged.value.add(1, ordering: .relaxed)
                        }
                    }
                }
                for owner in 0..<2 {
                    try await eventually("calls are answered") {
                        acknowledged.value.load(ordering: .relaxed) >= 600 * (owner + 1)
                    }
                    await cluster.kill(owner)
                }
                try await group.waitForAll()
            }
            for counter in 0..<5 {
                let callers = (0..<16).count { $0 % 5 == counter }
                let count = try await cluster.nodes[2].ref("counter-\(counter)").ask(ProbeReport()).count
                #expect(count == UInt64(callers * 150), "counter \(counter)")
            }
        }
    }

    @Test("Reminders fire at whoever owns the shard by then, once and not before their time")
    func reminders() async throws {
        try await RuntimeCluster.with { cluster in
            for number in 0..<60 {
                _ = try await cluster.nodes[2].ref("bell-\(number)").ask(add(UInt64(number * 10), "remind"))
            }
            await cluster.kill(0)
            for number in 0..<60 {
                try await eventually("bell \(number) rings") {
                    try await cluster.nodes[2].ref("bell-\(number)").ask(ProbeReport()).count >= 100
                }
            }
            await cluster.kill(1)
            for number in 0..<60 {
                let report = try await cluster.nodes[2].ref("bell-\(number)").ask(ProbeReport())
                #expect(report.count == 100 && report.outOfOrder == 0, "bell \(number)")
            }
        }
    }

    @Test("Of the shards that a node gains, those with states are opened first, and all others later")
    func statesFirst() async throws {
        try await RuntimeCluster.with { cluster in
            _ = try await cluster.nodes[2].ref("counter").ask(add(1))
            await cluster.kill(0)
            let replicas = cluster.nodes[1].replicas
            let shard = EntityAddress(kind: .probe, key: "counter").shard
            let others = (0..<UInt16(ShardID.count)).map { ShardID($0) }.filter { $0 != shard }
            try await eventually("every shard is open") {
                let openCount = others.count { replicas.size(of: $0) != nil }
                #expect(openCount == 0 || replicas.size(of: shard)?.entityCount == 1)
                return openCount == others.count
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
                    [.deadlineExceeded, .linkLost, .overloaded, .staleEpoch].contains(error.code), "\(error)")
            }
        }
        Issue.record("a request was never answered")
    }
}

import ApusCluster
import ApusCore
import ApusTestKit
import ApusTransport
import ApusWire
import NIOCore
import Synchronization
import Testing

@Suite("What moves costs, not what exists (D5)", .serialized, .timeLimit(.minutes(3)))
struct EntityShardTests {
    /// A node alone, which owns every shard under epoch 1.
    private func with(entities: Int, _ body: (EntityNode) async throws -> Void) async throws {
        let authority = try ClusterPKI.makeAuthority(cluster: ClusterID(unchecked: "test"))
        var configuration = EntityRegistry.Configuration()
        configuration.entityCountMax = entities
        let node = try EntityNode("a", authority: authority, configuration: configuration) {
            ProbeEntity.register(in: $0)
        }
        node.view.update(map(node, revision: 1))
        try await body(node)
        await node.stop()
    }

    /// Shards below `leaving` belong to another node, under epoch 2.
    private func map(_ node: EntityNode, revision: UInt64, leaving: UInt16 = 0) -> ClusterMap {
        var map = ClusterMap(cluster: ClusterID(unchecked: "test"))
        map.revision = revision
        let other = NodeID(name: NodeName(unchecked: "b"), incarnation: 1)
        map.members = [node.id, other].map { Member(id: $0, state: .up, addresses: addresses($0.name.rawValue)) }
        map.shards = (0..<ShardID.count).map {
            $0 < Int(leaving)
                ? ShardAssignment(owner: MemberSlot(rawValue: 1), epoch: 2)
                : ShardAssignment(owner: MemberSlot(rawValue: 0), epoch: 1)
        }
        return map
    }

    private func ref(_ node: EntityNode, _ number: Int, _ shard: UInt16) -> EntityRef<ProbeEntity> {
        node.registry.ref(
            ProbeEntity.self, EntityAddress(kind: .probe, key: "entity-\(number)", shard: ShardID(shard)))
    }

    private func fill(_ node: EntityNode, _ count: Int) async throws {
        for number in 0..<count { _ = try await ref(node, number, UInt16(number % ShardID.count)).ask(ProbeReport()) }
        #expect(node.registry.entityCount == count)
    }

    /// The thread's time for a map with which so many shards leave.
    private func updateTime(_ node: EntityNode, revision: UInt64, leaving: UInt16) -> Duration {
        let newer = map(node, revision: revision, leaving: leaving)
        let before = MonotonicTime.usedByThisThread()
        node.view.update(newer)
        return MonotonicTime.usedByThisThread() - before
    }

    /// A busy processor is up to twice as slow, so the same maps of a node with one entity are measured beside it.
    @Test("With a million entities a map takes less than 5 ms of its thread, whether few shards leave or all")
    func mapChange() async throws {
        let count = 1_000_000
        var alone: [UInt16: Duration] = [:]
        try await with(entities: 1) { node in
            try await fill(node, 1)
            alone[64] = updateTime(node, revision: 2, leaving: 64)
            alone[4096] = updateTime(node, revision: 3, leaving: 4096)
        }
        try await with(entities: count) { node in
            try await fill(node, count)
            let perShard = count / ShardID.count
            for (revision, leaving) in [(UInt64(2), UInt16(64)), (3, 4096)] {
                let used = updateTime(node, revision: revision, leaving: leaving)
                let control = alone[leaving] ?? .zero
                #expect(
                    used < .milliseconds(5) || used < control * 2,
                    "\(leaving) shards left: \(used), and \(control) with one entity")
                if leaving < 4096 {
                    // The remainder of a million by 4096 shards is in the first 576.
                    #expect(node.registry.entityCount == count - Int(leaving) * (perShard + 1))
                    let stays = try await ref(node, 5000, UInt16(5000 % 4096)).ask(ProbeReport(), timeout: .seconds(1))
                    #expect(stays.count == 0)
                    #expect(
                        await code {
                            _ = try await ref(node, 0, 0).ask(ProbeReport(), timeout: .milliseconds(20))
                        } == .deadlineExceeded)
                } else {
                    #expect(node.registry.entityCount == 0)
                }
            }
        }
    }

    @Test("Holding 64 shards takes no longer because a hundred thousand entities are elsewhere")
    func hold() async throws {
        let count = 100_000
        try await with(entities: count + 64 * 24) { node in
            for number in 0..<64 * 24 {
                _ = try await ref(node, number, UInt16(number % 64)).ask(ProbeReport())
            }
            let alone = try await holdTime(node)
            for number in 0..<count {
                _ = try await ref(node, number, 64 + UInt16(number % 4032)).ask(ProbeReport())
            }
            let among = try await holdTime(node)
            #expect(among < alone * 4 + .milliseconds(2), "\(among) with the others, \(alone) without")
        }
    }

    /// The shortest of five.
    private func holdTime(_ node: EntityNode) async throws -> Duration {
        var shortest = Duration.seconds(60)
        for _ in 0..<5 {
            let start = MonotonicTime.now()
            for number in UInt16(0)..<64 {
                try await node.registry.holdUntilQuiet(ShardID(number))
                node.registry.release(ShardID(number))
            }
            shortest = min(shortest, MonotonicTime.now() - start)
        }
        return shortest
    }

    @Test("An entity that is idle is released among others that are not")
    func sweep() async throws {
        let facts = SlowEntity.Shared()
        try await EntityPair.with(
            register: { SlowEntity.register(in: $0, facts: facts, passivateAfter: .milliseconds(400)) }
        ) { pair in
            pair.adopt(pair.map(revision: 1, owner: pair.b, epoch: 1))
            let keys = (0..<200).map { EntityAddress(kind: .probe, key: "k\($0)") }
            for key in keys { _ = try await pair.b.registry.ref(SlowEntity.self, key).ask(ProbeEcho()) }
            #expect(pair.b.registry.entityCount == 200)
            try await eventually("199 of them are released") {
                _ = try await pair.b.registry.ref(SlowEntity.self, keys[0]).ask(ProbeEcho())
                return facts.read(\.deactivated) == 199
            }
            #expect(pair.b.registry.entityCount == 1)
        }
    }
}

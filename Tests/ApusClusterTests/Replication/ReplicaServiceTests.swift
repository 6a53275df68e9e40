import ApusCluster
import ApusCore
import ApusTestKit
import ApusTransport
import Glibc
import Logging
import NIOCore
import NIOPosix
import Synchronization
import Testing

@Suite("Replication over real links (D18)", .serialized)
struct ReplicaServiceTests {
    @Test("Changes are confirmed when the standby has them, and its promotion hands them over")
    func promotion() async throws {
        try await withReplicas { cluster in
            let map = replicaMap(revision: 1, owner: "a", standby: "b", epoch: 1)
            let a = try await cluster.start(node("a"), map: map)
            let b = try await cluster.start(node("b"), map: map)
            #expect(try a.open(shard, epoch: 1).isComplete)
            #expect(a.service.promote(shard, epoch: 1)?.isComplete == nil, "it is promoted once")
            var positions: [ReplicaPosition] = []
            for number in 0..<2000 { positions.append(try a.change(shard, epoch: 1, "e\(number % 500)", "\(number)")) }
            positions.append(try a.change(shard, epoch: 1, "e0", nil))
            for position in positions { try await a.service.confirmed(position) }
            #expect(a.service.isCaughtUp(shard, b.id))
            let told = Mutex<[ApusError?]>([])
            try a.service.change(shard, epoch: 1, key("last"), state("1")) { error in
                told.withLock { $0.append(error) }
            }
            try await eventually("the last change is confirmed") { told.withLock { $0 } == [nil] }

            await cluster.stop(a)
            b.view.update(replicaMap(revision: 2, owner: "b", standby: nil, epoch: 2, dead: ["a"]))
            let promotion = try b.open(shard, epoch: 2)
            #expect(promotion.isComplete && promotion.entityCount == 500)
            #expect(b.text("e0", epoch: 2) == nil && b.text("e499", epoch: 2) == "1999")
            #expect(b.text("last", epoch: 2) == "1" && b.service.size(of: shard)?.entityCount == 500)
            #expect(try b.states(of: shard, epoch: 2).count == 500)
            #expect(b.service.isAlone(shard))
            // Alone, and so at once.
            try await b.service.confirmed(try b.change(shard, epoch: 2, "e1", "2"))
        }
    }

    @Test("A standby that stops makes changes wait; when it comes again, it catches up and they are confirmed")
    func standbyReturns() async throws {
        try await withReplicas { cluster in
            var map = replicaMap(revision: 1, owner: "a", standby: "b", epoch: 1)
            var configuration = ReplicaConfiguration()
            configuration.confirmTimeout = .milliseconds(500)
            let a = try await cluster.start(node("a"), map: map, configuration: configuration)
            let b = try await cluster.start(node("b"), map: map)
            _ = try a.open(shard, epoch: 1)
            try await a.service.confirmed(try a.change(shard, epoch: 1, "x", "1"))
            await cluster.stop(b)
            let position = try a.change(shard, epoch: 1, "y", "1")
            #expect(await code { try await a.service.confirmed(position) } == .deadlineExceeded)

            map.revision = 2
            map.members[1].id.incarnation = 2
            a.view.update(map)
            let again = try await cluster.start(node("b", 2), map: map)
            try await eventually("the standby has caught up") { a.service.isCaughtUp(shard, again.id) }
            try await a.service.confirmed(position)
            map = replicaMap(revision: 3, owner: "b", standby: nil, epoch: 2, dead: ["a"])
            map.members[1].id.incarnation = 2
            again.view.update(map)
            let promotion = try again.open(shard, epoch: 2)
            #expect(promotion.isComplete && promotion.entityCount == 2)
        }
    }

    @Test("A link that breaks is made again, and what was lost with it is sent again")
    func linkBreaks() async throws {
        try await withReplicas { cluster in
            let map = replicaMap(revision: 1, owner: "a", standby: "b", epoch: 1)
            let a = try await cluster.start(node("a"), map: map)
            let b = try await cluster.start(node("b"), map: map)
            _ = try a.open(shard, epoch: 1)
            try await a.service.confirmed(try a.change(shard, epoch: 1, "x", "1"))
            var positions: [ReplicaPosition] = []
            for round in 0..<5 {
                for number in 0..<50 { positions.append(try a.change(shard, epoch: 1, "x\(number)", "\(round)")) }
                // Both ways, with whatever is under way.
                let peer = try #require(a.transport.linkedAddress(of: b.id))
                a.transport.setPeers([])
                a.transport.setPeers([Peer(id: b.id, address: peer)])
                try await eventually("a is linked again") { a.transport.linkedAddress(of: b.id) != nil }
            }
            for position in positions { try await a.service.confirmed(position) }
            b.view.update(replicaMap(revision: 2, owner: "b", standby: nil, epoch: 2, dead: ["a"]))
            let promotion = try b.open(shard, epoch: 2)
            #expect(promotion.isComplete && promotion.entityCount == 51)
            let rounds = try b.states(of: shard, epoch: 2).filter { $0.key != "x" }.values
            #expect(rounds.count == 50 && rounds.allSatisfy { $0 == "4" })
        }
    }

    @Test("A planned move: a candidate catches up, is named, takes over, and the former owner stands by")
    func move() async throws {
        try await withReplicas { cluster in
            let map = replicaMap(revision: 1, owner: "a", standby: "b", epoch: 1)
            let a = try await cluster.start(node("a"), map: map)
            let b = try await cluster.start(node("b"), map: map)
            let c = try await cluster.start(node("c"), map: map)
            _ = try a.open(shard, epoch: 1)
            for number in 0..<300 { _ = try a.change(shard, epoch: 1, "x\(number)", "1") }
            a.service.setCandidate(shard, c.id)
            try await a.service.caughtUp(shard, epoch: 1, c.id, within: .seconds(5))
            let named = replicaMap(revision: 2, owner: "a", standby: "c", epoch: 1)
            for node in [a, b, c] { node.view.update(named) }
            #expect(!a.service.isCaughtUp(shard, b.id))
            _ = try a.change(shard, epoch: 1, "x0", "2")
            try await a.service.finish(shard, epoch: 1, to: c.id)
            #expect(await code { try await a.service.finish(shard, epoch: 1, to: b.id) } == .noRoute)

            let moved = replicaMap(revision: 3, owner: "c", standby: "a", epoch: 2)
            for node in [a, b, c] { node.view.update(moved) }
            #expect(await code { _ = try a.change(shard, epoch: 1, "x0", "3") } == .staleEpoch)
            let promotion = try c.open(shard, epoch: 2)
            #expect(promotion.isComplete && promotion.entityCount == 300 && c.text("x0", epoch: 2) == "2")
            try await c.service.confirmed(try c.change(shard, epoch: 2, "x0", "4"))
            #expect(c.service.isCaughtUp(shard, a.id))
        }
    }

    @Test("Who waits is told: no confirmation in time, the shard left, the node stops")
    func failures() async throws {
        try await withReplicas { cluster in
            let map = replicaMap(revision: 1, owner: "a", standby: "b", epoch: 1)
            var configuration = ReplicaConfiguration()
            configuration.confirmTimeout = .milliseconds(150)
            let a = try await cluster.start(node("a"), map: map, configuration: configuration)
            #expect(await code { _ = try a.change(shard, epoch: 1, "x", "1") } == .staleEpoch, "it is not open")
            _ = try a.open(shard, epoch: 1)
            let position = try a.change(shard, epoch: 1, "x", "1")
            #expect(await code { try await a.service.confirmed(position) } == .deadlineExceeded)

            let told = Mutex<[ApusError?]>([])
            a.service.whenConfirmed(position) { error in told.withLock { $0.append(error) } }
            a.view.update(replicaMap(revision: 2, owner: "b", standby: "a", epoch: 2))
            #expect(told.withLock { $0 } == [ApusError(.staleEpoch)])
            #expect(await code { try await a.service.confirmed(position) } == .staleEpoch)

            a.view.update(replicaMap(revision: 3, owner: "a", standby: "c", epoch: 3))
            #expect(try a.open(shard, epoch: 3).entityCount == 1)
            let later = try a.change(shard, epoch: 3, "x", "2")
            a.service.whenConfirmed(later) { error in told.withLock { $0.append(error) } }
            a.service.stop()
            #expect(told.withLock { $0.last } == .some(ApusError(.shuttingDown)))
            #expect(await code { try await a.service.confirmed(later) } == .shuttingDown)
        }
    }

    @Test("A candidate that dies during the last step of a move is no owner, and changes go on without it")
    func candidateDies() async throws {
        try await withReplicas { cluster in
            let map = replicaMap(revision: 1, owner: "a", standby: "b", epoch: 1)
            let a = try await cluster.start(node("a"), map: map)
            _ = try await cluster.start(node("b"), map: map)
            let c = try await cluster.start(node("c"), map: map)
            _ = try a.open(shard, epoch: 1)
            try await a.service.confirmed(try a.change(shard, epoch: 1, "x", "1"))
            a.service.setCandidate(shard, c.id)
            try await a.service.caughtUp(shard, epoch: 1, c.id, within: .seconds(5))
            await cluster.stop(c)
            let position = try a.change(shard, epoch: 1, "x", "2")
            async let finished = code { try await a.service.finish(shard, epoch: 1, to: c.id) }
            try await eventually("the move waits for its last change") { a.service.waitingCallerCount == 1 }
            a.view.update(replicaMap(revision: 2, owner: "a", standby: "b", epoch: 1, dead: ["c"]))
            #expect(await finished == .noRoute)
            try await a.service.confirmed(position)
            let late = await code { try await a.service.caughtUp(shard, epoch: 1, c.id, within: .seconds(5)) }
            #expect(late == .noRoute)
            let stale = await code { try await a.service.caughtUp(shard, epoch: 2, node("b"), within: .seconds(5)) }
            #expect(stale == .staleEpoch)
        }
    }

    @Test("Who waits for a target that never catches up is told in time, and at the end of the node")
    func neverCaughtUp() async throws {
        try await withReplicas { cluster in
            let a = try await cluster.start(
                node("a"), map: replicaMap(revision: 1, owner: "a", standby: "b", epoch: 1))
            _ = try a.open(shard, epoch: 1)
            let late = await code {
                try await a.service.caughtUp(shard, epoch: 1, node("b"), within: .milliseconds(120))
            }
            #expect(late == .deadlineExceeded)
            async let stopped = code {
                try await a.service.caughtUp(shard, epoch: 1, node("b"), within: .seconds(600))
            }
            try await eventually("somebody waits") { a.service.waitingCallerCount == 1 }
            a.service.stop()
            #expect(await stopped == .shuttingDown)
        }
    }

    @Test("A thread that is slower than the pause after a failure does not send to an unreachable standby for ever")
    func unreachable() throws {
        // On two lanes: the pause of the first one is over when the second one has failed.
        let shards = [ShardID(0), ShardID(1)]
        let map = replicaMap(revision: 1, owner: "a", standby: "b", epoch: 1, shards: shards)
        var configuration = ReplicaConfiguration()
        configuration.laneCount = 2
        let service = ReplicaService(
            configuration: configuration, view: ClusterView(local: node("a"), map: map),
            loop: MultiThreadedEventLoopGroup.singleton.next(),
            logger: Logger(label: "test") { _ in SwiftLogNoOpLogHandler() })
        defer { service.stop() }
        let links = SlowBrokenLinks()
        for shard in shards {
            _ = try #require(service.promote(shard, epoch: 1))
            let entity = ReplicaKey(kind: EntityKind(rawValue: 1), key: "x")
            _ = try service.change(shard, epoch: 1, entity, state("1"))
        }
        service.connect(links)
        let count = links.count.withLock { $0 }
        #expect((2...4).contains(count), "\(count) attempts")
    }
}

/// Links without a connection, on a machine on which each attempt takes longer than the pause after it.
private final class SlowBrokenLinks: ClusterLinks {
    let count = Mutex(0)

    func setPeers(_ peers: [Peer]) {}
    func setPath(to peer: NodeName, via helper: NodeName?) {}
    func wireVersion(of peer: NodeID) -> UInt32? { nil }
    func reach(_ peer: Peer, timeout: Duration) async -> NodeReach { .silent }

    /// Succeeds after a while, so that a thread that never gives up comes back.
    func tell(_ peer: NodeName, lane: Int, method: UInt16, payload: ByteBuffer) throws(ApusError) {
        let attempts = count.withLock { count in
            count += 1
            return count
        }
        guard attempts < 50 else { return }
        usleep(30_000)
        throw ApusError(.noRoute)
    }
}

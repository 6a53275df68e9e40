import ApusCluster
import ApusCore
import ApusTestKit
import ApusTransport
import NIOCore
import Synchronization
import Testing

/// Entities that are changed by several threads at once, and what their owner acknowledged.
private final class Writers: Sendable {
    private struct State {
        /// By entity: the newest number that was acknowledged.
        var acknowledged: [String: Int] = [:]
        var acknowledgedCount = 0
    }

    static let entityCount = 40
    private let state = Mutex(State())

    var acknowledged: [String: Int] { state.withLock { $0.acknowledged } }
    var acknowledgedCount: Int { state.withLock { $0.acknowledgedCount } }

    /// Changes a writer's entities in turn, with growing numbers, until the node refuses for good.
    func write(_ writer: Int, at node: ReplicaNode, epoch: Epoch, from first: Int) async {
        var number = first
        while !Task.isCancelled {
            let (name, written) = ("w\(writer)-\(number % Self.entityCount)", number)
            do throws(ApusError) {
                try node.service.change(shard, epoch: epoch, key(name), ByteBuffer(string: "\(written)")) { error in
                    guard error == nil else { return }
                    self.state.withLock { state in
                        state.acknowledged[name] = max(state.acknowledged[name] ?? 0, written)
                        state.acknowledgedCount += 1
                    }
                }
                number += 1
            } catch {
                guard error.code == .overloaded else { return }
                await Task.yield()
            }
            if number % 64 == 0 { await Task.yield() }
        }
    }
}

@Suite("Replication through the deaths of owners, over real links (D18)", .serialized)
struct ReplicaFailoverTests {
    private static let writerCount = 4
    private static let entityCount = writerCount * Writers.entityCount

    @Test("Every change that an owner acknowledged before its links were cut is at the standby, and at the next one")
    func deaths() async throws {
        try await withReplicas { cluster in
            let names = ["a", "b", "c", "d"]
            var nodes: [ReplicaNode] = []
            for name in names {
                let map = replicaMap(revision: 1, owner: "a", standby: "b", epoch: 1)
                nodes.append(try await cluster.start(node(name), map: map))
            }
            let writers = Writers()
            _ = try nodes[0].open(shard, epoch: 1)
            for (index, owner) in nodes.dropLast().enumerated() {
                let epoch = Epoch(index + 1)
                let enough = writers.acknowledgedCount + 3000 + 500 * index
                try await withThrowingTaskGroup(of: Void.self) { group in
                    for writer in 0..<Self.writerCount {
                        group.addTask {
                            await writers.write(writer, at: owner, epoch: epoch, from: Int(epoch) * 10_000_000)
                        }
                    }
                    try await eventually("\(owner.id) acknowledges changes") {
                        writers.acknowledgedCount >= enough && writers.acknowledged.count == Self.entityCount
                    }
                    // In the middle of everything, and without its knowledge: it goes on taking changes.
                    await owner.transport.stop()
                    let atCut = writers.acknowledgedCount
                    try await takeOver(nodes[index + 1], after: index, of: nodes, writers: writers)
                    // Who is cut off acknowledges nothing any more, whatever its writers still change.
                    let more = owner.service.waitingCallerCount
                    #expect(more > 0 && writers.acknowledgedCount == atCut)
                    let map = replicaMap(
                        revision: UInt64(index + 2), owner: names[index + 1],
                        standby: index + 2 < names.count ? names[index + 2] : nil, epoch: epoch + 1,
                        dead: Array(names.prefix(index + 1)))
                    owner.view.update(map)
                    try await group.waitForAll()
                    #expect(owner.service.waitingCallerCount == 0, "the map told who waits")
                }
            }
        }
    }

    /// The standby becomes the owner under the next epoch, with a new standby where there is one.
    private func takeOver(
        _ heir: ReplicaNode, after index: Int, of nodes: [ReplicaNode], writers: Writers
    ) async throws {
        let names = nodes.map(\.id.name.rawValue)
        let epoch = Epoch(index + 2)
        let map = replicaMap(
            revision: UInt64(index + 2), owner: names[index + 1],
            standby: index + 2 < names.count ? names[index + 2] : nil, epoch: epoch,
            dead: Array(names.prefix(index + 1)))
        for node in nodes.dropFirst(index + 1) { node.view.update(map) }
        let promotion = try heir.open(shard, epoch: epoch)
        #expect(promotion.isComplete)
        let states = try heir.states(of: shard, epoch: epoch)
        let acknowledged = writers.acknowledged
        #expect(states.count == Self.entityCount && acknowledged.count == Self.entityCount)
        for (name, number) in acknowledged {
            let held = states[name].flatMap { Int($0) } ?? -1
            #expect(held >= number, "\(name) is \(held), and \(number) was acknowledged")
        }
    }
}

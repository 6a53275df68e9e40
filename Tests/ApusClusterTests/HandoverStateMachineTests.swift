import ApusCluster
import ApusCore
import Testing

@Suite("Planned hand-over (D5)")
struct HandoverStateMachineTests {
    private typealias Machine = HandoverStateMachine

    private func replicas(in actions: [Machine.Action]) -> [ShardMove] {
        actions.compactMap { if case .awaitReplica(let move) = $0 { move } else { nil } }
    }

    @Test("A newcomer's share goes to it at most 64 shards at once, those that it stands by for without a map change")
    func bound() throws {
        var machine = Machine(local: node("a"))
        let moves = replicas(in: machine.handle(.mapChanged(try map(join("a"), join("b"))), now: at(0)))
        #expect(moves.count == 64)
        #expect(moves.allSatisfy { $0.target == node("b") && $0.epoch == 1 })
        #expect(machine.movingCount == 64)
    }

    @Test("A shard whose target caught up is held, then handed over, then done")
    func way() throws {
        let map = try map(join("a"), join("b"))
        var machine = Machine(local: node("a"))
        let move = try #require(replicas(in: machine.handle(.mapChanged(map), now: at(0))).first)
        #expect(machine.handle(.replicaReady(move), now: at(5)) == [.hold(move)])
        #expect(machine.handle(.held(move), now: at(6)) == [.handOver([move])])
        let after = try map.after(.handOver([move]))
        #expect(machine.handle(.mapChanged(after), now: at(8)).contains(.completed(move)))
    }

    /// Completes every move that is under way; the moves that begin.
    private func complete(
        _ moves: [ShardMove], _ machine: inout Machine, _ map: inout ClusterMap, at now: Int
    ) throws -> [ShardMove] {
        for move in moves { _ = machine.handle(.replicaReady(move), now: at(now)) }
        for move in moves { _ = machine.handle(.held(move), now: at(now)) }
        map = try map.after(.handOver(moves))
        return replicas(in: machine.handle(.mapChanged(map), now: at(now)))
    }

    @Test("The pauses between moves double while the thread runs late, up to 300 ms, and halve when it does not")
    func pauses() throws {
        var map = try map(join("a"), join("b"))
        var machine = Machine(local: node("a"))
        var moves = replicas(in: machine.handle(.mapChanged(map), now: at(0)))
        var now = 0
        for pause in [10, 20, 40, 80, 160, 300, 300] {
            _ = machine.handle(.late, now: at(now))
            now += 500
            moves = try complete(moves, &machine, &map, at: now)
            #expect(moves.count == 64 && machine.pause == .milliseconds(pause))
        }
        #expect(try complete(moves, &machine, &map, at: now + 50).isEmpty)
        #expect(machine.movingCount == 0 && machine.isBusy)
        #expect(replicas(in: machine.handle(.tick, now: at(now + 299))).isEmpty)
        for pause in [150, 75, 37, 18, 9, 0] {
            now += 300
            moves = replicas(in: machine.handle(.tick, now: at(now)))
            #expect(moves.count == 64 && machine.pause >= .milliseconds(pause))
            #expect(machine.pause < .milliseconds(pause + 1))
            _ = try complete(moves, &machine, &map, at: now)
        }
    }

    @Test("All pauses of a series take ten seconds at most, so that a drain ends in time on a busy machine")
    func pausesAreBounded() throws {
        var map = try map(join("a"), join("b"))
        var configuration = Machine.Configuration()
        configuration.movingCountMax = 8
        var machine = Machine(local: node("a"), configuration: configuration)
        var moves = replicas(in: machine.handle(.mapChanged(map), now: at(0)))
        var now = 0
        var startCount = 1
        while !moves.isEmpty {
            _ = machine.handle(.late, now: at(now))
            moves = try complete(moves, &machine, &map, at: now)
            while moves.isEmpty, machine.isBusy {
                now += 10
                moves = replicas(in: machine.handle(.tick, now: at(now)))
            }
            startCount += 1
        }
        #expect(startCount > 200)
        #expect((10_000...10_500).contains(now), "the moves took \(now) ms")
        // The next series may pause again.
        map = try map.after(.drain(node("a")))
        moves = replicas(in: machine.handle(.mapChanged(map), now: at(now)))
        _ = machine.handle(.late, now: at(now))
        #expect(try complete(moves, &machine, &map, at: now).isEmpty)
    }

    @Test("While nobody uses the shards of a node, 256 move at once and none waits for a pause (D5)")
    func unused() throws {
        var map = try map(join("a"), join("b"))
        var machine = Machine(local: node("a"))
        _ = machine.handle(.inUse(false), now: at(0))
        var moves = replicas(in: machine.handle(.mapChanged(map), now: at(0)))
        for now in [10, 20, 30] {
            _ = machine.handle(.late, now: at(now))
            moves = try complete(moves, &machine, &map, at: now)
            #expect(moves.count == 256 && machine.pause == .zero)
        }
        _ = machine.handle(.inUse(true), now: at(40))
        _ = machine.handle(.late, now: at(40))
        moves = try complete(moves, &machine, &map, at: 50)
        #expect(moves.count == 64 && machine.pause == .milliseconds(10))
    }

    /// A machine of the owner `a` that moves a shard to a node that does not stand by for it yet.
    private func moving() throws -> (machine: Machine, map: ClusterMap, move: ShardMove) {
        let map = try map(join("a"), join("b")).atRest().after(join("c"))
        var machine = Machine(local: node("a"))
        let moves = replicas(in: machine.handle(.mapChanged(map), now: at(0)))
        #expect(moves.allSatisfy { $0.target == node("c") && map.standby(of: $0.shard)?.id == node("b") })
        return (machine, map, try #require(moves.first))
    }

    private func standbys(in actions: [Machine.Action]) -> [ShardMove] {
        actions.flatMap { action -> [ShardMove] in
            guard case .setStandby(let moves) = action else { return [] }
            return moves
        }
    }

    @Test("A node is named standby when it has caught up, not before, and with the others of the same 20 ms (D5)")
    func namedLast() throws {
        var (machine, map, move) = try moving()
        #expect(standbys(in: machine.handle(.tick, now: at(20))).isEmpty)
        #expect(machine.handle(.replicaReady(move), now: at(30)).isEmpty)
        #expect(machine.handle(.tick, now: at(40)) == [.setStandby([move])])
        #expect(machine.handle(.tick, now: at(60)).isEmpty)
        map = try map.after(.setStandby([move]))
        let actions = machine.handle(.mapChanged(map), now: at(70))
        #expect(actions.contains(.hold(move)) || actions.contains(.completed(move)))
    }

    @Test("A standby that was proposed stays fed until the map or its failure says what happened")
    func proposedStandby() throws {
        var (machine, _, move) = try moving()
        _ = machine.handle(.replicaReady(move), now: at(30))
        _ = machine.handle(.tick, now: at(40))
        let late = machine.handle(.tick, now: at(60_000))
        #expect(!late.contains(.abandoned(move, .prepareTimeout)))
        #expect(machine.handle(.proposalFailed([move]), now: at(60_001)).first == .abandoned(move, .proposalFailed))
    }

    @Test("A candidate that does not catch up in 5 s is given up, and the standby that is stays named")
    func candidateIsLate() throws {
        var (machine, _, move) = try moving()
        let late = machine.handle(.tick, now: at(5000))
        #expect(late.contains(.abandoned(move, .prepareTimeout)))
        #expect(standbys(in: late).isEmpty)
        #expect(machine.handle(.replicaReady(move), now: at(5010)).isEmpty)
    }

    @Test("Repeated and late reports are ignored")
    func repeated() throws {
        let map = try map(join("a"), join("b"))
        var machine = Machine(local: node("a"))
        let move = try #require(replicas(in: machine.handle(.mapChanged(map), now: at(0))).first)
        #expect(machine.handle(.held(move), now: at(1)).isEmpty)
        _ = machine.handle(.replicaReady(move), now: at(5))
        #expect(machine.handle(.replicaReady(move), now: at(5)).isEmpty)
        var other = move
        other.epoch = 9
        #expect(machine.handle(.held(other), now: at(6)).isEmpty)
        #expect(machine.handle(.mapChanged(map), now: at(7)).isEmpty)
    }

    @Test("A replica that does not catch up in 5 s leaves the shard where it is; it is tried again after a second")
    func prepareTimeout() throws {
        var machine = Machine(local: node("a"))
        let moves = replicas(in: machine.handle(.mapChanged(try map(join("a"), join("b"))), now: at(0)))
        let late = machine.handle(.tick, now: at(5000))
        #expect(moves.allSatisfy { late.contains(.abandoned($0, .prepareTimeout)) && !late.contains(.release($0)) })
        // Others take the places meanwhile.
        #expect(machine.movingCount == 64)
        #expect(Set(replicas(in: late)).isDisjoint(with: moves))
    }

    @Test("Calls that do not end within 250 ms release the shard's entities")
    func holdTimeout() throws {
        var machine = Machine(local: node("a"))
        let moves = replicas(in: machine.handle(.mapChanged(try map(join("a"), join("b"))), now: at(0)))
        let move = try #require(moves.first)
        _ = machine.handle(.replicaReady(move), now: at(10))
        #expect(machine.handle(.tick, now: at(259)).isEmpty)
        let late = machine.handle(.tick, now: at(260))
        #expect(late.prefix(2) == [.release(move), .abandoned(move, .holdTimeout)])
    }

    @Test("A hand-over that was proposed is held until the map or its failure says what happened")
    func proposed() throws {
        var machine = Machine(local: node("a"))
        let moves = replicas(in: machine.handle(.mapChanged(try map(join("a"), join("b"))), now: at(0)))
        let move = try #require(moves.first)
        _ = machine.handle(.replicaReady(move), now: at(10))
        _ = machine.handle(.held(move), now: at(20))
        let late = machine.handle(.tick, now: at(4000))
        #expect(!late.contains(.release(move)))
        let failed = machine.handle(.proposalFailed([move]), now: at(4001))
        #expect(failed.prefix(2) == [.release(move), .abandoned(move, .proposalFailed)])
    }

    @Test("The target's death abandons its moves")
    func targetDies() throws {
        let map = try map(join("a"), join("b"), join("c"))
        var machine = Machine(local: node("a"))
        _ = machine.handle(.mapChanged(map), now: at(0))
        let actions = machine.handle(.mapChanged(try map.after(.declareDead([node("b")]))), now: at(10))
        let abandoned = actions.compactMap { action -> NodeID? in
            if case .abandoned(let move, .mapChanged) = action { move.target } else { nil }
        }
        #expect(!abandoned.isEmpty)
        #expect(abandoned.contains(node("b")))
    }

    @Test("A drained node is empty in the end, a joined one has its share, and no more than 64 shards move at once")
    func toRest() throws {
        var map = try map(join("a"), join("b"), join("c")).atRest()
        map = try settle(map.after(join("d")), members: ["a", "b", "c", "d"])
        #expect(ShardPlacement(of: map) == ShardPlacement(of: try map.atRest()))
        #expect(try map.atRest() == map)
        map = try settle(map.after(.drain(node("b"))), members: ["a", "b", "c", "d"])
        #expect(map.isDrained(node("b")))
        #expect(map.shards.allSatisfy { $0.standby != .none && $0.standby != $0.owner })
    }

    /// Runs the machines of all members against one map until nothing moves.
    private func settle(_ start: ClusterMap, members: [String]) throws -> ClusterMap {
        var map = start
        var machines = members.map { Machine(local: node($0)) }
        for round in 0..<2000 {
            var isQuiet = true
            var next = map
            for index in machines.indices {
                var pending = machines[index].handle(.mapChanged(map), now: at(round))
                while !pending.isEmpty {
                    let action = pending.removeFirst()
                    isQuiet = false
                    switch action {
                    case .setStandby(let moves): next = try next.after(.setStandby(moves))
                    case .setSecondStandby(let moves): next = try next.after(.setSecondStandby(moves))
                    case .handOver(let moves): next = try next.after(.handOver(moves))
                    case .awaitReplica(let move): pending += machines[index].handle(.replicaReady(move), now: at(round))
                    case .hold(let move): pending += machines[index].handle(.held(move), now: at(round))
                    case .release, .abandoned, .completed: break
                    }
                }
            }
            #expect(machines.reduce(0) { $0 + $1.movingCount } <= 64 + members.count)
            map = next
            if isQuiet { return map }
        }
        Issue.record("the map did not come to rest")
        return map
    }
}

import ApusCluster
import ApusCore
import Testing

@Suite("Ownership by compare-and-swap (D4)")
struct OwnershipStateMachineTests {
    private typealias Machine = OwnershipStateMachine

    /// A machine of a member that joined as `name` into `map`.
    private func member(_ name: String, of map: ClusterMap) throws -> (machine: Machine, map: ClusterMap) {
        var machine = Machine(map: ClusterMap(cluster: map.cluster))
        #expect(machine.handle(.tick, now: at(0)) == [.read])
        _ = machine.handle(.read(map), now: at(0))
        let actions = machine.handle(.propose(1, join(name)), now: at(0))
        guard case .compareAndSwap(map.revision, var next) = actions.last else {
            Issue.record("no swap: \(actions)")
            return (machine, map)
        }
        next.revision = map.revision + 1
        let won = machine.handle(.swapWon(revision: next.revision), now: at(1))
        #expect(won == [.adopt(next), .settled(1, .decided(next)), .announce(revision: next.revision)])
        return (machine, next)
    }

    private func swap(in actions: [Machine.Action]) -> ClusterMap? {
        for case .compareAndSwap(_, let map) in actions { return map }
        return nil
    }

    @Test("A process that finds its incarnation taken by another one's join does not join (10025)")
    func joinOfAnother() throws {
        func twin(_ process: UInt64) -> OwnershipDecision {
            .join(node("a"), addresses: addresses("a"), weight: 100, process: process)
        }
        let before = try map(join("b"))
        var machine = Machine(map: ClusterMap(cluster: before.cluster))
        _ = machine.handle(.tick, now: at(0))
        _ = machine.handle(.read(before), now: at(0))
        _ = machine.handle(.propose(1, twin(7)), now: at(0))
        #expect(machine.handle(.swapLost, now: at(1)) == [.read])
        let others = try before.after(twin(8))
        #expect(
            machine.handle(.read(others), now: at(2)) == [.adopt(others), .settled(1, .failed(ApusError(.fenced)))])
    }

    @Test("A process whose join was made, though no answer came, joins; a map that names another process fences it")
    func ownProcess() throws {
        func twin(_ process: UInt64) -> OwnershipDecision {
            .join(node("a"), addresses: addresses("a"), weight: 100, process: process)
        }
        let before = try map(join("b"))
        var machine = Machine(map: ClusterMap(cluster: before.cluster))
        _ = machine.handle(.tick, now: at(0))
        _ = machine.handle(.read(before), now: at(0))
        _ = machine.handle(.propose(1, twin(7)), now: at(0))
        _ = machine.handle(.storeFailed(ApusError(.storageFailed)), now: at(1))
        #expect(machine.handle(.tick, now: at(100)) == [.read])
        var own = try before.after(twin(7))
        #expect(machine.handle(.read(own), now: at(101)).contains(.settled(1, .decided(own))))
        own.revision += 1
        own.members[1].process = 0
        #expect(machine.handle(.refresh, now: at(102)) == [.read])
        #expect(machine.handle(.read(own), now: at(103)) == [.adopt(own)])
        own.revision += 1
        own.members[1].process = 8
        #expect(machine.handle(.refresh, now: at(104)) == [.read])
        #expect(machine.handle(.read(own), now: at(105)) == [.adopt(own), .fenced])
    }

    @Test("The first in rank declares a death at once, the second 30 ms later")
    func rank() throws {
        var (first, _) = try member("a", of: map(join("b"), join("c")))
        #expect(
            swap(in: first.handle(.confirmedDead(node("c"), isCertain: true), now: at(10)))?.isAlive(node("c")) == false
        )
        var (second, _) = try member("b", of: map(join("a"), join("c")))
        #expect(second.handle(.confirmedDead(node("c"), isCertain: true), now: at(10)).isEmpty)
        #expect(second.handle(.tick, now: at(39)).isEmpty)
        #expect(swap(in: second.handle(.tick, now: at(40)))?.isAlive(node("c")) == false)
    }

    @Test("The death of the first in rank makes the second the first")
    func rankWithoutTheDead() throws {
        var (machine, _) = try member("b", of: map(join("a"), join("c")))
        #expect(
            swap(in: machine.handle(.confirmedDead(node("a"), isCertain: true), now: at(10)))?.isAlive(node("a"))
                == false)
    }

    @Test("A death that is taken back before its turn changes nothing")
    func recovered() throws {
        var (machine, _) = try member("b", of: map(join("a"), join("c")))
        _ = machine.handle(.confirmedDead(node("c"), isCertain: true), now: at(10))
        #expect(machine.handle(.recovered(node("c")), now: at(20)).isEmpty)
        #expect(machine.handle(.tick, now: at(100)).isEmpty)
        #expect(!machine.isBusy)
    }

    @Test("A lost swap is decided anew on what the map says now: the other's death declaration stands")
    func lostSwap() throws {
        var (machine, map) = try member("a", of: map(join("b"), join("c")))
        _ = machine.handle(.confirmedDead(node("c"), isCertain: true), now: at(10))
        #expect(machine.handle(.swapLost, now: at(11)) == [.read])
        let others = try map.after(.declareDead([node("c")]))
        #expect(machine.handle(.read(others), now: at(12)) == [.adopt(others)])
        #expect(!machine.isBusy)
    }

    @Test("A store that fails decides nothing; the death is tried again, and a proposal fails with 10012 in the end")
    func storeFails() throws {
        var (machine, map) = try member("a", of: map(join("b")))
        _ = machine.handle(.confirmedDead(node("b"), isCertain: true), now: at(10))
        let failure = ApusError(.storageFailed)
        #expect(machine.handle(.storeFailed(failure), now: at(11)) == [.storeChanged(.unreadable(failure))])
        #expect(machine.store == .unreadable(failure))
        #expect(machine.handle(.tick, now: at(30)).isEmpty)
        #expect(machine.handle(.tick, now: at(61)) == [.read])
        #expect(swap(in: machine.handle(.read(map), now: at(62))) != nil)
        map = try map.after(.declareDead([node("b")]))
        _ = machine.handle(.swapWon(revision: map.revision), now: at(63))

        _ = machine.handle(.propose(2, .drain(node("a"))), now: at(100))
        var outcome: Machine.Action?
        for step in 0..<200 where outcome == nil {
            let actions =
                machine.handle(.storeFailed(failure), now: at(100 + step * 60))
                + machine.handle(.tick, now: at(155 + step * 60))
            outcome = actions.first { if case .settled = $0 { true } else { false } }
        }
        #expect(outcome == .settled(2, .failed(ApusError(.noOwnership))))
    }

    @Test("Nodes whose planned moves lost to one revision try again at different times; a drain does not wait (D5)")
    func plannedTurns() throws {
        let joins = ["a", "b", "c", "d", "e", "f", "g", "h"].map { join($0) }
        var waits: Set<Int> = []
        for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
            let others = joins.filter { $0 != join(name) }
            let before = try others.reduce(ClusterMap(cluster: ClusterID(unchecked: "test"))) { try $0.after($1) }
            var (machine, map) = try member(name, of: before)
            let owner = try #require(map.owner(of: ShardID(1))?.id)
            let target = try #require(map.members.first { $0.id != owner && $0.id != map.standby(of: ShardID(1))?.id })
            let move = ShardMove(shard: ShardID(1), epoch: map[ShardID(1)].epoch, owner: owner, target: target.id)
            #expect(swap(in: machine.handle(.propose(2, .setStandby([move])), now: at(10))) != nil)
            #expect(machine.handle(.swapLost, now: at(11)) == [.read])
            map = try map.after(.weigh(NodeName(unchecked: "a"), 50))
            if swap(in: machine.handle(.read(map), now: at(11))) != nil {
                waits.insert(0)
                continue
            }
            var urgent = machine
            #expect(swap(in: urgent.handle(.propose(3, .drain(node(name))), now: at(11))) != nil)
            let wait = (1...200).first { swap(in: machine.handle(.tick, now: at(11 + $0))) != nil }
            waits.insert(try #require(wait))
        }
        #expect(waits.isSubset(of: [0, 20, 40, 60, 80]))
        #expect(waits.count >= 3)
    }

    @Test("A planned move whose swap was not answered is never called failed before the store was read (D4, D5)")
    func unanswered() throws {
        var (machine, map) = try member("a", of: map(join("b")))
        map = try map.after(.declareDead([node("b")])).after(join("b", 2))
        _ = machine.handle(.refresh, now: at(2))
        _ = machine.handle(.read(map), now: at(2))
        let move = ShardMove(
            shard: ShardID(1), epoch: map[ShardID(1)].epoch, owner: node("a"), target: node("b", 2))
        let made = try #require(swap(in: machine.handle(.propose(2, .handOver([move])), now: at(3))))
        var actions: [Machine.Action] = []
        for step in 0..<200 {
            actions += machine.handle(.storeFailed(ApusError(.storageFailed)), now: at(100 + step * 60))
            actions += machine.handle(.tick, now: at(155 + step * 60))
        }
        // The store was away for 12 s: it may hold the swap or not.
        #expect(actions.removeFirst() == .storeChanged(.unreadable(ApusError(.storageFailed))))
        #expect(actions.allSatisfy { $0 == .read })
        // Unchanged, it may still take the swap that was not answered: only another one settles it.
        var unmade = machine
        #expect(swap(in: unmade.handle(.read(map), now: at(20_000))) == made)
        #expect(unmade.handle(.swapLost, now: at(20_001)) == [.read])
        var next = made
        next.revision = map.revision + 1
        #expect(
            machine.handle(.read(next), now: at(20_000))
                == [.storeChanged(.sound), .adopt(next), .settled(2, .decided(next))])
        // In another map than it was made for it cannot come any more, and what that says holds.
        let other = try map.after(.declareDead([node("b", 2)]))
        #expect(unmade.handle(.read(other), now: at(20_002)) == [.adopt(other), .settled(2, .decided(other))])
    }

    @Test("A node that finds its own death in the map is fenced once and swaps no more")
    func fenced() throws {
        var (machine, map) = try member("b", of: map(join("a")))
        let dead = try map.after(.declareDead([node("b")]))
        _ = machine.handle(.refresh, now: at(5))
        #expect(machine.handle(.read(dead), now: at(6)) == [.adopt(dead), .fenced])
        #expect(
            machine.handle(.propose(3, .drain(node("b"))), now: at(7)) == [.settled(3, .failed(ApusError(.fenced)))])
        #expect(machine.handle(.confirmedDead(node("a"), isCertain: true), now: at(8)).isEmpty)
        #expect(machine.handle(.tick, now: at(500)).isEmpty)
    }

    @Test("A node that left by itself is not fenced")
    func left() throws {
        var (machine, map) = try member("b", of: map(join("a")))
        _ = machine.handle(.propose(2, .leave(node("b"))), now: at(5))
        let actions = machine.handle(.swapWon(revision: map.revision + 1), now: at(6))
        #expect(!actions.contains(.fenced))
    }

    @Test("Planned moves leave 20 ms between their swaps; a drain goes at once, before those that wait")
    func pace() throws {
        var (machine, map) = try member("a", of: map(join("b")))
        map = try map.after(.declareDead([node("b")])).after(join("b", 2))
        _ = machine.handle(.refresh, now: at(2))
        _ = machine.handle(.read(map), now: at(2))
        func move(_ shard: UInt16) -> ShardMove {
            ShardMove(shard: ShardID(shard), epoch: map[ShardID(shard)].epoch, owner: node("a"), target: node("b", 2))
        }
        #expect(swap(in: machine.handle(.propose(2, .handOver([move(1)])), now: at(3))) != nil)
        _ = machine.handle(.propose(3, .handOver([move(2)])), now: at(3))
        #expect(swap(in: machine.handle(.swapWon(revision: map.revision + 1), now: at(4))) == nil)
        #expect(
            swap(in: machine.handle(.propose(4, .drain(node("a"))), now: at(5)))?.members.first {
                $0.state == .draining
            } != nil)
        #expect(swap(in: machine.handle(.swapWon(revision: map.revision + 2), now: at(6))) == nil)
        #expect(swap(in: machine.handle(.tick, now: at(24)))?.owner(of: ShardID(2))?.id == node("b", 2))
    }

    /// A machine of `a`, beside `b`, that has seen one map more than the first.
    private func experienced() throws -> (machine: Machine, first: ClusterMap, newest: ClusterMap) {
        var (machine, first) = try member("a", of: map(join("b")))
        let newest = try first.after(join("c"))
        _ = machine.handle(.refresh, now: at(2))
        #expect(machine.handle(.read(newest), now: at(3)) == [.adopt(newest)])
        return (machine, first, newest)
    }

    @Test("A store that went back is said to be so, nothing is decided on it, and the map held stays in force")
    func rolledBack() throws {
        var (machine, first, newest) = try experienced()
        #expect(machine.handle(.refresh, now: at(10)) == [.read])
        let wrong = Machine.StoreCondition.rolledBack(found: first.revision, seen: newest.revision)
        #expect(machine.handle(.read(first), now: at(11)) == [.storeChanged(wrong)])
        #expect(machine.map == newest)
        #expect(machine.handle(.confirmedDead(node("b"), isCertain: true), now: at(12)).isEmpty)
        for step in 0..<100 {
            #expect(machine.handle(.tick, now: at(100 + step * 60)) == [.read])
            #expect(machine.handle(.read(first), now: at(101 + step * 60)).isEmpty)
        }
        // Right again, it takes the death that waited.
        #expect(machine.handle(.tick, now: at(9000)) == [.read])
        let actions = machine.handle(.read(newest), now: at(9001))
        #expect(actions.first == .storeChanged(.sound))
        #expect(swap(in: actions)?.isAlive(node("b")) == false)
    }

    @Test("A later map in which epochs went back, or another of the same revision, is a store that was rolled back")
    func forked() throws {
        var (machine, first, newest) = try experienced()
        newest = try newest.after(.declareDead([node("c")]))
        _ = machine.handle(.refresh, now: at(5))
        _ = machine.handle(.read(newest), now: at(6))
        var fork = try first.after(join("d"))
        while fork.revision < newest.revision { fork.revision += 1 }
        for revision in [newest.revision, newest.revision + 5] {
            fork.revision = revision
            _ = machine.handle(.refresh, now: at(20))
            let actions = machine.handle(.read(fork), now: at(21))
            #expect(actions == [.storeChanged(.rolledBack(found: revision, seen: newest.revision))])
            _ = machine.handle(.tick, now: at(90))
            #expect(machine.handle(.read(newest), now: at(91)) == [.storeChanged(.sound)])
        }
        // What a restore puts back: the same map under a later revision.
        var restored = newest
        restored.revision += 1000
        _ = machine.handle(.refresh, now: at(100))
        #expect(machine.handle(.read(restored), now: at(101)) == [.adopt(restored)])
    }

    @Test("Another store in the place of the one that was here is said to be so")
    func foreign() throws {
        var (machine, _) = try member("a", of: map(join("b")))
        _ = machine.handle(.refresh, now: at(5))
        let error = ApusError(.stateForeign)
        #expect(machine.handle(.storeFailed(error), now: at(6)) == [.storeChanged(.foreign(error))])
    }

    @Test("A store that does not answer for 1 s is said to be unreadable; a late answer is taken")
    func silent() throws {
        var (machine, map) = try member("a", of: map(join("b")))
        #expect(machine.handle(.refresh, now: at(10)) == [.read])
        #expect(machine.handle(.tick, now: at(1009)).isEmpty)
        let actions = machine.handle(.tick, now: at(1010))
        #expect(actions == [.storeChanged(.unreadable(ApusError(.storageFailed)))])
        #expect(machine.handle(.tick, now: at(5000)).isEmpty)
        map.revision += 1
        #expect(machine.handle(.read(map), now: at(5001)) == [.storeChanged(.sound), .adopt(map)])
    }

    @Test("Proposals over the bound are refused with 10007")
    func bound() throws {
        var (machine, _) = try member("a", of: map(join("b")))
        var refusedCount = 0
        for id in 10..<400 as Range<UInt64> {
            // The swap of the first is never answered, so all others wait.
            for case .settled(_, .failed(let error)) in machine.handle(.propose(id, .drain(node("a"))), now: at(9)) {
                #expect(error.code == .overloaded)
                refusedCount += 1
            }
        }
        #expect(refusedCount == 390 - machine.configuration.proposalCountMax)
    }

    // MARK: Reports

    @Test("A report of the map that is being read or swapped causes no other read; one of a newer map does, once")
    func reports() throws {
        var (machine, current) = try member("a", of: map(join("b"), join("c")))
        let revision = current.revision
        #expect(machine.handle(.reported(revision), now: at(2)).isEmpty)
        #expect(machine.handle(.reported(revision + 1), now: at(3)) == [.read])
        #expect(machine.handle(.reported(revision + 1), now: at(4)).isEmpty)
        current.revision += 1
        #expect(machine.handle(.read(current), now: at(5)) == [.adopt(current)])
        #expect(machine.handle(.reported(revision + 1), now: at(6)).isEmpty)

        #expect(machine.handle(.reported(revision + 2), now: at(7)) == [.read])
        #expect(machine.handle(.reported(.max), now: at(8)).isEmpty)
        current.revision += 1
        #expect(machine.handle(.read(current), now: at(9)) == [.adopt(current), .read])
        #expect(machine.handle(.read(current), now: at(10)).isEmpty, "what is not true is believed once")

        let swapped = try #require(swap(in: machine.handle(.propose(2, .drain(node("a"))), now: at(11))))
        #expect(machine.handle(.reported(current.revision + 1), now: at(12)).isEmpty)
        let won = machine.handle(.swapWon(revision: current.revision + 1), now: at(13))
        #expect(!won.contains(.read) && machine.map.revision == current.revision + 1)
        #expect(machine.map.members == swapped.members)
    }
}

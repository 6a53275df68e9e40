import ApusCore
import ApusRelay
import ApusTraversal
import Testing

@Suite("Bits and packets per second of a user (D8, D13)")
struct QuotaTests {
    private func receivedCount(_ socket: LoopbackSocket) -> Int {
        var count = 0
        while socket.receive(milliseconds: 50) != nil { count += 1 }
        return count
    }

    private func send(_ count: Int, of size: Int, from client: LoopbackSocket, to endpoint: TransportAddress) {
        let message = PlaneHarness.channelData(0x4000, [UInt8](repeating: 1, count: size))
        for _ in 0..<count { client.send(message, to: endpoint) }
    }

    @Test("A user over its packets per second is cut, counted, and goes on later; another's flow keeps its rate")
    func packets() throws {
        let harness = try PlaneHarness()
        let (greedy, greedyPeer) = (LoopbackSocket(), LoopbackSocket())
        let (other, otherPeer) = (LoopbackSocket(), LoopbackSocket())
        let limited = try harness.installWithChannel(harness.flow(of: greedy), peer: greedyPeer.address)
        let free = try harness.installWithChannel(harness.flow(of: other), peer: otherPeer.address)
        harness.command(.limit(allocation: limited.id, user: 1, RelayRate(packetsPerSecond: 100)))
        harness.command(.limit(allocation: free.id, user: 2, RelayRate(packetsPerSecond: 100_000)))
        harness.settle()
        // Fewer than a socket of the system holds.
        for _ in 0..<10 {
            send(20, of: 100, from: greedy, to: harness.endpoint)
            send(20, of: 100, from: other, to: harness.endpoint)
        }
        #expect(receivedCount(otherPeer) == 200)
        // Half a second's worth at once, and what was earned while they were sent.
        let passed = receivedCount(greedyPeer)
        #expect((64..<120).contains(passed), "\(passed) passed")
        #expect(harness.counters { $0.overQuota >= 80 } != nil)
        pause(milliseconds: 200)
        send(10, of: 100, from: greedy, to: harness.endpoint)
        #expect(receivedCount(greedyPeer) == 10)
        let traffic = try #require(harness.remove(limited.id))
        #expect(traffic.upPackets == UInt64(passed) + 10 && traffic.dropped == UInt64(200 - passed))
    }

    @Test("Bytes are counted both ways, and all allocations of a user draw from one bucket")
    func bytes() throws {
        let harness = try PlaneHarness()
        let clients = [LoopbackSocket(), LoopbackSocket()]
        let peers = [LoopbackSocket(), LoopbackSocket()]
        var relayed: [TransportAddress] = []
        for (client, peer) in zip(clients, peers) {
            let allocation = try harness.installWithChannel(harness.flow(of: client), peer: peer.address)
            harness.command(.limit(allocation: allocation.id, user: 7, RelayRate(bytesPerSecond: 1)))
            relayed.append(allocation.relayed)
        }
        harness.settle()
        // A bucket holds 64 KiB at least: 65 packets of 1,000 bytes.
        send(40, of: 1_000, from: clients[0], to: harness.endpoint)
        #expect(receivedCount(peers[0]) == 40)
        for _ in 0..<40 { peers[1].send([UInt8](repeating: 2, count: 1_000), to: relayed[1]) }
        #expect(receivedCount(clients[1]) == 25)
        send(1, of: 1_000, from: clients[0], to: harness.endpoint)
        #expect(receivedCount(peers[0]) == 0)
    }

    @Test("The bucket of a user ends with its last allocation, and a new one begins full")
    func ends() throws {
        let harness = try PlaneHarness { $0.allocationsMax = 1 }
        for _ in 0..<3 {
            let (client, peer) = (LoopbackSocket(), LoopbackSocket())
            let allocation = try harness.installWithChannel(harness.flow(of: client), peer: peer.address)
            harness.command(.limit(allocation: allocation.id, user: 7, RelayRate(packetsPerSecond: 1)))
            harness.settle()
            send(70, of: 10, from: client, to: harness.endpoint)
            #expect(receivedCount(peer) == 64)
            _ = harness.remove(allocation.id)
        }
    }
}

@Suite("A user's rate divided among planes")
struct RateSharesTests {
    private func limits(_ tellings: [RateShares.Telling]) -> [String] {
        tellings.map { telling in
            if case .limitPeer(let connection, let limit) = telling.command {
                return "plane \(telling.plane) connection \(connection) user \(limit.user) \(limit.rate.bytesPerSecond)"
            }
            guard case .limit(let id, let user, let rate) = telling.command else { return "?" }
            return
                "plane \(telling.plane) allocation \(id) user \(user) \(rate.bytesPerSecond)/\(rate.packetsPerSecond)"
        }
    }

    @Test("Each plane that has allocations of a user has an equal part; it follows when these come, move and end")
    func parts() {
        var shares = RateShares(rate: RelayRate(bytesPerSecond: 100, packetsPerSecond: 1))
        #expect(limits(shares.began(1, user: "a", plane: 0)) == ["plane 0 allocation 1 user 1 100/1"])
        #expect(limits(shares.began(2, user: "a", plane: 0)) == ["plane 0 allocation 2 user 1 100/1"])
        #expect(
            limits(shares.began(3, user: "a", plane: 1)) == [
                "plane 1 allocation 3 user 1 50/1", "plane 0 allocation 1 user 1 50/1",
            ])
        #expect(limits(shares.began(4, user: "b", plane: 1)) == ["plane 1 allocation 4 user 2 100/1"])
        #expect(limits(shares.ended(1)).isEmpty)
        #expect(limits(shares.moved(3, to: 0)) == ["plane 0 allocation 3 user 1 100/1"])
        #expect(limits(shares.ended(2)).isEmpty && limits(shares.ended(3)).isEmpty && limits(shares.ended(9)).isEmpty)
        #expect(limits(shares.began(5, user: "a", plane: 2)) == ["plane 2 allocation 5 user 3 100/1"])
    }

    private func traffic(_ packets: UInt64, dropped: UInt64 = 0) -> RelayTraffic {
        var traffic = RelayTraffic()
        (traffic.upPackets, traffic.upBytes, traffic.dropped) = (packets, packets * 10, dropped)
        return traffic
    }

    @Test("Parts follow what planes carry and drop: a plane that is idle keeps a little, and one that begins gets more")
    func followsDemand() {
        var shares = RateShares(rate: RelayRate(packetsPerSecond: 6_400))
        _ = shares.began(1, user: "a", plane: 0)
        _ = shares.began(2, user: "a", plane: 1)
        // Far from its part: nothing changes.
        shares.carried(1, traffic(1_000), plane: 0)
        #expect(shares.rebalance(after: .seconds(1)).isEmpty)
        shares.carried(1, traffic(3_200, dropped: 2_000), plane: 0)
        #expect(
            limits(shares.rebalance(after: .seconds(1))) == [
                "plane 1 allocation 2 user 1 0/800", "plane 0 allocation 1 user 1 0/5600",
            ], "less before more")
        shares.carried(1, traffic(5_200), plane: 0)
        #expect(shares.rebalance(after: .seconds(1)).isEmpty, "it is as it should be")
        shares.carried(1, traffic(5_200), plane: 0)
        shares.carried(2, traffic(800, dropped: 4_400), plane: 1)
        #expect(
            limits(shares.rebalance(after: .seconds(1))) == [
                "plane 0 allocation 1 user 1 0/3200", "plane 1 allocation 2 user 1 0/3200",
            ])
        #expect(limits(shares.ended(2)) == ["plane 0 allocation 1 user 1 0/6400"])
        #expect(shares.rebalance(after: .seconds(1)).isEmpty)
    }

    @Test(
        "Whatever planes carry, their parts are never more than the bound together",
        arguments: 0..<200 as Range<UInt64>)
    func neverMore(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        let rate = RelayRate(bytesPerSecond: 1_000_000, packetsPerSecond: 64_000)
        var shares = RateShares(rate: rate)
        var parts: [UInt8: RelayRate] = [:]
        func apply(_ tellings: [RateShares.Telling], at step: Int) {
            for telling in tellings {
                guard case .limit(_, _, let part) = telling.command else { continue }
                parts[telling.plane] = part
            }
        }
        let planes = UInt8.random(in: 2...8, using: &random)
        for plane in 0..<planes { apply(shares.began(UInt32(plane), user: "a", plane: plane), at: -1) }
        for step in 0..<20 {
            for plane in 0..<planes where Bool.random(using: &random) {
                shares.carried(
                    UInt32(plane),
                    traffic(
                        UInt64.random(in: 0...60_000, using: &random),
                        dropped: UInt64.random(in: 0...60_000, using: &random)), plane: plane)
            }
            apply(shares.rebalance(after: .seconds(1)), at: step)
            let sum = parts.values.reduce(0) { $0 + $1.packetsPerSecond }
            #expect(sum <= rate.packetsPerSecond, "seed \(seed) step \(step)")
            #expect(parts.count == Int(planes) && parts.values.allSatisfy { $0.bytesPerSecond > 0 })
        }
    }

    @Test("One look divides for a bounded number of users; the others have their turn with the next")
    func boundedLooks() {
        var shares = RateShares(rate: RelayRate(packetsPerSecond: 6_400))
        let count = RateShares.rebalancesMax + 10
        for user in 0..<UInt32(count) {
            _ = shares.began(user * 2, user: "u\(user)", plane: 0)
            _ = shares.began(user * 2 + 1, user: "u\(user)", plane: 1)
            shares.carried(user * 2, traffic(6_400), plane: 0)
        }
        #expect(shares.rebalance(after: .seconds(1)).count == 2 * RateShares.rebalancesMax)
        #expect(shares.rebalance(after: .seconds(1)).count == 2 * 10)
        #expect(shares.rebalance(after: .seconds(1)).isEmpty)
    }

    @Test("A data connection at another plane than its allocation makes that one a plane of the user (RFC 6062)")
    func connections() {
        var shares = RateShares(rate: RelayRate(bytesPerSecond: 100))
        _ = shares.began(1, user: "a", plane: 0)
        // Numbers of connections and of allocations have nothing to do with each other.
        #expect(
            limits(shares.began(1, user: "a", plane: 1, isConnection: true)) == [
                "plane 1 connection 1 user 1 50", "plane 0 allocation 1 user 1 50/0",
            ])
        #expect(limits(shares.ended(1, isConnection: true)) == ["plane 0 allocation 1 user 1 100/0"])
        #expect(limits(shares.ended(1, isConnection: true)).isEmpty && limits(shares.ended(1)).isEmpty)
    }

    @Test("Without a rate nobody is told anything")
    func none() {
        var shares = RateShares(rate: RelayRate())
        #expect(shares.began(1, user: "a", plane: 0).isEmpty && shares.ended(1).isEmpty)
    }
}

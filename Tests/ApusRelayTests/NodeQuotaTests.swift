import ApusCore
import ApusRelay
import ApusTraversal
import Logging
import Testing

@Suite("Bits per second of a whole node (D8, D13)")
struct NodeQuotaTests {
    private func receivedCount(_ socket: LoopbackSocket) -> Int {
        var count = 0
        while socket.receive(milliseconds: 50) != nil { count += 1 }
        return count
    }

    private func send(_ count: Int, from client: LoopbackSocket, to listener: TransportAddress) {
        let message = PlaneHarness.channelData(0x4000, [UInt8](repeating: 1, count: 1_000))
        for _ in 0..<count { client.send(message, to: listener) }
    }

    @Test("All users draw from one bucket, both ways; what is over it is dropped, counted, and goes on later")
    func bytes() throws {
        let harness = try PlaneHarness { $0.nodeRate = RelayRate(bytesPerSecond: 1) }
        let clients = [LoopbackSocket(), LoopbackSocket()]
        let peers = [LoopbackSocket(), LoopbackSocket()]
        var relayed: [TransportAddress] = []
        for (user, (client, peer)) in zip(clients, peers).enumerated() {
            let allocation = try harness.installWithChannel(harness.flow(of: client), peer: peer.address)
            // One user with a bound of its own, one without.
            if user == 0 {
                harness.command(
                    .limit(allocation: allocation.id, user: 1, RelayRate(bytesPerSecond: 1_000_000_000)))
            }
            relayed.append(allocation.relayed)
        }
        harness.settle()
        // A bucket holds 64 KiB at least: 65 packets of 1,000 bytes.
        send(40, from: clients[0], to: harness.endpoint)
        #expect(receivedCount(peers[0]) == 40)
        for _ in 0..<40 { peers[1].send([UInt8](repeating: 2, count: 1_000), to: relayed[1]) }
        #expect(receivedCount(clients[1]) == 25)
        send(1, from: clients[0], to: harness.endpoint)
        #expect(receivedCount(peers[0]) == 0)
        let counted = try #require(harness.counters { $0.overNodeQuota >= 16 })
        #expect(counted.overNodeQuota == 16 && counted.overQuota == 0)
        harness.command(.limitNode(RelayRate(bytesPerSecond: 1_000_000)))
        harness.settle()
        pause(milliseconds: 100)
        send(10, from: clients[0], to: harness.endpoint)
        #expect(receivedCount(peers[0]) == 10)
    }

    @Test("The node's rate is divided among planes by what they carry, and never more than all of it")
    func shares() {
        var shares = NodeShares(rate: RelayRate(bytesPerSecond: 6_400), planeCount: 2)
        #expect(shares.rebalance(after: .seconds(1)).isEmpty)
        var traffic = RelayTraffic()
        (traffic.upPackets, traffic.upBytes) = (3, 3_000)
        shares.carried(traffic, plane: 0)
        let tellings = shares.rebalance(after: .seconds(1))
        #expect(tellings.map(\.plane) == [1, 0], "less is told before more")
        #expect(
            tellings.map(\.command) == [
                .limitNode(RelayRate(bytesPerSecond: 800)), .limitNode(RelayRate(bytesPerSecond: 5_600)),
            ])
        var none = NodeShares(rate: RelayRate(), planeCount: 2)
        none.carried(traffic, plane: 0)
        #expect(none.rebalance(after: .seconds(1)).isEmpty)
    }

    @Test("All of the bound is divided, however long the interval was to the nanosecond")
    func divided() {
        var traffic = RelayTraffic()
        (traffic.downPackets, traffic.downBytes) = (6, 6_000)
        for nanoseconds in stride(from: Int64(1_000_000_000), to: 1_000_100_000, by: 97) {
            var shares = NodeShares(rate: RelayRate(bytesPerSecond: 6_400), planeCount: 2)
            shares.carried(traffic, plane: 1)
            let rates = shares.rebalance(after: .nanoseconds(nanoseconds)).map { telling -> UInt64 in
                guard case .limitNode(let rate) = telling.command else { return 0 }
                return rate.bytesPerSecond
            }
            #expect(rates == [800, 5_600], "after \(nanoseconds) ns")
        }
    }

    @Test("A server tells its planes their parts once a second")
    func server() throws {
        let any = TransportAddress(v4: LoopbackSocket.host, port: 0)
        let credentials = RelayCredentials(realm: "test", current: Array("a secret".utf8))
        var server = RelayServer(
            configuration: TurnServerConfiguration(
                credentials: credentials, nonceKey: Array(repeating: 3, count: 32)),
            addresses: RelayAddresses(hosts: [any]),
            nodeShares: NodeShares(rate: RelayRate(bytesPerSecond: 6_400), planeCount: 2),
            log: Logger(label: "test", factory: { _ in SwiftLogNoOpLogHandler() }))
        var commands: [(plane: UInt8, command: PlaneCommand)] = []
        var traffic = RelayTraffic()
        (traffic.downPackets, traffic.downBytes) = (6, 6_000)
        let now = MonotonicTime.now()
        server.handle(
            .counters(allocation: 7, traffic, isFinal: false), from: 1, now: now, into: &commands)
        server.tick(now: now + .seconds(1), into: &commands)
        #expect(commands.map(\.plane) == [0, 1])
        // How much exactly depends on how long ago the server began, to the nanosecond.
        let rates = commands.map { command -> UInt64 in
            guard case .limitNode(let rate) = command.command else { return 0 }
            return rate.bytesPerSecond
        }
        #expect(rates.reduce(0, +) == 6_400 && rates[1] > 4 * rates[0], "\(rates)")
    }
}

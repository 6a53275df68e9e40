import ApusCluster
import ApusCore
import ApusTestKit
import ApusTransport
import ApusWire
import Logging
import NIOCore
import Synchronization
import Testing

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

private let cluster = ClusterID(unchecked: "test")
private let key = [UInt8](repeating: 7, count: 32)

@Suite("Authentication of heartbeats (D4)")
struct HeartbeatSealTests {
    private let hash = StableHash.hash("test")

    private func sealed(key: [UInt8] = key, to receiver: NodeID = node("b")) throws -> ByteBuffer {
        try HeartbeatSeal(key: key).seal(
            HeartbeatDatagram(
                clusterHash: hash, sequence: 4, sender: node("a"), message: .probe(nonce: 1, origin: node("c"))),
            to: receiver)
    }

    @Test("What was sealed for a receiver opens there")
    func opens() throws {
        let opened = try HeartbeatSeal(key: key).open(sealed(), receiver: node("b"), clusterHash: hash)
        #expect(opened.sender == node("a") && opened.sequence == 4)
    }

    @Test("Another key, another receiver or another life of it is forged; another cluster is told apart")
    func refused() throws {
        let seal = try HeartbeatSeal(key: key)
        let foreign = try sealed(key: [UInt8](repeating: 8, count: 32))
        #expect(throws: HeartbeatFault.forged) { try seal.open(foreign, receiver: node("b"), clusterHash: hash) }
        #expect(throws: HeartbeatFault.forged) { try seal.open(try sealed(), receiver: node("c"), clusterHash: hash) }
        #expect(throws: HeartbeatFault.forged) {
            try seal.open(try sealed(), receiver: node("b", 2), clusterHash: hash)
        }
        #expect(throws: HeartbeatFault.cluster) {
            try seal.open(try sealed(), receiver: node("b"), clusterHash: hash + 1)
        }
    }

    @Test("While the cluster's key is changed, nodes of every step read each other's datagrams")
    func twoKeys() throws {
        let (old, new) = (key, [UInt8](repeating: 8, count: 32))
        let steps = [
            ClusterKeys(current: old), ClusterKeys(current: old, other: new), ClusterKeys(current: new, other: old),
            ClusterKeys(current: new),
        ].map { try? HeartbeatSeal(keys: $0) }
        let datagram = HeartbeatDatagram(
            clusterHash: hash, sequence: 4, sender: node("a"), message: .probe(nonce: 1, origin: node("c")))
        for (index, step) in zip(steps.indices, steps) {
            for other in steps.indices {
                let sealed = try #require(step).seal(datagram, to: node("b"))
                let opened = try? #require(steps[other]).open(sealed, receiver: node("b"), clusterHash: hash)
                #expect((opened != nil) == (abs(index - other) <= 1), "from step \(index) to step \(other)")
            }
        }
    }

    @Test("No datagram with one bit changed, and none that was cut, opens")
    func flipped() throws {
        let seal = try HeartbeatSeal(key: key)
        let whole = try sealed()
        for bit in 0..<whole.readableBytes * 8 {
            var changed = whole
            let byte = try #require(changed.getInteger(at: bit / 8, as: UInt8.self))
            changed.setInteger(byte ^ (1 << UInt8(bit % 8)), at: bit / 8)
            #expect(throws: HeartbeatFault.self) { try seal.open(changed, receiver: node("b"), clusterHash: hash) }
        }
        for length in 0..<whole.readableBytes {
            let cut = try #require(whole.getSlice(at: 0, length: length))
            #expect(throws: HeartbeatFault.self) { try seal.open(cut, receiver: node("b"), clusterHash: hash) }
        }
    }

    @Test("A key that is too short is refused with 10022")
    func shortKey() {
        #expect(throws: ApusError(.configurationInvalid)) { try HeartbeatSeal(key: [1, 2, 3]) }
    }
}

/// Counts what reaches the driver, and sends one heartbeat to everyone with each tick.
private struct Recorder: HeartbeatDriver {
    var peers: [NodeID] = []
    var received: [NodeID] = []

    mutating func tick(now: MonotonicTime) -> [HeartbeatOutbound] {
        peers.map { HeartbeatOutbound(.heartbeat, to: $0) }
    }

    var vitals: [HeartbeatVitals] = []

    mutating func received(_ arrival: HeartbeatArrival) -> [HeartbeatOutbound] {
        received.append(arrival.sender)
        if let told = arrival.vitals { vitals.append(told) }
        return []
    }

    var lateness: Duration { .milliseconds(70) }
    var droppedCount: UInt32 = 0
}

@Suite("Heartbeat thread (D4)")
struct HeartbeatThreadTests {
    private func thread(_ name: String, key: [UInt8] = key, peers: [NodeID] = []) throws -> HeartbeatThread<Recorder> {
        try HeartbeatThread(
            configuration: HeartbeatConfiguration(bind: HostPort(host: "127.0.0.1", port: 0)), identity: node(name),
            cluster: cluster, seal: try HeartbeatSeal(key: key), driver: Recorder(peers: peers),
            logger: Logger(label: "test"))
    }

    /// Asks until the answer is yes, for 5 s at most.
    private func eventually(_ condition: () async -> Bool) async throws -> Bool {
        for _ in 0..<500 {
            if await condition() { return true }
            try await Task.sleep(for: .milliseconds(10))
        }
        return false
    }

    @Test("Two threads hear each other; one with another key, and one that is no peer, are not heard")
    func heard() async throws {
        let a = try thread("a", peers: [node("b")])
        let b = try thread("b", peers: [node("a")])
        let forger = try thread("a", key: [UInt8](repeating: 9, count: 32), peers: [node("b")])
        let outsider = try thread("c", peers: [node("b")])
        let addressOfA = try await a.start()
        let addressOfB = try await b.start()
        _ = try await forger.start()
        _ = try await outsider.start()
        a.setPeers([Peer(id: node("b"), address: HostPort(host: "localhost", port: addressOfB.port))])
        forger.setPeers([Peer(id: node("b"), address: addressOfB)])
        outsider.setPeers([Peer(id: node("b"), address: addressOfB)])
        try await Task.sleep(for: .milliseconds(100))
        #expect(await b.read(\.received) == [])
        b.setPeers([Peer(id: node("a"), address: addressOfA)])
        #expect(try await eventually { await b.read(\.received.count) ?? 0 > 5 })
        #expect(try await eventually { await a.read(\.received.count) ?? 0 > 5 })
        #expect(await b.read { Set($0.received) } == [node("a")])
        for thread in [a, b, forger, outsider] { await thread.stop() }
    }

    @Test("The key is changed while the threads run; a peer whose certificate is revoked is not heard")
    func changes() async throws {
        let a = try thread("a", peers: [node("b")])
        let b = try thread("b", peers: [node("a")])
        let (addressOfA, addressOfB) = (try await a.start(), try await b.start())
        a.setPeers([Peer(id: node("b"), address: addressOfB)])
        b.setPeers([Peer(id: node("a"), address: addressOfA)])
        func expectHeard(_ isHeard: Bool) async throws {
            // What was on its way is read first.
            try await Task.sleep(for: .milliseconds(50))
            let before = await b.read(\.received.count) ?? 0
            if isHeard {
                #expect(try await eventually { await b.read(\.received.count) ?? 0 > before + 5 })
            } else {
                try await Task.sleep(for: .milliseconds(200))
                #expect(await b.read(\.received.count) == before)
            }
        }
        try await expectHeard(true)
        let new = [UInt8](repeating: 8, count: 32)
        a.use(try HeartbeatSeal(key: new))
        try await expectHeard(false)
        b.use(try HeartbeatSeal(keys: ClusterKeys(current: key, other: new)))
        try await expectHeard(true)
        b.setRevoked(node("a"), true)
        try await expectHeard(false)
        b.setRevoked(node("a"), false)
        try await expectHeard(true)
        for thread in [a, b] { await thread.stop() }
    }

    @Test("Two threads tell each other their vitals after the first heartbeat")
    func vitals() async throws {
        let a = try thread("a", peers: [node("b")])
        let b = try thread("b", peers: [node("a")])
        let (addressOfA, addressOfB) = (try await a.start(), try await b.start())
        a.setPeers([Peer(id: node("b"), address: addressOfB)])
        b.setPeers([Peer(id: node("a"), address: addressOfA)])
        #expect(try await eventually { await b.read(\.vitals.count) ?? 0 > 5 })
        let told = try #require(await b.read { $0.vitals.last } ?? nil)
        #expect(told.latenessMilliseconds == 70)
        #expect(Swift.abs(Int64(told.wallMilliseconds) - WallClock.milliseconds()) < 10_000)
        var process = LocalProcess.current()
        process.thread = told.process.thread
        #expect(told.process == process && process.thread > 0)
        #expect([.idle, .waiting].contains(LocalProcess.state(of: told.process)))
        for thread in [a, b] { await thread.stop() }
    }

    @Test("A socket that breaks is opened again at its port, and the condition begins and ends")
    func reopens() async throws {
        let seen = Mutex<[String]>([])
        let a = try thread("a", peers: [node("b")])
        let b = try HeartbeatThread(
            configuration: HeartbeatConfiguration(bind: HostPort(host: "127.0.0.1", port: 0)), identity: node("b"),
            cluster: cluster, seal: try HeartbeatSeal(key: key), driver: Recorder(peers: [node("a")]),
            condition: { kind, message in seen.withLock { $0.append(message == nil ? "end" : kind.type) } },
            logger: Logger(label: "test"))
        let (addressOfA, addressOfB) = (try await a.start(), try await b.start())
        a.setPeers([Peer(id: node("b"), address: addressOfB)])
        b.setPeers([Peer(id: node("a"), address: addressOfA)])
        #expect(try await eventually { await b.read(\.received.count) ?? 0 > 5 })
        // A folder in the socket's place: neither can be read from nor sent to.
        let socket = try #require(Self.datagramSocket(port: addressOfB.port))
        let folder = open("/", O_RDONLY | O_DIRECTORY)
        dup2(folder, socket)
        close(folder)
        #expect(try await eventually { seen.withLock { $0 } == ["heartbeats_blocked", "end"] })
        let before = (await a.read(\.received.count) ?? 0, await b.read(\.received.count) ?? 0)
        #expect(try await eventually { await a.read(\.received.count) ?? 0 > before.0 + 5 })
        #expect(try await eventually { await b.read(\.received.count) ?? 0 > before.1 + 5 })
        for thread in [a, b] { await thread.stop() }
    }

    /// The descriptor of this process's socket that is bound to a UDP port of 127.0.0.1.
    private static func datagramSocket(port: Int) -> CInt? {
        (3..<4096).first { descriptor in
            var (type, length) = (CInt(0), socklen_t(MemoryLayout<CInt>.size))
            guard getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &length) == 0,
                type == CInt(SOCK_DGRAM.rawValue)
            else { return false }
            var address = sockaddr_in()
            var size = socklen_t(MemoryLayout<sockaddr_in>.size)
            let result = withUnsafeMutablePointer(to: &address) {
                $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { getsockname(descriptor, $0, &size) }
            }
            return result == 0 && address.sin_family == sa_family_t(AF_INET)
                && Int(UInt16(bigEndian: address.sin_port)) == port
        }
    }

    @Test("A port that is in use is refused with 10019 and named")
    func portInUse() async throws {
        let first = try thread("a")
        let address = try await first.start()
        let second = try HeartbeatThread(
            configuration: HeartbeatConfiguration(bind: address), identity: node("b"), cluster: cluster,
            seal: try HeartbeatSeal(key: key), driver: Recorder(), logger: Logger(label: "test"))
        let error = await #expect(throws: ApusError.self) { try await second.start() }
        #expect(error?.code == .addressInUse)
        #expect(error?.message.contains("\(address.port)") == true)
        await second.stop()
        await first.stop()
    }

    @Test("Real detectors on real sockets keep each other alive, and confirm a stopped one within 600 ms")
    func detectors() async throws {
        let ids = ["a", "b", "c"].map { node($0) }
        let deaths = Mutex<[NodeID: Int]>([:])
        var threads: [HeartbeatThread<MembershipDriver>] = []
        var peers: [Peer] = []
        for id in ids {
            let driver = MembershipDriver(machine: MembershipStateMachine(local: id)) { finding in
                if case .peer(.confirmedDead(let dead, _), _) = finding {
                    deaths.withLock { $0[dead, default: 0] += 1 }
                }
            }
            let thread = try HeartbeatThread(
                configuration: HeartbeatConfiguration(bind: HostPort(host: "127.0.0.1", port: 0)), identity: id,
                cluster: cluster, seal: try HeartbeatSeal(key: key), driver: driver, logger: Logger(label: "test"))
            peers.append(Peer(id: id, address: try await thread.start()))
            threads.append(thread)
        }
        for thread in threads {
            thread.setPeers(peers)
            thread.perform { $0.handle(.membersChanged(ids), now: $1) }
        }
        try await Task.sleep(for: .milliseconds(600))
        #expect(deaths.withLock { $0 } == [:])
        await threads[2].stop()
        let began = MonotonicTime.now()
        #expect(try await eventually { deaths.withLock { $0 } == [ids[2]: 2] })
        #expect(MonotonicTime.now() - began < .milliseconds(600))
        await threads[0].stop()
        await threads[1].stop()
    }
}

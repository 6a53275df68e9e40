import ApusCore
import ApusRelay
import ApusThreads
import ApusTraversal
import Glibc
import Synchronization
import Testing

@Suite("Control of the relay under load: no client takes it from others (D8, D13)", .serialized)
struct RelayStarvationTests {
    /// Sends the same datagrams again and again from a thread of its own.
    private final class Flood: Sendable {
        private let isOver = Atomic<Bool>(false)
        let sent = Atomic<Int>(0)

        /// - Parameter perMillisecond: datagrams in a row before the thread sleeps for a millisecond.
        func start(_ datagrams: [(descriptor: Int32, bytes: [UInt8])], perMillisecond: Int) throws -> OSThread {
            try OSThread(name: "flood") { [self] in
                while !isOver.load(ordering: .relaxed) {
                    for index in 0..<perMillisecond {
                        let next = datagrams[index % datagrams.count]
                        _ = Glibc.send(next.descriptor, next.bytes, next.bytes.count, Int32(MSG_DONTWAIT))
                    }
                    sent.add(perMillisecond, ordering: .relaxed)
                    usleep(1_000)
                }
            }
        }

        func stop() { isOver.store(true, ordering: .relaxed) }
    }

    @Test("Wrong integrity codes without end: an allocation loses and waits for nothing, and a new client comes in")
    func wrongCodes() throws {
        let relay = try RelayUnderTest()
        defer { relay.control.stop() }
        let good = relay.client(user: "good")
        let peer = LoopbackSocket()
        _ = try good.allocate()
        let bound = try good.code(.channelBind) {
            $0.add(channelNumber: 0x4001)
            $0.add(.xorPeerAddress, xorAddress: peer.address)
        }
        #expect(bound == 0)
        // Attackers at the good client's own address, each with a nonce of its own and a wrong password.
        let bad = (0..<16).map { _ in
            TurnTestClient(LoopbackSocket(datagramsTo: relay.endpoint), endpoint: nil, ("4000000000:bad", "wrong"))
        }
        for client in bad { #expect(try client.code(.allocate) { $0.add(requestedTransport: 17) } == 401) }
        let datagrams = bad.map { ($0.socket.descriptor, $0.request(.allocate) { $0.add(requestedTransport: 17) }) }
        // The flood knows their descriptors alone: released, they would be somebody else's.
        defer { withExtendedLifetime(bad) {} }
        let flood = Flood()
        let thread = try flood.start(datagrams, perMillisecond: 40)
        defer {
            flood.stop()
            thread.join()
        }
        while flood.sent.load(ordering: .relaxed) < 10_000 { usleep(1_000) }
        let start = flood.sent.load(ordering: .relaxed)
        var worst = 0.0
        for round in 0..<300 {
            let asked = MonotonicTime.now()
            good.send(good.request(.refresh))
            let answer = try #require(good.socket.receive(milliseconds: 1_000), "refresh \(round) has no answer")
            #expect(try StunMessage(answer).kind == .success)
            worst = max(worst, (MonotonicTime.now() - asked).milliseconds)
            good.send(PlaneHarness.channelData(0x4001, [UInt8(truncatingIfNeeded: round), 1, 2, 3]))
            #expect(peer.receive(milliseconds: 1_000) == [UInt8(truncatingIfNeeded: round), 1, 2, 3])
            usleep(2_000)
        }
        #expect(worst < 250, "a refresh took \(worst) ms")
        #expect(flood.sent.load(ordering: .relaxed) - start > 5_000)
        // A client at another address comes in within the retransmissions of RFC 8489 §6.2.1.
        let late = relay.client(user: "late", from: 0x7F03_0001)
        var isAllocated = false
        for _ in 0..<7 where !isAllocated {
            late.send(late.request(.allocate) { $0.add(requestedTransport: 17) })
            guard let bytes = late.socket.receive(milliseconds: 500) else { continue }
            let answer = try StunMessage(bytes)
            if late.nonce == nil { late.nonce = try answer.text(.nonce) }
            isAllocated = answer.kind == .success
        }
        #expect(isAllocated)
    }

    @Test("Wrong integrity codes of many ports of one address: a new client at that address comes in at once")
    func neighbours() throws {
        let relay = try RelayUnderTest()
        defer { relay.control.stop() }
        // More ports than the address's share has looks for.
        let bad = (0..<96).map { _ in
            TurnTestClient(LoopbackSocket(datagramsTo: relay.endpoint), endpoint: nil, ("4000000000:bad", "wrong"))
        }
        for client in bad { #expect(try client.code(.allocate) { $0.add(requestedTransport: 17) } == 401) }
        let datagrams = bad.map { ($0.socket.descriptor, $0.request(.allocate) { $0.add(requestedTransport: 17) }) }
        // As above.
        defer { withExtendedLifetime(bad) {} }
        let flood = Flood()
        let thread = try flood.start(datagrams, perMillisecond: 8)
        defer {
            flood.stop()
            thread.join()
        }
        while flood.sent.load(ordering: .relaxed) < 5_000 { usleep(1_000) }
        var attempts: [Int] = []
        for number in 0..<10 {
            let client = relay.client(user: "good\(number)")
            var count = 0
            var isAllocated = false
            while !isAllocated, count < 7 {
                count += 1
                client.send(client.request(.allocate) { $0.add(requestedTransport: 17) })
                guard let bytes = client.socket.receive(milliseconds: 500) else { continue }
                let answer = try StunMessage(bytes)
                if client.nonce == nil { client.nonce = try answer.text(.nonce) }
                isAllocated = answer.kind == .success
            }
            #expect(isAllocated, "client \(number) of the same address")
            attempts.append(count)
        }
        // A challenge, and the answer to it.
        #expect(attempts.allSatisfy { $0 <= 3 }, "\(attempts)")
    }

    @Test("3,000 clients behind one address have their allocations after one retransmission at most")
    func manyBehindOneAddress() throws {
        let relay = try RelayUnderTest()
        defer { relay.control.stop() }
        struct Waiting {
            var client: TurnTestClient
            var asked: MonotonicTime
            var retransmissions = 0
        }
        let clients = (0..<3_000).map { relay.client(user: "u\($0 / 50)") }
        let start = MonotonicTime.now()
        var waiting = clients.map { client in
            client.send(client.request(.allocate) { $0.add(requestedTransport: 17) })
            return Waiting(client: client, asked: .now())
        }
        var most = 0
        while !waiting.isEmpty, MonotonicTime.now() - start < .seconds(20) {
            var left: [Waiting] = []
            for var entry in waiting {
                if let bytes = entry.client.socket.receive(milliseconds: 0) {
                    let answer = try StunMessage(bytes)
                    if answer.kind == .success { continue }
                    entry.client.nonce = try answer.text(.nonce)
                } else if MonotonicTime.now() - entry.asked > .milliseconds(500) {
                    entry.retransmissions += 1
                    most = max(most, entry.retransmissions)
                } else {
                    left.append(entry)
                    continue
                }
                entry.client.send(entry.client.request(.allocate) { $0.add(requestedTransport: 17) })
                entry.asked = .now()
                left.append(entry)
            }
            waiting = left
        }
        #expect(waiting.isEmpty, "\(waiting.count) clients have no allocation")
        #expect(most <= 1, "a client asked \(most + 1) times, after \((MonotonicTime.now() - start).milliseconds) ms")
    }
}

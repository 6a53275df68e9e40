import ApusCore
import ApusRelay
import ApusTestKit
import ApusTraversal
import Testing

@Suite("Many allocations of one plane that send to each other at once (D8)", .serialized)
struct ShortCircuitMixTests {
    private struct Random {
        var state: UInt64
        mutating func next(_ bound: Int) -> Int {
            state = state &* 6_364_136_223_846_793_005 &+ 1_442_695_040_888_963_407
            return Int(state >> 33) % bound
        }
    }

    /// Bytes that tell who said them, and that they are whole: sender, number, length, and what follows from these.
    private static func payload(_ sender: Int, _ number: Int, _ count: Int) -> [UInt8] {
        let head = [UInt8(sender), UInt8(number & 0xFF), UInt8(number >> 8), UInt8(count >> 8), UInt8(count & 0xFF)]
        return head + (5..<count).map { UInt8(truncatingIfNeeded: $0 &* 31 ^ number &* 7 ^ sender) }
    }

    /// Whether a message is ChannelData or a Data indication with bytes as one of the senders made them.
    private static func isWhole(_ message: [UInt8], _ hosts: [TransportAddress]) -> Bool {
        var bytes: [UInt8]
        var sender: Int?
        if message[0] & 0xC0 == 0x40 {
            let count = Int(message[2]) << 8 | Int(message[3])
            guard message.count >= 4 + count else { return false }
            bytes = Array(message[4..<4 + count])
            sender = Int(message[1])
        } else {
            guard let data = try? StunMessage(message), let value = data.value(of: .data),
                let peer = try? data.xorAddress(.xorPeerAddress)
            else { return false }
            bytes = Array(value)
            sender = hosts.firstIndex(of: peer)
        }
        guard bytes.count >= 5, Int(bytes[0]) == sender else { return false }
        let count = Int(bytes[3]) << 8 | Int(bytes[4])
        return bytes == payload(Int(bytes[0]), Int(bytes[1]) | Int(bytes[2]) << 8, count)
    }

    /// Reads what waits at the sockets, or comes within the time. Returns the number of messages, each of them whole.
    private static func readAll(
        _ sockets: [LoopbackSocket], _ relayed: [TransportAddress], milliseconds: Int32
    ) -> Int {
        var count = 0
        for socket in sockets {
            while let message = socket.receive(milliseconds: milliseconds) {
                #expect(isWhole(message, relayed))
                count += 1
            }
        }
        return count
    }

    @Test(
        "Runs, single datagrams and indications among clients of all endpoints arrive whole and from whom they are",
        .enabled(if: TestCertificate.canBeMade, "openssl is not installed"), arguments: [1, 2, 3] as [UInt64])
    func mix(seed: UInt64) throws {
        let harness = try PlaneHarness.secured { $0.streamOutputMax = 65_536 }
        let datagrams = (0..<3).map { _ in LoopbackSocket() }
        let streams = try (0..<2).map { _ in try PlaneClient(harness, .tcp) }
        // These send, and read only what their kernel keeps.
        let secure = [try PlaneClient(harness, .tls), try PlaneClient(harness, .dtls)]
        let flows = datagrams.map { harness.flow(of: $0) } + (streams + secure).map(\.flow)
        let ends = try flows.map { try harness.install($0) }
        let relayed = ends.map(\.relayed)
        for (sender, end) in ends.enumerated() {
            for (receiver, peer) in relayed.enumerated() where receiver != sender {
                harness.command(.permit(allocation: end.id, peer: peer, ports: 1...65_535))
                // Some receivers have no channel for some senders.
                guard (sender + receiver) % 3 != 0 else { continue }
                harness.command(.bindChannel(allocation: end.id, number: 0x4000 + UInt16(receiver), peer: peer))
            }
        }
        harness.settle()
        var random = Random(state: seed)
        var (heard, number) = (0, 0)
        var rests = [[UInt8]](repeating: [], count: streams.count)
        for _ in 0..<600 {
            let sender = random.next(flows.count)
            var receiver = random.next(flows.count)
            if receiver == sender { receiver = (receiver + 1) % flows.count }
            let size = 5 + random.next(random.next(4) == 0 ? 9_000 : 400)
            let hasChannel = (sender + receiver) % 3 != 0
            let runs = sender < 3 && hasChannel && size < 1_200 && datagrams[sender].cut(into: Int32(4 + size))
            let messages = (0..<(runs ? 1 + random.next(40) : 1)).map { _ in
                number = (number + 1) & 0xFFFF
                let bytes = Self.payload(sender, number, size)
                return hasChannel
                    ? PlaneHarness.channelData(0x4000 + UInt16(receiver), bytes)
                    : PlaneHarness.sendIndication(relayed[receiver], bytes)
            }
            if sender < 3 {
                if !runs { _ = datagrams[sender].cut(into: 0) }
                datagrams[sender].send(messages.flatMap { $0 }, to: harness.endpoint)
            } else {
                let isStream = flows[sender].transport != .dtls
                let pad = isStream ? (4 - messages[0].count % 4) % 4 : 0
                (streams + secure)[sender - 3].write(messages[0] + [UInt8](repeating: 0, count: pad))
            }
            heard += Self.readAll(datagrams, relayed, milliseconds: 0)
            for (index, stream) in streams.enumerated() where random.next(3) == 0 {
                while let more = stream.receives(within: 0), !more.isEmpty { rests[index] += more }
                while rests[index].count >= 4 {
                    let length = Int(rests[index][2]) << 8 | Int(rests[index][3])
                    let count = rests[index][0] & 0xC0 == 0x40 ? 4 + (length + 3) & ~3 : 20 + length
                    guard rests[index].count >= count else { break }
                    #expect(Self.isWhole(Array(rests[index].prefix(count)), relayed))
                    rests[index].removeFirst(count)
                    heard += 1
                }
            }
        }
        // A busy machine may serve the plane only after all was sent.
        for _ in 0..<100 where heard <= 100 { heard += Self.readAll(datagrams, relayed, milliseconds: 20) }
        // Datagrams may be lost where a machine is busy, and what nobody reads is: those that arrive are whole.
        #expect(heard > 100)
        #expect(harness.counters { $0.shortCircuited > 600 && $0.malformed == 0 } != nil)
    }
}

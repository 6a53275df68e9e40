import ApusCore
import ApusRelay
import ApusTraversal
import Glibc
import Testing

@Suite("Malformed and hostile messages to a relay (D8; coturn's CVEs)")
struct RelayMessageAttackTests {
    /// Whether all padding of a message is zero.
    private func isPaddingZero(_ bytes: [UInt8]) -> Bool {
        var offset = 20
        while offset + 4 <= bytes.count {
            let end = offset + 4 + Int(bytes[offset + 2]) << 8 + Int(bytes[offset + 3])
            let next = (end + 3) & ~3
            guard next <= bytes.count, bytes[end..<next].allSatisfy({ $0 == 0 }) else { return false }
            offset = next
        }
        return offset == bytes.count
    }

    /// A message by hand, whose length field may lie.
    private func message(_ type: UInt16, _ attributes: [UInt8], length: UInt16? = nil) -> [UInt8] {
        let length = length ?? UInt16(attributes.count)
        return [UInt8(type >> 8), UInt8(type & 255), UInt8(length >> 8), UInt8(length & 255), 0x21, 0x12, 0xa4, 0x42]
            + [UInt8](repeating: 5, count: 12) + attributes
    }

    @Test("The padding of every answer is zero, whatever was sent before (CVE-2020-4067)")
    func padding() throws {
        let relay = try RelayUnderTest()
        defer { relay.control.stop() }
        let client = relay.client()
        let peer = LoopbackSocket()
        var answers: [StunMessage] = []
        let relayed = try client.allocate()
        for count in 0..<4 {
            // Text of any length is echoed nowhere, but fills the buffers that answers might be made in.
            answers.append(
                try client.ask(.refresh) { writer in
                    writer.add(StunAttribute(rawValue: 0x8022), [UInt8](repeating: 255, count: 700 + count))
                })
            answers.append(
                try client.ask(.refresh) { writer in
                    for unknown in 0...UInt16(count) { writer.add(StunAttribute(rawValue: 0x7000 + unknown), [255]) }
                })
        }
        answers.append(try client.ask(.createPermission) { $0.add(.xorPeerAddress, xorAddress: peer.address) })
        answers.append(try client.ask(.channelBind) { $0.add(.data, [255]) })
        for answer in answers { #expect(isPaddingZero(answer.bytes)) }
        for count in [1_001, 1, 2, 3, 5, 998, 7] {
            peer.send([UInt8](repeating: 255, count: count), to: relayed)
            let data = try #require(client.socket.receive())
            #expect(isPaddingZero(data) && data.count == 20 + 12 + 4 + (count + 3) & ~3)
        }
    }

    @Test("The padding of ChannelData and of Data indications is zero over TCP too (CVE-2020-4067)")
    func streamPadding() throws {
        let relay = try RelayUnderTest()
        defer { relay.control.stop() }
        let client = relay.client(isStream: true)
        let (bound, permitted) = (LoopbackSocket(), LoopbackSocket())
        let relayed = try client.allocate()
        #expect(try client.code(.createPermission) { $0.add(.xorPeerAddress, xorAddress: permitted.address) } == 0)
        let code = try client.code(.channelBind) {
            $0.add(channelNumber: 0x4001)
            $0.add(.xorPeerAddress, xorAddress: bound.address)
        }
        #expect(code == 0)
        for count in [999, 1, 2, 3] {
            let padded = (count + 3) & ~3
            bound.send([UInt8](repeating: 255, count: count), to: relayed)
            let data = client.socket.receive(bytes: 4 + padded)
            #expect(data.count == 4 + padded && data.suffix(padded - count).allSatisfy { $0 == 0 })
            permitted.send([UInt8](repeating: 255, count: count), to: relayed)
            #expect(isPaddingZero(client.socket.receive(bytes: 20 + 12 + 4 + padded)))
        }
    }

    @Test("What lies about its length is not answered, and the relay goes on (CVE-2020-6061, CVE-2020-6062)")
    func lengths() throws {
        let relay = try RelayUnderTest()
        defer { relay.control.stop() }
        let client = relay.client()
        _ = try client.allocate()
        let lies: [[UInt8]] = [
            message(0x0003, [0, 0x19, 0xff, 0xff, 17, 0, 0, 0]),  // beyond the message
            message(0x0003, [0, 0x19, 0, 5, 17, 0, 0, 0]),  // by one byte
            message(0x0003, [0, 0x19, 0, 4, 17, 0, 0, 0], length: 0xfffc),
            message(0x0003, [0, 0x19, 0, 4, 17, 0, 0, 0], length: 12),
            message(0x0003, [0, 0x19, 0, 4, 17, 0, 0, 0], length: 4),
            message(0x0003, [0, 0x19, 0, 4, 17, 0, 0], length: 7),
            message(0x0003, [0, 0x19], length: 2),
            message(0x0001, [0x80, 0x28, 0, 4, 1, 2, 3, 4]),  // a wrong FINGERPRINT
            message(0x0001, [0x80, 0x28, 0, 0]),
            message(0x0001, (0..<49).flatMap { [0x80, $0, 0, 0] as [UInt8] }),
            message(0x0001, [0x80, 0x22, 0x0b, 0xb8] + [UInt8](repeating: 1, count: 3_000)),
            message(0x0016, [0, 0x12, 0, 8, 0, 1, 0x21, 0x12], length: 8),
            message(0x0016, [0, 0x13, 0, 200, 1, 2, 3, 4]),
            message(0x0101, []), message(0x0113, []),  // answers, to a server
            [0x40, 1], [0x40, 1, 0xff, 0xff], [0x40, 1, 0, 9, 1], [0x4f, 0xff, 0, 0], [0x7f, 0xff, 0, 0],
            [0], [255], [3], [UInt8](repeating: 0, count: 19), [UInt8](repeating: 22, count: 100),
        ]
        for lie in lies { client.send(lie) }
        #expect(client.isNextAnswered())
        #expect(try client.code(.refresh) == 0)
    }

    @Test("A value of another type or length than its attribute's is refused with 400 (CVE-2026-40613)")
    func types() throws {
        let relay = try RelayUnderTest()
        defer { relay.control.stop() }
        let client = relay.client()
        _ = try client.allocate()
        let v4: [UInt8] = [0, 1, 0x2f, 0x12, 0x5e, 0x12, 0xa4, 0x43]
        let peers: [[UInt8]] = [
            [0, 3] + v4.dropFirst(2), [0, 0] + v4.dropFirst(2), [0, 2] + v4.dropFirst(2),
            [0, 1] + [UInt8](repeating: 1, count: 18), Array(v4.dropLast()), v4 + [0], [], [0, 1],
        ]
        for peer in peers {
            #expect(try client.code(.createPermission) { $0.add(.xorPeerAddress, peer) } == 400, "\(peer)")
            let code = try client.code(.channelBind) {
                $0.add(channelNumber: 0x4001)
                $0.add(.xorPeerAddress, peer)
            }
            #expect(code == 400, "\(peer)")
        }
        for lifetime in [[], [0, 0, 2], [0, 0, 0, 2, 88], [UInt8](repeating: 0, count: 400)] as [[UInt8]] {
            #expect(try client.code(.refresh) { $0.add(.lifetime, lifetime) } == 400, "\(lifetime)")
        }
        for number in [[0x3f, 0xff, 0, 0], [0x50, 0, 0, 0], [0x80, 0, 0, 0], [0, 0, 0, 0], [0x40, 0]] as [[UInt8]] {
            let code = try client.code(.channelBind) {
                $0.add(.channelNumber, number)
                $0.add(.xorPeerAddress, v4)
            }
            #expect(code == 400, "\(number)")
        }
        let other = relay.client()
        for transport in [[], [17], [17, 0, 0, 0, 0]] as [[UInt8]] {
            let code = try other.code(.allocate) { $0.add(.requestedTransport, transport) }
            #expect(code == 400, "\(transport)")
        }
        // The allocation has outlived all of it.
        #expect(try client.code(.refresh) == 0)
    }

    @Test("Of two attributes of a type the first counts, for plane and control alike")
    func duplicates() throws {
        let relay = try RelayUnderTest()
        defer { relay.control.stop() }
        let client = relay.client()
        let (first, second) = (LoopbackSocket(), LoopbackSocket())
        _ = try client.allocate()
        #expect(try client.code(.createPermission) { $0.add(.xorPeerAddress, xorAddress: first.address) } == 0)
        for isUnusual in [false, true] {
            for isFirstBroken in [false, true] {
                var writer = StunWriter(StunMessageType(.indication, .send), TransactionID(high: 1, low: 1))
                if isFirstBroken { writer.add(.xorPeerAddress, [0, 3, 1, 1, 1, 1, 1, 1]) }
                writer.add(.xorPeerAddress, xorAddress: isFirstBroken ? second.address : first.address)
                writer.add(.xorPeerAddress, xorAddress: second.address)
                writer.add(.data, [1])
                writer.add(.data, [2])
                if isUnusual { writer.add(.dontFragment, []) }
                client.send(writer.bytes)
            }
        }
        // An indication whose peer cannot be read goes nowhere, whatever else it names.
        let got = [first.receive(milliseconds: 500), first.receive(milliseconds: 500)]
        #expect(got.allSatisfy { $0 == nil || $0 == [1] })
        #expect(first.receive(milliseconds: 30) == nil && second.receive(milliseconds: 30) == nil)
        #expect(
            try client.code(.refresh) {
                $0.add(.lifetime, number: UInt32(900))
                $0.add(.lifetime, number: UInt32(0))
            } == 0)
        #expect(try client.code(.refresh) == 0, "the second LIFETIME did not end the allocation")
    }

    @Test("ChannelData over TCP comes through in whatever pieces; what is neither it nor STUN ends the connection")
    func fragments() throws {
        let relay = try RelayUnderTest()
        defer { relay.control.stop() }
        let client = relay.client(isStream: true)
        let peer = LoopbackSocket()
        _ = try client.allocate()
        let code = try client.code(.channelBind) {
            $0.add(channelNumber: 0x4001)
            $0.add(.xorPeerAddress, xorAddress: peer.address)
        }
        #expect(code == 0)
        let data: [UInt8] = [0x40, 1, 0, 5, 1, 2, 3, 4, 5, 0, 0, 0]
        for byte in data {
            client.send([byte])
            pause(milliseconds: 1)
        }
        #expect(peer.receive() == [1, 2, 3, 4, 5])
        // Cut within a header, within data and within padding.
        for cut in 1..<12 {
            client.send(data + data.prefix(cut))
            pause(milliseconds: 2)
            client.send(data.dropFirst(cut) + data)
            for _ in 0..<3 { #expect(peer.receive() == [1, 2, 3, 4, 5]) }
        }
        client.send([0x40, 1, 0, 0])
        #expect(peer.receive() == [])
        client.send(data + [0xc0, 0, 0, 0])
        #expect(peer.receive() == [1, 2, 3, 4, 5])
        #expect(client.socket.receive() == [], "the connection is closed")
    }

    @Test("A web request to the relay is answered by nothing (CVE-2020-6061, CVE-2020-6062, CVE-2018-4059)")
    func web() throws {
        let relay = try RelayUnderTest()
        defer { relay.control.stop() }
        let requests = ["POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "GET / HTTP/1.0\r\n\r\n", "\r\nstats\r\n"]
        for request in requests {
            let client = relay.client(isStream: true)
            client.send(Array(request.utf8))
            client.send([UInt8](repeating: 0x41, count: 200_000))
            let answer = client.socket.receive(milliseconds: 50)
            #expect(answer == nil || answer == [])
        }
        #expect(relay.client().isNextAnswered())
    }

    @Test("A name that would be a command of a database is a name that nobody has (CVE-2018-4056)")
    func injection() throws {
        let relay = try RelayUnderTest()
        defer { relay.control.stop() }
        let names: [(String, code: UInt16)] = [
            ("' OR '1'='1", 401), ("4000000000:'; DROP TABLE users; --", 401), ("%s%s%n", 401), (":", 401),
            // No names at all (RFC 8265 §4.2).
            ("4000000000:\0", 400), ("", 400),
        ]
        for (name, code) in names {
            let client = TurnTestClient(LoopbackSocket(datagramsTo: relay.endpoint), endpoint: nil, (name, "x"))
            #expect(try client.code(.allocate) { $0.add(requestedTransport: 17) } == code, "\(name)")
        }
        // Longer than a name may be (CVE-2026-43994).
        for count in [509, 763, 1_500] {
            let name = String(repeating: "a", count: count)
            let client = TurnTestClient(LoopbackSocket(datagramsTo: relay.endpoint), endpoint: nil, (name, "x"))
            let code = try client.code(.allocate) { $0.add(requestedTransport: 17) }
            #expect(code == 400 || code == 401, "\(count)")
        }
        #expect(relay.client().isNextAnswered())
    }
}

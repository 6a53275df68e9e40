import ApusCore
import ApusTraversal
import Testing

@Suite("What a STUN reader refuses, and what a writer never does (RFC 8489 §5, §14; coturn's CVEs)")
struct StunCodecTests {
    private let transaction = TransactionID(high: 0x0102_0304, low: 0x0506_0708_090a_0b0c)

    private func message(_ attributes: String, type: String = "0003") -> [UInt8] {
        let body = hex(attributes)
        var bytes = hex(type) + [UInt8(body.count >> 8), UInt8(body.count & 255)]
        bytes += hex("2112a442 0102030405060708090a0b0c") + body
        return bytes
    }

    private func expectMalformed(_ what: Comment, _ body: () throws -> Void) {
        do {
            try body()
            Issue.record("was taken: \(what)")
        } catch {
            #expect((error as? ApusError)?.code == .malformed, what)
        }
    }

    @Test("Methods and classes are interleaved and come back", arguments: StunClass.allCases)
    func types(kind: StunClass) {
        for number in UInt16(0)..<0x1000 {
            let type = StunMessageType(kind, StunMethod(rawValue: number))
            #expect(StunMessageType(wire: type.wire) == type)
        }
        #expect(StunMessageType(.error, .allocate).wire == 0x0113)
        #expect(StunMessageType(.indication, .data).wire == 0x0017)
        #expect(StunMessageType(wire: 0x4001) == nil)
    }

    @Test(
        "An attribute that leaves its message is refused (CVE-2020-6061, CVE-2020-6062)",
        arguments: [
            "00060001", "0006ffff 00000000", "00060005 61626364", "00060004 61626364 0008", "0013fffd 00000000",
        ])
    func attributesBeyondTheEnd(attributes: String) {
        expectMalformed("\(attributes)") { _ = try StunMessage(message(attributes)) }
    }

    @Test("Headers that are not STUN's are refused")
    func headers() {
        expectMalformed("short") { _ = try StunMessage(Array(message("").dropLast())) }
        expectMalformed("cookie") {
            var bytes = message("")
            bytes[4] = 0
            _ = try StunMessage(bytes)
        }
        expectMalformed("length") {
            var bytes = message("")
            bytes[3] = 4
            _ = try StunMessage(bytes)
        }
        expectMalformed("ChannelData") { _ = try StunMessage(message("", type: "4000")) }
        expectMalformed("too many") { _ = try StunMessage(message(String(repeating: "80220000", count: 49))) }
        expectMalformed("after FINGERPRINT") { _ = try StunMessage(message("80280004 00000000 80220000")) }
    }

    @Test("An attribute of another length than its type's is no value of that type (CVE-2026-40613)")
    func typeConfusion() throws {
        let wrong = try StunMessage(
            message(
                """
                000c0002 40000000 000d0008 0000000000000000 00120009 000112345678901200000000 00170001 01000000
                00180004 80000000 00190000 00220004 00000000 00200008 0002000000000000 00090003 00000400
                001d0002 00010000 80040004 00000000
                """))
        expectMalformed("CHANNEL-NUMBER") { _ = try wrong.channelNumber() }
        expectMalformed("LIFETIME") { _ = try wrong.number32(.lifetime) }
        expectMalformed("XOR-PEER-ADDRESS") { _ = try wrong.xorAddress(.xorPeerAddress) }
        expectMalformed("XOR-PEER-ADDRESS, all") { _ = try wrong.xorAddresses(.xorPeerAddress, countMax: 4) }
        expectMalformed("REQUESTED-ADDRESS-FAMILY") { _ = try wrong.familyNumber(.requestedAddressFamily) }
        expectMalformed("EVEN-PORT") { _ = try wrong.evenPort() }
        expectMalformed("REQUESTED-TRANSPORT") { _ = try wrong.requestedTransport() }
        expectMalformed("RESERVATION-TOKEN") { _ = try wrong.number64(.reservationToken) }
        expectMalformed("IPv4 bytes of family 2") { _ = try wrong.xorAddress(.xorMappedAddress) }
        expectMalformed("ERROR-CODE") { _ = try wrong.errorValue() }
        expectMalformed("PASSWORD-ALGORITHM") { _ = try wrong.passwordAlgorithm() }
        expectMalformed("ICMP") { _ = try wrong.icmp() }
    }

    @Test("Oversized and broken texts are refused (CVE-2026-43994)")
    func texts() throws {
        let long = String(repeating: "61", count: 764)
        let message = try StunMessage(message("001402fc \(long) 00060002 c3280000"))
        expectMalformed("REALM") { _ = try message.text(.realm) }
        expectMalformed("USERNAME") { _ = try message.text(.username) }
    }

    @Test("An integrity of another length never verifies")
    func integrityLength() throws {
        let key = StunKey(password: "secret")
        for attributes in ["00080000", "00080004 00000000", "001c0010 00000000000000000000000000000000"] {
            let message = try StunMessage(message(attributes))
            #expect(!message.verifies(.sha1, key: key) && !message.verifies(.sha256, key: key))
        }
    }

    @Test("What follows the integrity is not part of the message (RFC 8489 §14.5)")
    func afterIntegrity() throws {
        var writer = StunWriter(StunMessageType(.request, .allocate), transaction)
        writer.add(.lifetime, number: UInt32(600))
        writer.addIntegrity(.sha1, key: StunKey(password: "p"))
        writer.add(.dontFragment, [])
        writer.addIntegrity(.sha256, key: StunKey(password: "p"))
        writer.add(.channelNumber, number: UInt32(0x4000_0000))
        writer.addFingerprint()
        let message = try StunMessage(writer.bytes)
        #expect(message.attributes == [.lifetime, .messageIntegrity, .messageIntegritySHA256, .fingerprint])
        #expect(message.verifies(.sha1, key: StunKey(password: "p")))
        #expect(message.verifies(.sha256, key: StunKey(password: "p")))
        #expect(message.isFingerprintRight == true)
    }

    @Test("The first of two attributes of a type counts; peers count all")
    func doubles() throws {
        var writer = StunWriter(StunMessageType(.request, .createPermission), transaction)
        let first = TransportAddress(v4: 0x0101_0101, port: 1)
        let second = try #require(TransportAddress("2606:4700::1", port: 2))
        writer.add(.xorPeerAddress, xorAddress: first)
        writer.add(.xorPeerAddress, xorAddress: second)
        writer.addIntegrity(.sha1, key: StunKey(password: "p"))
        let message = try StunMessage(writer.bytes)
        #expect(try message.xorAddress(.xorPeerAddress) == first)
        #expect(try message.xorAddresses(.xorPeerAddress, countMax: 2) == [first, second])
        expectMalformed("too many") { _ = try message.xorAddresses(.xorPeerAddress, countMax: 1) }
    }

    @Test("Padding is zero, whatever the lengths (CVE-2020-4067)", arguments: 0..<12)
    func padding(count: Int) throws {
        var writer = StunWriter(StunMessageType(.indication, .data), transaction)
        writer.add(.data, [UInt8](repeating: 0xff, count: count))
        #expect(writer.bytes.count % 4 == 0)
        #expect(writer.bytes[(24 + count)...].allSatisfy { $0 == 0 })
        #expect(try StunMessage(writer.bytes).value(of: .data)?.count == count)
    }

    @Test("Values come back as they were written")
    func values() throws {
        var writer = StunWriter(StunMessageType(.error, .allocate), transaction)
        writer.add(errorCode: .insufficientCapacity, reason: "full")
        writer.add(.alternateServer, address: TransportAddress(v4: 0x0808_0808, port: 3478))
        writer.add(.reservationToken, number: UInt64(77))
        writer.add(channelNumber: 0x4001)
        writer.add(requestedTransport: 17)
        writer.add(.requestedAddressFamily, family: .v6)
        writer.add(.evenPort, [0x80])
        writer.add(icmp: StunICMP(type: 3, code: 4, errorData: 1400))
        writer.add(unknownAttributes: [.priority])
        let message = try StunMessage(writer.bytes)
        #expect(try message.errorValue() == StunErrorValue(code: .insufficientCapacity, reason: "full"))
        #expect(try message.address(.alternateServer) == TransportAddress(v4: 0x0808_0808, port: 3478))
        #expect(try message.number64(.reservationToken) == 77)
        #expect(try message.channelNumber() == 0x4001)
        #expect(try message.requestedTransport() == 17)
        #expect(try message.familyNumber(.requestedAddressFamily) == 2)
        #expect(try message.evenPort() == true)
        #expect(try message.icmp() == StunICMP(type: 3, code: 4, errorData: 1400))
        #expect(message.value(of: .unknownAttributes).map { Array($0) } == [0, 0x24])
    }

    @Test("A v4-mapped peer comes out as IPv4 (CVE-2026-27624)")
    func mappedPeer() throws {
        var mapped = hex("0012 0014 0002") + [0x00 ^ 0x21, 0x50 ^ 0x12]
        let mask = hex("2112a442 0102030405060708090a0b0c")
        mapped += zip(hex("00000000000000000000ffff7f000001"), mask).map { $0 ^ $1 }
        let text = mapped.map { String($0 >> 4, radix: 16) + String($0 & 15, radix: 16) }.joined()
        let message = try StunMessage(message(text, type: "0016"))
        #expect(try message.xorAddress(.xorPeerAddress) == TransportAddress("127.0.0.1", port: 80))
    }

    @Test("ChannelData: numbers 0x4000 to 0x4FFF, and no more data than there is (RFC 8656 §12)")
    func channelData() throws {
        let header = try ChannelDataHeader(datagram: hex("40010003 616263 00"))
        #expect(header == ChannelDataHeader(channel: 0x4001, dataByteCount: 3))
        #expect(header.streamByteCount == 8)
        #expect(header.bytes == hex("40010003"))
        for bad in ["4001", "40010004 616263", "50000000", "3fff0000", "ffff0000"] {
            expectMalformed("\(bad)") { _ = try ChannelDataHeader(datagram: hex(bad)) }
        }
    }

    @Test("A stream is cut into the same messages however it comes", arguments: 1..<24)
    func stream(step: Int) throws {
        let stream =
            StunVectorTests.request + ChannelDataHeader.streamMessage(channel: 0x4002, data: [1, 2, 3, 4, 5])
            + StunVectorTests.longTerm + ChannelDataHeader.streamMessage(channel: 0x4fff, data: [])
        var splitter = StunStreamSplitter()
        var found: [StunStreamSplitter.Message] = []
        for start in stride(from: 0, to: stream.count, by: step) {
            splitter.append(stream[start..<min(start + step, stream.count)])
            while let message = try splitter.next() { found.append(message) }
        }
        let expected: [StunStreamSplitter.Message] = [
            .stun(StunVectorTests.request), .channelData(0x4002, [1, 2, 3, 4, 5]), .stun(StunVectorTests.longTerm),
            .channelData(0x4fff, []),
        ]
        #expect(found == expected)
        #expect(splitter.bufferedByteCount == 0)
    }

    @Test("A stream that is neither, or too long, ends at once")
    func badStreams() {
        for (bytes, limit) in [("80000000", 1000), ("50000000", 1000), ("00010002", 1000), ("00010400", 1000)] {
            var splitter = StunStreamSplitter(stunByteCountMax: limit)
            splitter.append(hex(bytes))
            expectMalformed("\(bytes)") { _ = try splitter.next() }
        }
    }
}

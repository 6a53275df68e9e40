import ApusCore
import ApusTraversal
import Testing

/// Bytes written in hexadecimal.
func hex(_ text: String) -> [UInt8] {
    let digits = text.filter { !$0.isWhitespace }.compactMap(\.hexDigitValue)
    return stride(from: 0, to: digits.count - 1, by: 2).map { UInt8(digits[$0] * 16 + digits[$0 + 1]) }
}

@Suite("STUN test vectors (RFC 5769, RFC 8489 appendix B)")
struct StunVectorTests {
    static let request = hex(
        """
        00010058 2112a442 b7e7a701bc34d686fa87dfae
        80220010 5354554e207465737420636c69656e74
        00240004 6e0001ff
        80290008 932ff9b151263b36
        00060009 6576746a3a68367659 202020
        00080014 9aeaa70cbfd8cb56781ef2b5b2d3f249c1b571a2
        80280004 e57a3bcf
        """)
    static let responseV4 = hex(
        """
        0101003c 2112a442 b7e7a701bc34d686fa87dfae
        8022000b 7465737420766563746f72 20
        00200008 0001a147e112a643
        00080014 2b91f599fd9e90c38c7489f92af9ba53f06be7d7
        80280004 c07d4c96
        """)
    static let responseV6 = hex(
        """
        01010048 2112a442 b7e7a701bc34d686fa87dfae
        8022000b 7465737420766563746f72 20
        00200014 0002a147 0113a9faa5d3f179bc25f4b5bed2b9d9
        00080014 a382954e4be67bf11784c97c8292c275bfe3ed41
        80280004 c8fb0b4c
        """)
    static let longTerm = hex(
        """
        00010060 2112a442 78ad3433c6ad72c029da412e
        00060012 e3839ee38388e383aae38383e382afe382b9 0000
        0015001c 662f2f3439396b39353464364f4c33346f4c39465354767936347341
        0014000b 6578616d706c652e6f7267 00
        00080014 f67024656dd64a3e02b8e0712e85c9a28ca89666
        """)
    static let userhash = hex(
        """
        00010090 2112a442 78ad3433c6ad72c029da412e
        001e0020 4a3cf38fef6992bda952c6780417da0f24819415569e60b205c46e41407f1704
        00150029 6f624d61744a6f733241414143662f2f3439396b39353464364f4c33346f4c39465354767936347341 000000
        0014000b 6578616d706c652e6f7267 00
        001d0004 00020000
        001c0020 b5c7bf005b6c52a21c51c5e892f81924136296cb927c43149309278cc6518e65
        """)
    private let password = StunKey(password: "VOkJxbRl1RmTxUk/WvJxBt")

    @Test("RFC 5769 §2.1: the sample request has integrity, fingerprint and its attributes")
    func sampleRequest() throws {
        let message = try StunMessage(Self.request)
        #expect(message.type == StunMessageType(.request, .binding))
        #expect(message.transaction == TransactionID(high: 0xb7e7_a701, low: 0xbc34_d686_fa87_dfae))
        #expect(try message.text(.software) == "STUN test client")
        #expect(try message.text(.username) == "evtj:h6vY")
        #expect(try message.number32(.priority) == 0x6e00_01ff)
        #expect(try message.number64(.iceControlled) == 0x932f_f9b1_5126_3b36)
        #expect(message.verifies(.sha1, key: password))
        #expect(message.isFingerprintRight == true)
    }

    @Test("RFC 5769 §2.2: the sample IPv4 response tells 192.0.2.1:32853")
    func sampleResponseV4() throws {
        let message = try StunMessage(Self.responseV4)
        #expect(message.type == StunMessageType(.success, .binding))
        #expect(try message.text(.software) == "test vector")
        #expect(try message.xorAddress(.xorMappedAddress) == TransportAddress("192.0.2.1", port: 32853))
        #expect(message.verifies(.sha1, key: password))
        #expect(message.isFingerprintRight == true)
    }

    @Test("RFC 5769 §2.3: the sample IPv6 response tells its address")
    func sampleResponseV6() throws {
        let message = try StunMessage(Self.responseV6)
        let address = TransportAddress("2001:db8:1234:5678:11:2233:4455:6677", port: 32853)
        #expect(try message.xorAddress(.xorMappedAddress) == address)
        #expect(message.verifies(.sha1, key: password))
        #expect(message.isFingerprintRight == true)
    }

    @Test("RFC 5769 §2.4: the long-term request verifies under the key of name, realm and password")
    func longTermRequest() throws {
        let message = try StunMessage(Self.longTerm)
        #expect(try message.text(.username) == "マトリックス")
        #expect(try message.text(.nonce) == "f//499k954d6OL34oL9FSTvy64sA")
        let key = StunKey(username: "マトリックス", realm: "example.org", password: "TheMatrIX")
        #expect(message.verifies(.sha1, key: key))
        #expect(!message.verifies(.sha1, key: StunKey(username: "x", realm: "example.org", password: "TheMatrIX")))
        #expect(message.isFingerprintRight == nil)
    }

    @Test("RFC 8489 §B.1 (erratum 6268): USERHASH, PASSWORD-ALGORITHM and MESSAGE-INTEGRITY-SHA256")
    func userhashRequest() throws {
        let message = try StunMessage(Self.userhash)
        let hash = RelayCredentials.userhash(of: "マトリックス", realm: "example.org")
        #expect(message.value(of: .userhash).map { Array($0) } == hash)
        #expect(try message.passwordAlgorithm() == .some(.sha256))
        let key = StunKey(username: "マトリックス", realm: "example.org", password: "TheMatrIX", algorithm: .sha256)
        #expect(message.integrity == .sha256)
        #expect(message.verifies(.sha256, key: key))
    }

    @Test("What we write is the vector with padding of zeros, and reads back")
    func writing() throws {
        let transaction = TransactionID(high: 0xb7e7_a701, low: 0xbc34_d686_fa87_dfae)
        var writer = StunWriter(StunMessageType(.success, .binding), transaction)
        writer.add(.software, text: "test vector")
        writer.add(.xorMappedAddress, xorAddress: try #require(TransportAddress("192.0.2.1", port: 32853)))
        writer.addIntegrity(.sha1, key: password)
        writer.addFingerprint()
        #expect(Array(writer.bytes[0..<35]) == Array(Self.responseV4[0..<35]))
        #expect(writer.bytes[35] == 0)
        #expect(Array(writer.bytes[36..<48]) == Array(Self.responseV4[36..<48]))
        let message = try StunMessage(writer.bytes)
        #expect(message.verifies(.sha1, key: password))
        #expect(message.isFingerprintRight == true)
        #expect(writer.bytes.count == Self.responseV4.count)
    }

    @Test("One flipped bit anywhere breaks the integrity or the fingerprint", arguments: [request, responseV4])
    func flippedBits(vector: [UInt8]) {
        for index in vector.indices {
            var bytes = vector
            bytes[index] ^= 0x10
            guard let message = try? StunMessage(bytes) else { continue }
            #expect(!message.verifies(.sha1, key: password) || message.isFingerprintRight != true, "byte \(index)")
        }
    }

    @Test("Of 20,000 random codes none verifies: every byte of a code counts")
    func guessing() throws {
        var random = SeededRandom(seed: 5)
        var bytes = Self.longTerm
        let key = StunKey(username: "マトリックス", realm: "example.org", password: "TheMatrIX")
        for _ in 0..<20_000 {
            for index in (bytes.count - 20)..<bytes.count { bytes[index] = UInt8.random(in: 0...255, using: &random) }
            #expect(try !StunMessage(bytes).verifies(.sha1, key: key))
        }
        for bit in 0..<160 {
            bytes = Self.longTerm
            bytes[bytes.count - 20 + bit / 8] ^= 1 << (bit % 8)
            #expect(try !StunMessage(bytes).verifies(.sha1, key: key))
        }
    }

    @Test("A vector that is cut off anywhere, or has bytes after it, is refused with 10001")
    func truncated() {
        for count in 0..<Self.request.count {
            #expect(throws: (any Error).self) { try StunMessage(Array(Self.request.prefix(count))) }
        }
        #expect(throws: (any Error).self) { try StunMessage(Self.request + [0, 0, 0, 0]) }
    }
}

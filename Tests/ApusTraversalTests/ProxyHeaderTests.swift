import ApusTraversal
import Testing

@Suite("The header of a proxy (PROXY protocol, version 2, §2.2)")
struct ProxyHeaderTests {
    private static let signature: [UInt8] = [0x0D, 0x0A, 0x0D, 0x0A, 0, 0x0D, 0x0A, 0x51, 0x55, 0x49, 0x54, 0x0A]
    private static let v4: [UInt8] =
        signature + [0x21, 0x11, 0, 12] + [192, 0, 2, 7] + [198, 51, 100, 1] + [0xC0, 1] + [0x0D, 0x96]
    private static let v6: [UInt8] =
        signature + [0x21, 0x21, 0, 36] + [0x20, 1, 0x0D, 0xB8] + [UInt8](repeating: 0, count: 11) + [9]
        + [UInt8](repeating: 1, count: 16) + [0xC0, 2] + [0x0D, 0x96]

    @Test("The client's address and port are told, of either family, and the length is the header's own")
    func addresses() throws {
        let four = try #require(TransportAddress("192.0.2.7", port: 49_153))
        let six = try #require(TransportAddress("2001:db8::9", port: 49_154))
        let rest: [UInt8] = [0, 1, 0, 0]
        #expect(ProxyHeader(Self.v4 + rest) == .complete(byteCount: 28, client: four))
        #expect(ProxyHeader(Self.v6 + rest) == .complete(byteCount: 52, client: six))
        // A type-length-value behind the addresses is passed over.
        let longer = Self.v4.prefix(15) + [19] + Self.v4.suffix(12) + [4, 0, 4, 1, 2, 3, 4]
        #expect(ProxyHeader(longer) == .complete(byteCount: 35, client: four))
    }

    @Test("A header that is cut anywhere wants exactly what is missing, and never a byte behind it")
    func cut() {
        for header in [Self.v4, Self.v6] {
            for count in 0..<header.count {
                let wanted = count < 16 ? 16 : header.count
                #expect(ProxyHeader(header.prefix(count)) == .incomplete(wanted: wanted), "\(count) bytes")
            }
        }
    }

    @Test("A proxy that speaks for itself, or knows no address, names no client")
    func local() {
        let health = Self.signature + [0x20, 0x00, 0, 0]
        #expect(ProxyHeader(health) == .complete(byteCount: 16, client: nil))
        // What stands behind LOCAL is passed over, whatever it says.
        let addressed = Self.signature + [0x20, 0x11, 0, 12] + Self.v4.suffix(12)
        #expect(ProxyHeader(addressed) == .complete(byteCount: 28, client: nil))
        #expect(ProxyHeader(Self.signature + [0x21, 0x00, 0, 1, 7]) == .complete(byteCount: 17, client: nil))
    }

    @Test(
        "Anything else is refused: another signature, version, command or kind, too short and too long",
        arguments: [
            Array("PROXY TCP4 192.0.2.7 198.51.100.1 49153 3478\r\n".utf8), [0x16, 3, 1], [0, 3, 0, 0],
            signature + [0x11, 0x11, 0, 12], signature + [0x22, 0x11, 0, 12], signature + [0x21, 0x12, 0, 12],
            signature + [0x21, 0x31, 0, 216], signature + [0x21, 0x11, 0, 11], signature + [0x21, 0x21, 0, 35],
            signature + [0x21, 0x11, 0x07, 0xF1], signature + [0x20, 0, 0xFF, 0xFF],
        ] as [[UInt8]])
    func refused(bytes: [UInt8]) { #expect(ProxyHeader(bytes) == .invalid) }

    @Test("Every header that differs in a bit is another client, other values, or none", arguments: [v4, v6])
    func flipped(header: [UInt8]) throws {
        guard case .complete(_, let original?) = ProxyHeader(header) else { throw CancellationError() }
        let size = original.bytes.count
        for bit in 0..<(header.count * 8) {
            var other = header
            other[bit / 8] ^= 1 << (bit % 8)
            switch ProxyHeader(other) {
            case .invalid: #expect(bit < 16 * 8)
            case .incomplete(let wanted): #expect(wanted > header.count && wanted <= ProxyHeader.byteCountMax)
            case .complete(let count, let client):
                #expect(count == header.count)
                // The command, which says that the proxy speaks for itself then, the client's address, and its port.
                let isOfClient =
                    bit / 8 == 12 || (16..<16 + size).contains(bit / 8)
                    || (16 + 2 * size..<18 + 2 * size).contains(bit / 8)
                #expect((client != original) == isOfClient, "bit \(bit)")
            }
        }
    }
}

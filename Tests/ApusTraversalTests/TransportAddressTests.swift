import ApusTraversal
import Testing

@Suite("An address of either family (RFC 4291, D8)")
struct TransportAddressTests {
    @Test(
        "An address is read as people write it",
        arguments: [
            ("192.0.2.1", "192.0.2.1"), ("::", "0:0:0:0:0:0:0:0"), ("::1", "0:0:0:0:0:0:0:1"),
            ("2001:db8::8:800:200c:417a", "2001:db8:0:0:8:800:200c:417a"), ("1::", "1:0:0:0:0:0:0:0"),
            ("64:ff9b::192.0.2.33", "64:ff9b:0:0:0:0:c000:221"), ("::ffff:127.0.0.1", "127.0.0.1"),
        ])
    func reading(text: String, written: String) {
        #expect(TransportAddress(text, port: 1)?.hostDescription == written)
    }

    @Test(
        "What is not an address is not read",
        arguments: [
            "", "1", "1.2.3", "1.2.3.256", "1.2.3.+4", ":", ":1", "1:", "1::2::3", ":::", "1:2:3:4:5:6:7", "g::",
            "1:2:3:4:5:6:7:8:9", "1.2.3.4::", "::1.2.3", "12345::", "+1::",
        ])
    func refusing(text: String) { #expect(TransportAddress(text, port: 1) == nil) }

    @Test("A v4-mapped address is its IPv4 address, however it was made")
    func mapped() {
        let plain = TransportAddress(v4: 0x7f00_0001, port: 9)
        #expect(TransportAddress(v6High: 0, low: 0xffff_7f00_0001, port: 9) == plain)
        #expect(TransportAddress(bytes: [UInt8](repeating: 0, count: 10) + [255, 255, 127, 0, 0, 1], port: 9) == plain)
        #expect(plain.bytes == [127, 0, 0, 1])
        #expect("\(plain)" == "127.0.0.1:9")
    }

    @Test("An address's bytes make the same address")
    func bytes() throws {
        let address = try #require(TransportAddress("2001:db8::1", port: 5))
        #expect(TransportAddress(bytes: address.bytes, port: 5) == address)
        #expect(address.host.port == 0)
        #expect(TransportAddress(bytes: [1, 2, 3], port: 5) == nil)
    }
}

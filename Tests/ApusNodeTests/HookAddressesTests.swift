import ApusEvents
import ApusNode
import ApusTraversal
import Testing

@Suite("Addresses to which hooks of integrators lead (IV-D10)")
struct HookAddressesTests {
    private func allows(_ address: String, _ hosts: [String] = []) throws -> Bool {
        var configuration = EventConfiguration()
        configuration.hosts = hosts
        return HookAddresses(configuration).allow(try #require(TransportAddress(address, port: 0)).bytes)
    }

    @Test(
        "A name leads to public addresses only",
        arguments: [
            "127.0.0.1", "127.1.2.3", "0.0.0.0", "10.0.0.5", "172.16.0.1", "192.168.1.1", "169.254.169.254",
            "100.64.0.1", "224.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "fc00::1", "ff02::1",
            "::ffff:10.0.0.5", "64:ff9b::a00:5", "2002:a00:5::",
        ])
    func special(address: String) throws {
        #expect(try !allows(address))
        #expect(try !allows(address, ["hooks.example.org", "*.example.org", "10.0.0.6"]))
    }

    @Test("It leads to an address that operators have named too")
    func named() throws {
        for address in ["1.1.1.1", "2606:4700::1111"] { #expect(try allows(address)) }
        #expect(try allows("10.0.0.5", ["orders.lan", "10.0.0.5"]))
        #expect(try !allows("10.0.0.6", ["10.0.0.5"]))
        #expect(try allows("::ffff:10.0.0.5", ["10.0.0.5"]))
        #expect(try allows("127.0.0.1", ["localhost"]))
        #expect(try allows("::1", ["localhost"]))
        #expect(try !allows("127.0.0.2", ["localhost"]))
    }

    @Test("Bytes that are no address lead nowhere")
    func malformed() {
        for count in [0, 3, 5, 15, 17] {
            #expect(!HookAddresses(EventConfiguration()).allow([UInt8](repeating: 1, count: count)))
        }
    }
}

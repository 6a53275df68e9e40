import ApusEvents
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

    @Test("It leads to each address of a network that operators have named, and to no other private one")
    func networks() throws {
        let hosts = ["*.apps.lan", "10.4.0.0/16", "fd00:4::/32"]
        for address in ["10.4.0.1", "10.4.255.255", "::ffff:10.4.7.8", "fd00:4::1", "fd00:4:ffff::9"] {
            #expect(try allows(address, hosts), "\(address)")
        }
        for address in ["10.5.0.1", "10.3.255.255", "192.168.1.1", "127.0.0.1", "fd00:5::1", "::1", "64:ff9b::a04:1"] {
            #expect(try !allows(address, hosts), "\(address)")
        }
    }

    @Test("A network has a prefix, no bits beyond it, and no port")
    func configured() {
        for word in ["10.0.0.0/8", "fd00::/8", "0.0.0.0/0", "10.0.0.5", "10.0.0.5/32", "fd00::5"] {
            #expect(EventConfiguration.isNetwork(word), "\(word)")
        }
        for word in [
            "10.0.0.1/8", "10.0.0.0/33", "fd00::/129", "10.0.0.0/", "/8", "10.0.0.5:80", "[fd00::/8]:80", "[fd00::]",
            "orders.lan/8", "orders.lan", "",
        ] {
            #expect(!EventConfiguration.isNetwork(word), "\(word)")
        }
    }

    @Test("Bytes that are no address lead nowhere")
    func malformed() {
        for count in [0, 3, 5, 15, 17] {
            #expect(!HookAddresses(EventConfiguration()).allow([UInt8](repeating: 1, count: count)))
        }
    }
}

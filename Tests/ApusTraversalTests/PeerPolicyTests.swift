import ApusTraversal
import Testing

@Suite("Peers that a relay never sends to (D8; IANA special-purpose registries)")
struct PeerPolicyTests {
    @Test(
        "Every special address is refused by default, in every form that it can be written in",
        arguments: [
            "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.255.255.255",
            "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.8", "192.0.2.1", "192.31.196.1", "192.52.193.1",
            "192.88.99.1", "192.168.1.1", "192.175.48.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1",
            "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "::", "::1", "::2", "::127.0.0.1",
            "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:0.0.0.0", "64:ff9b::8.8.8.8",
            "64:ff9b::127.0.0.1", "64:ff9b:1::1", "100::1", "2001::1", "2001:0:1:2::1", "2001:2::1", "2001:10::1",
            "2001:20::1", "2001:1ff::1", "2001:db8::1", "2002:7f00:1::1", "2002:808:808::1", "2620:4f:8000::1",
            "3fff::1", "5f00::1", "fc00::1", "fd12:3456::1", "fe80::1", "febf::1", "fec0::1", "ff02::1", "4000::1",
            "8000::1", "1::1",
        ])
    func refused(text: String) throws {
        let address = try #require(TransportAddress(text, port: 80))
        #expect(PeerPolicy().refusal(of: address) != nil)
        #expect(PeerPolicy().refusal(ofHost: address) != nil)
    }

    @Test(
        "Other addresses of the Internet are peers",
        arguments: [
            "8.8.8.8", "1.1.1.1", "9.255.255.255", "11.0.0.1", "100.63.255.255", "100.128.0.1", "126.1.1.1",
            "128.0.0.1", "169.253.1.1", "172.15.0.1", "172.32.0.1", "192.0.1.1", "198.17.1.1", "223.255.255.255",
            "2606:4700:4700::1111", "2a00:1450::1", "2001:200::1", "2003::1", "::ffff:8.8.8.8",
        ])
    func allowed(text: String) throws {
        #expect(PeerPolicy().refusal(of: try #require(TransportAddress(text, port: 80))) == nil)
    }

    @Test("A range that is opened by name is open, and no other is")
    func opened() throws {
        let policy = PeerPolicy(opened: [.loopback, .private])
        for text in ["127.0.0.1", "::1", "::ffff:127.0.0.1", "10.1.1.1", "192.168.0.4", "fd00::1"] {
            #expect(policy.refusal(of: try #require(TransportAddress(text, port: 80))) == nil, "\(text)")
        }
        for text in ["169.254.169.254", "0.0.0.0", "100.64.0.1", "224.0.0.1", "64:ff9b::10.0.0.1"] {
            #expect(policy.refusal(of: try #require(TransportAddress(text, port: 80))) != nil, "\(text)")
        }
        for range in PeerPolicy.Range.allCases { #expect(PeerPolicy.Range(rawValue: range.rawValue) == range) }
    }

    @Test("An address inside an address is judged too where the outer range is open")
    func embedded() throws {
        let node = TransportAddress(v4: 0x0909_0909, port: 1)
        let policy = PeerPolicy(opened: [.nat64, .sixToFour, .teredo], own: [node])
        for text in [
            "64:ff9b::127.0.0.1", "64:ff9b::10.0.0.1", "2002:7f00:1::1", "2002:c0a8:101::1", "64:ff9b::9.9.9.9",
            "2001:0:7f00:1::1", "2001:0:808:808:0:0:80ff:fffe",
        ] {
            #expect(policy.refusal(of: try #require(TransportAddress(text, port: 80))) != nil, "\(text)")
        }
        for text in ["64:ff9b::8.8.8.8", "2002:808:808::1", "2001:0:808:808:0:0:f7f7:f7f7"] {
            #expect(policy.refusal(of: try #require(TransportAddress(text, port: 80))) == nil, "\(text)")
        }
    }

    @Test(
        "The IPv4 address is found at every length of a NAT64's prefix (RFC 6052 §2.4)",
        arguments: [
            ("2001:db8::/32", "2001:db8:c000:221::"), ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
            ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"), ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
            ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
            ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
        ])
    func nat64Prefixes(prefix: String, text: String) throws {
        let address = try #require(TransportAddress(text, port: 80))
        let ranges: Set<PeerPolicy.Range> = [.documentation]
        let denied = [try #require(PeerRule("192.0.2.33"))]
        let nat64 = [try #require(Nat64Prefix(prefix))]
        #expect(PeerPolicy(opened: ranges, denied: denied).refusal(of: address) == nil, "nothing is looked for inside")
        let policy = PeerPolicy(opened: ranges, denied: denied, nat64: nat64)
        #expect(policy.refusal(of: address) == .denied && policy.refusal(ofHost: address) == .denied)
        let own = try #require(TransportAddress("192.0.2.33", port: 0))
        #expect(PeerPolicy(opened: ranges, own: [own], nat64: nat64).refusal(of: address) == .own)
        let other = PeerPolicy(opened: ranges, denied: [try #require(PeerRule("192.0.2.32"))], nat64: nat64)
        #expect(other.refusal(of: address) == nil)
    }

    @Test(
        "What is no prefix of a NAT64 is none",
        arguments: [
            "", "2001:db8::", "2001:db8::/33", "2001:db8::/0", "2001:db8::/128", "2001:db8:1::/32", "2001:db8::1/96",
            "2001:db8:0:0:100::/96", "10.0.0.0/32", "::ffff:10.0.0.0/96", "2001:db8::/096", "2001:db8::/96/96",
        ])
    func noPrefix(text: String) { #expect(Nat64Prefix(text) == nil) }

    @Test("The prefix for a network's own NAT64 is looked into at every length that it may have (RFC 8215)")
    func localNat64() throws {
        // The range is closed unless it is opened with the other private ones; the inside is judged all the same.
        let policy = PeerPolicy(opened: [.private], denied: [try #require(PeerRule("8.8.8.8"))])
        for text in [
            "64:ff9b:1::127.0.0.1", "64:ff9b:1::169.254.169.254", "64:ff9b:1:abcd::8.8.8.8", "64:ff9b:1:7f00:0:100::",
            "64:ff9b:1:7f::1:0:0", "64:ff9b:1:0:7f:0:100:0", "64:ff9b:1:808:8:800::", "64:ff9b:1::",
        ] {
            let address = try #require(TransportAddress(text, port: 80))
            #expect(policy.refusal(of: address) != nil, "\(text)")
        }
        for text in ["64:ff9b:1::8.8.4.4", "64:ff9b:1::10.0.0.1", "64:ff9b:1:808:4:400::"] {
            let address = try #require(TransportAddress(text, port: 80))
            #expect(policy.refusal(of: address) == nil, "\(text)")
        }
        // Where its length is told nothing has to be guessed.
        let told = PeerPolicy(opened: [.private], nat64: [try #require(Nat64Prefix("64:ff9b:1:7f00::/96"))])
        let address = try #require(TransportAddress("64:ff9b:1:7f00:0:0:808:404", port: 80))
        #expect(policy.refusal(of: address) != nil && told.refusal(of: address) == nil)
    }

    @Test("An own address at which no allocation is, is no peer at any port; one that relays is at the relays' ports")
    func ownWithoutRelay() throws {
        let relay = try #require(TransportAddress("10.0.0.5", port: 0))
        let other = try #require(TransportAddress("192.168.7.9", port: 0))
        for opened: Set<PeerPolicy.Range> in [[], [.private]] {
            let policy = PeerPolicy(opened: opened, own: [relay, other], relays: [relay], relayPorts: 50000...50100)
            #expect(policy.refusal(of: relay.withPort(50050)) == nil)
            #expect(policy.refusal(of: relay.withPort(22)) == .own)
            #expect(policy.refusal(of: other.withPort(50050)) == .own)
            #expect(policy.refusal(ofHost: other) == .own)
        }
    }

    @Test(
        "Metadata services of the clouds are no peers, whatever range is open",
        arguments: [
            "168.63.129.16", "169.254.169.254", "169.254.170.2", "169.254.169.253", "169.254.170.23", "192.0.0.192",
            "100.100.100.200", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "::ffff:168.63.129.16",
            "64:ff9b::a9fe:a9fe", "2002:a83f:8110::1",
        ])
    func metadata(text: String) throws {
        let policy = PeerPolicy(opened: Set(PeerPolicy.Range.allCases))
        #expect(policy.refusal(of: try #require(TransportAddress(text, port: 80))) == .metadata)
    }

    @Test("Of the cluster's own addresses only the relays' ports are peers, so that relay reaches relay")
    func own() throws {
        let node = try #require(TransportAddress("10.0.0.5", port: 0))
        let policy = PeerPolicy(own: [node], relayPorts: 50000...50100)
        #expect(policy.refusal(of: node.withPort(50050)) == nil)
        #expect(policy.refusal(of: node.withPort(22)) == .own)
        #expect(policy.refusal(of: node.withPort(3478)) == .own)
        #expect(policy.refusal(of: node.withPort(0)) == .noPort)
        #expect(policy.ports(of: node) == 50000...50100)
        let loopback = TransportAddress(v4: 0x7f00_0001, port: 50050)
        #expect(PeerPolicy(own: [loopback]).refusal(of: loopback) == .special(.loopback))
        #expect(PeerPolicy(opened: [.loopback], own: [loopback]).refusal(of: loopback.withPort(80)) == nil)
    }
}

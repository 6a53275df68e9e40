import ApusTraversal
import Testing

@Suite("Lists of peers that an operator allows and denies (D8)")
struct PeerListTests {
    private func rules(_ text: String) throws -> [PeerRule] {
        try text.split(separator: " ").map { try #require(PeerRule(String($0)), "\($0)") }
    }

    private func isLetIn(_ policy: PeerPolicy, _ host: String, _ port: UInt16) throws -> Bool {
        let address = try #require(TransportAddress(host, port: port))
        let isRefused = policy.refusal(of: address) != nil
        // What is let in at a port is let in as a host, and the plane lets it pass or asks.
        if !isRefused {
            #expect(policy.refusal(ofHost: address) == nil)
            let ports = policy.ports(of: address)
            #expect(ports.contains(port) || ports == PeerPolicy.judgedPorts)
        }
        return !isRefused
    }

    @Test(
        "What is no network is no rule",
        arguments: [
            "", "10.0.0.0/33", "10.0.0.1/8", "10.0.0/8", "10.0.0.0/", "10.0.0.0/-1", "10.0.0.0/8/8", "10.0.0.0/8:0",
            "10.0.0.0/8:5-4", "10.0.0.0/8:65536", "10.0.0.0/8:", "10.0.0.0/8:1-2-3", "2001:db8::/129", "2001:db8::1/32",
            "[2001:db8::/32", "[2001:db8::/32]443", "[2001:db8::/32]:", "[10.0.0.0/8]:80", "relay.example",
            "10.0.0.0/ 8",
            "10.0.0.0/+8",
        ])
    func malformed(text: String) { #expect(PeerRule(text) == nil) }

    @Test("A network of any length has its addresses and no others, at its ports alone")
    func networks() throws {
        let cases: [(rule: String, inside: [String], outside: [String])] = [
            ("0.0.0.0/0", ["1.2.3.4", "255.255.255.255"], ["2001:db8::1"]), ("::/0", ["2001:db8::1"], ["1.2.3.4"]),
            ("192.0.2.7", ["192.0.2.7"], ["192.0.2.6", "192.0.2.8"]),
            ("10.128.0.0/9", ["10.128.0.0", "10.255.255.255"], ["10.127.255.255", "11.128.0.0"]),
            ("2001:db8::/33", ["2001:db8:7fff::1"], ["2001:db8:8000::1"]),
            ("2001:db8::/64", ["2001:db8::ffff:1"], ["2001:db8:0:1::1"]),
            ("2001:db8:0:0:8000::/65", ["2001:db8::8000:0:0:1"], ["2001:db8::7fff:0:0:1"]),
            ("2001:db8::1", ["2001:db8::1"], ["2001:db8::2"]),
            ("::ffff:192.0.2.7", ["192.0.2.7"], ["192.0.2.8"]),
        ]
        for (text, inside, outside) in cases {
            let policy = PeerPolicy(opened: Set(PeerPolicy.Range.allCases), denied: try rules(text))
            for host in inside { #expect(try !isLetIn(policy, host, 80), "\(host) in \(text)") }
            for host in outside { #expect(try isLetIn(policy, host, 80), "\(host) in \(text)") }
        }
        let ports = PeerPolicy(denied: try rules("8.8.8.8:53-55 [2606:4700::/32]:443"))
        for port in [53, 54, 55] as [UInt16] { #expect(try !isLetIn(ports, "8.8.8.8", port)) }
        for port in [52, 56] as [UInt16] { #expect(try isLetIn(ports, "8.8.8.8", port)) }
        #expect(try !isLetIn(ports, "2606:4700::1", 443) && isLetIn(ports, "2606:4700::1", 444))
    }

    @Test("Allowed goes before denied, both before the special ranges, and the cluster's own addresses before all")
    func precedence() throws {
        let node = try #require(TransportAddress("10.0.0.5", port: 0))
        let policy = PeerPolicy(
            own: [node], allowed: try rules("10.0.0.0/24:7000-7999 9.9.9.9 169.254.169.254"),
            denied: try rules("9.9.0.0/16 10.0.0.5 169.254.0.0/16"))
        #expect(try isLetIn(policy, "10.0.0.9", 7500), "allowed in a special range")
        #expect(try !isLetIn(policy, "10.0.0.9", 6999) && !isLetIn(policy, "10.0.1.9", 7500), "and nowhere else of it")
        #expect(try isLetIn(policy, "9.9.9.9", 80), "allowed and denied")
        #expect(try !isLetIn(policy, "9.9.9.8", 80), "denied alone")
        #expect(try isLetIn(policy, "8.8.8.8", 80), "neither")
        #expect(try !isLetIn(policy, "10.0.0.5", 7500), "an own address is not opened by a list")
        #expect(try isLetIn(policy, "10.0.0.5", 50_000), "nor are relays' ports closed by one")
        #expect(try !isLetIn(policy, "169.254.169.254", 80), "a cloud's metadata service is not opened by a list")
        let nothing = PeerPolicy(allowed: try rules("192.0.2.7"), denied: try rules("0.0.0.0/0 ::/0"))
        #expect(try isLetIn(nothing, "192.0.2.7", 80) && !isLetIn(nothing, "8.8.8.8", 80))
        #expect(try !isLetIn(nothing, "2606:4700::1", 80))
    }

    @Test("A list that allows everything opens no loopback and no unspecified address: these are the machine itself")
    func machineItself() throws {
        let wide = PeerPolicy(own: [TransportAddress(v4: 0x7F00_0001, port: 0)], allowed: try rules("0.0.0.0/0 ::/0"))
        for host in [
            "127.0.0.1", "127.0.0.2", "127.255.255.254", "0.0.0.0", "0.1.2.3", "::", "::1", "64:ff9b::127.0.0.2",
            "2002:7f00:2::1",
        ] {
            #expect(try !isLetIn(wide, host, 8_080), "\(host)")
            let address = try #require(TransportAddress(host, port: 8_080))
            #expect(wide.refusal(ofHost: address) != nil, "\(host)")
        }
        #expect(try isLetIn(wide, "10.0.0.9", 8_080) && isLetIn(wide, "fd00::9", 8_080))
        // Who opens loopback by its name runs everything on one machine; lists narrow it as any other range.
        let opened = PeerPolicy(opened: [.loopback], denied: try rules("127.0.0.8/29"))
        #expect(try isLetIn(opened, "127.0.0.2", 80) && !isLetIn(opened, "127.0.0.9", 80))
    }

    @Test("A denied IPv4 address is refused inside an IPv6 one too, at its ports")
    func embedded() throws {
        let policy = PeerPolicy(opened: [.nat64], denied: try rules("8.8.8.8:53"))
        #expect(try !isLetIn(policy, "64:ff9b::8.8.8.8", 53))
        #expect(try isLetIn(policy, "64:ff9b::8.8.8.8", 54) && isLetIn(policy, "64:ff9b::8.8.4.4", 53))
        let allowed = PeerPolicy(allowed: try rules("64:ff9b::/96"))
        #expect(try isLetIn(allowed, "64:ff9b::8.8.8.8", 53))
        #expect(try !isLetIn(allowed, "64:ff9b::10.0.0.1", 53), "an allowed outside opens no special inside")
    }
}

import Foundation
import Testing

/// The relay of a local cluster's nodes, through the real binary.
@Suite(.serialized, .timeLimit(.minutes(2)))
struct RelayTests {
    @Test("Every node relays: data goes from one node's relay to another's, with credentials that any node takes (D8)")
    func check() throws {
        let cluster = try Cluster(nodes: 2, basePort: 28_750)
        defer { cluster.down() }
        for (transport, first, second) in [
            ("udp", 28_753, 28_763), ("tcp", 28_753, 28_763), ("tls", 28_754, 28_764), ("dtls", 28_754, 28_764),
        ] {
            let check = try cluster.run("relay", "check", "--transport", transport)
            #expect(check.status == 0, "\(check.all)")
            #expect(
                check.output.contains("at 127.0.0.1:\(first)") && check.output.contains("at 127.0.0.1:\(second)"),
                "\(check.all)")
            #expect(check.output.contains("50 of 50 messages"), "\(check.all)")
        }
        let status = try cluster.run("cluster", "status", "--json")
        #expect(status.output.contains("\"relay\":\"127.0.0.1:28763\""), "\(status.all)")
        let issued = try cluster.run("relay", "credentials", "--user", "u")
        #expect(issued.output.contains("turn:127.0.0.1:28753?transport=udp"))
        #expect(issued.output.contains("turn:127.0.0.1:28763?transport=tcp"))
        #expect(issued.output.contains("turns:127.0.0.1:28764?transport=tcp"))
        let log = Cluster.text(cluster.file("n1/log"))
        #expect(log.contains("The relay sends to peers in special ranges."))
        let wrong = try Cluster.run(["relay", "check", "--server", "127.0.0.1:28753", "--secret", "another secret"])
        #expect(wrong.status != 0 && wrong.all.contains("12001"), "\(wrong.all)")
        let nobody = try Cluster.run(["relay", "check", "--server", "127.0.0.1:28759", "--secret", "another secret"])
        #expect(nobody.status != 0 && nobody.all.contains("21022"), "\(nobody.all)")
    }
}

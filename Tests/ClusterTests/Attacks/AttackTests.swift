import Foundation
import Testing

/// Attacks on a node, each beside a good camera, viewer and relay flow that must lose nothing (``Witness``).
@Suite("Attacks", .serialized, .timeLimit(.minutes(5)))
struct AttackTests {
    @Test("Connections that say nothing, at every listener again and again, cost a bounded log and nobody's service")
    func bareConnections() async throws {
        let cluster = try Cluster(nodes: 1, basePort: 29_800)
        defer { cluster.down() }
        let witness = try await Witness(cluster)
        for _ in 0..<10 {
            let storm = Storm()
            for port in [cluster.basePort, cluster.endpointPort(1), cluster.httpPort(1), cluster.relayPort(1)] {
                storm.connect(port, count: 100)
            }
            try await witness.watch(for: .milliseconds(700))
            storm.end()
        }
        try await witness.testify()
    }

    @Test("Half requests at the HTTP listener, a byte a second each, do not keep /healthz from an operator")
    func halfRequests() async throws {
        let cluster = try Cluster(nodes: 1, basePort: 29_820)
        defer { cluster.down() }
        let witness = try await Witness(cluster)
        let storm = Storm()
        defer { storm.end() }
        storm.connect(cluster.httpPort(1), count: 600)
        storm.send(Array("GET /healthz HTTP/1.1\r\nHost: a\r\nX-A: ".utf8))
        for _ in 0..<10 {
            storm.send([0x61])
            try await witness.watch(for: .seconds(1))
        }
        // All of them are over http.request_timeout by now.
        #expect(await waited(.seconds(5)) { storm.openCount == 0 } != nil)
        try await witness.testify()
    }

    @Test("Half hellos at the clients' listener, a byte a second each, end with the time for the handshake")
    func halfHellos() async throws {
        let cluster = try Cluster(nodes: 1, basePort: 29_840)
        defer { cluster.down() }
        let witness = try await Witness(cluster)
        let storm = Storm()
        defer { storm.end() }
        storm.connect(cluster.endpointPort(1), count: 1_500)
        // The header of a TLS record of 512 bytes, which then come one by one.
        storm.send([0x16, 0x03, 0x01, 0x02, 0x00])
        for _ in 0..<8 {
            storm.send([0x01])
            try await witness.watch(for: .seconds(1))
        }
        #expect(storm.openCount == 0)
        try await witness.testify()
    }

    @Test("Half hellos that never end, 1,500 a second, do not keep new viewers out")
    func endlessHalfHellos() async throws {
        let cluster = try Cluster(nodes: 1, basePort: 29_980)
        defer { cluster.down() }
        let witness = try await Witness(cluster)
        let viewers = (0..<3).map { cluster.file("late-\($0)") }
        var (storms, started) = ([Storm](), 0)
        defer { for storm in storms { storm.end() } }
        for turn in 0..<80 {
            let storm = Storm()
            storm.connect(cluster.endpointPort(1), count: 150)
            // The header of a TLS record of 512 bytes, which do not follow.
            storm.send([0x16, 0x03, 0x01, 0x02, 0x00])
            storms.append(storm)
            if turn % 15 == 14, started < viewers.count {
                try cluster.start(["watch", "good", "--seconds", "4", "--log", viewers[started]])
                started += 1
            }
            try await witness.watch(for: .milliseconds(100))
        }
        for viewer in viewers { #expect(Frames(viewer).lines.count > 50, "\(viewer)") }
        try await witness.testify()
    }
}

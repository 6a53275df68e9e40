import ApusCore
import ApusTestKit
import ApusTransport
import ApusWire
import Foundation
import NIOCore
import Synchronization
import Testing

@Suite("Whoever breaks the rules loses the link, and only the link (D3)", .timeLimit(.minutes(2)))
struct HostileLinkTests {
    /// A dials B, which is refused for the reason; the good pair beside goes on.
    private func expectRefusal(
        _ reasons: Set<RejectReason>, dialer: TestNode, pair: TestPair
    ) async throws {
        _ = try await dialer.transport.start()
        dialer.transport.setPeers([Peer(id: pair.b.id, address: pair.addressOfB)])
        try await eventually("one side refused for one of \(reasons)") {
            reasons.contains { pair.b.events.has(.rejected($0)) || dialer.events.has(.rejected($0)) }
        }
        #expect(!dialer.events.has(.linkUp(pair.b.id, .control)))
        #expect(await code { _ = try await pair.ask(1) } == nil)
        await dialer.transport.stop()
    }

    @Test("A node of another cluster is refused")
    func wrongCluster() async throws {
        try await TestPair.with { pair in
            let other = TestNode(
                "c", cluster: ClusterID(unchecked: "other"), tls: try TestPair.tls("c", pair.authority))
            try await expectRefusal([.cluster], dialer: other, pair: pair)
        }
    }

    @Test("A certificate of another authority is refused")
    func wrongAuthority() async throws {
        try await TestPair.with { pair in
            let foreign = try TestPKI.authority()
            let node = try ClusterPKI.issueNode(NodeName(unchecked: "c"), authority: foreign)
            // It trusts the true authority, so that only its own certificate is at fault.
            let other = TestNode("c", tls: TestPKI.tls(node, trusting: pair.authority))
            try await expectRefusal([.certificate], dialer: other, pair: pair)
        }
    }

    @Test("An expired certificate is refused")
    func expired() async throws {
        try await TestPair.with { pair in
            let node = try ClusterPKI.issueNode(
                NodeName(unchecked: "c"), authority: pair.authority, at: Date().addingTimeInterval(-7200),
                lifetime: .seconds(3600))
            let other = TestNode("c", tls: TestPKI.tls(node, trusting: pair.authority))
            try await expectRefusal([.certificate], dialer: other, pair: pair)
        }
    }

    @Test("A node that uses another node's name is refused")
    func wrongName() async throws {
        try await TestPair.with { pair in
            let other = TestNode("imposter", tls: try TestPair.tls("c", pair.authority))
            try await expectRefusal([.name], dialer: other, pair: pair)
        }
    }

    @Test("The clients' endpoint certificate opens no node link")
    func clientEndpointCertificate() async throws {
        try await TestPair.with { pair in
            let endpoint = try ClusterPKI.issueClientEndpoint(authority: pair.authority)
            let other = TestNode("c", tls: TestPKI.tls(endpoint, trusting: pair.authority))
            try await expectRefusal([.certificate], dialer: other, pair: pair)
        }
    }

    @Test("Garbage instead of TLS is refused")
    func garbage() async throws {
        try await TestPair.with { pair in
            let connection = try await RawConnection.plain(to: pair.addressOfB)
            connection.send(ByteBuffer(repeating: 0x47, count: 4096))
            try await connection.isClosedByPeer()
            #expect(pair.b.events.has(.rejected(.tls)))
            #expect(await code { _ = try await pair.ask(1) } == nil)
        }
    }

    @Test(
        "A bad first frame over good TLS is refused",
        arguments: [
            ("a header that claims 4 GiB", [0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0], RejectReason.oversized),
            ("a frame shorter than its header", [0, 0, 0, 3, 1, 0, 0], .malformed),
            ("a hello that is not one", [0, 0, 0, 10, 1, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff], .malformed),
            ("a request before the hello", [0, 0, 0, 8, 0x10, 0, 0, 1, 0, 0, 0, 1], .malformed),
        ] as [(String, [UInt8], RejectReason)])
    func badFirstFrame(_ what: String, _ bytes: [UInt8], _ reason: RejectReason) async throws {
        try await TestPair.with { pair in
            let node = try ClusterPKI.issueNode(NodeName(unchecked: "c"), authority: pair.authority)
            let connection = try await RawConnection.secured(to: pair.addressOfB, as: node, authority: pair.authority)
            connection.send(ByteBuffer(bytes: bytes))
            try await connection.isClosedByPeer()
            #expect(pair.b.events.has(.rejected(reason)), "\(what)")
            #expect(await code { _ = try await pair.ask(1) } == nil)
        }
    }

    @Test(
        "A bad frame after the handshake closes the link",
        arguments: [
            ("a header that claims 4 GiB", [0xff, 0xff, 0xff, 0xff], RejectReason.oversized),
            ("a response that nobody asked for", [0, 0, 0, 8, 0x11, 0, 0, 0, 0, 0, 0, 1], .malformed),
            ("a call in a slot over the bound", [0, 0, 0, 8, 0x10, 0, 0, 3, 0, 0, 0xff, 0xff], .malformed),
            (
                "two calls in one slot",
                [0, 0, 0, 8, 0x10, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 8, 0x10, 0, 0, 3, 0, 1, 0, 1], .malformed
            ),
            ("a compressed payload that is none", [0, 0, 0, 10, 0x10, 1, 0, 1, 0, 0, 0, 0, 1, 2], .oversized),
        ] as [(String, [UInt8], RejectReason)])
    func badFrame(_ what: String, _ bytes: [UInt8], _ reason: RejectReason) async throws {
        try await TestPair.with(configure: { $0.inFlightMax = 1024 }) { pair in
            let node = try ClusterPKI.issueNode(NodeName(unchecked: "c"), authority: pair.authority)
            let connection = try await RawConnection.secured(to: pair.addressOfB, as: node, authority: pair.authority)
            var sent = RawConnection.hello(node: "c")
            sent.writeBytes(bytes)
            connection.send(sent)
            try await connection.isClosedByPeer()
            #expect(pair.b.events.has(.rejected(reason)), "\(what)")
            #expect(await code { _ = try await pair.ask(1) } == nil)
        }
    }

    @Test("A connection that ends within a frame is counted as truncated")
    func truncated() async throws {
        try await TestPair.with { pair in
            let node = try ClusterPKI.issueNode(NodeName(unchecked: "c"), authority: pair.authority)
            let connection = try await RawConnection.secured(to: pair.addressOfB, as: node, authority: pair.authority)
            var sent = RawConnection.hello(node: "c")
            sent.writeBytes([0, 0, 0, 100, 0x10, 0, 0, 1])
            try await connection.channel.writeAndFlush(sent).get()
            try await Task.sleep(for: .milliseconds(50))
            connection.channel.close(promise: nil)
            try await eventually("it was counted") { pair.b.events.has(.rejected(.truncated)) }
        }
    }

    @Test(
        "Wire versions are N and N−1: an older or newer node without one in common is refused",
        arguments: [(UInt32(7), UInt32(6), true), (2, 1, false), (0, 0, true)])
    func versions(_ version: UInt32, _ oldest: UInt32, _ isRefused: Bool) async throws {
        try await TestPair.with { pair in
            let node = try ClusterPKI.issueNode(NodeName(unchecked: "c"), authority: pair.authority)
            let connection = try await RawConnection.secured(to: pair.addressOfB, as: node, authority: pair.authority)
            connection.send(RawConnection.hello(node: "c", version: version, versionMin: oldest))
            if isRefused {
                try await connection.isClosedByPeer()
                #expect(pair.b.events.has(.rejected(.version)))
            } else {
                // Its requests are served.
                var request = ByteBuffer()
                LinkFrame(kind: .tell, method: 2, payload: ByteBuffer(integer: UInt32(5))).encode(into: &request)
                connection.send(request)
                try await eventually("the tell came") { pair.b.control.seen.withLock { $0.tells } == [5] }
                connection.channel.close(promise: nil)
            }
        }
    }

    @Test("A handshake that does not finish in time is closed, slow bytes or none")
    func slowHandshake() async throws {
        try await TestPair.with(configure: { $0.handshakeTimeout = .seconds(1) }) { pair in
            let silent = try await RawConnection.plain(to: pair.addressOfB)
            // A record of TLS that never gets whole.
            let partial = try await RawConnection.plain(to: pair.addressOfB)
            partial.send(ByteBuffer(bytes: [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3]))
            let node = try ClusterPKI.issueNode(NodeName(unchecked: "c"), authority: pair.authority)
            let slow = try await RawConnection.secured(to: pair.addressOfB, as: node, authority: pair.authority)
            slow.send(ByteBuffer(bytes: [0, 0]))
            try await silent.isClosedByPeer()
            try await partial.isClosedByPeer()
            try await slow.isClosedByPeer()
            #expect(pair.b.events.count(.rejected(.timeout)) >= 3)
            #expect(await code { _ = try await pair.ask(1) } == nil)
        }
    }

    @Test("A ClientHello that is longer than a TLS record is refused before it is whole")
    func longHello() async throws {
        try await TestPair.with { pair in
            let connection = try await RawConnection.plain(to: pair.addressOfB)
            connection.send(ByteBuffer(bytes: [0x16, 3, 1, 0xff, 0xff] + [UInt8](repeating: 0, count: 40_000)))
            try await eventually("it is refused") { pair.b.events.has(.rejected(.oversized)) }
            try await connection.isClosedByPeer()
            #expect(await code { _ = try await pair.ask(1) } == nil)
        }
    }

    @Test(
        "A connection comes through wherever it asks to lie, and its place is free again when it fails",
        arguments: [nil, "lane-0", "lane-1", "lane-65535", "lane-65536", "lane--1", "lane-", "n1.example.com"])
    func placed(_ serverName: String?) async throws {
        try await TestPair.with(configure: { $0.handshakingMax = 8 }) { pair in
            let node = try ClusterPKI.issueNode(NodeName(unchecked: "c"), authority: pair.authority)
            // More than may be in the handshake at once.
            for round in 1...16 {
                let connection = try await RawConnection.secured(
                    to: pair.addressOfB, as: node, authority: pair.authority, serverName: serverName)
                // A bad hello is answered where the connection lies now.
                connection.send(ByteBuffer(bytes: [0, 0, 0, 3, 1, 0, 0]))
                try await connection.isClosedByPeer()
                #expect(pair.b.events.count(.rejected(.malformed)) == round)
            }
            #expect(await code { _ = try await pair.ask(1) } == nil)
        }
    }

    @Test("Connections over the bound of open handshakes are closed at once, and room comes back")
    func crowd() async throws {
        try await TestPair.with(configure: { $0.handshakingMax = 8 }) { pair in
            var connections: [RawConnection] = []
            for _ in 0..<50 { connections.append(try await RawConnection.plain(to: pair.addressOfB)) }
            try await eventually("42 were turned away") { pair.b.events.count(.rejected(.crowded)) == 42 }
            #expect(await code { _ = try await pair.ask(1) } == nil)
            for connection in connections { connection.channel.close(promise: nil) }
            let node = TestNode("c", tls: try TestPair.tls("c", pair.authority))
            _ = try await node.transport.start()
            node.transport.setPeers([Peer(id: pair.b.id, address: pair.addressOfB)])
            try await eventually("a good node gets in") { node.events.has(.linkUp(pair.b.id, .control)) }
            await node.transport.stop()
        }
    }
}

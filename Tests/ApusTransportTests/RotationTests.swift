import ApusCore
import ApusTestKit
import ApusTransport
import ApusWire
import Foundation
import NIOCore
import Synchronization
import Testing

@Suite("Certificates that change while links are open (D3)", .timeLimit(.minutes(2)))
struct RotationTests {
    private static func secrets(
        _ name: String, _ node: ClusterPKI.Issued, trusting authorities: [ClusterPKI.Issued],
        revoked: RevokedCertificates = .none
    ) throws -> TransportSecrets {
        let bundle = authorities.map(\.certificatePEM).joined(separator: "\n")
        let tls = TestPKI.tls(node, trusting: ClusterPKI.Issued(certificatePEM: bundle, privateKeyPEM: ""))
        return try TransportSecrets(tls, node: NodeName(unchecked: name), revoked: revoked)
    }

    private static func issue(_ name: String, by authority: ClusterPKI.Issued) throws -> ClusterPKI.Issued {
        try ClusterPKI.issueNode(NodeName(unchecked: name), authority: authority)
    }

    private static func serial(_ issued: ClusterPKI.Issued) throws -> String {
        try CertificateFacts.all(pem: Array(issued.certificatePEM.utf8), source: "test")[0].serial
    }

    @Test("The authority is changed in three steps; calls go on, no link ends, and new links use the new certificates")
    func authority() async throws {
        let old = try TestPKI.authority()
        let new = try TestPKI.authority()
        let oldCertificates = (a: try Self.issue("a", by: old), b: try Self.issue("b", by: old))
        let newCertificates = (a: try Self.issue("a", by: new), b: try Self.issue("b", by: new))
        let a = TestNode("a", tls: TestPKI.tls(oldCertificates.a, trusting: old))
        let b = TestNode("b", tls: TestPKI.tls(oldCertificates.b, trusting: old))
        _ = try await a.transport.start()
        let address = try await b.transport.start()
        a.transport.setPeers([Peer(id: b.id, address: address)])
        try await eventually("the lanes are up") { a.transport.isLinked(to: b.id.name) }
        /// What a node in this state of the change can still link to, with a new connection.
        func expectNewLinks() async throws {
            let reach = await a.transport.reach(Peer(id: b.id, address: address), timeout: .seconds(5))
            #expect(reach == .reached)
            let back = await code {
                _ = try await a.transport.ask(b.id.name, method: 1, payload: .init(), timeout: .seconds(5))
            }
            #expect(back == nil)
        }
        for node in [a, b] {
            let own = node === a ? oldCertificates.a : oldCertificates.b
            node.transport.use(try Self.secrets(node.id.name.rawValue, own, trusting: [old, new]))
            try await expectNewLinks()
        }
        for node in [a, b] {
            let own = node === a ? newCertificates.a : newCertificates.b
            node.transport.use(try Self.secrets(node.id.name.rawValue, own, trusting: [new, old]))
            try await expectNewLinks()
        }
        for node in [a, b] {
            let own = node === a ? newCertificates.a : newCertificates.b
            node.transport.use(try Self.secrets(node.id.name.rawValue, own, trusting: [new]))
            try await expectNewLinks()
        }
        #expect(a.events.count(.linkUp(b.id, .control)) == 1 && a.events.count(.linkLost(b.id, .control)) == 0)
        #expect(a.events.count(.linkLost(b.id, .media)) == 0)
        // A node that was left out is refused now.
        let late = TestNode("c", tls: TestPKI.tls(try Self.issue("c", by: old), trusting: old))
        _ = try await late.transport.start()
        let refused = await late.transport.reach(Peer(id: b.id, address: address), timeout: .seconds(5))
        #expect(refused == .unwelcome)
        for node in [a, b, late] { await node.transport.stop() }
    }

    @Test("Links to a node whose certificate is revoked end within a second, are refused with 10032, and others go on")
    func revoked() async throws {
        let authority = try TestPKI.authority()
        let certificates = try ["a", "b", "c"].map { try Self.issue($0, by: authority) }
        let nodes = zip(["a", "b", "c"], certificates).map {
            TestNode($0, tls: TestPKI.tls($1, trusting: authority))
        }
        var addresses: [HostPort] = []
        for node in nodes { addresses.append(try await node.transport.start()) }
        let peers = zip(nodes, addresses).map { Peer(id: $0.id, address: $1) }
        for node in nodes { node.transport.setPeers(peers) }
        func isLinked(_ from: TestNode, _ to: TestNode) -> Bool { from.transport.isLinked(to: to.id.name) }
        try await eventually("all are linked") {
            nodes.allSatisfy { node in nodes.allSatisfy { $0 === node || isLinked(node, $0) } }
        }
        let (a, b, c) = (nodes[0], nodes[1], nodes[2])
        let list = RevokedCertificates(serials: [try Self.serial(certificates[1])])
        let start = ContinuousClock.now
        a.transport.use(try Self.secrets("a", certificates[0], trusting: [authority], revoked: list))
        // Both directions: the links that A dialled, and those that B dialled.
        try await eventually("the links have ended") { !isLinked(a, b) && !isLinked(b, a) }
        #expect(ContinuousClock.now - start < .seconds(1))
        try await eventually("A reports the node, and B is notified") {
            a.events.has(.revoked(b.id)) && a.events.has(.rejected(.revoked)) && b.events.has(.refusedAsRevoked(a.id))
        }
        #expect(await b.transport.reach(peers[0], timeout: .seconds(5)) == .unwelcome)
        #expect(await c.transport.reach(peers[0], timeout: .seconds(5)) == .reached)
        #expect(isLinked(a, c) && isLinked(c, a) && isLinked(b, c))
        // With a new certificate it is welcome again.
        b.transport.use(try Self.secrets("b", try Self.issue("b", by: authority), trusting: [authority]))
        try await eventually("they are linked again") { isLinked(a, b) && isLinked(b, a) }
        for node in nodes { await node.transport.stop() }
    }

    @Test("Files that cannot be used are refused with 10022, and the file is named")
    func broken() throws {
        let folder = URL(fileURLWithPath: NSTemporaryDirectory()).appending(path: "apus-rotation-\(UUID().uuidString)")
        try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
        defer { try? FileManager.default.removeItem(at: folder) }
        let authority = try TestPKI.authority()
        let node = try Self.issue("a", by: authority)
        let past = Date().addingTimeInterval(-7200)
        let expired = try ClusterPKI.issueNode(
            NodeName(unchecked: "a"), authority: authority, at: past, lifetime: .seconds(3600))
        let early = try ClusterPKI.issueNode(
            NodeName(unchecked: "a"), authority: authority, at: Date().addingTimeInterval(86_400))
        let other = try Self.issue("b", by: authority)
        let foreign = try Self.issue("a", by: try TestPKI.authority())
        let client = try ClusterPKI.issueClientEndpoint(authority: authority)
        let truncated = String(node.certificatePEM.dropLast(200))
        typealias Case = (certificate: String, key: String, authority: String, words: String)
        let cases: [Case] = [
            (node.certificatePEM, other.privateKeyPEM, authority.certificatePEM, "cannot be used together"),
            (expired.certificatePEM, expired.privateKeyPEM, authority.certificatePEM, "expired"),
            (early.certificatePEM, early.privateKeyPEM, authority.certificatePEM, "not valid before"),
            (other.certificatePEM, other.privateKeyPEM, authority.certificatePEM, "names node b"),
            (client.certificatePEM, client.privateKeyPEM, authority.certificatePEM, "names no node"),
            (foreign.certificatePEM, foreign.privateKeyPEM, authority.certificatePEM, "no authority"),
            (truncated, node.privateKeyPEM, authority.certificatePEM, "a.pem"),
            (node.certificatePEM, String(node.privateKeyPEM.dropLast(80)), authority.certificatePEM, "a.key"),
            (node.certificatePEM, "", authority.certificatePEM, "a.key"),
            ("", node.privateKeyPEM, authority.certificatePEM, "a.pem"),
            (node.certificatePEM, node.privateKeyPEM, "", "ca.pem"),
        ]
        func read(_ files: Case?, revoked: RevokedCertificates = .none) throws -> TransportSecrets {
            let paths = ["a.pem", "a.key", "ca.pem"].map { folder.appending(path: $0).path }
            let texts = files.map { [$0.certificate, $0.key, $0.authority] } ?? []
            for (path, text) in zip(paths, texts) { try Data(text.utf8).write(to: URL(fileURLWithPath: path)) }
            return try TransportSecrets(
                TransportTLS(
                    authority: .file(paths[2]), certificateChain: .file(paths[0]), privateKey: .file(paths[1])),
                node: NodeName(unchecked: "a"), revoked: revoked)
        }
        let whole: Case = (node.certificatePEM, node.privateKeyPEM, authority.certificatePEM, "")
        #expect(try read(whole).certificate.node == NodeName(unchecked: "a"))
        for files in cases {
            let error = #expect(throws: ApusError.self) { try read(files) }
            #expect(error?.code == .configurationInvalid && error?.message.contains(files.words) == true, "\(error!)")
        }
        let mine = RevokedCertificates(serials: [try Self.serial(node)])
        let error = #expect(throws: ApusError.self) { try read(whole, revoked: mine) }
        #expect(error?.message.contains("is revoked") == true)
        _ = try read(whole)
        try FileManager.default.removeItem(at: folder.appending(path: "a.key"))
        let missing = #expect(throws: ApusError.self) { try read(nil) }
        #expect(missing?.code == .configurationInvalid && missing?.message.contains("a.key") == true)
    }

    @Test("A list of revoked certificates has serial numbers, comments and empty lines, and nothing else")
    func list() throws {
        let list = try RevokedCertificates(
            text: "# nodes\n00AB:cd\n\n  12  # b, stolen\n00\nab:CD\n", source: "revoked.txt")
        #expect(list == RevokedCertificates(serials: ["abcd", "12", "0"]) && list.count == 3)
        for text in ["no serial", "12 34g", String(repeating: "a", count: 65)] {
            let error = #expect(throws: ApusError.self) {
                try RevokedCertificates(text: "1\n\(text)", source: "revoked.txt")
            }
            #expect(error?.code == .configurationInvalid && error?.message.hasPrefix("revoked.txt:2") == true)
        }
        let many = (0...RevokedCertificates.countMax).map { String($0, radix: 16) }.joined(separator: "\n")
        #expect(throws: ApusError(.configurationInvalid)) { try RevokedCertificates(text: many, source: "") }
        #expect(try RevokedCertificates(file: "") == .none)
        #expect(throws: ApusError(.configurationInvalid)) { try RevokedCertificates(file: "/nowhere/revoked.txt") }
    }
}

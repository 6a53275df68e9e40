import ApusCore
import ApusTLS
import ApusTestKit
import ApusTransport
import Foundation
import NIOCore
import NIOEmbedded
import Testing

@Suite("TLS of a channel: who is trusted", .timeLimit(.minutes(2)))
struct TLSTrustTests {
    private static let hour = 3600.0

    private static func wire(
        _ client: TLSIdentity?, trusting first: TLSTrust, _ server: TLSIdentity, trusting second: TLSTrust?
    ) throws -> Wire {
        try Wire(
            TLSHandler(unnamed: try TLSClientContext(trust: first, identity: client)),
            TLSHandler(try TLSServerContext(server, trust: second)))
    }

    @Test("Both sides have the certificate of the other after the handshake, and none before it")
    func certificates() throws {
        let authority = try TestAuthority()
        let wire = try Self.wire(
            try authority.node("a"), trusting: authority.trust, try authority.node("b"), trusting: authority.trust)
        defer { wire.end() }
        let (client, server) = try #require((wire.client.tls, wire.server.tls) as? (TLSHandler, TLSHandler))
        #expect(client.peerCertificate == nil && server.peerCertificate == nil)
        try wire.pump()
        for (handler, name) in [(client, "b"), (server, "a")] {
            let pem = Data(try #require(handler.peerCertificate)).base64EncodedString(options: .lineLength76Characters)
            let facts = try CertificateFacts.all(
                pem: Array("-----BEGIN CERTIFICATE-----\n\(pem)\n-----END CERTIFICATE-----\n".utf8), source: "peer")
            #expect(facts.map(\.node) == [NodeName(unchecked: name)])
        }
    }

    enum Fault: CaseIterable {
        case otherAuthority, expired, early, none, serverOnly
    }

    @Test("A client's certificate is refused with its reason, and the client is told", arguments: Fault.allCases)
    func clients(fault: Fault) throws {
        let authority = try TestAuthority()
        let identity: TLSIdentity? =
            switch fault {
            case .otherAuthority: try TestAuthority().node()
            case .expired: try authority.node(at: Date().addingTimeInterval(-2 * Self.hour))
            case .early: try authority.node(at: Date().addingTimeInterval(24 * Self.hour))
            case .none: nil
            case .serverOnly: try authority.endpoint()
            }
        let wire = try Self.wire(
            identity, trusting: authority.trust, try authority.node(), trusting: authority.trust)
        try wire.pump()
        #expect(!wire.server.isSecured && wire.server.kinds == [.certificate], "\(wire.server.errors)")
        #expect(wire.client.kinds == [.certificate], "\(wire.client.errors)")
        #expect(!wire.server.channel.isActive && !wire.client.channel.isActive)
    }

    @Test("A server's certificate is refused with its reason, and the server is told", arguments: Fault.allCases)
    func servers(fault: Fault) throws {
        let authority = try TestAuthority()
        let identity: TLSIdentity =
            switch fault {
            case .otherAuthority, .none, .serverOnly: try TestAuthority().node()
            case .expired: try authority.node(at: Date().addingTimeInterval(-2 * Self.hour))
            case .early: try authority.node(at: Date().addingTimeInterval(24 * Self.hour))
            }
        let wire = try Self.wire(try authority.node(), trusting: authority.trust, identity, trusting: authority.trust)
        try wire.pump()
        #expect(!wire.client.isSecured && wire.client.kinds == [.certificate], "\(wire.client.errors)")
        #expect(wire.server.kinds == [.certificate], "\(wire.server.errors)")
    }

    @Test("The authorities of a text are trusted, each of them")
    func several() throws {
        let (old, new) = (try TestAuthority(), try TestAuthority())
        let both = TLSTrust.authorities(Array((old.issued.certificatePEM + "\n" + new.issued.certificatePEM).utf8))
        for authority in [old, new] {
            let wire = try Self.wire(try authority.node(), trusting: both, try new.node(), trusting: both)
            try wire.pump()
            #expect(wire.client.isSecured && wire.server.isSecured)
            wire.end()
        }
    }

    @Test(
        "A client that names the host checks it, or the address",
        arguments: [(nil, true), ("other.example", true), ("endpoint.example", true)] as [(String?, Bool)])
    func names(host: String?, isTaken: Bool) throws {
        let authority = try TestAuthority()
        let wire = try Wire(
            TLSHandler(try TLSClientContext(trust: authority.trust), host: host),
            TLSHandler(try TLSServerContext(try authority.endpoint(hosts: ["endpoint.example"]))))
        defer { wire.end() }
        try wire.pump()
        #expect(wire.client.isSecured == isTaken)
    }

    @Test(
        "A certificate that names neither the host nor the address is refused", .enabled(if: TestCertificate.canBeMade))
    func otherName() throws {
        let own = try TestCertificate(addresses: ["192.0.2.7"], names: ["endpoint.example"])
        let identity = try TLSIdentity(certificateFile: own.certificate, keyFile: own.key)
        for (host, isTaken) in [("endpoint.example", true), ("other.example", false), (nil, false)] {
            let wire = try Wire(
                TLSHandler(try TLSClientContext(authorityFile: own.certificate), host: host),
                TLSHandler(try TLSServerContext(identity)))
            try wire.pump()
            #expect(wire.client.isSecured == isTaken)
            #expect(isTaken || wire.client.kinds == [.certificate])
            wire.end()
        }
    }

    @Test("Links have TLS 1.3 only; servers of HTTP also take TLS 1.2")
    func versions() throws {
        let authority = try TestAuthority()
        var old = OtherTLSHandler.Settings()
        old.hasTLS13 = false
        let strict = try Wire(OtherTLSHandler(old), TLSHandler(try TLSServerContext(try authority.node())))
        try strict.pump()
        #expect(strict.server.kinds == [.protocolViolated] && !strict.client.isSecured)
        let mild = try Wire(OtherTLSHandler(old), TLSHandler(try TLSServerContext(http: try authority.node())))
        defer { mild.end() }
        try mild.pump()
        mild.client.send("x")
        try mild.pump()
        #expect(mild.server.text == "x")
    }

    @Test("No server of a channel sends session tickets")
    func tickets() throws {
        let authority = try TestAuthority()
        let wire = try Wire(
            TLSHandler(unnamed: try TLSClientContext(trust: authority.trust)),
            TLSHandler(try TLSServerContext(try authority.node())))
        defer { wire.end() }
        try wire.pump()
        // The server has nothing to say after the client's last message of the handshake.
        #expect(try wire.server.channel.readOutbound(as: ByteBuffer.self) == nil)
        #expect(wire.client.isSecured && wire.server.isSecured)
    }

    @Test("What cannot be used is named: authority, certificate, key, or a key of another certificate")
    func broken() throws {
        let authority = try TestAuthority()
        let (one, two) = (try authority.node("a"), try authority.node("b"))
        let newline = Array("\n".utf8)
        func failure(_ chain: [UInt8], _ key: [UInt8], _ trust: TLSTrust? = nil) -> TLSContextError? {
            do throws(TLSContextError) {
                _ = try TLSServerContext(TLSIdentity(chain: chain, key: key), trust: trust)
                return nil
            } catch {
                return error
            }
        }
        func isWhole(_ error: TLSContextError?) -> Bool { error == nil }
        #expect(isWhole(failure(one.chain, one.key, authority.trust)))
        #expect(isWhole(failure(one.chain + newline + two.chain, one.key)))
        guard case .pair = failure(one.chain, two.key), case .key = failure(one.chain, []),
            case .key = failure(one.chain, Array(one.key.dropLast(80))), case .certificate = failure([], one.key),
            case .certificate = failure(Array(one.chain.dropLast(200)), one.key),
            case .certificate = failure(one.chain + newline + two.chain.dropLast(200), one.key),
            case .authority = failure(one.chain, one.key, .authorities([])),
            case .authority = failure(one.chain, one.key, .authorities(Array(two.chain.dropLast(100))))
        else {
            Issue.record("a text that cannot be used is not named")
            return
        }
    }

    @Test("A key with a password is refused, and nobody is asked", .enabled(if: TestCertificate.canBeMade))
    func password() throws {
        let own = try TestCertificate()
        let folder = Folder()
        let locked = folder.file("locked.pem")
        let tool = try #require(Tool.openssl)
        try #require(
            Tool.run(tool, ["pkcs8", "-topk8", "-in", own.key, "-out", locked, "-passout", "pass:secret"]) != nil)
        #expect(throws: TLSContextError.self) {
            try TLSServerContext(try TLSIdentity(certificateFile: own.certificate, keyFile: locked))
        }
    }
}

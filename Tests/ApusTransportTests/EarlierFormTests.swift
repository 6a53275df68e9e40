import ApusCore
import ApusTestKit
import ApusTransport
import ApusWire
import Foundation
import NIOCore
import Testing

/// Certificates and heartbeats have the form that they had before decision 52, when another library made them.
@Suite("The form of certificates and heartbeats is that of earlier releases (D3)")
struct EarlierFormTests {
    private static let now = Date(timeIntervalSince1970: 1_790_000_000)
    private static let cluster = ClusterID(unchecked: "home")
    private static let name = NodeName(unchecked: "n1")

    private static let authorityKey = """
        -----BEGIN PRIVATE KEY-----
        MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgrHfDzJH7s0tI3LkH
        Uoe3QgIVCbfKMCdnUfPYXnIAw8OhRANCAAShkxIRJiCM1w9fzfOl/uQpagFS1ZBa
        yCvT9/HtrxQLcCoDTw7X5fC3qM+Js1Hw6wP8gjtgpcm+iPBN21vEn3Cd
        -----END PRIVATE KEY-----
        """
    private static let late = """
        -----BEGIN CERTIFICATE-----
        MIICFDCCAbqgAwIBAgIVAOnR6XxuP4+PWRG7xcjh+fhj86rHMAoGCCqGSM49BAMC
        MDQxDTALBgNVBAoMBEFwdXMxIzAhBgNVBAMMGkFwdXMgY2x1c3RlciBob21lIGI1
        NjdkMDA1MCAXDTI2MDkyMTEzMTMyMFoYDzIwNjYwOTExMTQxMzIwWjAcMQ0wCwYD
        VQQKDARBcHVzMQswCQYDVQQDDAJuMTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IA
        BNK2O9aiRWxe6Am8oJEXmwbs5PS9OMqQ/OhYuKilXeQ3fwNwi2Qmff7JChG0bbHw
        Sjd6t3QVIQQR6FnkYqvejxWjgb4wgbswDAYDVR0TAQH/BAIwADAOBgNVHQ8BAf8E
        BAMCB4AwHQYDVR0lBBYwFAYIKwYBBQUHAwEGCCsGAQUFBwMCMDwGA1UdEQQ1MDOC
        CWxvY2FsaG9zdIcEfwAAAYcQAAAAAAAAAAAAAAAAAAAAAYYOYXB1czovL25vZGUv
        bjEwHQYDVR0OBBYEFHp7xGuqAhKGO4PyESlq3y7UDF9TMB8GA1UdIwQYMBaAFNCe
        bJpLOh8y5781m97wrmQso6TxMAoGCCqGSM49BAMCA0gAMEUCIEhIDiYaswlIgbGQ
        B4mN/HbDtoTg5x09arLjeHIDYL/4AiEAutCZln7lKhcMCMzrP9573gwRf0HxAmkY
        lrrdnMvk6i8=
        -----END CERTIFICATE-----
        """

    private static let earlier = ClusterPKI.Issued(
        certificatePEM: EarlierCertificates.authority, privateKeyPEM: authorityKey)

    /// The part of a certificate that is the same for all with the same fields: what its authority signs, from the
    /// algorithm of the signature on. The key, its identifier, and a part of an authority's name are left out.
    private static func form(_ pem: String) throws -> [UInt8] {
        let lines = pem.split(separator: "\n").filter { !$0.hasPrefix("-----") }
        var bytes = [UInt8](try #require(Data(base64Encoded: lines.joined())))
        func range(after text: String, count: Int) throws -> Range<Int> {
            let pattern = try #require(Hexadecimal.bytes(text))
            let found = try #require(bytes.firstRange(of: pattern))
            return found.upperBound..<found.upperBound + count
        }
        let algorithm = "300a06082a8648ce3d040302"
        let start = try range(after: algorithm, count: 0).lowerBound
        let identifier = try range(after: "0603551d0e04160414", count: 20)
        let key = try range(after: "3059301306072a8648ce3d020106082a8648ce3d030107034200", count: 65)
        for range in [identifier, key] { bytes.replaceSubrange(range, with: [UInt8](repeating: 0, count: range.count)) }
        let cluster = Array("Apus cluster home ".utf8)
        while let found = bytes.firstRange(of: cluster) {
            bytes.replaceSubrange(found.lowerBound..<found.upperBound + 8, with: [UInt8](repeating: 0, count: 26))
        }
        let rest = Array(bytes[start...])
        let pattern = try #require(Hexadecimal.bytes(algorithm))
        let end = try #require(rest.firstRange(of: pattern))
        return Array(rest[..<end.lowerBound])
    }

    @Test("An authority, a node and client listeners get certificates with the same fields and extensions")
    func certificates() throws {
        let authority = try ClusterPKI.makeAuthority(cluster: Self.cluster, at: Self.now)
        #expect(try Self.form(authority.certificatePEM) == Self.form(EarlierCertificates.authority))
        let node = try ClusterPKI.issueNode(
            Self.name, hosts: ["host.example", "10.0.0.5", "fd00::5"], authority: Self.earlier, at: Self.now)
        #expect(try Self.form(node.certificatePEM) == Self.form(EarlierCertificates.node))
        let clients = try ClusterPKI.issueClientEndpoint(
            hosts: ["door.example"], authority: Self.earlier, at: Self.now)
        #expect(try Self.form(clients.certificatePEM) == Self.form(EarlierCertificates.clients))
        // After 2049 a time has another type (RFC 5280 §4.1.2.5).
        let late = try ClusterPKI.issueNode(
            Self.name, authority: Self.earlier, at: Self.now, lifetime: .seconds(40 * 365 * 86_400))
        #expect(try Self.form(late.certificatePEM) == Self.form(Self.late))
    }

    @Test("Certificates of both releases are accepted under an authority of either")
    func accepted() throws {
        func secrets(_ issued: ClusterPKI.Issued, _ authority: String) throws -> TransportSecrets {
            try TransportSecrets(
                TransportTLS(
                    authority: .bytes(Array(authority.utf8)),
                    certificateChain: .bytes(Array(issued.certificatePEM.utf8)),
                    privateKey: .bytes(Array(issued.privateKeyPEM.utf8))), node: Self.name, at: Self.now)
        }
        let authority = try ClusterPKI.makeAuthority(cluster: Self.cluster, at: Self.now)
        let node = try ClusterPKI.issueNode(Self.name, authority: Self.earlier, at: Self.now)
        let bundle = authority.certificatePEM + "\n" + EarlierCertificates.authority + "\n"
        let read = try secrets(node, bundle)
        #expect(read.authority.serial == "b567d005340982a0ca2bf6dcecce73c9e2289678")
        #expect(read.certificate.node == Self.name)
        #expect(throws: ApusError(.configurationInvalid)) { try secrets(node, authority.certificatePEM) }
        let new = try ClusterPKI.issueNode(Self.name, authority: authority, at: Self.now)
        #expect(try secrets(new, bundle).authority.serial != read.authority.serial)
        #expect(throws: ApusError(.configurationInvalid)) { try secrets(new, EarlierCertificates.authority) }
    }

    @Test("The facts and hosts of a certificate of an earlier release are read")
    func facts() throws {
        let facts = try CertificateFacts.all(
            pem: Array((EarlierCertificates.node + "\n" + EarlierCertificates.authority).utf8), source: "x")
        #expect(facts.map(\.node) == [Self.name, nil])
        #expect(facts[0].serial == "d477898a257ad3e7f5c6771a30bf5b31c1d64db3")
        #expect(facts[0].notAfter == Self.now + 2 * 365 * 86_400)
        #expect(try ClusterPKI.hosts(ofPEM: EarlierCertificates.node) == ["host.example", "10.0.0.5", "fd00::5"])
        #expect(try ClusterPKI.hosts(ofPEM: EarlierCertificates.clients) == ["door.example"])
    }

    @Test("What is no authority, or no name, is refused with its number")
    func refused() {
        let texts = ["", "no key", EarlierCertificates.node, String(Self.authorityKey.dropLast(30))]
        for text in texts {
            let broken = ClusterPKI.Issued(certificatePEM: EarlierCertificates.authority, privateKeyPEM: text)
            #expect(throws: ApusError(.configurationInvalid)) { try ClusterPKI.issueNode(Self.name, authority: broken) }
        }
        for text in ["", "no certificate", Self.authorityKey, String(EarlierCertificates.authority.dropLast(60))] {
            let broken = ClusterPKI.Issued(certificatePEM: text, privateKeyPEM: Self.authorityKey)
            #expect(throws: ApusError(.configurationInvalid)) { try ClusterPKI.issueNode(Self.name, authority: broken) }
            #expect(throws: ApusError(.configurationInvalid)) { try ClusterPKI.hosts(ofPEM: text) }
        }
        #expect(throws: ApusError(.internalFailure)) {
            try ClusterPKI.issueNode(Self.name, hosts: ["bücher.example"], authority: Self.earlier)
        }
    }

    @Test("A heartbeat of an earlier release is authentic, and is sealed the same")
    func heartbeat() throws {
        let bytes = try #require(
            Hexadecimal.bytes(
                "0101000000000000002a00000000000000070000000000000003026e31000000020021aba8c75047f9516fce53972b0014f2"))
        let receiver = NodeID(name: NodeName(unchecked: "n2"), incarnation: 5)
        let datagram = HeartbeatDatagram(
            clusterHash: 42, sequence: 7, sender: NodeID(name: Self.name, incarnation: 3), message: .heartbeat)
        let seal = try HeartbeatSeal(key: Array(0..<32))
        #expect(try seal.open(ByteBuffer(bytes: bytes), receiver: receiver, clusterHash: 42).sequence == 7)
        #expect(Array(seal.seal(datagram, to: receiver).readableBytesView) == bytes)
    }
}

import ApusCore
import ApusCrypto
import ApusTestKit
import CApusCrypto
import Foundation
import Testing

@Suite("Certificates (RFC 5280)")
struct CertificateTests {
    private static let now = Date(timeIntervalSince1970: 1_790_000_000)

    static func der(_ pem: String) throws -> [UInt8] {
        let lines = pem.split(whereSeparator: \.isNewline).filter { !$0.hasPrefix("-----") }
        return [UInt8](try #require(Data(base64Encoded: lines.joined())))
    }

    private static func read(_ pem: String) throws -> Certificate {
        try Certificate(derRepresentation: try der(pem))
    }

    @Test("Certificates of earlier releases are read with their facts, and written as they were")
    func earlier() throws {
        let node = try Self.read(EarlierCertificates.node)
        #expect(node.serial == "d477898a257ad3e7f5c6771a30bf5b31c1d64db3")
        #expect(node.notBefore == Self.now - 3600)
        #expect(node.notAfter == Self.now + 2 * 365 * 86_400)
        let names = (node.alternativeNames ?? []).map { "\($0)" }
        #expect(
            names == [
                #"dns("localhost")"#, "address([127, 0, 0, 1])",
                "address([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1])", #"dns("host.example")"#,
                "address([10, 0, 0, 5])", "address([253, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5])",
                #"uri("apus://node/n1")"#,
            ])
        let authority = try Self.read(EarlierCertificates.authority)
        #expect(authority.alternativeNames?.isEmpty == true)
        #expect(authority.serial == "b567d005340982a0ca2bf6dcecce73c9e2289678")
        #expect(try Self.read(EarlierCertificates.clients).serial == "27c13f793f484ed16a537eb794c01a012a160b3c")
        #expect(node.isSigned(by: authority) && authority.isSigned(by: authority))
        #expect(!authority.isSigned(by: node) && !node.isSigned(by: node))
        for pem in [EarlierCertificates.node, EarlierCertificates.authority, EarlierCertificates.clients] {
            #expect(try Self.read(pem).pemRepresentation.isExactly(pem))
        }
    }

    @Test(
        "Authorities with keys of all kinds issue certificates",
        arguments: [
            (Fixtures.p384, Fixtures.p384Certificate), (Fixtures.rsa, Fixtures.rsaCertificate),
            (Fixtures.rsaPKCS1, Fixtures.rsaCertificate), (Fixtures.ed25519, Fixtures.ed25519Certificate),
        ])
    func authorities(key: String, certificate: String) throws {
        let issuer = try Self.read(certificate)
        let fields = Certificate.Fields(
            organization: "Apus", commonName: "n1", notBefore: Self.now, notAfter: Self.now + 60,
            role: .end(isServer: true, isClient: true, names: [.dns("a")]))
        let issued = try Certificate.issue(
            fields, subject: P256.Signing.PrivateKey().publicKey, issuer: issuer,
            issuerKey: Certificate.PrivateKey(pemRepresentation: key))
        #expect(issued.isSigned(by: issuer))
        #expect(try !issued.isSigned(by: Self.read(EarlierCertificates.authority)))
        #expect(issued.notBefore == Self.now && issued.notAfter == Self.now + 60)
    }

    @Test("Serial numbers are positive, of 20 bytes, and differ; a small one has no zeros before it")
    func serials() throws {
        let serials = (0..<100).map { _ in Certificate.Fields.randomSerial() }
        #expect(Set(serials).count == 100)
        #expect(serials.allSatisfy { $0.count == 20 && $0[0] < 0x80 })
        let key = P256.Signing.PrivateKey()
        for (serial, text) in [([0, 0, 0x0a, 0x01] as [UInt8], "a01"), ([0x80], "80"), ([0], "0")] {
            let fields = Certificate.Fields(
                organization: "Apus", commonName: "x", serial: serial, notBefore: Self.now, notAfter: Self.now,
                role: .authority)
            let issued = try Certificate.issue(
                fields, subject: key.publicKey, issuer: nil, issuerKey: Certificate.PrivateKey(key))
            #expect(issued.serial == text)
        }
    }

    @Test("A name that is not ASCII is refused; a long common name is not")
    func names() throws {
        let key = P256.Signing.PrivateKey()
        func issue(_ name: Certificate.AlternativeName, common: String) throws -> Certificate {
            let fields = Certificate.Fields(
                organization: "Apus", commonName: common, notBefore: Self.now, notAfter: Self.now,
                role: .end(isServer: true, isClient: false, names: [name]))
            return try Certificate.issue(
                fields, subject: key.publicKey, issuer: nil, issuerKey: Certificate.PrivateKey(key))
        }
        #expect(throws: CryptoError.self) { try issue(.dns("bücher"), common: "x") }
        #expect(throws: CryptoError.self) { try issue(.uri("ü:"), common: "x") }
        let long = try issue(.dns(""), common: String(repeating: "c", count: 200))
        #expect(long.derRepresentation.count > 400)
        #expect(apus_has_errors() == 0)
    }

    @Test("Bytes that are no certificate are refused")
    func malformed() throws {
        let der = try Self.der(EarlierCertificates.node)
        for count in 0..<der.count {
            #expect(throws: CryptoError.self) { try Certificate(derRepresentation: Array(der[..<count])) }
        }
        #expect(throws: CryptoError.self) { try Certificate(derRepresentation: der + [0]) }
        #expect(throws: CryptoError.self) { try Certificate(derRepresentation: der + der) }
        #expect(throws: CryptoError.self) {
            try Certificate(derRepresentation: [UInt8](repeating: 0x30, count: 1 << 20))
        }
        #expect(apus_has_errors() == 0)
    }

    @Test("Changed bytes are refused, or are a certificate that nobody has signed; nothing crashes")
    func mutated() throws {
        let der = try Self.der(EarlierCertificates.node)
        let authority = try Self.read(EarlierCertificates.authority)
        var random = SeededGenerator(seed: 7)
        var (read, signed) = (0, 0)
        func check(_ changed: [UInt8]) {
            guard let certificate = try? Certificate(derRepresentation: changed) else { return }
            read += 1
            if changed != der, certificate.isSigned(by: authority) { signed += 1 }
        }
        for index in der.indices {
            for bit in 0..<8 {
                var changed = der
                changed[index] ^= 1 << bit
                check(changed)
            }
        }
        for _ in 0..<5000 {
            var changed = der
            for _ in 0..<Int.random(in: 1...4, using: &random) {
                let index = Int.random(in: changed.indices, using: &random)
                switch Int.random(in: 0..<3, using: &random) {
                case 0: changed[index] = UInt8.random(in: 0...255, using: &random)
                case 1: changed.remove(at: index)
                default: changed.insert(UInt8.random(in: 0...255, using: &random), at: index)
                }
            }
            check(changed)
        }
        #expect(read > 1000 && signed == 0)
        #expect(apus_has_errors() == 0)
    }

    @Test("Changed PEM texts of keys are refused or are a key; nothing crashes")
    func mutatedKeys() throws {
        var random = SeededGenerator(seed: 8)
        var isSound = true
        let texts = [Fixtures.p256, Fixtures.p256SEC1, Fixtures.p256Public, Fixtures.rsaPKCS1, Fixtures.p256Explicit]
        for text in texts.map({ Array($0.utf8) }) {
            for _ in 0..<1000 {
                var changed = text
                for _ in 0..<Int.random(in: 1...3, using: &random) {
                    let index = Int.random(in: changed.indices, using: &random)
                    changed[index] = UInt8.random(in: 0...127, using: &random)
                }
                let pem = String(decoding: changed, as: UTF8.self)
                if let key = try? P256.Signing.PrivateKey(pemRepresentation: pem) {
                    let signature = try key.signature(for: changed)
                    isSound = isSound && key.publicKey.isValidSignature(signature, for: changed)
                }
                _ = try? P256.Signing.PublicKey(pemRepresentation: pem)
                _ = try? Certificate.PrivateKey(pemRepresentation: pem)
            }
        }
        #expect(isSound && apus_has_errors() == 0)
    }
}

/// SplitMix64.
struct SeededGenerator: RandomNumberGenerator {
    private var state: UInt64

    init(seed: UInt64) { state = seed }

    mutating func next() -> UInt64 {
        state &+= 0x9e37_79b9_7f4a_7c15
        var value = state
        value = (value ^ value >> 30) &* 0xbf58_476d_1ce4_e5b9
        value = (value ^ value >> 27) &* 0x94d0_49bb_1331_11eb
        return value ^ value >> 31
    }
}

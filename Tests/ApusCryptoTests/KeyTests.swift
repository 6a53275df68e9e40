import ApusCore
import ApusCrypto
import ApusTestKit
import CApusCrypto
import Foundation
import Testing

@Suite("Keys of signatures and agreements")
struct KeyTests {
    private static let message = Array("sample".utf8)

    // MARK: P-256

    @Test("A signature of RFC 6979 §A.2.5 is valid, and no other")
    func knownSignature() throws {
        let point = hex(
            """
            60fed4ba255a9d31c961eb74c6356d68c049b8923b61fa6ce669622e60f29fb6
            7903fe1008b8bc99a41ae9e95628bc64f2f1b20c2d7e9f5177a3c294d4462299
            """)
        let der = hex("3059301306072a8648ce3d020106082a8648ce3d03010703420004") + point
        let pem = "-----BEGIN PUBLIC KEY-----\n\(Data(der).base64EncodedString())\n-----END PUBLIC KEY-----"
        let key = try P256.Signing.PublicKey(pemRepresentation: pem)
        let bytes = hex(
            """
            efd48b2aacb6a8fd1140dd9cd45e81d69d2c877b56aaf991c34d0ea84eaf3716
            f7cb1c942d657c41d436c7a1b6e29f65f3e900dbb9aff4064dc4ab2f843acda8
            """)
        let signature = try P256.Signing.ECDSASignature(rawRepresentation: bytes)
        #expect(key.isValidSignature(signature, for: Self.message))
        #expect(!key.isValidSignature(signature, for: Self.message + [0]))
        for index in bytes.indices {
            var changed = bytes
            changed[index] ^= 1
            let signature = try P256.Signing.ECDSASignature(rawRepresentation: changed)
            #expect(!key.isValidSignature(signature, for: Self.message))
        }
        // Numbers that are not of the group.
        for bytes in [[UInt8](repeating: 0, count: 64), [UInt8](repeating: 0xff, count: 64)] {
            let signature = try P256.Signing.ECDSASignature(rawRepresentation: bytes)
            #expect(!key.isValidSignature(signature, for: Self.message))
        }
        for count in [0, 63, 65] {
            #expect(throws: CryptoError.self) {
                try P256.Signing.ECDSASignature(rawRepresentation: [UInt8](repeating: 1, count: count))
            }
        }
        #expect(apus_has_errors() == 0)
    }

    @Test("A new key signs, and is read from its PEM text")
    func newKey() throws {
        let key = P256.Signing.PrivateKey()
        let read = try P256.Signing.PrivateKey(pemRepresentation: key.pemRepresentation)
        let readPublic = try P256.Signing.PublicKey(pemRepresentation: key.publicKey.pemRepresentation)
        #expect(read.pemRepresentation.isExactly(key.pemRepresentation))
        #expect(readPublic.pemRepresentation.isExactly(read.publicKey.pemRepresentation))
        for signer in [key, read] {
            for _ in 0..<50 {
                let raw = try signer.signature(for: Self.message).rawRepresentation
                #expect(raw.count == 64)
                let signature = try P256.Signing.ECDSASignature(rawRepresentation: raw)
                #expect(readPublic.isValidSignature(signature, for: Data(Self.message)))
                #expect(!P256.Signing.PrivateKey().publicKey.isValidSignature(signature, for: Self.message))
            }
        }
    }

    @Test("Keys of earlier releases are read, and written as they were")
    func earlierKeys() throws {
        let key = try P256.Signing.PrivateKey(pemRepresentation: Fixtures.p256)
        #expect(key.pemRepresentation.isExactly(Fixtures.p256))
        #expect(key.publicKey.pemRepresentation.isExactly(Fixtures.p256Public))
        let publicKey = try P256.Signing.PublicKey(pemRepresentation: Fixtures.p256Public + "\n")
        #expect(publicKey.pemRepresentation.isExactly(Fixtures.p256Public))
        // As `openssl ec` writes it, and with other ends of lines.
        for text in [Fixtures.p256SEC1, Fixtures.p256.replacing("\n", with: "\r\n"), "A comment\n" + Fixtures.p256] {
            let read = try P256.Signing.PrivateKey(pemRepresentation: text)
            #expect(read.pemRepresentation.isExactly(Fixtures.p256))
        }
        let signature = try key.signature(for: Self.message)
        #expect(publicKey.isValidSignature(signature, for: Self.message))
    }

    @Test("Keys of other kinds, with a password, of more than one, or too long, are refused")
    func otherKeys() {
        let texts = [
            "", "no key", Fixtures.p256Public, EarlierCertificates.node, Fixtures.p256Encrypted, Fixtures.p384,
            Fixtures.k256,
            Fixtures.rsa, Fixtures.rsaPKCS1, Fixtures.ed25519, Fixtures.p256Explicit,
            Fixtures.p256 + "\n" + Fixtures.p256,
            String(Fixtures.p256.dropLast(40)), Fixtures.p256.replacing("BEGIN PRIVATE", with: "BEGIN EC PRIVATE"),
            Fixtures.p256SEC1.replacing("EC PRIVATE KEY", with: "RSA PRIVATE KEY"),
            String(repeating: "a", count: 1 << 20) + "\n" + Fixtures.p256,
            "-----BEGIN PRIVATE KEY-----\n" + String(repeating: "AAAA\n", count: 1 << 20),
            "-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----", "\0" + String(repeating: "\0", count: 20_000),
        ]
        for text in texts {
            #expect(throws: CryptoError.self, "\(text.prefix(60))") {
                try P256.Signing.PrivateKey(pemRepresentation: text)
            }
        }
        for text in [Fixtures.p256, EarlierCertificates.node, Fixtures.p256Public + "\n" + Fixtures.p256Public, ""] {
            #expect(throws: CryptoError.self, "\(text.prefix(60))") {
                try P256.Signing.PublicKey(pemRepresentation: text)
            }
        }
        #expect(apus_has_errors() == 0)
    }

    @Test("A private key that does not fit its public key, or is no number of the group, is refused")
    func inconsistent() throws {
        let body = hex("308187020100301306072a8648ce3d020106082a8648ce3d030107046d306b0201010420")
        let raw = [UInt8](repeating: 7, count: 32)
        let point = try #require(Data(base64Encoded: Fixtures.p256.split(separator: "\n")[1...3].joined())).suffix(68)
        for number in [raw, [UInt8](repeating: 0, count: 32), [UInt8](repeating: 0xff, count: 32)] {
            let der = Data(body + number) + point
            let text = "-----BEGIN PRIVATE KEY-----\n\(der.base64EncodedString())\n-----END PRIVATE KEY-----"
            #expect(throws: CryptoError.self) { try P256.Signing.PrivateKey(pemRepresentation: text) }
        }
    }

    // MARK: Ed25519

    @Test(
        "Ed25519 of RFC 8032 §7.1",
        arguments: [
            (
                "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
                "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", "",
                """
                e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b
                d25bf5f0595bbe24655141438e7a100b
                """
            ),
            (
                "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
                "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", "72",
                """
                92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c
                387b2eaeb4302aeeb00d291612bb0c00
                """
            ),
            (
                "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
                "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025", "af82",
                """
                6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc659
                4a7c15e9716ed28dc027beceea1ec40a
                """
            ),
        ])
    func ed25519(secret: String, publicKey: String, message: String, signature: String) throws {
        let key = try Curve25519.Signing.PrivateKey(rawRepresentation: hex(secret))
        #expect(Array(key.rawRepresentation) == hex(secret))
        #expect(Array(key.publicKey.rawRepresentation) == hex(publicKey))
        #expect(Array(try key.signature(for: hex(message))) == hex(signature))
        let verifier = try Curve25519.Signing.PublicKey(rawRepresentation: Data(hex(publicKey)))
        #expect(verifier.isValidSignature(hex(signature), for: hex(message)))
        #expect(!verifier.isValidSignature(hex(signature), for: hex(message) + [0]))
        for index in hex(signature).indices {
            var changed = hex(signature)
            changed[index] ^= 1
            #expect(!verifier.isValidSignature(changed, for: hex(message)))
            #expect(!verifier.isValidSignature(changed[..<index], for: hex(message)))
        }
        #expect(apus_has_errors() == 0)
    }

    @Test("A firmware's signature of an earlier release is valid, and is made again")
    func firmware() throws {
        let hash = String(repeating: "ab", count: 32)
        let manifest = Array(
            #"{"product":"bell","version":"1.5.0","size":1000,"sha256":"\#(hash)","from":""}"#.utf8)
        let signature = hex(
            """
            a6f9dc2d5cb0326f92abcfd8817c10ed8a0c7730e5c74c39e1bf07753e0fc40ecedbecf60d0e0913938631ea892545c5
            d4827a5c6ef431b124c586889613950e
            """)
        let key = try Curve25519.Signing.PrivateKey(
            rawRepresentation: hex("0f34b5e3e7b0f4dd74d32022ffc4d4bb528e64452764dc8cc6dea1a7d97c3103"))
        #expect(
            Array(key.publicKey.rawRepresentation)
                == hex("46923473a001164a389fa2ac99aab3b751c11890a61c6fe4288e92f99d0ea01a"))
        #expect(key.publicKey.isValidSignature(signature, for: manifest))
        #expect(Array(try key.signature(for: manifest)) == signature)
    }

    // MARK: X25519

    @Test("X25519 of RFC 7748 §6.1")
    func agreement() throws {
        let alice = try Curve25519.KeyAgreement.PrivateKey(
            rawRepresentation: hex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"))
        let bob = try Curve25519.KeyAgreement.PrivateKey(
            rawRepresentation: hex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"))
        #expect(
            Array(alice.publicKey.rawRepresentation)
                == hex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"))
        #expect(
            Array(bob.publicKey.rawRepresentation)
                == hex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"))
        let secret = hex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
        #expect(try alice.sharedSecret(with: bob.publicKey).withUnsafeBytes { Array($0) } == secret)
        #expect(try bob.sharedSecret(with: alice.publicKey).withUnsafeBytes { Array($0) } == secret)
        #expect(Array(bob.rawRepresentation).first == 0x5d)
    }

    @Test(
        "X25519 with a point of small order is refused (RFC 7748 §6.1)",
        arguments: [
            "0000000000000000000000000000000000000000000000000000000000000000",
            "0100000000000000000000000000000000000000000000000000000000000000",
            "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
            "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
            "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
            "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
            "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        ])
    func smallOrder(point: String) throws {
        let key = Curve25519.KeyAgreement.PrivateKey()
        let other = try Curve25519.KeyAgreement.PublicKey(rawRepresentation: hex(point))
        #expect(throws: CryptoError.self) { try key.sharedSecret(with: other) }
        #expect(apus_has_errors() == 0)
    }

    @Test("Raw keys of other sizes are refused", arguments: [0, 1, 31, 33, 64])
    func rawSizes(count: Int) {
        let bytes = [UInt8](repeating: 9, count: count)
        #expect(throws: CryptoError.self) { try Curve25519.Signing.PrivateKey(rawRepresentation: bytes) }
        #expect(throws: CryptoError.self) { try Curve25519.Signing.PublicKey(rawRepresentation: bytes) }
        #expect(throws: CryptoError.self) { try Curve25519.KeyAgreement.PrivateKey(rawRepresentation: bytes) }
        #expect(throws: CryptoError.self) { try Curve25519.KeyAgreement.PublicKey(rawRepresentation: bytes) }
    }
}

import ApusCore
import ApusCrypto
import CApusCrypto
import Foundation
import Testing

@Suite("Symmetric keys, HKDF and AES-GCM")
struct SecretTests {
    @Test("A key has the bytes that it was made of, and random ones differ")
    func keys() {
        let bytes = [UInt8](0..<20)
        #expect(SymmetricKey(data: bytes).withUnsafeBytes { Array($0) } == bytes)
        #expect(SymmetricKey(data: bytes[4..<9]).withUnsafeBytes { Array($0) } == [4, 5, 6, 7, 8])
        #expect(SymmetricKey(data: Data()).byteCount == 0)
        let random = (0..<50).map { _ in SymmetricKey.random().withUnsafeBytes { Array($0) } }
        #expect(Set(random).count == 50 && random.allSatisfy { $0.count == 32 })
    }

    @Test("Memory that is cleansed is zero")
    func cleansed() {
        var bytes = [UInt8](repeating: 7, count: 100)
        apus_cleanse(&bytes, bytes.count)
        #expect(bytes == [UInt8](repeating: 0, count: 100))
    }

    @Test(
        "HKDF-SHA-256 of RFC 5869",
        arguments: [
            (
                [UInt8](repeating: 0x0b, count: 22), Array(0...12), Array(0xf0...0xf9),
                "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
            ),
            (
                Array(0x00...0x4f), Array(0x60...0xaf), Array(0xb0...0xff),
                """
                b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e590e09
                da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87
                """
            ),
            (
                [UInt8](repeating: 0x0b, count: 22), [], [],
                "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
            ),
        ] as [([UInt8], [UInt8], [UInt8], String)])
    func hkdf(input: [UInt8], salt: [UInt8], info: [UInt8], output: String) {
        let expected = hex(output)
        let key = HKDF.deriveKey(
            inputKeyMaterial: input, salt: salt, info: info, outputByteCount: expected.count)
        #expect(key.withUnsafeBytes { Array($0) } == expected)
    }

    @Test("HKDF derives from nothing, and up to its longest output (RFC 5869 §2.3)")
    func hkdfBounds() {
        let none: [UInt8] = []
        let long = HKDF.deriveKey(inputKeyMaterial: none, info: none, outputByteCount: 255 * 32)
        let short = HKDF.deriveKey(inputKeyMaterial: none, info: none, outputByteCount: 1)
        #expect(long.byteCount == 255 * 32)
        #expect(long.withUnsafeBytes { $0.first } == short.withUnsafeBytes { $0.first })
    }

    private static let nistKey = "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308"

    @Test(
        "AES-256-GCM of the specification's test cases 13, 14 and 15",
        arguments: [
            (
                String(repeating: "00", count: 32), "000000000000000000000000", "", "",
                "530f8afbc74536b9a963b4f1c4cb738b"
            ),
            (
                String(repeating: "00", count: 32), "000000000000000000000000", "00000000000000000000000000000000",
                "cea7403d4d606b6e074ec5d3baf39d18", "d0d1c8a799996bf0265b98b5d48ab919"
            ),
            (
                nistKey, "cafebabefacedbaddecaf888",
                """
                d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525
                b16aedf5aa0de657ba637b391aafd255
                """,
                """
                522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838
                c5f61e6393ba7a0abcc9f662898015ad
                """,
                "b094dac5d93471bdec1a502270e3cc6c"
            ),
        ])
    func gcm(key: String, nonce: String, plain: String, sealed: String, tag: String) throws {
        let key = SymmetricKey(data: hex(key))
        let combined = hex(nonce) + hex(sealed) + hex(tag)
        #expect(try AES.GCM.seal(hex(plain), using: key, nonce: hex(nonce)) == combined)
        #expect(try AES.GCM.open(combined, using: key) == hex(plain))
    }

    @Test("What was changed, cut, or sealed with another key is not opened")
    func forged() throws {
        let key = SymmetricKey.random()
        let sealed = try AES.GCM.seal(Data("something".utf8), using: key)
        #expect(try AES.GCM.open(Data(sealed), using: key) == Array("something".utf8))
        #expect(throws: CryptoError.notAuthentic) { try AES.GCM.open(sealed, using: .random()) }
        for index in sealed.indices {
            var changed = sealed
            changed[index] ^= 0x80
            #expect(throws: CryptoError.notAuthentic) { try AES.GCM.open(changed, using: key) }
            #expect(throws: CryptoError.self) { try AES.GCM.open(sealed[..<index], using: key) }
        }
        #expect(throws: CryptoError.notAuthentic) { try AES.GCM.open(sealed + [0], using: key) }
        #expect(apus_has_errors() == 0)
    }

    @Test("Two seals of the same have two nonces; keys and nonces of other sizes are refused")
    func sizes() throws {
        let key = SymmetricKey.random()
        let none: [UInt8] = []
        #expect(try AES.GCM.seal(none, using: key) != AES.GCM.seal(none, using: key))
        for count in [0, 16, 31, 33] {
            let key = SymmetricKey.random(byteCount: count)
            #expect(throws: CryptoError.self) { try AES.GCM.seal(none, using: key) }
            #expect(throws: CryptoError.self) { try AES.GCM.open([UInt8](repeating: 0, count: 28), using: key) }
        }
        for count in [0, 11, 13] {
            #expect(throws: CryptoError.self) {
                try AES.GCM.seal(none, using: key, nonce: [UInt8](repeating: 0, count: count))
            }
        }
    }

    @Test("A mobility ticket's seal, made by swift-crypto, is opened and made again")
    func earlier() throws {
        let sealed = hex(
            """
            6465666768696a6b6c6d6e6f514a25eae269510f77947079443faa9df2578e533b568eb84690dd611d76a63c713874847cc732be
            """)
        let key = SymmetricKey(data: SHA256.hash(data: [UInt8](1...32)))
        #expect(try AES.GCM.open(sealed, using: key) == Array(0..<24))
        #expect(try AES.GCM.seal([UInt8](0..<24), using: key, nonce: [UInt8](100..<112)) == sealed)
    }
}

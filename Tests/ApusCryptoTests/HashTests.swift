import ApusCore
import ApusCrypto
import CApusCrypto
import Foundation
import Testing

/// Bytes written in hexadecimal, with spaces.
func hex(_ text: String) -> [UInt8] { Hexadecimal.bytes(text.filter { !$0.isWhitespace }) ?? [] }

@Suite("Hashes and message authentication codes")
struct HashTests {
    @Test(
        "SHA-256 of the samples of FIPS 180",
        arguments: [
            ("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            ("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (
                "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"
            ),
        ])
    func sha256(text: String, digest: String) {
        #expect(SHA256.hash(data: Array(text.utf8)) == hex(digest))
        #expect(SHA256.hash(data: Data(text.utf8)) == hex(digest))
        var hash = SHA256()
        for byte in text.utf8 { hash.update(data: [byte]) }
        hash.update(data: Data())
        #expect(hash.finalize() == hex(digest))
    }

    @Test("SHA-256 of a million times `a`, in pieces (FIPS 180)")
    func pieces() {
        var hash = SHA256()
        for _ in 0..<1000 { hash.update(data: [UInt8](repeating: UInt8(ascii: "a"), count: 1000)) }
        #expect(hash.finalize() == hex("cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"))
    }

    @Test("SHA-1 (FIPS 180) and MD5 (RFC 1321)")
    func insecure() {
        #expect(Insecure.SHA1.hash(data: Array("abc".utf8)) == hex("a9993e364706816aba3e25717850c26c9cd0d89d"))
        #expect(Insecure.MD5.hash(data: Array("abc".utf8)) == hex("900150983cd24fb0d6963f7d28e17f72"))
        #expect(Insecure.MD5.hash(data: [UInt8]()) == hex("d41d8cd98f00b204e9800998ecf8427e"))
    }

    @Test(
        "HMAC-SHA-256 of RFC 4231",
        arguments: [
            (
                String(repeating: "0b", count: 20), "4869205468657265",
                "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
            ),
            (
                "4a656665", "7768617420646f2079612077616e7420666f72206e6f7468696e673f",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
            ),
            (
                String(repeating: "aa", count: 20), String(repeating: "dd", count: 50),
                "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"
            ),
            (
                "0102030405060708090a0b0c0d0e0f10111213141516171819", String(repeating: "cd", count: 50),
                "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"
            ),
            (
                String(repeating: "aa", count: 131),
                Hexadecimal.text("Test Using Larger Than Block-Size Key - Hash Key First".utf8),
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
            ),
        ])
    func hmac(key: String, message: String, code: String) {
        let (key, message, code) = (hex(key), hex(message), hex(code))
        #expect(HMAC<SHA256>.authenticationCode(for: message, using: key) == code)
        #expect(HMAC<SHA256>.authenticationCode(for: message, using: SymmetricKey(data: key)) == code)
        for split in [0, 1, message.count] {
            let parts = (message[..<split], message[split...])
            #expect(HMAC<SHA256>.authenticationCode(for: parts.0, then: parts.1, using: key) == code)
        }
        #expect(HMAC<SHA256>.isValidAuthenticationCode(code, authenticating: message, using: key))
        for index in code.indices {
            var changed = code
            changed[index] ^= 1
            #expect(!HMAC<SHA256>.isValidAuthenticationCode(changed, authenticating: message, using: key))
        }
        let isValid = { (code: ArraySlice<UInt8>, count: Int?) in
            HMAC<SHA256>.isValidAuthenticationCode(code, authenticating: message, using: key, byteCount: count)
        }
        #expect(isValid(code.prefix(16), 16))
        // A code that is shorter than agreed, or longer, is invalid, whatever its bytes are.
        #expect(!isValid(code.prefix(15), 16) && !isValid(code[...], 16) && !isValid(code.prefix(31), nil))
        #expect(!isValid([], nil) && !isValid([], 0))
    }

    @Test("HMAC with an empty key, and HMAC-SHA-1 (RFC 2202)")
    func others() {
        let none: [UInt8] = []
        // The context of the thread has another key before.
        _ = HMAC<SHA256>.authenticationCode(for: none, using: [1, 2, 3] as [UInt8])
        #expect(
            HMAC<SHA256>.authenticationCode(for: none, using: none)
                == hex("b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad"))
        #expect(
            HMAC<Insecure.SHA1>.authenticationCode(for: none, using: Data())
                == hex("fbdb1d1b18aa6c08324b7d64b71fb76370690e1d"))
        #expect(
            HMAC<Insecure.SHA1>.authenticationCode(
                for: Array("what do ya want for nothing?".utf8), using: Data("Jefe".utf8))
                == hex("effcdf6ae5eb2fa2d27416d5f184df9c259a7c79"))
    }

    @Test("Comparison in constant time compares all bytes, and the counts")
    func comparison() {
        #expect(ConstantTime.isEqual([1, 2, 3] as [UInt8], Data([1, 2, 3])))
        #expect(ConstantTime.isEqual([] as [UInt8], Data()))
        #expect(!ConstantTime.isEqual([1, 2, 3] as [UInt8], Data([1, 2])))
        #expect(!ConstantTime.isEqual([1, 2, 3] as [UInt8], Data([0, 2, 3])))
    }

    @Test("Threads do not share contexts: codes, digests and seals of many at once are those of one")
    func threads() async {
        func results(_ number: UInt8) throws -> [[UInt8]] {
            let key = SymmetricKey(data: [UInt8](repeating: number, count: 32))
            let message = [UInt8](repeating: number, count: Int(number) * 7)
            return [
                HMAC<SHA256>.authenticationCode(for: message, using: key),
                HMAC<Insecure.SHA1>.authenticationCode(for: message, using: key),
                SHA256.hash(data: message), try AES.GCM.seal(message, using: key, nonce: message.prefix(12)),
            ]
        }
        let expected = (2..<32).map { try? results($0) }
        #expect(!expected.contains(nil))
        await withTaskGroup(of: Bool.self) { group in
            for index in expected.indices {
                group.addTask {
                    (0..<200).allSatisfy { _ in (try? results(UInt8(index + 2))) == expected[index] }
                }
            }
            for await isSame in group { #expect(isSame) }
        }
    }

    @Test("A thread's end frees its contexts, and a new thread has its own")
    func threadEnds() {
        let expected = SHA256.hash(data: [1] as [UInt8])
        for _ in 0..<50 {
            let done = DispatchSemaphore(value: 0)
            let thread = Thread {
                #expect(SHA256.hash(data: [1] as [UInt8]) == expected)
                #expect(HMAC<SHA256>.authenticationCode(for: [1] as [UInt8], using: [2] as [UInt8]).count == 32)
                done.signal()
            }
            thread.start()
            done.wait()
        }
    }
}

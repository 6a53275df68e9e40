import CApusCrypto
import Foundation

/// A key of libcrypto.
///
/// Sendable: libcrypto locks what it changes in a key that is in use.
final class KeyHandle: @unchecked Sendable {  // SAFETY: one `let`; as the comment says.
    let pointer: OpaquePointer

    private init(_ pointer: OpaquePointer) { self.pointer = pointer }

    deinit { apus_key_free(pointer) }

    /// A new private key.
    init(new kind: apus_key_kind) {
        guard let pointer = apus_key_new(kind) else { preconditionFailure("libcrypto cannot create a key") }
        self.pointer = pointer
    }

    /// The key of a PEM text; as ``P256`` and ``Certificate/PrivateKey`` say.
    static func read(pem text: String, isPrivate: Bool) throws(CryptoError) -> KeyHandle {
        var reason = Reason()
        var text = text
        let pointer = text.withUTF8 { bytes in
            // SAFETY: the bytes are valid within the closure.
            isPrivate
                ? apus_key_read_private(bytes.baseAddress, bytes.count, &reason.text, reason.text.count)
                : apus_key_read_public(bytes.baseAddress, bytes.count, &reason.text, reason.text.count)
        }
        guard let pointer else { throw .malformed(reason.words) }
        return KeyHandle(pointer)
    }

    /// The key of an Edwards or Montgomery curve.
    static func raw(
        _ bytes: some ContiguousBytes, _ kind: apus_key_kind, isPrivate: Bool
    ) throws(CryptoError) -> KeyHandle {
        let count = bytes.withUnsafeBytes { $0.count }
        guard count == Int(APUS_RAW_KEY_SIZE) else {
            throw .size("a key has \(APUS_RAW_KEY_SIZE) bytes, not \(count)")
        }
        // SAFETY: there are as many bytes as a key has.
        let pointer = bytes.withUnsafeBytes {
            isPrivate ? apus_key_from_private(kind, $0.baseAddress) : apus_key_from_public(kind, $0.baseAddress)
        }
        guard let pointer else { throw .malformed("it is not a key of this kind") }
        return KeyHandle(pointer)
    }

    var isP256: Bool { apus_key_is_p256(pointer) == 1 }

    /// PEM text without a line feed at its end.
    func pem(isPrivate: Bool) -> String {
        let text = String(unsafeUninitializedCapacity: Int(APUS_KEY_PEM_SIZE_MAX)) { bytes in
            // SAFETY: the capacity is given; the text is ASCII.
            bytes.withMemoryRebound(to: CChar.self) {
                isPrivate
                    ? apus_key_write_private(pointer, $0.baseAddress, $0.count)
                    : apus_key_write_public(pointer, $0.baseAddress, $0.count)
            }
        }
        precondition(!text.isEmpty, "libcrypto cannot write a key")
        return String(text.dropLast())
    }

    /// The 32 bytes of a raw key.
    func bytes(isPrivate: Bool) -> [UInt8] {
        [UInt8](unsafeUninitializedCapacity: Int(APUS_RAW_KEY_SIZE)) { bytes, count in
            // SAFETY: the array has room for a key.
            let isWritten =
                isPrivate
                ? apus_key_private_bytes(pointer, bytes.baseAddress) : apus_key_public_bytes(pointer, bytes.baseAddress)
            precondition(isWritten == 1, "libcrypto cannot write a key")
            count = Int(APUS_RAW_KEY_SIZE)
        }
    }
}

/// The 64 bytes of a signature, which a C function writes.
func signature(_ write: (UnsafeMutablePointer<UInt8>?) -> CInt) throws(CryptoError) -> [UInt8] {
    let bytes = [UInt8](unsafeUninitializedCapacity: Int(APUS_SIGNATURE_SIZE)) { bytes, count in
        // SAFETY: the array has room for a signature.
        if write(bytes.baseAddress) == 1 { count = Int(APUS_SIGNATURE_SIZE) }
    }
    guard !bytes.isEmpty else { throw .library("libcrypto cannot sign") }
    return bytes
}

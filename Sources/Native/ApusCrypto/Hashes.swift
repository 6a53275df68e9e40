import CApusCrypto
package import Foundation

/// A hash function of libcrypto.
package protocol HashFunction: ~Copyable {
    static var algorithm: HashAlgorithm { get }
}

package enum HashAlgorithm: Sendable {
    case md5, sha1, sha256

    var native: apus_hash {
        switch self {
        case .md5: APUS_MD5
        case .sha1: APUS_SHA1
        case .sha256: APUS_SHA256
        }
    }

    /// The size of a digest, in bytes.
    package var byteCount: Int { apus_digest_size(native) }
}

extension HashFunction where Self: ~Copyable {
    /// The digest of all of the bytes.
    package static func hash(data: some ContiguousBytes) -> [UInt8] {
        data.withUnsafeBytes { bytes in
            Self.digest { apus_digest(algorithm.native, bytes.baseAddress, bytes.count, $0) }
        }
    }

    /// What a C function writes, which returns its size.
    fileprivate static func digest(_ write: (UnsafeMutablePointer<UInt8>?) -> Int) -> [UInt8] {
        // SAFETY: the array has room for every digest.
        [UInt8](unsafeUninitializedCapacity: Int(APUS_DIGEST_SIZE_MAX)) { digest, count in
            count = write(digest.baseAddress)
            precondition(count == algorithm.byteCount, "libcrypto has no memory for a digest")
        }
    }
}

/// SHA-256 (FIPS 180-4), also of bytes that come in parts.
package struct SHA256: ~Copyable, HashFunction {
    package static var algorithm: HashAlgorithm { .sha256 }

    // SAFETY: created in `init`, freed in `deinit`; a value that cannot be copied has one user.
    private let hasher: OpaquePointer

    package init() {
        guard let hasher = apus_hasher_new(APUS_SHA256) else {
            preconditionFailure("libcrypto has no memory for a digest")
        }
        self.hasher = hasher
    }

    deinit { apus_hasher_free(hasher) }

    package mutating func update(data: some ContiguousBytes) {
        let isDone = data.withUnsafeBytes { apus_hasher_update(hasher, $0.baseAddress, $0.count) == 1 }
        precondition(isDone, "libcrypto cannot hash")
    }

    /// The digest of what came.
    package consuming func finalize() -> [UInt8] {
        let hasher = hasher
        return Self.digest { apus_hasher_finish(hasher, $0) }
    }
}

extension SHA256: @unchecked Sendable {}  // SAFETY: a hasher is bound to no thread, and has one user at a time.

/// Hash functions that are broken, for protocols that demand them: STUN, and the digests of HTTP and RTSP.
package enum Insecure {
    /// RFC 1321.
    package enum MD5: HashFunction {
        package static var algorithm: HashAlgorithm { .md5 }
    }

    /// SHA-1 (FIPS 180-4).
    package enum SHA1: HashFunction {
        package static var algorithm: HashAlgorithm { .sha1 }
    }
}

import ApusCrypto

/// The key of a credential for message integrity (RFC 8489 §9.1.1, §9.2.2). Never logged.
public struct StunKey: Sendable, Hashable {
    let bytes: [UInt8]

    /// Short-term credentials: the password itself (ICE).
    public init(password: String) { bytes = Array(password.utf8) }

    /// Long-term credentials: the hash of user name, realm and password. The password is used as given. A caller with a
    /// non-ASCII password must prepare it with OpaqueString (RFC 8265) first.
    public init(username: String, realm: String, password: String, algorithm: StunPasswordAlgorithm = .md5) {
        let text = Array("\(username):\(realm):\(password)".utf8)
        switch algorithm {
        case .md5: bytes = Insecure.MD5.hash(data: text)
        case .sha256: bytes = SHA256.hash(data: text)
        }
    }

    /// A key from its bytes, for the mirror of an allocation.
    public init(bytes: [UInt8]) { self.bytes = bytes }
}

/// The two integrity attributes of STUN.
public enum StunIntegrity {
    public enum Algorithm: Sendable, Hashable, CaseIterable {
        /// MESSAGE-INTEGRITY: HMAC-SHA1, 20 bytes (RFC 8489 §14.5).
        case sha1
        /// MESSAGE-INTEGRITY-SHA256: HMAC-SHA256, never truncated, since no usage here allows it (RFC 8489 §14.6).
        case sha256

        public var attribute: StunAttribute { self == .sha1 ? .messageIntegrity : .messageIntegritySHA256 }
        public var byteCount: Int { self == .sha1 ? 20 : 32 }
    }

    /// The MAC over a message up to its integrity attribute. The header has the length of the message with that
    /// attribute.
    static func code(_ algorithm: Algorithm, over bytes: ArraySlice<UInt8>, key: StunKey) -> [UInt8] {
        switch algorithm {
        case .sha1: Keyed.sha1(key.bytes, bytes)
        case .sha256: Keyed.sha256(key.bytes, bytes)
        }
    }

    /// True if a MAC is the one of ``code(_:over:key:)``. Takes the same time for every wrong value.
    static func isValid(
        _ code: ArraySlice<UInt8>, _ algorithm: Algorithm, over bytes: [UInt8], key: StunKey
    ) -> Bool {
        switch algorithm {
        case .sha1:
            HMAC<Insecure.SHA1>.isValidAuthenticationCode(code, authenticating: bytes, using: key.bytes)
        case .sha256:
            HMAC<SHA256>.isValidAuthenticationCode(code, authenticating: bytes, using: key.bytes)
        }
    }
}

extension StunMessage {
    /// The integrity attribute that counts for this message: SHA-256 if it has it (RFC 8489 §9.2.4).
    public var integrity: StunIntegrity.Algorithm? {
        has(.messageIntegritySHA256) ? .sha256 : has(.messageIntegrity) ? .sha1 : nil
    }

    /// True if the message has the attribute and it matches the key. Takes the same time for every wrong value.
    public func verifies(_ algorithm: StunIntegrity.Algorithm, key: StunKey) -> Bool {
        guard let range = range(of: algorithm.attribute), range.count == algorithm.byteCount else { return false }
        var covered = Array(bytes[..<(range.lowerBound - 4)])
        let length = range.upperBound - Self.headerByteCount
        covered[2] = UInt8(truncatingIfNeeded: length >> 8)
        covered[3] = UInt8(truncatingIfNeeded: length)
        return StunIntegrity.isValid(bytes[range], algorithm, over: covered, key: key)
    }

    /// True if FINGERPRINT is correct; nil if there is none (RFC 8489 §14.7).
    public var isFingerprintRight: Bool? {
        guard let range = range(of: .fingerprint) else { return nil }
        guard range.count == 4 else { return false }
        return bytes.bigEndian32(at: range.lowerBound) == StunFingerprint.value(over: bytes[..<(range.lowerBound - 4)])
    }
}

/// FINGERPRINT: the CRC-32 of ITU V.42, mixed with a constant (RFC 8489 §14.7).
enum StunFingerprint {
    private static let table: [UInt32] = (0..<256).map { index in
        (0..<8).reduce(UInt32(index)) { value, _ in value & 1 == 1 ? value >> 1 ^ 0xedb8_8320 : value >> 1 }
    }

    static func value(over bytes: ArraySlice<UInt8>) -> UInt32 {
        let table = table
        var crc: UInt32 = 0xffff_ffff
        for byte in bytes { crc = table[Int((crc ^ UInt32(byte)) & 0xff)] ^ crc >> 8 }
        return ~crc ^ 0x5354_554e
    }
}

/// Hashes and MACs over bytes.
enum Keyed {
    static func sha1(_ key: [UInt8], _ bytes: ArraySlice<UInt8>) -> [UInt8] {
        HMAC<Insecure.SHA1>.authenticationCode(for: bytes, using: key)
    }

    static func sha256(_ key: [UInt8], _ bytes: ArraySlice<UInt8>) -> [UInt8] {
        HMAC<SHA256>.authenticationCode(for: bytes, using: key)
    }

    static func digest(_ bytes: [UInt8]) -> [UInt8] {
        SHA256.hash(data: bytes)
    }

    /// Compares in constant time.
    static func isEqual(_ left: ArraySlice<UInt8>, _ right: ArraySlice<UInt8>) -> Bool {
        ConstantTime.isEqual(left, right)
    }
}

public import ApusCore

/// The number and the reason phrase of an error answer (RFC 8489 §14.8).
public struct StunErrorValue: Sendable, Hashable {
    public let code: StunErrorCode
    public let reason: String

    public init(code: StunErrorCode, reason: String) {
        self.code = code
        self.reason = reason
    }
}

/// The contents of an ICMP attribute, about a packet that did not reach its peer (RFC 8656 §18.13).
public struct StunICMP: Sendable, Hashable {
    public let type: UInt8
    public let code: UInt8
    /// The MTU for "packet too big"; otherwise 0.
    public let errorData: UInt32

    public init(type: UInt8, code: UInt8, errorData: UInt32) {
        self.type = type
        self.code = code
        self.errorData = errorData
    }
}

// Decoded values. Each returns nil if the attribute is missing, and throws 10001 if its length or contents are invalid
// for its type.
extension StunMessage {
    /// A number of four bytes: LIFETIME, PRIORITY, CONNECTION-ID and such.
    public func number32(_ type: StunAttribute) throws(ApusError) -> UInt32? {
        try range(of: type, byteCount: 4).map { bytes.bigEndian32(at: $0.lowerBound) }
    }

    /// A number of eight bytes: RESERVATION-TOKEN, ICE-CONTROLLED and ICE-CONTROLLING.
    public func number64(_ type: StunAttribute) throws(ApusError) -> UInt64? {
        try range(of: type, byteCount: 8).map { bytes.bigEndian64(at: $0.lowerBound) }
    }

    /// Text of at most `byteCountMax` bytes: USERNAME (508), REALM, NONCE and SOFTWARE (763).
    public func text(_ type: StunAttribute, byteCountMax: Int = 763) throws(ApusError) -> String? {
        guard let range = range(of: type) else { return nil }
        guard range.count <= byteCountMax, let text = String(validating: bytes[range], as: UTF8.self) else {
            throw ApusError(.malformed, "a STUN text is UTF-8 of at most \(byteCountMax) bytes")
        }
        return text
    }

    /// A plain address: MAPPED-ADDRESS, ALTERNATE-SERVER (RFC 8489 §14.1).
    public func address(_ type: StunAttribute) throws(ApusError) -> TransportAddress? {
        guard let range = range(of: type) else { return nil }
        let familyOfCount: UInt8? = range.count == 8 ? 1 : range.count == 20 ? 2 : nil
        guard let familyOfCount, bytes[range.lowerBound + 1] == familyOfCount,
            let address = TransportAddress(
                bytes: bytes[(range.lowerBound + 4)..<range.upperBound],
                port: bytes.bigEndian16(at: range.lowerBound + 2))
        else { throw ApusError(.malformed, "an address has a family and the bytes of that family") }
        return address
    }

    /// An address that is XORed with the cookie and the transaction: XOR-MAPPED-ADDRESS, XOR-PEER-ADDRESS,
    /// XOR-RELAYED-ADDRESS (RFC 8489 §14.2). A v4-mapped IPv6 address is returned as IPv4.
    public func xorAddress(_ type: StunAttribute) throws(ApusError) -> TransportAddress? {
        guard let range = range(of: type) else { return nil }
        return try xorAddress(at: range)
    }

    /// Every address of one type in the message. CreatePermission may have several (RFC 8656 §10.1).
    ///
    /// - Throws: 10001 for an invalid address, and for more than `countMax`.
    public func xorAddresses(_ type: StunAttribute, countMax: Int) throws(ApusError) -> [TransportAddress] {
        // Only what the integrity covers is used. Of a message without integrity only the first address counts.
        guard
            let integrityStart = slots.first(where: {
                $0.type == .messageIntegrity || $0.type == .messageIntegritySHA256
            })
        else { return try xorAddress(type).map { [$0] } ?? [] }
        var found: [TransportAddress] = []
        var position = Self.headerByteCount
        // The lengths were checked when the message was parsed.
        while position < integrityStart.start - 4 {
            let start = position + 4
            let end = start + Int(bytes.bigEndian16(at: position + 2))
            if bytes.bigEndian16(at: position) == type.rawValue {
                guard found.count < countMax else { throw ApusError(.malformed, "too many peers in one request") }
                found.append(try xorAddress(at: start..<end))
            }
            position = (end + 3) & ~3
        }
        return found
    }

    private func xorAddress(at range: Range<Int>) throws(ApusError) -> TransportAddress {
        let start = range.lowerBound
        guard range.count == 8 || range.count == 20 else {
            throw ApusError(.malformed, "an address has a family and the bytes of that family")
        }
        let port = bytes.bigEndian16(at: start + 2) ^ UInt16(Self.magicCookie >> 16)
        switch (range.count, bytes[start + 1]) {
        case (8, 1):
            return TransportAddress(v4: bytes.bigEndian32(at: start + 4) ^ Self.magicCookie, port: port)
        case (20, 2):
            let mask = UInt64(Self.magicCookie) << 32 | UInt64(transaction.high)
            return TransportAddress(
                v6High: bytes.bigEndian64(at: start + 4) ^ mask,
                low: bytes.bigEndian64(at: start + 12) ^ transaction.low, port: port)
        default:
            throw ApusError(.malformed, "an address has a family and the bytes of that family")
        }
    }

    /// ERROR-CODE (RFC 8489 §14.8).
    public func errorValue() throws(ApusError) -> StunErrorValue? {
        guard let range = range(of: .errorCode) else { return nil }
        guard range.count >= 4, range.count <= 4 + 763,
            let reason = String(validating: bytes[(range.lowerBound + 4)..<range.upperBound], as: UTF8.self)
        else { throw ApusError(.malformed, "ERROR-CODE must have a number and a reason") }
        let hundreds = UInt16(bytes[range.lowerBound + 2] & 7)
        let rest = UInt16(bytes[range.lowerBound + 3])
        guard (3...6).contains(hundreds), rest < 100 else {
            throw ApusError(.malformed, "ERROR-CODE must be 300 to 699")
        }
        return StunErrorValue(code: StunErrorCode(rawValue: hundreds * 100 + rest), reason: reason)
    }

    /// CHANNEL-NUMBER (RFC 8656 §18.1), with any number.
    public func channelNumber() throws(ApusError) -> UInt16? {
        try range(of: .channelNumber, byteCount: 4).map { bytes.bigEndian16(at: $0.lowerBound) }
    }

    /// The protocol number of REQUESTED-TRANSPORT: 17 is UDP, 6 is TCP (RFC 8656 §18.7, RFC 6062 §6.2).
    public func requestedTransport() throws(ApusError) -> UInt8? {
        try range(of: .requestedTransport, byteCount: 4).map { bytes[$0.lowerBound] }
    }

    /// The family number of REQUESTED-ADDRESS-FAMILY or ADDITIONAL-ADDRESS-FAMILY (RFC 8656 §18.6, §18.10). An unknown
    /// number is returned unchanged, so that it can be refused with 440.
    public func familyNumber(_ type: StunAttribute) throws(ApusError) -> UInt8? {
        try range(of: type, byteCount: 4).map { bytes[$0.lowerBound] }
    }

    /// EVEN-PORT: true if the next port must be reserved too (RFC 8656 §18.5).
    public func evenPort() throws(ApusError) -> Bool? {
        try range(of: .evenPort, byteCount: 1).map { bytes[$0.lowerBound] & 0x80 != 0 }
    }

    /// PASSWORD-ALGORITHM (RFC 8489 §14.12). The inner value is nil if the algorithm is unknown.
    public func passwordAlgorithm() throws(ApusError) -> StunPasswordAlgorithm?? {
        guard let range = range(of: .passwordAlgorithm) else { return nil }
        guard range.count >= 4 else { throw ApusError(.malformed, "PASSWORD-ALGORITHM has at least 4 bytes") }
        return .some(StunPasswordAlgorithm(rawValue: bytes.bigEndian16(at: range.lowerBound)))
    }

    /// ICMP (RFC 8656 §18.13).
    public func icmp() throws(ApusError) -> StunICMP? {
        try range(of: .icmp, byteCount: 8).map {
            StunICMP(
                type: bytes[$0.lowerBound + 2], code: bytes[$0.lowerBound + 3],
                errorData: bytes.bigEndian32(at: $0.lowerBound + 4))
        }
    }

    private func range(of type: StunAttribute, byteCount: Int) throws(ApusError) -> Range<Int>? {
        guard let range = range(of: type) else { return nil }
        guard range.count == byteCount else {
            throw ApusError(.malformed, "an attribute has the length of its type")
        }
        return range
    }
}

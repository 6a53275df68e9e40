public import ApusCore

/// A parsed STUN message: its bytes, and the location of each attribute (RFC 8489 §5, §14).
///
/// Parsing checks headers and lengths only. A value is decoded on access, and every access checks the length of the
/// value against its type, so an attribute cannot be taken for another one (the case of CVE-2026-40613). Every number
/// from the wire is checked before it is used as an index. Limits: ``byteCountMax`` and ``attributeCountMax``.
/// Attributes after the integrity are ignored, as RFC 8489 §14.5 demands, and so is every second one of a type.
public struct StunMessage: Sendable {
    /// The longest message that is parsed, in bytes with the header: a datagram of TURN data with its headers.
    public static let byteCountMax = 65_535
    /// The most attributes of one message. A TURN request has at most a dozen.
    public static let attributeCountMax = 48
    /// The bytes of a header.
    public static let headerByteCount = 20
    /// The fixed bytes 4 to 7 of every message (RFC 8489 §5).
    public static let magicCookie: UInt32 = 0x2112_a442

    struct Slot: Sendable {
        let type: StunAttribute
        /// The start of the value. The value has no padding.
        let start: Int
        let end: Int
    }

    /// The whole message.
    public let bytes: [UInt8]
    public let type: StunMessageType
    public let transaction: TransactionID
    private(set) var slots: [Slot] = []

    public var kind: StunClass { type.kind }
    public var method: StunMethod { type.method }

    /// True if the first bytes of a datagram can only be STUN (RFC 7983 §7, RFC 8489 §6.3).
    public static func isLikely(_ bytes: [UInt8]) -> Bool {
        bytes.count >= headerByteCount && bytes[0] < 4 && bytes[3] & 3 == 0
            && bytes[4] == 0x21 && bytes[5] == 0x12 && bytes[6] == 0xa4 && bytes[7] == 0x42
    }

    /// Parses one complete message.
    ///
    /// - Throws: 10001 for anything that is not exactly one message: too short or too long, another cookie, a length
    ///   that does not match the bytes or is not a multiple of four, an attribute that exceeds the message, too many
    ///   attributes, bytes after FINGERPRINT.
    public init(_ bytes: [UInt8]) throws(ApusError) {
        guard bytes.count >= Self.headerByteCount, bytes.count <= Self.byteCountMax else {
            throw ApusError(.malformed, "a STUN message has 20 to \(Self.byteCountMax) bytes")
        }
        guard let type = StunMessageType(wire: bytes.bigEndian16(at: 0)) else {
            throw ApusError(.malformed, "a STUN message starts with two zero bits")
        }
        guard bytes.bigEndian32(at: 4) == Self.magicCookie else {
            throw ApusError(.malformed, "a STUN message has the magic cookie")
        }
        let length = Int(bytes.bigEndian16(at: 2))
        guard length & 3 == 0, length == bytes.count - Self.headerByteCount else {
            throw ApusError(.malformed, "the length of a STUN message does not match its attributes")
        }
        self.bytes = bytes
        self.type = type
        transaction = TransactionID(high: bytes.bigEndian32(at: 8), low: bytes.bigEndian64(at: 12))
        try readSlots()
    }

    private mutating func readSlots() throws(ApusError) {
        var position = Self.headerByteCount
        var integrity: StunAttribute?
        var count = 0
        while position < bytes.count {
            // Lengths are multiples of four, so if one byte is left a header is complete.
            let type = StunAttribute(rawValue: bytes.bigEndian16(at: position))
            let valueCount = Int(bytes.bigEndian16(at: position + 2))
            let start = position + 4
            let paddedEnd = start + (valueCount + 3) & ~3
            guard paddedEnd <= bytes.count else {
                throw ApusError(.malformed, "an attribute exceeds its STUN message")
            }
            count += 1
            guard count <= Self.attributeCountMax else {
                throw ApusError(.malformed, "a STUN message has at most \(Self.attributeCountMax) attributes")
            }
            if type == .fingerprint, paddedEnd != bytes.count {
                throw ApusError(.malformed, "FINGERPRINT must be the last attribute of a STUN message")
            }
            let isIgnored: Bool
            switch integrity {
            case nil: isIgnored = false
            case .messageIntegrity?: isIgnored = type != .messageIntegritySHA256 && type != .fingerprint
            default: isIgnored = type != .fingerprint
            }
            if !isIgnored, !slots.contains(where: { $0.type == type }) {
                slots.append(Slot(type: type, start: start, end: start + valueCount))
            }
            if type == .messageIntegrity || type == .messageIntegritySHA256 { integrity = type }
            position = paddedEnd
        }
    }

    /// The types of all attributes that count, in the order of the message.
    public var attributes: [StunAttribute] { slots.map(\.type) }

    /// True if the message has the attribute, whatever its value.
    public func has(_ type: StunAttribute) -> Bool { slots.contains { $0.type == type } }

    /// The range of an attribute's value in ``bytes``, without padding; nil if there is none.
    public func range(of type: StunAttribute) -> Range<Int>? {
        for slot in slots where slot.type == type { return slot.start..<slot.end }
        return nil
    }

    /// The value of an attribute as a slice of the message; nil if there is none.
    public func value(of type: StunAttribute) -> ArraySlice<UInt8>? { range(of: type).map { bytes[$0] } }

    /// The comprehension-required attributes that are not in `known` (RFC 8489 §6.3.1).
    public func unknownAttributes(known: [StunAttribute]) -> [StunAttribute] {
        slots.map(\.type).filter { $0.isComprehensionRequired && !known.contains($0) }
    }
}

extension [UInt8] {
    /// Two bytes as a number. The caller has checked the count.
    func bigEndian16(at offset: Int) -> UInt16 { UInt16(self[offset]) << 8 | UInt16(self[offset + 1]) }

    /// Four bytes as a number. The caller has checked the count.
    func bigEndian32(at offset: Int) -> UInt32 {
        UInt32(bigEndian16(at: offset)) << 16 | UInt32(bigEndian16(at: offset + 2))
    }

    /// Eight bytes as a number. The caller has checked the count.
    func bigEndian64(at offset: Int) -> UInt64 {
        UInt64(bigEndian32(at: offset)) << 32 | UInt64(bigEndian32(at: offset + 4))
    }

    /// Appends a number in network order.
    mutating func append(bigEndian value: some FixedWidthInteger) {
        var shift = value.bitWidth - 8
        while shift >= 0 {
            append(UInt8(truncatingIfNeeded: value >> shift))
            shift -= 8
        }
    }
}

/// Writes one STUN message, attribute by attribute, with zero padding (RFC 8489 §14).
///
/// The message has memory of its own and every byte of it is written, so that no data of another message can leak
/// through padding (the case of CVE-2020-4067). Integrity and fingerprint come last, in this order:
/// ``addIntegrity(_:key:)``, then ``addFingerprint()``. Values longer than 763 bytes, except DATA, are truncated.
public struct StunWriter: Sendable {
    /// The message so far. Its length field is correct after each step.
    public private(set) var bytes: [UInt8]
    private let transaction: TransactionID

    public init(_ type: StunMessageType, _ transaction: TransactionID) {
        self.transaction = transaction
        bytes = []
        bytes.reserveCapacity(128)
        bytes.append(bigEndian: type.wire)
        bytes.append(bigEndian: UInt16(0))
        bytes.append(bigEndian: StunMessage.magicCookie)
        bytes.append(bigEndian: transaction.high)
        bytes.append(bigEndian: transaction.low)
    }

    /// Adds an attribute with a value. A value that does not fit the message's 16-bit length is omitted; DATA of a
    /// datagram always fits.
    public mutating func add(_ type: StunAttribute, _ value: some Collection<UInt8>) {
        let padding = (4 - value.count & 3) & 3
        guard bytes.count + 4 + value.count + padding <= StunMessage.byteCountMax else { return }
        bytes.append(bigEndian: type.rawValue)
        bytes.append(bigEndian: UInt16(value.count))
        bytes.append(contentsOf: value)
        for _ in 0..<padding { bytes.append(0) }
        setLength(bytes.count - StunMessage.headerByteCount)
    }

    /// Adds a number: LIFETIME, CONNECTION-ID, RESERVATION-TOKEN and such.
    public mutating func add(_ type: StunAttribute, number: some FixedWidthInteger) {
        var value: [UInt8] = []
        value.append(bigEndian: number)
        add(type, value)
    }

    /// Adds text, truncated at 763 bytes (RFC 8489 §14.8).
    public mutating func add(_ type: StunAttribute, text: String) { add(type, text.utf8.prefix(763)) }

    /// Adds a plain address (MAPPED-ADDRESS, ALTERNATE-SERVER).
    public mutating func add(_ type: StunAttribute, address: TransportAddress) {
        var value: [UInt8] = [0, address.family.rawValue]
        value.append(bigEndian: address.port)
        add(type, value + address.bytes)
    }

    /// Adds an address that is XORed with the cookie and the transaction (RFC 8489 §14.2).
    public mutating func add(_ type: StunAttribute, xorAddress address: TransportAddress) {
        var value: [UInt8] = [0, address.family.rawValue]
        value.append(bigEndian: address.port ^ UInt16(StunMessage.magicCookie >> 16))
        switch address.family {
        case .v4: value.append(bigEndian: address.v4 ^ StunMessage.magicCookie)
        case .v6:
            value.append(bigEndian: address.high ^ (UInt64(StunMessage.magicCookie) << 32 | UInt64(transaction.high)))
            value.append(bigEndian: address.low ^ transaction.low)
        }
        add(type, value)
    }

    /// Adds ERROR-CODE. The reason is empty by default, so that answers to unauthenticated clients are small.
    public mutating func add(errorCode code: StunErrorCode, reason: String = "") {
        add(.errorCode, [0, 0, UInt8(code.rawValue / 100 & 7), UInt8(code.rawValue % 100)] + reason.utf8.prefix(763))
    }

    /// Adds a CHANNEL-NUMBER (RFC 8656 §18.1).
    public mutating func add(channelNumber number: UInt16) { add(.channelNumber, number: UInt32(number) << 16) }

    /// Adds REQUESTED-TRANSPORT: 17 is UDP, 6 is TCP (RFC 8656 §18.7).
    public mutating func add(requestedTransport number: UInt8) { add(.requestedTransport, [number, 0, 0, 0]) }

    /// Adds REQUESTED-ADDRESS-FAMILY or ADDITIONAL-ADDRESS-FAMILY (RFC 8656 §18.6, §18.10).
    public mutating func add(_ type: StunAttribute, family: TransportAddress.Family) {
        add(type, [family.rawValue, 0, 0, 0])
    }

    /// Adds ADDRESS-ERROR-CODE: the reason for which an allocation has no second family (RFC 8656 §18.12).
    public mutating func add(addressErrorCode code: StunErrorCode, family: TransportAddress.Family) {
        add(.addressErrorCode, [family.rawValue, 0, UInt8(code.rawValue / 100 & 7), UInt8(code.rawValue % 100)])
    }

    /// Adds ICMP (RFC 8656 §18.13).
    public mutating func add(icmp: StunICMP) {
        var value: [UInt8] = [0, 0, icmp.type, icmp.code]
        value.append(bigEndian: icmp.errorData)
        add(.icmp, value)
    }

    /// Adds UNKNOWN-ATTRIBUTES (RFC 8489 §14.9).
    public mutating func add(unknownAttributes types: [StunAttribute]) {
        var value: [UInt8] = []
        for type in types { value.append(bigEndian: type.rawValue) }
        add(.unknownAttributes, value)
    }

    /// Adds the integrity of everything so far under a key (RFC 8489 §14.5, §14.6).
    public mutating func addIntegrity(_ algorithm: StunIntegrity.Algorithm, key: StunKey) {
        setLength(bytes.count - StunMessage.headerByteCount + 4 + algorithm.byteCount)
        add(algorithm.attribute, StunIntegrity.code(algorithm, over: bytes[...], key: key))
    }

    /// Adds FINGERPRINT. It must be the last attribute (RFC 8489 §14.7).
    public mutating func addFingerprint() {
        setLength(bytes.count - StunMessage.headerByteCount + 8)
        add(.fingerprint, number: StunFingerprint.value(over: bytes[...]))
    }

    private mutating func setLength(_ length: Int) {
        bytes[2] = UInt8(truncatingIfNeeded: length >> 8)
        bytes[3] = UInt8(truncatingIfNeeded: length)
    }
}

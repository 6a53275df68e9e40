/// A STUN method with its number on the wire (RFC 8489 §18.2, RFC 8656 §17, RFC 6062 §6.1).
///
/// The number has 12 bits. An unknown method keeps its number, for the refusal.
public struct StunMethod: RawRepresentable, Hashable, Sendable {
    public let rawValue: UInt16

    /// A method by its number. Only the low 12 bits count.
    public init(rawValue: UInt16) { self.rawValue = rawValue & 0xfff }

    public static let binding = Self(rawValue: 0x001)
    public static let allocate = Self(rawValue: 0x003)
    public static let refresh = Self(rawValue: 0x004)
    public static let send = Self(rawValue: 0x006)
    public static let data = Self(rawValue: 0x007)
    public static let createPermission = Self(rawValue: 0x008)
    public static let channelBind = Self(rawValue: 0x009)
    public static let connect = Self(rawValue: 0x00a)
    public static let connectionBind = Self(rawValue: 0x00b)
    public static let connectionAttempt = Self(rawValue: 0x00c)
}

/// The class of a STUN message: request, indication, or one of the two responses (RFC 8489 §5).
public enum StunClass: UInt8, Sendable, Hashable, CaseIterable {
    case request = 0
    case indication = 1
    case success = 2
    case error = 3
}

/// The first two bytes of a STUN message: class and method, interleaved (RFC 8489 §5, figure 3).
public struct StunMessageType: Hashable, Sendable {
    public let kind: StunClass
    public let method: StunMethod

    public init(_ kind: StunClass, _ method: StunMethod) {
        self.kind = kind
        self.method = method
    }

    /// A type from the wire; nil if the first two bits are not zero: then it is not STUN.
    public init?(wire: UInt16) {
        guard wire & 0xc000 == 0,
            let kind = StunClass(rawValue: UInt8((wire >> 7) & 0x2 | (wire >> 4) & 0x1))
        else { return nil }
        self.kind = kind
        method = StunMethod(rawValue: (wire & 0x3e00) >> 2 | (wire & 0x00e0) >> 1 | wire & 0x000f)
    }

    /// The two bytes on the wire.
    public var wire: UInt16 {
        let number = method.rawValue
        let spread = (number & 0xf80) << 2 | (number & 0x070) << 1 | number & 0x00f
        return spread | UInt16(kind.rawValue & 0x2) << 7 | UInt16(kind.rawValue & 0x1) << 4
    }
}

/// The 96 bits that match a response to its request (RFC 8489 §5).
public struct TransactionID: Hashable, Sendable {
    /// The first four bytes as a number.
    public let high: UInt32
    /// The last eight bytes as a number.
    public let low: UInt64

    public init(high: UInt32, low: UInt64) {
        self.high = high
        self.low = low
    }
}

/// The type of an attribute with its number. A reader must refuse a message with an unknown attribute below 0x8000 (RFC
/// 8489 §14, §18.3; RFC 8656 §18; RFC 6062 §6.2; RFC 8016 §3.3; RFC 8445 §16.1; RFC 5780 §7).
public struct StunAttribute: RawRepresentable, Hashable, Sendable {
    public let rawValue: UInt16

    public init(rawValue: UInt16) { self.rawValue = rawValue }

    /// True if a reader that does not know this attribute must refuse the message.
    public var isComprehensionRequired: Bool { rawValue < 0x8000 }

    public static let mappedAddress = Self(rawValue: 0x0001)
    public static let username = Self(rawValue: 0x0006)
    public static let messageIntegrity = Self(rawValue: 0x0008)
    public static let errorCode = Self(rawValue: 0x0009)
    public static let unknownAttributes = Self(rawValue: 0x000a)
    public static let channelNumber = Self(rawValue: 0x000c)
    public static let lifetime = Self(rawValue: 0x000d)
    public static let xorPeerAddress = Self(rawValue: 0x0012)
    public static let data = Self(rawValue: 0x0013)
    public static let realm = Self(rawValue: 0x0014)
    public static let nonce = Self(rawValue: 0x0015)
    public static let xorRelayedAddress = Self(rawValue: 0x0016)
    public static let requestedAddressFamily = Self(rawValue: 0x0017)
    public static let evenPort = Self(rawValue: 0x0018)
    public static let requestedTransport = Self(rawValue: 0x0019)
    public static let dontFragment = Self(rawValue: 0x001a)
    public static let messageIntegritySHA256 = Self(rawValue: 0x001c)
    public static let passwordAlgorithm = Self(rawValue: 0x001d)
    public static let userhash = Self(rawValue: 0x001e)
    public static let xorMappedAddress = Self(rawValue: 0x0020)
    public static let reservationToken = Self(rawValue: 0x0022)
    public static let priority = Self(rawValue: 0x0024)
    public static let useCandidate = Self(rawValue: 0x0025)
    public static let connectionID = Self(rawValue: 0x002a)
    public static let additionalAddressFamily = Self(rawValue: 0x8000)
    public static let addressErrorCode = Self(rawValue: 0x8001)
    public static let passwordAlgorithms = Self(rawValue: 0x8002)
    public static let alternateDomain = Self(rawValue: 0x8003)
    public static let icmp = Self(rawValue: 0x8004)
    public static let software = Self(rawValue: 0x8022)
    public static let alternateServer = Self(rawValue: 0x8023)
    public static let fingerprint = Self(rawValue: 0x8028)
    public static let iceControlled = Self(rawValue: 0x8029)
    public static let iceControlling = Self(rawValue: 0x802a)
    public static let mobilityTicket = Self(rawValue: 0x8030)
}

/// The number of an error response (RFC 8489 §14.8, RFC 8656 §19, RFC 6062 §6.3, RFC 8016 §3.4).
public struct StunErrorCode: RawRepresentable, Hashable, Sendable {
    public let rawValue: UInt16

    /// A code by its number, 300 to 699.
    public init(rawValue: UInt16) { self.rawValue = rawValue }

    public static let tryAlternate = Self(rawValue: 300)
    public static let badRequest = Self(rawValue: 400)
    public static let unauthenticated = Self(rawValue: 401)
    public static let forbidden = Self(rawValue: 403)
    public static let mobilityForbidden = Self(rawValue: 405)
    public static let unknownAttribute = Self(rawValue: 420)
    public static let allocationMismatch = Self(rawValue: 437)
    public static let staleNonce = Self(rawValue: 438)
    public static let addressFamilyNotSupported = Self(rawValue: 440)
    public static let wrongCredentials = Self(rawValue: 441)
    public static let unsupportedTransport = Self(rawValue: 442)
    public static let peerAddressFamilyMismatch = Self(rawValue: 443)
    public static let connectionAlreadyExists = Self(rawValue: 446)
    public static let connectionTimeoutOrFailure = Self(rawValue: 447)
    public static let allocationQuotaReached = Self(rawValue: 486)
    public static let roleConflict = Self(rawValue: 487)
    public static let serverError = Self(rawValue: 500)
    public static let insufficientCapacity = Self(rawValue: 508)
}

/// The derivation of a key from a password (RFC 8489 §18.5).
public enum StunPasswordAlgorithm: UInt16, Sendable, Hashable, CaseIterable {
    case md5 = 0x0001
    case sha256 = 0x0002
}

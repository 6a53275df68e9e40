/// The name of a cluster. Clusters do not communicate with each other: every handshake and every state directory checks
/// the name.
///
/// Limits: 1 to 63 bytes, letters, digits, `-`, `_` and `.`.
public struct ClusterID: IdentifierString {
    public let rawValue: String
    public init(unchecked rawValue: String) { self.rawValue = rawValue }
}

/// The configured name of a node. It does not change over restarts. Limits as ``ClusterID``.
public struct NodeName: IdentifierString {
    public let rawValue: String
    public init(unchecked rawValue: String) { self.rawValue = rawValue }
}

/// The identity of a device, chosen by its vendor and unique in the cluster. Limits as ``ClusterID``.
public struct DeviceID: IdentifierString {
    public let rawValue: String
    public init(unchecked rawValue: String) { self.rawValue = rawValue }
}

/// The account that owns devices and apps. Limits as ``ClusterID``.
public struct AccountID: IdentifierString {
    public let rawValue: String
    public init(unchecked rawValue: String) { self.rawValue = rawValue }
}

/// An integrator: a tenant of the cluster with users and devices of its own (IV-A1, IV-B8). Limits as ``ClusterID``,
/// and not `-`, which stands for "no customer" in paths of requests.
public struct CustomerID: IdentifierString {
    /// What requests name instead of a customer for that which belongs to none.
    public static let none = "-"

    public let rawValue: String
    public init(unchecked rawValue: String) { self.rawValue = rawValue }

    public init?(rawValue: String) {
        guard rawValue != Self.none, AccountID(rawValue: rawValue) != nil else { return nil }
        self.init(unchecked: rawValue)
    }
}

/// A type of device of a customer: devices of one product have the same schema (IV-D1). Unique within the customer.
/// Limits as ``ClusterID``.
public struct ProductID: IdentifierString {
    public let rawValue: String
    public init(unchecked rawValue: String) { self.rawValue = rawValue }
}

/// The unique identity of one outside caller, a device or an app (IV-A1). Limits as ``ClusterID``.
public struct AccessID: IdentifierString {
    public let rawValue: String
    public init(unchecked rawValue: String) { self.rawValue = rawValue }
}

/// The session id of a call (CALL-3). Limits as ``ClusterID``.
///
/// It has a random part, so a client that does not take part in a call cannot guess it.
public struct CallID: IdentifierString {
    public let rawValue: String
    public init(unchecked rawValue: String) { self.rawValue = rawValue }
}

/// An identifier of bounded length and a plain alphabet. It can be used in a path, a log line and a metric label
/// without quoting.
public protocol IdentifierString: RawRepresentable, Sendable, Hashable, Comparable, CustomStringConvertible
where RawValue == String {
    /// Makes the identifier without a check. For values that were checked before.
    init(unchecked rawValue: String)
}

extension IdentifierString {
    /// The longest identifier, in bytes.
    public static var byteCountMax: Int { 63 }

    /// The limits, for error messages.
    public static var limits: String { "1 to \(byteCountMax) letters, digits, '-', '_' or '.'" }

    /// Makes the identifier; nil if the text violates the limits.
    public init?(rawValue: String) {
        guard Self.isValid(rawValue) else { return nil }
        self.init(unchecked: rawValue)
    }

    /// Makes the identifier of a parameter.
    /// - Parameter name: the parameter's name, for the message, such as `the device's id`.
    /// - Throws: 21031 with the limits. The message does not contain the text.
    package init(checking text: String, _ name: String) throws(ApusError) {
        guard let value = Self(rawValue: text) else {
            throw ApusError(.badParameter, "\(name) must be \(Self.limits)")
        }
        self = value
    }

    public var description: String { rawValue }

    public static func < (left: Self, right: Self) -> Bool { left.rawValue < right.rawValue }

    private static func isValid(_ text: String) -> Bool {
        let bytes = text.utf8
        guard (1...byteCountMax).contains(bytes.count) else { return false }
        return bytes.allSatisfy { byte in
            switch byte {
            case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
                UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "-"), UInt8(ascii: "_"), UInt8(ascii: "."):
                true
            default:
                false
            }
        }
    }
}

/// One incarnation of a node: its name and the incarnation number of this start.
///
/// A restarted node is a new `NodeID`. A dead incarnation never returns (D4).
public struct NodeID: Sendable, Hashable, Comparable, CustomStringConvertible {
    public var name: NodeName
    /// Grows with every start of the node. The ownership store assigns it.
    public var incarnation: UInt64

    public init(name: NodeName, incarnation: UInt64) {
        self.name = name
        self.incarnation = incarnation
    }

    public var description: String { "\(name)#\(incarnation)" }

    public static func < (left: Self, right: Self) -> Bool {
        (left.name, left.incarnation) < (right.name, right.incarnation)
    }
}

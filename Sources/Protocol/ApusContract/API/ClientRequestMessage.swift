public import SwiftProtobuf

/// Who may make a request, by the role of the token.
public struct ClientRoles: OptionSet, Sendable, Hashable {
    public let rawValue: UInt8
    public init(rawValue: UInt8) { self.rawValue = rawValue }

    public static let device = Self(rawValue: 1)
    public static let app = Self(rawValue: 2)
    /// Operators.
    public static let admin = Self(rawValue: 4)
    /// The servers of integrators (IV-A1).
    public static let customer = Self(rawValue: 8)
    public static let all: Self = [.device, .app, .admin]

    /// The names of the roles, as tokens have them, in a fixed order.
    public var names: [String] {
        [(Self.device, "device"), (.app, "app"), (.customer, "customer"), (.admin, "admin")]
            .filter { contains($0.0) }.map(\.1)
    }
}

/// What clients and nodes know of a request: its number, its name, its path and who may make it (D17).
///
/// A request is there over the native protocol by its number, over WebSocket by its name, and over REST by its path.
public struct ClientRequestInfo: Sendable, Hashable {
    /// Stands on the wire; never given to another request. 1 to 999 are the cluster's own, services of others take 1000
    /// and above.
    public let number: UInt16
    /// `NOUN.VERB`, such as `devices.list`.
    public let name: String
    /// Nil for a request that concerns the connection itself, which REST has none of.
    public let path: HTTPRule?
    /// A second path for the same, or nil.
    public let alias: HTTPRule?
    public let roles: ClientRoles
    /// The request may be sent again where its answer was lost: it does then what it did before, or nothing.
    public let isIdempotent: Bool
    /// A token that is for certain devices only (IV-A3) may make it too. Each request that names a device then concerns
    /// one of these. Any other request refuses such a token with 12004.
    public let isForNamedDevices: Bool
    /// A change by an operator or an integrator: it is written to the audit log.
    public let isAudited: Bool
    /// What fields must be, by their names in the proto file.
    public let fields: [String: FieldRule]
    /// The shapes of which the request must have exactly one; empty: there is one shape.
    public let oneOf: [RequestShape]
    /// One sentence for the documents.
    public let summary: String

    /// - Precondition: the number is not 0.
    public init(
        _ number: UInt16, _ name: String, _ path: HTTPRule? = nil, alias: HTTPRule? = nil, roles: ClientRoles,
        isIdempotent: Bool = true, isForNamedDevices: Bool = false, isAudited: Bool = false,
        fields: [String: FieldRule] = [:], oneOf: [RequestShape] = [], _ summary: String
    ) {
        precondition(number != 0, "a request's number is not 0")
        (self.number, self.name, self.path, self.alias, self.roles) = (number, name, path, alias, roles)
        (self.isIdempotent, self.isAudited, self.summary) = (isIdempotent, isAudited, summary)
        self.isForNamedDevices = isForNamedDevices
        (self.fields, self.oneOf) = (fields, oneOf)
    }
}

/// A request of clients: a protobuf message with its reply and what is known of it (D17).
public protocol ClientRequestMessage: SwiftProtobuf.Message, Sendable {
    associatedtype Reply: SwiftProtobuf.Message & Sendable
    static var info: ClientRequestInfo { get }
}

/// What clients and nodes know of an event: its number, its name and the topics that it belongs to (D17).
public struct ClientEventInfo: Sendable, Hashable {
    /// Stands on the wire; never given to another event. 1 to 99 are the cluster's own, services of others take 1000
    /// and above.
    public let number: UInt32
    /// As JSON clients see it.
    public let name: String
    /// One sentence for the documents.
    public let summary: String

    public init(_ number: UInt32, _ name: String, _ summary: String) {
        (self.number, self.name, self.summary) = (number, name, summary)
    }
}

/// A message that nodes push to clients.
public protocol ClientEventMessage: SwiftProtobuf.Message, Sendable {
    static var info: ClientEventInfo { get }
}

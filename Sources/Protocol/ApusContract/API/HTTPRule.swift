/// The method and the path under which REST has a request, such as `GET /v1/devices/{device}`.
///
/// A part in braces is a field of the request's message, by its name in the proto file. The other fields come from the
/// query of a `GET` or `DELETE`, and from the JSON body of a `POST` or `PUT`.
public struct HTTPRule: Sendable, Hashable {
    public enum Method: String, Sendable, Hashable {
        case get = "GET"
        case post = "POST"
        /// A repetition has no further effect.
        case put = "PUT"
        case delete = "DELETE"

        /// True if fields that are not in the path come from a JSON body.
        public var takesBody: Bool { self == .post || self == .put }
    }

    public enum Part: Sendable, Hashable {
        case literal(String)
        /// One part of the path, which is not empty; the name of a field.
        case field(String)
    }

    public let method: Method
    /// As it was written.
    public let path: String
    public let parts: [Part]

    /// - Precondition: the path starts with `/`.
    public init(_ method: Method, _ path: String) {
        precondition(path.hasPrefix("/"), "a path starts with /")
        self.method = method
        self.path = path
        parts = path.split(separator: "/").map { part in
            part.hasPrefix("{") && part.hasSuffix("}")
                ? .field(String(part.dropFirst().dropLast())) : .literal(String(part))
        }
    }

    public static func get(_ path: String) -> Self { Self(.get, path) }
    public static func post(_ path: String) -> Self { Self(.post, path) }
    public static func put(_ path: String) -> Self { Self(.put, path) }
    public static func delete(_ path: String) -> Self { Self(.delete, path) }

    /// The fields that stand in the path, in their order.
    public var fields: [String] {
        parts.compactMap { part in
            if case .field(let name) = part { name } else { nil }
        }
    }
}

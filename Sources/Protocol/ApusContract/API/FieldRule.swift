/// What a field of a request must be, for the documents; the request's handler checks it.
public struct FieldRule: Sendable, Hashable {
    /// A regular expression of the whole text, or of each text of a repeated field (ECMA-262, as JSON Schema has it).
    public var pattern: String?
    /// The least and the largest number.
    public var range: ClosedRange<Int>?
    /// The number of items of a repeated field.
    public var itemCount: ClosedRange<Int>?
    /// True if the items of a repeated field must differ.
    public var itemsDiffer = false
    /// The field may not be left out; an enum's first value means that it is left out.
    public var isRequired: Bool
    /// The format of a text that is JSON: `json`, `json-schema`, `json-manifest`, or `json-` and the only member of the
    /// object that it is.
    public var jsonFormat: String?
    /// The rules of the fields of the message that it is, or of each message of a repeated field. They hold for the
    /// message wherever the documents have it.
    public var fields: [String: FieldRule] = [:]

    public init(
        pattern: String? = nil, range: ClosedRange<Int>? = nil, itemCount: ClosedRange<Int>? = nil,
        itemsDiffer: Bool = false, isRequired: Bool = false, fields: [String: FieldRule] = [:]
    ) {
        (self.pattern, self.range, self.itemCount, self.isRequired) = (pattern, range, itemCount, isRequired)
        (self.itemsDiffer, self.fields) = (itemsDiffer, fields)
    }

    /// A text that is JSON.
    public static let json = json(format: "json")
    /// The same, or empty.
    public static let optionalJSON: Self = {
        var rule = json
        rule.isRequired = false
        return rule
    }()
    /// A text that is a schema of things (docs/things.md).
    public static let jsonSchema = json(format: "json-schema")
    /// A text that is the manifest of a firmware (docs/firmware.md).
    public static let firmwareManifest = json(format: "json-manifest")
    /// An Ed25519 signature, in base64.
    public static let signature = Self(pattern: "^[A-Za-z0-9+/]{85}[AQgw]==$", isRequired: true)
    /// A text that is a JSON object with one member.
    public static func json(member: String) -> Self { json(format: "json-\(member)") }

    private static func json(format: String) -> Self {
        var rule = Self(isRequired: true)
        rule.jsonFormat = format
        return rule
    }

    /// An id of a device, an account, a node or a client.
    public static let identifier = Self(pattern: "^[A-Za-z0-9._-]{1,63}$", isRequired: true)
    /// The same, or empty.
    public static let optionalIdentifier = Self(pattern: "^[A-Za-z0-9._-]{0,63}$")
    /// Seconds of at most 31 years.
    public static let seconds = Self(pattern: "^(0|[1-9][0-9]{0,8})$")
    /// Unix seconds.
    public static let unixSeconds = Self(pattern: "^(0|[1-9][0-9]{0,11})$")
}

/// One of the shapes that a request may have, for the documents; the request's handler checks it.
public struct RequestShape: Sendable, Hashable {
    /// Narrower rules of fields; they are required.
    public var fields: [String: FieldRule]
    /// Flags that must be true.
    public var flags: [String]
    /// Fields that must be left out.
    public var absent: [String]

    public init(_ fields: [String: FieldRule], flags: [String] = [], absent: [String] = []) {
        (self.fields, self.flags, self.absent) = (fields, flags, absent)
    }
}

package import ApusCore

extension JSONSchema {
    /// The dialect, which a schema may name in `$schema`.
    package static let dialect = "https://json-schema.org/draft/2020-12/schema"
    /// The most values of `enum` that a message lists.
    private static let shownMax = 5

    /// Compiles a schema.
    ///
    /// Only annotations are ignored. A keyword that is not in the subset, or has an invalid value, is refused.
    /// - Parameter pointer: the position of this schema in its document, as a JSON pointer (RFC 6901).
    /// - Throws: 21031 with the position and the reason.
    package init(_ value: JSONValue, at pointer: String = "") throws(ApusError) {
        switch value {
        case .bool(let flag): self = flag ? .anything : .nothing
        case .object(let members):
            var rules = Rules()
            for member in members {
                try rules.take(member.name, member.value, at: pointer.appending(token: member.name))
            }
            self = rules == Rules() ? .anything : .rules(rules)
        case .null, .number, .string, .array: throw ApusError(schema: pointer, "a schema is an object, true or false")
        }
    }
}

extension JSONSchema.Rules {
    private typealias Text = JSONSchema.Text

    fileprivate mutating func take(_ keyword: String, _ value: JSONValue, at pointer: String) throws(ApusError) {
        switch keyword {
        case "$schema", "$id", "$comment", "title", "description", "default", "examples":
            try Self.checkAnnotation(keyword, value, at: pointer)
        case "type": types = try Self.types(value, at: pointer)
        case "enum": (values, valuesText) = try Self.values(value, at: pointer)
        case "const": constant = try Self.scalar(value, at: pointer)
        case "minimum": minimum = try Self.number(value, at: pointer)
        case "maximum": maximum = try Self.number(value, at: pointer)
        case "exclusiveMinimum": exclusiveMinimum = try Self.number(value, at: pointer)
        case "exclusiveMaximum": exclusiveMaximum = try Self.number(value, at: pointer)
        case "minLength": minLength = try Self.count(value, at: pointer)
        case "maxLength": maxLength = try Self.count(value, at: pointer)
        case "minItems": minItems = try Self.count(value, at: pointer)
        case "maxItems": maxItems = try Self.count(value, at: pointer)
        case "items": items = try JSONSchema(value, at: pointer)
        case "properties": properties = try Self.properties(value, at: pointer)
        case "required": required = try Self.names(value, at: pointer)
        case "additionalProperties": additionalProperties = try JSONSchema(value, at: pointer)
        default: throw ApusError(schema: pointer, "this keyword is not supported (docs/things.md)")
        }
    }

    private static func checkAnnotation(
        _ keyword: String, _ value: JSONValue, at pointer: String
    ) throws(ApusError) {
        switch (keyword, value) {
        case ("default", _), ("examples", .array): return
        case ("examples", _): throw ApusError(schema: pointer, "an array is expected")
        case (_, .string(let text)):
            guard keyword != "$schema" || text == JSONSchema.dialect || text == "\(JSONSchema.dialect)#" else {
                throw ApusError(schema: pointer, "only \(JSONSchema.dialect) is supported")
            }
        default: throw ApusError(schema: pointer, "a text is expected")
        }
    }

    private static func types(_ value: JSONValue, at pointer: String) throws(ApusError) -> JSONSchema.Types {
        let names: [Text]
        if let name = value.string { names = [Text(name)] } else { names = try self.names(value, at: pointer) }
        guard !names.isEmpty else { throw ApusError(schema: pointer, "at least one type is expected") }
        var types: JSONSchema.Types = []
        for name in names {
            guard let found = JSONSchema.Types.names.first(where: { Text($0.name) == name }) else {
                let known = JSONSchema.Types.names.map(\.name).joined(separator: ", ")
                throw ApusError(schema: pointer, "a type is one of \(known)")
            }
            types.insert(found.type)
        }
        return types
    }

    private static func values(
        _ value: JSONValue, at pointer: String
    ) throws(ApusError) -> (Set<JSONSchema.Scalar>, String) {
        guard case .array(let elements) = value, !elements.isEmpty else {
            throw ApusError(schema: pointer, "an array of one value or more is expected")
        }
        var values: [JSONSchema.Scalar] = []
        for (index, element) in elements.enumerated() {
            values.append(try scalar(element, at: "\(pointer)/\(index)"))
        }
        let shown = values.prefix(JSONSchema.shownMax).map(\.text).joined(separator: ", ")
        return (Set(values), values.count > JSONSchema.shownMax ? "\(shown), …" : shown)
    }

    private static func scalar(_ value: JSONValue, at pointer: String) throws(ApusError) -> JSONSchema.Scalar {
        guard let scalar = JSONSchema.Scalar(value) else {
            throw ApusError(schema: pointer, "a text, a number, true, false or null is expected")
        }
        return scalar
    }

    private static func number(_ value: JSONValue, at pointer: String) throws(ApusError) -> JSONNumber {
        guard case .number(let text) = value, let number = JSONNumber(text) else {
            throw ApusError(schema: pointer, "a number is expected")
        }
        return number
    }

    private static func count(_ value: JSONValue, at pointer: String) throws(ApusError) -> Int {
        guard case .number(let text) = value, let count = JSONNumber(text)?.count else {
            throw ApusError(schema: pointer, "an integer of at least 0 is expected")
        }
        return count
    }

    private static func properties(
        _ value: JSONValue, at pointer: String
    ) throws(ApusError) -> [JSONSchema.Text: JSONSchema] {
        guard case .object(let members) = value else { throw ApusError(schema: pointer, "an object is expected") }
        var properties: [JSONSchema.Text: JSONSchema] = [:]
        for member in members {
            properties[Text(member.name)] = try JSONSchema(member.value, at: pointer.appending(token: member.name))
        }
        return properties
    }

    /// An array of distinct strings.
    private static func names(_ value: JSONValue, at pointer: String) throws(ApusError) -> [JSONSchema.Text] {
        guard case .array(let elements) = value else {
            throw ApusError(schema: pointer, "an array of texts is expected")
        }
        var names: Set<JSONSchema.Text> = []
        for (index, element) in elements.enumerated() {
            guard let name = element.string, names.insert(Text(name)).inserted else {
                throw ApusError(schema: "\(pointer)/\(index)", "a text that is not in the array before is expected")
            }
        }
        return elements.compactMap { $0.string.map { Text($0) } }
    }
}

extension String {
    /// The JSON pointer to a member (RFC 6901 §3).
    func appending(token name: String) -> String {
        var token = ""
        for scalar in name.unicodeScalars {
            switch scalar {
            case "~": token += "~0"
            case "/": token += "~1"
            default: token.unicodeScalars.append(scalar)
            }
        }
        return "\(self)/\(token)"
    }
}

extension ApusError {
    /// The longest position that a message shows, in characters.
    private static let pointerCountMax = 256

    /// 21031: a schema is not valid at a position in its document.
    init(schema pointer: String, _ reason: String) {
        let place = UntrustedText.escaped(String(pointer.suffix(Self.pointerCountMax)))
        self.init(.badParameter, "the schema\(place.isEmpty ? "" : " at \(place)"): \(reason)")
    }
}

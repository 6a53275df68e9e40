package import ApusCore

/// A compiled schema of the subset of JSON Schema 2020-12 that docs/things.md lists.
///
/// The check of every keyword in the subset takes time proportional to the size of the value. `pattern`, whose time is
/// not bounded, and combinations of schemas are not in the subset. If a part of a valid value is replaced by another
/// part that fits its schema, the whole value remains valid: `enum` and `const` have only scalars, and no keyword
/// relates members to each other. A part can therefore be checked without the rest (``ThingSchema``).
///
/// Pure value.
package indirect enum JSONSchema: Sendable, Equatable {
    /// `true`, or an object without rules.
    case anything
    /// `false`.
    case nothing
    case rules(Rules)

    package struct Rules: Sendable, Equatable {
        /// `type`; nil: any type.
        package var types: Types?
        /// `enum`; nil: any value.
        package var values: Set<Scalar>?
        package var constant: Scalar?
        /// The first of ``values`` as text, for error messages.
        package var valuesText = ""
        package var minimum: JSONNumber?
        package var maximum: JSONNumber?
        package var exclusiveMinimum: JSONNumber?
        package var exclusiveMaximum: JSONNumber?
        /// In Unicode scalars.
        package var minLength: Int?
        package var maxLength: Int?
        package var minItems: Int?
        package var maxItems: Int?
        package var items: JSONSchema?
        package var properties: [Text: JSONSchema] = [:]
        package var required: [Text] = []
        package var additionalProperties: JSONSchema?

        package init() {}
    }

    /// The types of `type`, one or several. Every integer is also a number.
    package struct Types: OptionSet, Sendable, Hashable {
        package let rawValue: UInt8
        package init(rawValue: UInt8) { self.rawValue = rawValue }

        static let null = Self(rawValue: 1)
        static let boolean = Self(rawValue: 2)
        static let integer = Self(rawValue: 4)
        static let number = Self(rawValue: 8)
        static let string = Self(rawValue: 16)
        static let array = Self(rawValue: 32)
        static let object = Self(rawValue: 64)

        static let names: [(name: String, type: Types)] = [
            ("null", .null), ("boolean", .boolean), ("integer", .integer), ("number", .number), ("string", .string),
            ("array", .array), ("object", .object),
        ]

        var text: String { Self.names.filter { contains($0.type) }.map(\.name).joined(separator: " or ") }
    }

    /// A string that is compared scalar by scalar (JSON Schema 2020-12 §4.2.2).
    package typealias Text = ExactText

    /// A value of `enum` or `const`. Numbers are equal if they have the same value.
    package enum Scalar: Sendable, Hashable {
        case null
        case bool(Bool)
        case number(JSONNumber)
        case string(Text)

        /// Nil for an array or an object.
        init?(_ value: JSONValue) {
            switch value {
            case .null: self = .null
            case .bool(let flag): self = .bool(flag)
            case .number(let text):
                guard let number = JSONNumber(text) else { return nil }
                self = .number(number)
            case .string(let text): self = .string(Text(text))
            case .array, .object: return nil
            }
        }

        /// The value as JSON, truncated, for error messages.
        var text: String {
            switch self {
            case .null: "null"
            case .bool(let flag): "\(flag)"
            case .number(let number): number.description
            case .string(let text): JSONValue.string(String(text.string.prefix(32))).text
            }
        }
    }
}

extension JSONSchema {
    /// The reason for which a value does not fit.
    package struct Failure: Sendable, Equatable {
        /// The names of members and the indices of elements that lead to the part that does not fit.
        package var place: [String] = []
        package var keyword: String
        /// The value that the schema expects. It contains nothing of the actual value.
        package var expected: String

        package init(_ keyword: String, _ expected: String, place: [String] = []) {
            (self.keyword, self.expected, self.place) = (keyword, expected, place)
        }

        fileprivate func within(_ name: String) -> Failure { Failure(keyword, expected, place: [name] + place) }
    }

    /// The first failure of a value; nil if the value fits.
    package func failure(of value: JSONValue) -> Failure? {
        switch self {
        case .anything: nil
        case .nothing: Failure("false", "no value is allowed here")
        case .rules(let rules): rules.failure(of: value)
        }
    }

    /// The schema of a member of an object; `.nothing` if the schema allows no such member. Rules for other members do
    /// not matter.
    package func member(_ name: String) -> JSONSchema {
        switch self {
        case .anything: .anything
        case .nothing: .nothing
        case .rules(let rules):
            rules.allowsObjects ? rules.listed(name) ?? rules.additionalProperties ?? .anything : .nothing
        }
    }

    /// The schema of a member that `properties` lists; nil if the member is not listed.
    package func listed(_ name: String) -> JSONSchema? {
        guard case .rules(let rules) = self else { return nil }
        return rules.listed(name)
    }

    /// True if the schema allows objects.
    package var allowsObjects: Bool {
        switch self {
        case .anything: true
        case .nothing: false
        case .rules(let rules): rules.allowsObjects
        }
    }
}

extension JSONSchema.Rules {
    fileprivate typealias Failure = JSONSchema.Failure

    fileprivate func listed(_ name: String) -> JSONSchema? { properties[JSONSchema.Text(name)] }

    fileprivate var allowsObjects: Bool { types?.contains(.object) ?? true && values == nil && constant == nil }

    fileprivate func failure(of value: JSONValue) -> Failure? {
        if let types, !types.allow(value) { return Failure("type", types.text) }
        if values != nil || constant != nil {
            // An object or an array equals no scalar.
            let scalar = JSONSchema.Scalar(value)
            if let values, !(scalar.map { values.contains($0) } ?? false) {
                return Failure("enum", "one of \(valuesText)")
            }
            if let constant, scalar != constant { return Failure("const", constant.text) }
        }
        return switch value {
        case .null, .bool: nil
        case .number(let text): failure(ofNumber: text)
        case .string(let text): failure(ofText: text)
        case .array(let elements): failure(of: elements)
        case .object(let members): failure(of: members)
        }
    }

    private func failure(ofNumber text: String) -> Failure? {
        guard minimum != nil || maximum != nil || exclusiveMinimum != nil || exclusiveMaximum != nil else { return nil }
        guard let number = JSONNumber(text) else { return Failure("type", "a shorter number") }
        if let minimum, number < minimum { return Failure("minimum", "\(minimum) or more") }
        if let maximum, number > maximum { return Failure("maximum", "\(maximum) or less") }
        if let least = exclusiveMinimum, number <= least { return Failure("exclusiveMinimum", "more than \(least)") }
        if let most = exclusiveMaximum, number >= most { return Failure("exclusiveMaximum", "less than \(most)") }
        return nil
    }

    private func failure(ofText text: String) -> Failure? {
        guard minLength != nil || maxLength != nil else { return nil }
        let length = text.unicodeScalars.count
        if let minLength, length < minLength { return Failure("minLength", "\(minLength) characters or more") }
        if let maxLength, length > maxLength { return Failure("maxLength", "\(maxLength) characters or fewer") }
        return nil
    }

    private func failure(of elements: [JSONValue]) -> Failure? {
        if let minItems, elements.count < minItems { return Failure("minItems", "\(minItems) elements or more") }
        if let maxItems, elements.count > maxItems { return Failure("maxItems", "\(maxItems) elements or fewer") }
        guard let items else { return nil }
        for (index, element) in elements.enumerated() {
            if let failure = items.failure(of: element) { return failure.within("\(index)") }
        }
        return nil
    }

    private func failure(of members: [JSONValue.Member]) -> Failure? {
        if !required.isEmpty {
            let names = Set(members.map { JSONSchema.Text($0.name) })
            if let missing = required.first(where: { !names.contains($0) }) {
                return Failure("required", "the member \(missing.string)")
            }
        }
        for member in members {
            if let schema = listed(member.name) {
                if let failure = schema.failure(of: member.value) { return failure.within(member.name) }
            } else if let additionalProperties {
                guard additionalProperties != .nothing else {
                    return Failure("additionalProperties", "only members that the schema lists").within(member.name)
                }
                if let failure = additionalProperties.failure(of: member.value) { return failure.within(member.name) }
            }
        }
        return nil
    }
}

extension JSONSchema.Types {
    fileprivate func allow(_ value: JSONValue) -> Bool {
        switch value {
        case .null: contains(.null)
        case .bool: contains(.boolean)
        case .string: contains(.string)
        case .array: contains(.array)
        case .object: contains(.object)
        case .number(let text):
            contains(.number) || (contains(.integer) && JSONNumber(text)?.isInteger ?? false)
        }
    }
}

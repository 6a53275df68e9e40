extension JSONValue {
    /// The value as JSON without spaces (RFC 8259). Numbers have their original text, members their order.
    package var text: String { json.text }

    private var json: JSON {
        switch self {
        case .null: .raw("null")
        case .bool(let flag): .bool(flag)
        case .number(let number): .raw(number)
        case .string(let string): .string(string)
        case .array(let elements): .array(elements.map(\.json))
        case .object(let members): .object(members.map { ($0.name, $0.value.json) })
        }
    }

    /// The value at a path of members; nil if there is none.
    package subscript(fields: ArraySlice<String>) -> JSONValue? {
        guard let first = fields.first else { return self }
        return self[first]?[fields.dropFirst()]
    }

    /// Replaces the value at a path of members, or adds the last of them. False if an object before it is missing.
    package mutating func set(_ fields: ArraySlice<String>, to value: JSONValue) -> Bool {
        guard let first = fields.first else {
            self = value
            return true
        }
        guard case .object(var members) = self else { return false }
        if let index = members.firstIndex(where: { $0.name.isExactly(first) }) {
            guard members[index].value.set(fields.dropFirst(), to: value) else { return false }
        } else {
            guard fields.count == 1 else { return false }
            members.append(Member(name: first, value: value))
        }
        self = .object(members)
        return true
    }
}

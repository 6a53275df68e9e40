package import ApusSessions

extension JSONValue {
    /// The value as JSON without spaces (RFC 8259). Numbers have their original text, members their order.
    package var text: String {
        var text = ""
        write(to: &text)
        return text
    }

    private func write(to text: inout String) {
        switch self {
        case .null: text += "null"
        case .bool(let flag): text += flag ? "true" : "false"
        case .number(let number): text += number
        case .string(let string): Self.write(string, to: &text)
        case .array(let elements):
            text += "["
            for (index, element) in elements.enumerated() {
                if index > 0 { text += "," }
                element.write(to: &text)
            }
            text += "]"
        case .object(let members):
            text += "{"
            for (index, member) in members.enumerated() {
                if index > 0 { text += "," }
                Self.write(member.name, to: &text)
                text += ":"
                member.value.write(to: &text)
            }
            text += "}"
        }
    }

    private static func write(_ string: String, to text: inout String) {
        text += "\""
        for scalar in string.unicodeScalars {
            switch scalar {
            case "\"": text += "\\\""
            case "\\": text += "\\\\"
            case "\n": text += "\\n"
            case "\r": text += "\\r"
            case "\t": text += "\\t"
            case _ where scalar.value < 0x20:
                let digits = String(scalar.value, radix: 16)
                text += "\\u" + String(repeating: "0", count: 4 - digits.count) + digits
            default: text.unicodeScalars.append(scalar)
            }
        }
        text += "\""
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
        if let index = members.firstIndex(where: { $0.name == first }) {
            guard members[index].value.set(fields.dropFirst(), to: value) else { return false }
        } else {
            guard fields.count == 1 else { return false }
            members.append(Member(name: first, value: value))
        }
        self = .object(members)
        return true
    }
}

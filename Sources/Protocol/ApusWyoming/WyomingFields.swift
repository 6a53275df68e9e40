import ApusCore

/// The members of an event's data, or of an object in it, with the checks that all messages share.
///
/// A member that is null is taken for missing, as the reference does.
struct WyomingFields {
    let members: [JSONValue.Member]

    init(_ members: [JSONValue.Member]) { self.members = members }

    /// - Throws: 10001 if the value is not an object.
    init(_ value: JSONValue) throws(ApusError) {
        guard case .object(let members) = value else { throw ApusError(wyoming: "an object is expected") }
        self.init(members)
    }

    subscript(name: String) -> JSONValue? {
        let value = members.first { $0.name.isExactly(name) }?.value
        return value == .null ? nil : value
    }

    func text(_ name: String) throws(ApusError) -> String? {
        guard let value = self[name] else { return nil }
        guard let text = value.string else { throw Self.unexpected(name) }
        return text
    }

    func requiredText(_ name: String) throws(ApusError) -> String {
        guard let text = try text(name) else { throw Self.unexpected(name) }
        return text
    }

    /// A member that a text only explains: other values are ignored.
    func note(_ name: String) -> String? { self[name]?.string }

    func integer(_ name: String, in range: ClosedRange<Int>) throws(ApusError) -> Int? {
        guard let value = self[name] else { return nil }
        guard let integer = value.integer, range.contains(Int(integer)) else { throw Self.unexpected(name) }
        return Int(integer)
    }

    func requiredInteger(_ name: String, in range: ClosedRange<Int>) throws(ApusError) -> Int {
        guard let integer = try integer(name, in: range) else { throw Self.unexpected(name) }
        return integer
    }

    /// A time in milliseconds. Writers count from where they like; a negative time is refused.
    func milliseconds(_ name: String = "timestamp") throws(ApusError) -> Int? {
        guard let value = self[name] else { return nil }
        // The reference's type is a whole number, but some writers compute it from seconds.
        guard case .number(let text) = value, let number = Double(text), number >= 0, number < 9e15 else {
            throw Self.unexpected(name)
        }
        return Int(number)
    }

    func number(_ name: String) throws(ApusError) -> Double? {
        guard let value = self[name] else { return nil }
        guard case .number(let text) = value, let number = Double(text) else { throw Self.unexpected(name) }
        return number
    }

    func flag(_ name: String) throws(ApusError) -> Bool? {
        guard let value = self[name] else { return nil }
        guard case .bool(let flag) = value else { throw Self.unexpected(name) }
        return flag
    }

    /// The elements; none if the member is missing.
    func elements(_ name: String, countMax: Int) throws(ApusError) -> [JSONValue] {
        guard let value = self[name] else { return [] }
        guard case .array(let elements) = value else { throw Self.unexpected(name) }
        guard elements.count <= countMax else {
            throw ApusError(.frameTooLarge, "Wyoming: \"\(name)\" has more than \(countMax) elements")
        }
        return elements
    }

    func texts(_ name: String, countMax: Int) throws(ApusError) -> [String] {
        var texts: [String] = []
        for element in try elements(name, countMax: countMax) {
            guard let text = element.string else { throw Self.unexpected(name) }
            texts.append(text)
        }
        return texts
    }

    private static func unexpected(_ name: String) -> ApusError {
        ApusError(wyoming: "\"\(name)\" is missing or has another type or value")
    }
}

extension [JSONValue.Member] {
    /// The members whose value is not nil.
    init(fields: KeyValuePairs<String, JSONValue?>) {
        self = fields.compactMap { field in field.value.map { JSONValue.Member(name: field.key, value: $0) } }
    }
}

extension JSONValue {
    /// An object of the members whose value is not nil.
    static func fields(_ fields: KeyValuePairs<String, JSONValue?>) -> JSONValue {
        .object([Member](fields: fields))
    }

    static func integer(_ integer: Int) -> JSONValue { .number("\(integer)") }

    static func texts(_ texts: [String]) -> JSONValue { .array(texts.map { .string($0) }) }
}

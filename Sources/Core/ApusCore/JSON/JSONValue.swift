/// A JSON value (RFC 8259), parsed strictly and with limits, for the contents of tokens and models.
/// Foundation's decoder took three times as long as the verification of a token's signature. This parser has no support
/// for Swift types, dates or key strategies. It accepts only UTF-8, and refuses duplicate members (RFC 7519 §4).
/// Texts are compared by their bytes, and numbers by their text.
///
/// Pure.
package enum JSONValue: Sendable, Equatable {
    case null
    case bool(Bool)
    /// The original text.
    case number(String)
    case string(String)
    case array([JSONValue])
    /// In the order of the text, without duplicate names.
    case object([Member])

    package struct Member: Sendable, Equatable {
        package var name: String
        package var value: JSONValue

        package init(name: String, value: JSONValue) { (self.name, self.value) = (name, value) }

        package static func == (left: Self, right: Self) -> Bool {
            left.name.isExactly(right.name) && left.value == right.value
        }
    }

    /// The maximum nesting depth.
    package static let depthMax = 8
    /// The maximum number of members of one object.
    package static let memberCountMax = 128
    /// The maximum length of a number, in bytes.
    package static let numberByteCountMax = 32

    /// Nil if the text is not JSON or exceeds a limit. The caller limits the text's length.
    /// - Parameters:
    ///   - depthMax: the maximum nesting depth. The parser calls itself as deep, so it is at most 64.
    ///   - isStored: the text was accepted before, maybe by an earlier release: it may have numbers beyond the range of
    ///     a double, such as 1e400. They are refused otherwise, because many JSON readers do.
    package init?(_ bytes: ArraySlice<UInt8>, depthMax: Int = Self.depthMax, isStored: Bool = false) {
        precondition(depthMax <= 64, "a depth of \(depthMax) needs too much of the stack")
        var reader = JSONReader(rest: bytes, depthMax: depthMax, allowsAnyNumber: isStored)
        guard let value = reader.value(depth: 0), reader.isAtEnd() else { return nil }
        self = value
    }

    package static func == (left: Self, right: Self) -> Bool {
        switch (left, right) {
        case (.null, .null): true
        case (.bool(let left), .bool(let right)): left == right
        case (.number(let left), .number(let right)), (.string(let left), .string(let right)): left.isExactly(right)
        case (.array(let left), .array(let right)): left == right
        case (.object(let left), .object(let right)): left == right
        case (.null, _), (.bool, _), (.number, _), (.string, _), (.array, _), (.object, _): false
        }
    }

    /// A member of an object; nil if there is none, or the value is not an object.
    package subscript(name: String) -> JSONValue? {
        guard case .object(let members) = self else { return nil }
        return members.first { $0.name.isExactly(name) }?.value
    }

    package var string: String? {
        if case .string(let text) = self { text } else { nil }
    }

    /// The value of a whole number, in any notation; nil otherwise.
    package var integer: Int64? {
        guard case .number(let text) = self else { return nil }
        return Int64(text) ?? Double(text).flatMap { Int64(exactly: $0) }
    }
}

/// Consumes values from the front of a text. A method that returns nil may have consumed a part.
private struct JSONReader {
    var rest: ArraySlice<UInt8>
    let depthMax: Int
    let allowsAnyNumber: Bool

    mutating func isAtEnd() -> Bool {
        skipSpace()
        return rest.isEmpty
    }

    mutating func value(depth: Int) -> JSONValue? {
        skipSpace()
        switch rest.first {
        case UInt8(ascii: "{"): return depth < depthMax ? object(depth: depth) : nil
        case UInt8(ascii: "["): return depth < depthMax ? array(depth: depth) : nil
        case UInt8(ascii: "\""): return string().map { .string($0) }
        case UInt8(ascii: "t"): return take("true") ? .bool(true) : nil
        case UInt8(ascii: "f"): return take("false") ? .bool(false) : nil
        case UInt8(ascii: "n"): return take("null") ? .null : nil
        default: return number()
        }
    }

    private mutating func object(depth: Int) -> JSONValue? {
        rest.removeFirst()
        var members: [JSONValue.Member] = []
        skipSpace()
        if take("}") { return .object(members) }
        while members.count < JSONValue.memberCountMax {
            skipSpace()
            guard let name = string(), !members.contains(where: { $0.name.isExactly(name) }) else { return nil }
            skipSpace()
            guard take(":"), let value = value(depth: depth + 1) else { return nil }
            members.append(JSONValue.Member(name: name, value: value))
            skipSpace()
            if take("}") { return .object(members) }
            guard take(",") else { return nil }
        }
        return nil
    }

    private mutating func array(depth: Int) -> JSONValue? {
        rest.removeFirst()
        var elements: [JSONValue] = []
        skipSpace()
        if take("]") { return .array(elements) }
        while let value = value(depth: depth + 1) {
            elements.append(value)
            skipSpace()
            if take("]") { return .array(elements) }
            guard take(",") else { return nil }
        }
        return nil
    }

    /// RFC 8259 §7.
    private mutating func string() -> String? {
        guard take("\"") else { return nil }
        // Most strings have no escapes and are copied as they are.
        guard let end = rest.firstIndex(where: { $0 == UInt8(ascii: "\"") || $0 == UInt8(ascii: "\\") || $0 < 0x20 })
        else { return nil }
        if rest[end] == UInt8(ascii: "\"") {
            defer { rest = rest[(end + 1)...] }
            return String(validating: rest[..<end], as: UTF8.self)
        }
        var text: [UInt8] = []
        while let byte = rest.popFirst(), byte >= 0x20 {
            if byte == UInt8(ascii: "\"") { return String(validating: text, as: UTF8.self) }
            if byte != UInt8(ascii: "\\") {
                text.append(byte)
            } else if let scalar = escape() {
                text.append(contentsOf: Character(scalar).utf8)
            } else {
                return nil
            }
        }
        return nil
    }

    private mutating func escape() -> Unicode.Scalar? {
        switch rest.popFirst() {
        case UInt8(ascii: "\""): return "\""
        case UInt8(ascii: "\\"): return "\\"
        case UInt8(ascii: "/"): return "/"
        case UInt8(ascii: "b"): return "\u{8}"
        case UInt8(ascii: "f"): return "\u{c}"
        case UInt8(ascii: "n"): return "\n"
        case UInt8(ascii: "r"): return "\r"
        case UInt8(ascii: "t"): return "\t"
        case UInt8(ascii: "u"):
            guard let unit = hexadecimal() else { return nil }
            guard UTF16.isLeadSurrogate(unit) else { return Unicode.Scalar(unit) }
            guard take("\\u"), let second = hexadecimal(), UTF16.isTrailSurrogate(second) else { return nil }
            return Unicode.Scalar(0x10000 + (UInt32(unit) - 0xd800) << 10 + (UInt32(second) - 0xdc00))
        default: return nil
        }
    }

    private mutating func hexadecimal() -> UInt16? {
        guard rest.count >= 4 else { return nil }
        var value: UInt16 = 0
        for _ in 0..<4 {
            guard let digit = rest.popFirst().flatMap({ Character(Unicode.Scalar($0)).hexDigitValue }) else {
                return nil
            }
            value = value << 4 | UInt16(digit)
        }
        return value
    }

    /// RFC 8259 §6.
    private mutating func number() -> JSONValue? {
        let start = rest
        _ = take("-")
        if !take("0") {
            guard digits() else { return nil }
        }
        if take(".") {
            guard digits() else { return nil }
        }
        if take("e") || take("E") {
            if !take("-") { _ = take("+") }
            guard digits() else { return nil }
        }
        let text = start[..<rest.startIndex]
        guard text.count <= JSONValue.numberByteCountMax else { return nil }
        let number = String(decoding: text, as: UTF8.self)
        return allowsAnyNumber || Self.fitsDouble(number) ? .number(number) : nil
    }

    /// False for 1e400, and for 1e-400, which is not 0 (RFC 8259 §6). Without an exponent a number is too short for
    /// either.
    private static func fitsDouble(_ number: String) -> Bool {
        guard let exponent = number.utf8.firstIndex(where: { $0 | 0x20 == UInt8(ascii: "e") }) else { return true }
        guard let value = Double(number), value.isFinite else { return false }
        let isZero = number.utf8[..<exponent].allSatisfy { !(UInt8(ascii: "1")...UInt8(ascii: "9")).contains($0) }
        return value != 0 || isZero
    }

    /// Consumes one digit or more.
    private mutating func digits() -> Bool {
        let end = rest.firstIndex { !(UInt8(ascii: "0")...UInt8(ascii: "9")).contains($0) } ?? rest.endIndex
        guard end > rest.startIndex else { return false }
        rest = rest[end...]
        return true
    }

    private mutating func take(_ text: StaticString) -> Bool {
        // SAFETY: the bytes of a static string live as long as the process.
        let wanted = UnsafeBufferPointer(start: text.utf8Start, count: text.utf8CodeUnitCount)
        guard rest.starts(with: wanted) else { return false }
        rest = rest.dropFirst(wanted.count)
        return true
    }

    private mutating func skipSpace() {
        while let byte = rest.first, byte == 0x20 || byte == 0x0a || byte == 0x0d || byte == 0x09 { rest.removeFirst() }
    }
}

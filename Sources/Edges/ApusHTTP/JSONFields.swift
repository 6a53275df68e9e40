import ApusCore

/// Splits a JSON object or an array without parsing the values in it; the fields' messages parse them.
/// Bounded by the text; nesting uses no stack. Pure.
enum JSONFields {
    /// The maximum number of fields of one object.
    private static let countMax = 64

    /// The fields in their order, with the texts of their values.
    /// - Throws: 10001 if the text is not an object, or a name contains an escape.
    static func of(_ bytes: [UInt8]) throws(ApusError) -> [(name: String, value: String)] {
        var reader = Reader(bytes: bytes)
        var fields: [(String, String)] = []
        try reader.expect(UInt8(ascii: "{"))
        if reader.takes(UInt8(ascii: "}")) { return try reader.end(fields) }
        repeat {
            guard fields.count < countMax else { throw ApusError(.malformed, "a JSON object has too many fields") }
            let name = try reader.name()
            try reader.expect(UInt8(ascii: ":"))
            fields.append((name, try reader.value()))
        } while reader.takes(UInt8(ascii: ","))
        try reader.expect(UInt8(ascii: "}"))
        return try reader.end(fields)
    }

    /// The texts of the values of an array.
    ///
    /// - Throws: 10001 if the text is not an array.
    static func items(_ bytes: [UInt8]) throws(ApusError) -> [String] {
        var reader = Reader(bytes: bytes)
        var items: [String] = []
        try reader.expect(UInt8(ascii: "["))
        guard !reader.takes(UInt8(ascii: "]")) else { return items }
        repeat { items.append(try reader.value()) } while reader.takes(UInt8(ascii: ","))
        try reader.expect(UInt8(ascii: "]"))
        return items
    }

    private struct Reader {
        let bytes: [UInt8]
        var index = 0

        mutating func skipSpace() {
            while index < bytes.count, [0x20, 0x09, 0x0a, 0x0d].contains(bytes[index]) { index += 1 }
        }

        mutating func takes(_ byte: UInt8) -> Bool {
            skipSpace()
            guard index < bytes.count, bytes[index] == byte else { return false }
            index += 1
            return true
        }

        mutating func expect(_ byte: UInt8) throws(ApusError) {
            guard takes(byte) else {
                throw ApusError(.malformed, "the text is not a JSON object, or not the expected array")
            }
        }

        mutating func end(_ fields: [(String, String)]) throws(ApusError) -> [(name: String, value: String)] {
            skipSpace()
            guard index == bytes.count else { throw ApusError(.malformed, "the text continues after the JSON object") }
            return fields.map { (name: $0.0, value: $0.1) }
        }

        mutating func name() throws(ApusError) -> String {
            try expect(UInt8(ascii: "\""))
            let start = index
            while index < bytes.count, bytes[index] != UInt8(ascii: "\"") {
                guard bytes[index] != UInt8(ascii: "\\") else {
                    throw ApusError(.malformed, "a field's name has an escape")
                }
                index += 1
            }
            guard index < bytes.count else { throw ApusError(.malformed, "the JSON text ends early") }
            defer { index += 1 }
            return try Self.text(bytes[start..<index])
        }

        /// Reads one value as text; the message's parser checks it.
        mutating func value() throws(ApusError) -> String {
            skipSpace()
            let start = index
            var depth = 0
            while index < bytes.count {
                switch bytes[index] {
                case UInt8(ascii: "\""): try skipString()
                case UInt8(ascii: "{"), UInt8(ascii: "["):
                    depth += 1
                    index += 1
                case UInt8(ascii: "}"), UInt8(ascii: "]"):
                    if depth == 0 { return try Self.text(bytes[start..<index], isEmptyAllowed: false) }
                    depth -= 1
                    index += 1
                case UInt8(ascii: ",") where depth == 0:
                    return try Self.text(bytes[start..<index], isEmptyAllowed: false)
                default: index += 1
                }
            }
            throw ApusError(.malformed, "the JSON text ends early")
        }

        private mutating func skipString() throws(ApusError) {
            index += 1
            while index < bytes.count, bytes[index] != UInt8(ascii: "\"") {
                index += bytes[index] == UInt8(ascii: "\\") ? 2 : 1
            }
            guard index < bytes.count else { throw ApusError(.malformed, "the JSON text ends early") }
            index += 1
        }

        private static func text(
            _ bytes: ArraySlice<UInt8>, isEmptyAllowed: Bool = true
        ) throws(ApusError) -> String {
            guard isEmptyAllowed || !bytes.isEmpty, let text = String(validating: bytes, as: UTF8.self) else {
                throw ApusError(.malformed, "the JSON text is not valid")
            }
            return text
        }
    }
}

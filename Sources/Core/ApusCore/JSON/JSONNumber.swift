/// A JSON number of at most ``JSONValue/numberByteCountMax`` characters, exactly (RFC 8259 §6).
///
/// A `Double` has 53 bits and no value for 1e400, and `Decimal` has exponents up to 127. This has the digits and the
/// exponent of the text, so 1.0 equals 1, and 9007199254740993 is greater than 9007199254740992.
///
/// Pure value.
package struct JSONNumber: Sendable, Hashable, Comparable, CustomStringConvertible {
    /// As it was written.
    package let description: String
    private let isNegative: Bool
    /// Without zeros at either end; empty for zero.
    private let digits: [UInt8]
    /// The value is 0.DIGITS × 10^exponent; 0 for zero. An exponent of 31 digits fits.
    private let exponent: Int128

    /// - Parameter text: a number as ``JSONValue`` has it. Nil if the text is no number, or too long.
    package init?(_ text: String) {
        guard (1...JSONValue.numberByteCountMax).contains(text.utf8.count) else { return nil }
        let isNegative = text.hasPrefix("-")
        let parts = text.dropFirst(isNegative ? 1 : 0).split(
            maxSplits: 1, omittingEmptySubsequences: false, whereSeparator: { $0 == "e" || $0 == "E" })
        let mantissa = parts[0].split(separator: ".", maxSplits: 1, omittingEmptySubsequences: false)
        var digits: [UInt8] = []
        for part in mantissa {
            for byte in part.utf8 {
                guard (UInt8(ascii: "0")...UInt8(ascii: "9")).contains(byte) else { return nil }
                digits.append(byte - UInt8(ascii: "0"))
            }
        }
        guard let written = parts.count > 1 ? Int128(parts[1]) : 0, mantissa.allSatisfy({ !$0.isEmpty }) else {
            return nil
        }
        description = text
        let leading = digits.prefix { $0 == 0 }.count
        digits.removeFirst(leading)
        while digits.last == 0 { digits.removeLast() }
        self.digits = digits
        self.isNegative = isNegative && !digits.isEmpty
        exponent = digits.isEmpty ? 0 : written + Int128(mantissa[0].utf8.count - leading)
    }

    /// True for 1, 1.0 and 10e-1: a number without a fraction is an integer (JSON Schema 2020-12 §6.1.1).
    package var isInteger: Bool { exponent >= Int128(digits.count) }

    /// The value if it is an integer of at least 0, and at most `Int.max`: a greater one is clamped to it.
    package var count: Int? {
        guard isInteger, !isNegative else { return nil }
        guard exponent < 19 else { return .max }
        let places = Int(exponent) - digits.count
        return digits.reduce(0) { $0 * 10 + Int($1) } * (0..<places).reduce(1) { power, _ in power * 10 }
    }

    package static func == (left: Self, right: Self) -> Bool {
        left.isNegative == right.isNegative && left.exponent == right.exponent && left.digits == right.digits
    }

    package func hash(into hasher: inout Hasher) {
        hasher.combine(isNegative)
        hasher.combine(exponent)
        hasher.combine(digits)
    }

    package static func < (left: Self, right: Self) -> Bool {
        guard left.isNegative == right.isNegative else { return left.isNegative }
        return left.isNegative ? right.isCloserToZero(than: left) : left.isCloserToZero(than: right)
    }

    private func isCloserToZero(than other: Self) -> Bool {
        guard !digits.isEmpty, !other.digits.isEmpty else { return digits.isEmpty && !other.digits.isEmpty }
        guard exponent == other.exponent else { return exponent < other.exponent }
        return digits.lexicographicallyPrecedes(other.digits)
    }
}

public import ApusCore

/// A version of firmware: 1 to 4 numbers separated by dots, and perhaps a suffix behind a hyphen, such as `1.5.0` or
/// `2.0-beta.3` (IV-E1).
///
/// **Order.** Numbers are compared one after the other, and missing ones are 0: `1.5` is `1.5.0`. A version with a
/// suffix is before the same version without one. Suffixes are compared as by Semantic Versioning 2.0.0 §11: the parts
/// between dots one after the other, numbers as numbers and before words, and fewer parts first.
///
/// **Limits.** A number has 1 to 9 digits and no leading zero. A suffix has 1 to 32 letters, digits, `-` and `.`, and
/// no empty part. Pure value.
public struct FirmwareVersion: Sendable, Hashable, Comparable, CustomStringConvertible {
    /// The longest suffix, in bytes.
    public static let suffixByteCountMax = 32
    /// The longest version, in bytes.
    public static let byteCountMax = 4 * 9 + 3 + 1 + suffixByteCountMax

    /// The versions as a regular expression (ECMA-262), without anchors.
    static let pattern: String = {
        let number = "(0|[1-9][0-9]{0,8})"
        let part = "(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
        return "\(number)(\\.\(number)){0,3}(-(?=[0-9A-Za-z.-]{1,\(suffixByteCountMax)}$)\(part)(\\.\(part))*)?"
    }()

    /// A part of a suffix.
    private enum Part: Sendable, Hashable, Comparable {
        /// Digits without a leading zero.
        case number(String)
        case word(String)

        static func < (left: Self, right: Self) -> Bool {
            switch (left, right) {
            case (.number(let left), .number(let right)):
                (left.utf8.count, left) < (right.utf8.count, right)
            case (.number, .word): true
            case (.word, .number): false
            case (.word(let left), .word(let right)): left.utf8.lexicographicallyPrecedes(right.utf8)
            }
        }
    }

    /// Always four.
    private let numbers: [UInt32]
    private let suffix: [Part]
    /// As it was written.
    public let description: String

    /// Nil if the text is no version.
    public init?(_ text: String) {
        guard (1...Self.byteCountMax).contains(text.utf8.count) else { return nil }
        let halves = text.split(separator: "-", maxSplits: 1, omittingEmptySubsequences: false)
        var numbers: [UInt32] = []
        for part in halves[0].split(separator: ".", omittingEmptySubsequences: false) {
            guard numbers.count < 4, Self.isNumber(part), part.utf8.count <= 9, let number = UInt32(part) else {
                return nil
            }
            numbers.append(number)
        }
        var suffix: [Part] = []
        if halves.count == 2 {
            guard halves[1].utf8.count <= Self.suffixByteCountMax else { return nil }
            for part in halves[1].split(separator: ".", omittingEmptySubsequences: false) {
                guard let part = Self.part(part) else { return nil }
                suffix.append(part)
            }
        }
        self.numbers = numbers + [UInt32](repeating: 0, count: 4 - numbers.count)
        (self.suffix, description) = (suffix, text)
    }

    /// A version that a request names.
    ///
    /// - Throws: 21031 if it is none. The message does not contain the text.
    public init(checking text: String, _ name: String) throws(ApusError) {
        guard let version = Self(text) else {
            throw ApusError(.badParameter, "\(name) must be a version such as 1.5.0 or 2.0-beta.3")
        }
        self = version
    }

    private static func isNumber(_ text: Substring) -> Bool {
        !text.isEmpty && text.utf8.allSatisfy { (UInt8(ascii: "0")...UInt8(ascii: "9")).contains($0) }
            && (text == "0" || text.utf8.first != UInt8(ascii: "0"))
    }

    private static func part(_ text: Substring) -> Part? {
        let isPlain = text.utf8.allSatisfy { byte in
            switch byte {
            case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
                UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "-"):
                true
            default: false
            }
        }
        guard isPlain, !text.isEmpty else { return nil }
        if isNumber(text) { return .number(String(text)) }
        let isDigits = text.utf8.allSatisfy { $0 >= UInt8(ascii: "0") && $0 <= UInt8(ascii: "9") }
        return isDigits ? nil : .word(String(text))
    }

    public static func == (left: Self, right: Self) -> Bool {
        left.numbers == right.numbers && left.suffix == right.suffix
    }

    public func hash(into hasher: inout Hasher) {
        hasher.combine(numbers)
        hasher.combine(suffix)
    }

    public static func < (left: Self, right: Self) -> Bool {
        if left.numbers != right.numbers { return left.numbers.lexicographicallyPrecedes(right.numbers) }
        if left.suffix.isEmpty || right.suffix.isEmpty { return !left.suffix.isEmpty && right.suffix.isEmpty }
        return left.suffix.lexicographicallyPrecedes(right.suffix)
    }
}

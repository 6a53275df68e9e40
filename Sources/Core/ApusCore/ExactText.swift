/// A text as a key or a value that people and devices choose, compared by its bytes.
///
/// `String` takes the Unicode normalizations of a text for the same: é as one scalar, and as e with an accent. They
/// are two texts in JSON (RFC 8259 §8.3), in every hash, and in the store of the records.
///
/// Pure value.
public struct ExactText: Sendable, Hashable, Comparable, CustomStringConvertible {
    public let string: String

    public init(_ string: String) { self.string = string }

    public var description: String { string }

    public static func == (left: Self, right: Self) -> Bool { left.string.isExactly(right.string) }

    public static func < (left: Self, right: Self) -> Bool {
        left.string.utf8.lexicographicallyPrecedes(right.string.utf8)
    }

    public func hash(into hasher: inout Hasher) { hasher.combine(string) }
}

extension String {
    /// True if the texts have the same bytes. `==` is also true for two normalizations of a text.
    public func isExactly(_ other: String) -> Bool {
        self == other && utf8.count == other.utf8.count && utf8.elementsEqual(other.utf8)
    }

    /// The parts between the separators, as bytes have them. `split` keeps a separator that a combining mark follows.
    ///
    /// - Parameter separator: an ASCII character.
    public func parts(separatedBy separator: Unicode.Scalar) -> [String] {
        unicodeScalars.split(separator: separator, omittingEmptySubsequences: false).map { String($0) }
    }
}

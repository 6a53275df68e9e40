package import ApusCore
import ApusCrypto

/// The name of an object: parts with `/` between them, such as `home/cam-1/2026-11-30T21/000042`.
///
/// Names are ordered by their bytes. A name may be the beginning of another one. The objects whose names differ in
/// their last part only are in one folder, whose size is bounded (``ObjectStoreLimits/folderCountMax``), so names of
/// many objects have the hour or the day as a part.
package struct ObjectName: Sendable, Hashable, Comparable, CustomStringConvertible {
    /// The longest name, in bytes.
    package static let byteCountMax = 512
    /// The longest part, in bytes.
    package static let partByteCountMax = 100
    /// The most parts.
    package static let partCountMax = 8

    /// `A-Z a-z 0-9 . _ - =`, and `/` between parts.
    package let text: String

    /// - Throws: 21031 if the text is not such a name.
    package init(_ text: String) throws(ApusError) {
        guard let name = Self(checking: text) else {
            throw ApusError(
                .badParameter,
                "an object's name has up to \(Self.partCountMax) parts of letters, digits, '.', '_', '-' and '='")
        }
        self = name
    }

    /// Nil if the text is no name.
    init?(checking text: String) {
        let parts = text.utf8.split(separator: UInt8(ascii: "/"), omittingEmptySubsequences: false)
        guard text.utf8.count <= Self.byteCountMax, parts.count <= Self.partCountMax,
            parts.allSatisfy(Self.isPart)
        else { return nil }
        self.text = text
    }

    /// The parts, at least one.
    var parts: [String] { text.parts(separatedBy: "/") }

    private static func isPart(_ bytes: Substring.UTF8View) -> Bool {
        guard let first = bytes.first, first != UInt8(ascii: "."), bytes.count <= partByteCountMax else { return false }
        return bytes.allSatisfy { isPlain($0) || $0 == UInt8(ascii: "=") }
    }

    private static func isPlain(_ byte: UInt8) -> Bool {
        switch byte {
        case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
            UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "."), UInt8(ascii: "_"), UInt8(ascii: "-"):
            true
        default: false
        }
    }

    /// Any text as one part. Different texts give different parts.
    ///
    /// Bytes that no part may have are written as `=` and two hexadecimal digits. What is then too long is cut, and
    /// gets its SHA-256.
    package static func part(_ text: String) -> String {
        var part: [UInt8] = []
        for byte in text.utf8 {
            if isPlain(byte), !(part.isEmpty && byte == UInt8(ascii: ".")) {
                part.append(byte)
            } else {
                part += "=\(Hexadecimal.text([byte]).uppercased())".utf8
            }
        }
        if part.isEmpty { return "=" }
        guard part.count > partByteCountMax else { return String(decoding: part, as: UTF8.self) }
        // `=.` is in no other part, because two digits follow each `=`.
        let digest = Hexadecimal.text(SHA256.hash(data: Array(text.utf8)).prefix(16))
        return String(decoding: part.prefix(partByteCountMax - 34), as: UTF8.self) + "=." + digest
    }

    package var description: String { text }

    package static func < (left: Self, right: Self) -> Bool { left.text.precedes(right.text) }
}

extension String {
    /// True if the bytes of this text are before those of the other one.
    func precedes(_ other: String) -> Bool { utf8.lexicographicallyPrecedes(other.utf8) }

    /// True if this text begins with the bytes of the other one.
    func begins(with other: String) -> Bool { utf8.starts(with: other.utf8) }
}

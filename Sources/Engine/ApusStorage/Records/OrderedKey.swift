/// A tuple of texts and numbers, encoded as bytes that sort in the order of the tuples. Keys of records and of their
/// indexes are such tuples.
///
/// The encoding follows FoundationDB's tuple layer. Each part begins with a tag. A text (0x02) and bytes (0x01) end
/// with a zero byte; a zero byte within them is followed by 0xFF. A signed number (0x15) and an unsigned one (0x16)
/// have 8 bytes, big endian, a signed one with its sign bit inverted. A tuple sorts before every longer tuple that
/// begins with it.
///
/// Limits: a store accepts at most ``RecordLimits/keyByteCountMax`` bytes.
package struct OrderedKey: Sendable, Hashable, Comparable, CustomStringConvertible {
    /// One part of a tuple.
    package enum Part: Sendable, Hashable {
        case text(String)
        case bytes([UInt8])
        case signed(Int64)
        case unsigned(UInt64)
    }

    private enum Tag {
        static let bytes: UInt8 = 0x01
        static let text: UInt8 = 0x02
        static let signed: UInt8 = 0x15
        static let unsigned: UInt8 = 0x16
    }

    package private(set) var bytes: [UInt8]

    package init(_ parts: Part...) { self.init(parts) }

    package init(_ parts: [Part]) {
        bytes = []
        for part in parts { append(part) }
    }

    /// A key from a store. It is not validated.
    package init(stored bytes: [UInt8]) { self.bytes = bytes }

    /// The upper bound of all keys that begin with this one.
    package var end: Self { Self(stored: bytes + [0xFF]) }

    package func hash(into hasher: inout Hasher) { bytes.withUnsafeBytes { hasher.combine(bytes: $0) } }

    package static func < (left: Self, right: Self) -> Bool { left.bytes.lexicographicallyPrecedes(right.bytes) }

    /// The tuple; nil if the bytes do not encode one.
    package var parts: [Part]? {
        var parts: [Part] = []
        var rest = bytes[...]
        while let tag = rest.popFirst() {
            guard let part = Self.part(tag, &rest) else { return nil }
            parts.append(part)
        }
        return parts
    }

    /// The parts, separated by slashes, for people; hexadecimal if the bytes are not a tuple.
    package var description: String {
        guard let parts else { return bytes.map { String($0, radix: 16) }.joined(separator: ".") }
        return parts.map { part in
            switch part {
            case .text(let text): text
            case .bytes(let bytes): bytes.map { String($0, radix: 16) }.joined(separator: ".")
            case .signed(let number): "\(number)"
            case .unsigned(let number): "\(number)"
            }
        }.joined(separator: "/")
    }

    private mutating func append(_ part: Part) {
        switch part {
        case .text(let text): append(Tag.text, escaping: text.utf8)
        case .bytes(let content): append(Tag.bytes, escaping: content)
        case .signed(let number): append(Tag.signed, UInt64(bitPattern: number) ^ (1 << 63))
        case .unsigned(let number): append(Tag.unsigned, number)
        }
    }

    private mutating func append(_ tag: UInt8, escaping content: some Sequence<UInt8>) {
        bytes.append(tag)
        for byte in content {
            bytes.append(byte)
            if byte == 0 { bytes.append(0xFF) }
        }
        bytes.append(0)
    }

    private mutating func append(_ tag: UInt8, _ number: UInt64) {
        bytes.append(tag)
        for shift in stride(from: 56, through: 0, by: -8) { bytes.append(UInt8(truncatingIfNeeded: number >> shift)) }
    }

    private static func part(_ tag: UInt8, _ rest: inout ArraySlice<UInt8>) -> Part? {
        switch tag {
        case Tag.text: content(&rest).flatMap { String(validating: $0, as: UTF8.self) }.map(Part.text)
        case Tag.bytes: content(&rest).map(Part.bytes)
        case Tag.signed: number(&rest).map { .signed(Int64(bitPattern: $0 ^ (1 << 63))) }
        case Tag.unsigned: number(&rest).map(Part.unsigned)
        default: nil
        }
    }

    private static func content(_ rest: inout ArraySlice<UInt8>) -> [UInt8]? {
        var content: [UInt8] = []
        while let byte = rest.popFirst() {
            if byte == 0 {
                guard rest.first == 0xFF else { return content }
                rest.removeFirst()
            }
            content.append(byte)
        }
        return nil
    }

    private static func number(_ rest: inout ArraySlice<UInt8>) -> UInt64? {
        guard rest.count >= 8 else { return nil }
        defer { rest.removeFirst(8) }
        return rest.prefix(8).reduce(0) { $0 << 8 | UInt64($1) }
    }
}

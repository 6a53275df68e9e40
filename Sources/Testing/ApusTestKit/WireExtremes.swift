/// Encoded protobuf messages with extreme numbers, made from a sample without knowledge of its schema (D14).
///
/// Every number of the sample, at any depth, is replaced in turn by each of ``values``; then all of them at once.
/// Fields that the sample leaves at their default are not on the wire, so a sample sets them all.
package enum WireExtremes {
    package static let values: [UInt64] = [0, 1, 1 << 31, (1 << 32) - 1, 1 << 62, 1 << 63, .max - 1, .max]

    private enum Field {
        case varint
        case fixed(byteCount: Int)
        case message([UInt8])
        case bytes
    }

    private struct Part {
        var tag: [UInt8]
        var field: Field
        /// The value on the wire, after the tag.
        var value: [UInt8]
    }

    package static func variants(of message: [UInt8]) -> [[UInt8]] {
        guard let parts = parts(of: message) else { return [] }
        var variants: [[UInt8]] = []
        for index in parts.indices {
            for value in replacements(for: parts[index]) {
                variants.append(join(parts.enumerated().map { $0 == index ? value : $1.value }, tags: parts))
            }
        }
        for value in values { variants.append(everywhere(value, parts)) }
        return variants
    }

    private static func everywhere(_ value: UInt64, _ parts: [Part]) -> [UInt8] {
        join(
            parts.map { part in
                guard case .message(let inner) = part.field, let parts = Self.parts(of: inner) else {
                    return number(value, as: part) ?? part.value
                }
                let bytes = everywhere(value, parts)
                return varint(UInt64(bytes.count)) + bytes
            }, tags: parts)
    }

    private static func replacements(for part: Part) -> [[UInt8]] {
        if case .message(let inner) = part.field {
            return variants(of: inner).map { varint(UInt64($0.count)) + $0 }
        }
        return values.compactMap { number($0, as: part) }
    }

    private static func number(_ value: UInt64, as part: Part) -> [UInt8]? {
        switch part.field {
        case .varint: varint(value)
        case .fixed(let count): (0..<count).map { UInt8(truncatingIfNeeded: value >> UInt64($0 * 8)) }
        case .message, .bytes: nil
        }
    }

    private static func join(_ values: [[UInt8]], tags parts: [Part]) -> [UInt8] {
        zip(parts, values).flatMap { $0.tag + $1 }
    }

    private static func varint(_ value: UInt64) -> [UInt8] {
        var (rest, bytes) = (value, [UInt8]())
        repeat {
            bytes.append(UInt8(rest & 0x7f) | (rest > 0x7f ? 0x80 : 0))
            rest >>= 7
        } while rest > 0
        return bytes
    }

    /// The fields of a message; nil for bytes that are none.
    private static func parts(of message: [UInt8]) -> [Part]? {
        var (parts, rest) = ([Part](), message[...])
        while !rest.isEmpty {
            let start = rest
            guard let tag = readVarint(&rest), tag >> 3 > 0, tag >> 3 < 64 else { return nil }
            let tagBytes = Array(start[..<rest.startIndex])
            let value = rest
            let field: Field
            switch tag & 7 {
            case 0:
                guard readVarint(&rest) != nil else { return nil }
                field = .varint
            case 1, 5:
                let count = tag & 7 == 1 ? 8 : 4
                guard rest.count >= count else { return nil }
                rest = rest.dropFirst(count)
                field = .fixed(byteCount: count)
            case 2:
                guard let count = readVarint(&rest), count <= UInt64(rest.count) else { return nil }
                let inner = Array(rest.prefix(Int(count)))
                rest = rest.dropFirst(Int(count))
                field = !inner.isEmpty && Self.parts(of: inner) != nil ? .message(inner) : .bytes
            default: return nil
            }
            parts.append(Part(tag: tagBytes, field: field, value: Array(value[..<rest.startIndex])))
        }
        return parts
    }

    private static func readVarint(_ bytes: inout ArraySlice<UInt8>) -> UInt64? {
        var value: UInt64 = 0
        for shift in stride(from: UInt64(0), to: 64, by: 7) {
            guard let byte = bytes.popFirst() else { return nil }
            value |= UInt64(byte & 0x7f) << shift
            if byte < 0x80 { return value }
        }
        return nil
    }
}

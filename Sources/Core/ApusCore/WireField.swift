/// A field of a header with a fixed layout, for the reference (docs/reference/media-frames.md) and for tests.
///
/// All numbers are big endian. A header's fields follow each other without gaps.
package struct WireField: Sendable, Hashable {
    package enum Number: String, Sendable, Hashable {
        case u8, u16, u32, u64, i32, i64

        package var byteCount: Int {
            switch self {
            case .u8: 1
            case .u16: 2
            case .u32, .i32: 4
            case .u64, .i64: 8
            }
        }
    }

    package let name: String
    package let number: Number
    package let meaning: String

    package init(_ name: String, _ number: Number, _ meaning: String) {
        (self.name, self.number, self.meaning) = (name, number, meaning)
    }
}

extension Collection<WireField> {
    /// The length of the header, in bytes.
    package var byteCount: Int { reduce(0) { $0 + $1.number.byteCount } }

    /// Each field with its offset from the beginning of the header, in bytes.
    package var placed: [(offset: Int, field: WireField)] {
        var offset = 0
        return map { field in
            defer { offset += field.number.byteCount }
            return (offset, field)
        }
    }
}

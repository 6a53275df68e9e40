/// An entry of an index: the index, and the key under which the index has the record.
package struct RecordEntry: Sendable, Hashable {
    package var index: String
    package var value: OrderedKey

    package init(index: String, value: OrderedKey) {
        self.index = index
        self.value = value
    }

    /// Encodes entries as one tuple of indexes and values, for the record's row.
    static func encode(_ entries: [Self]) -> [UInt8] {
        let parts: [OrderedKey.Part] = entries.flatMap { [.text($0.index), .bytes($0.value.bytes)] }
        return OrderedKey(parts).bytes
    }

    /// The entries of a record's row; nil if the bytes are not entries.
    static func decode(_ bytes: [UInt8]) -> [Self]? {
        guard let parts = OrderedKey(stored: bytes).parts else { return nil }
        var entries: [Self] = []
        for start in stride(from: 0, to: parts.count, by: 2) {
            guard start + 1 < parts.count, case .text(let index) = parts[start],
                case .bytes(let value) = parts[start + 1]
            else { return nil }
            entries.append(Self(index: index, value: OrderedKey(stored: value)))
        }
        return entries
    }
}

/// A cache of the most recently used values, with at most ``countMax`` keys.
///
/// A full cache evicts an eighth of its entries at once, the least recently used ones, so that evictions are rare.
///
/// Pure value.
package struct RecentCache<Key: Hashable & Sendable, Value: Sendable>: Sendable {
    private struct Entry: Sendable {
        var value: Value
        var used: UInt64
    }

    package let countMax: Int
    private var entries: [Key: Entry] = [:]
    /// The number of uses so far.
    private var uses: UInt64 = 0

    /// - Precondition: `countMax` is at least 1.
    package init(countMax: Int) {
        precondition(countMax > 0, "a cache has place for one value")
        self.countMax = countMax
    }

    package var count: Int { entries.count }

    /// The value of a key. Reading counts as a use. Setting nil removes the value.
    package subscript(key: Key) -> Value? {
        mutating get {
            guard let value = entries[key]?.value else { return nil }
            uses += 1
            entries[key]?.used = uses
            return value
        }
        set {
            uses += 1
            if newValue != nil, entries.count >= countMax, entries[key] == nil { removeOldest() }
            entries[key] = newValue.map { Entry(value: $0, used: uses) }
        }
    }

    private mutating func removeOldest() {
        let oldest = entries.sorted { $0.value.used < $1.value.used }.prefix(max(1, countMax / 8))
        for (key, _) in oldest { entries[key] = nil }
    }
}

package import ApusTraversal

/// A hash table from an address within a scope to a number, flat in memory.
///
/// Open addressing with linear probing and deletion by backward shift. It is at most half full, and doubles up to a
/// limit. A look-up accesses one cache line in most cases, allocates nothing and counts no references, because every
/// packet needs one (D8). The hash is seeded, since peers choose the keys.
///
/// Concurrency model: confined to its plane's thread.
package struct FlatTable: ~Copyable {
    /// A key. `meta` is never zero, since it contains the number of a family.
    package struct Key: Equatable, Sendable {
        package var high: UInt64
        package var low: UInt64
        package var meta: UInt64

        /// An address within a scope: the number of a listener or an allocation.
        package init(_ address: TransportAddress, scope: UInt32) {
            high = address.high
            low = address.low
            meta = Self.meta(family: address.family.rawValue, port: address.port, scope: scope)
        }

        /// A number as a key, for tables of identifiers.
        package init(number: UInt32) {
            high = 0
            low = UInt64(number)
            meta = 1 << 24
        }

        init(high: UInt64, low: UInt64, meta: UInt64) {
            self.high = high
            self.low = low
            self.meta = meta
        }

        @inline(__always)
        static func meta(family: UInt8, port: UInt16, scope: UInt32) -> UInt64 {
            UInt64(scope) << 32 | UInt64(family) << 16 | UInt64(port)
        }

        /// The address that the key was made of.
        var address: TransportAddress {
            let port = UInt16(truncatingIfNeeded: meta)
            return UInt8(truncatingIfNeeded: meta >> 16) == TransportAddress.Family.v4.rawValue
                ? TransportAddress(v4: UInt32(truncatingIfNeeded: low), port: port)
                : TransportAddress(v6High: high, low: low, port: port)
        }

        /// The same address without its port: what a permission is for (RFC 8656 §9).
        @inline(__always)
        package var host: Key { Key(high: high, low: low, meta: meta & ~0xFFFF) }
    }

    private struct Slot {
        var key: Key
        var value: UInt32
    }

    /// The value for a missing key.
    package static let none = UInt32.max

    private let seed: UInt64
    private let countMax: Int
    private var slots: UnsafeMutablePointer<Slot>
    private var mask: Int
    /// The number of keys.
    package private(set) var count = 0

    /// - Parameters:
    ///   - countMax: the most keys. Further ones are refused.
    ///   - seed: from the system's generator, so that peers cannot choose colliding keys.
    package init(countMax: Int, seed: UInt64) {
        self.countMax = countMax
        self.seed = seed
        mask = 63
        slots = Self.allocate(64)
    }

    deinit { slots.deallocate() }

    private static func allocate(_ capacity: Int) -> UnsafeMutablePointer<Slot> {
        let slots = UnsafeMutablePointer<Slot>.allocate(capacity: capacity)
        slots.initialize(repeating: Slot(key: Key(high: 0, low: 0, meta: 0), value: none), count: capacity)
        return slots
    }

    @inline(__always)
    private func home(_ key: Key) -> Int {
        var hash = (key.low ^ seed) &* 0x9E37_79B9_7F4A_7C15
        hash ^= hash >> 29
        hash = (hash ^ key.high ^ key.meta &* 0xBF58_476D_1CE4_E5B9) &* 0x94D0_49BB_1331_11EB
        hash ^= hash >> 32
        return Int(truncatingIfNeeded: hash) & mask
    }

    /// The number under a key, or ``none``.
    @inline(__always)
    package func value(for key: Key) -> UInt32 {
        var index = home(key)
        while true {
            let slot = slots + index
            if slot.pointee.key.meta == 0 { return Self.none }
            if slot.pointee.key == key { return slot.pointee.value }
            index = (index &+ 1) & mask
        }
    }

    /// Sets the number under a key.
    ///
    /// - Returns: false if the table is at its limit and does not contain the key.
    package mutating func set(_ value: UInt32, for key: Key) -> Bool {
        var index = home(key)
        while slots[index].key.meta != 0 {
            if slots[index].key == key {
                slots[index].value = value
                return true
            }
            index = (index &+ 1) & mask
        }
        guard count < countMax else { return false }
        slots[index] = Slot(key: key, value: value)
        count += 1
        if count * 2 > mask { grow() }
        return true
    }

    private mutating func grow() {
        let old = slots
        let oldCapacity = mask + 1
        slots = Self.allocate(oldCapacity * 2)
        mask = oldCapacity * 2 - 1
        for position in 0..<oldCapacity where old[position].key.meta != 0 {
            var index = home(old[position].key)
            while slots[index].key.meta != 0 { index = (index &+ 1) & mask }
            slots[index] = old[position]
        }
        old.deallocate()
    }

    /// Removes a key.
    ///
    /// - Returns: its number, or ``none``.
    @discardableResult
    package mutating func remove(_ key: Key) -> UInt32 {
        var hole = home(key)
        while slots[hole].key != key {
            if slots[hole].key.meta == 0 { return Self.none }
            hole = (hole &+ 1) & mask
        }
        let value = slots[hole].value
        // Entries behind the hole move into it, unless they would be placed before their home.
        var index = hole
        while true {
            index = (index &+ 1) & mask
            guard slots[index].key.meta != 0 else { break }
            let distance = (index &- home(slots[index].key)) & mask
            if distance >= (index &- hole) & mask {
                slots[hole] = slots[index]
                hole = index
            }
        }
        slots[hole] = Slot(key: Key(high: 0, low: 0, meta: 0), value: Self.none)
        count -= 1
        return value
    }
}

/// One of the cluster's 4,096 virtual shards (D5).
///
/// Everything that concerns a device belongs to the device's shard: its session, its channels, its calls and dialogs.
/// The number of shards is fixed when a cluster is created.
public struct ShardID: Sendable, Hashable, Comparable, CustomStringConvertible {
    /// The number of shards of a cluster.
    public static let count = 4096

    /// 0 to 4095.
    public let rawValue: UInt16

    /// - Precondition: `rawValue < 4096`.
    public init(_ rawValue: UInt16) {
        precondition(rawValue < Self.count, "shard \(rawValue) is out of range")
        self.rawValue = rawValue
    }

    /// The shard of a device, and of everything that concerns it.
    public init(of device: DeviceID) { self.init(key: device.rawValue) }

    /// The shard of an app's access id.
    public init(of access: AccessID) { self.init(key: access.rawValue) }

    /// The shard of any key.
    public init(key: String) {
        self.init(UInt16(truncatingIfNeeded: StableHash.hash(key) & 4095))
    }

    public var description: String { "\(rawValue)" }

    public static func < (left: Self, right: Self) -> Bool { left.rawValue < right.rawValue }
}

/// The fencing token of a shard: grows with every change of owner and never goes back (D4).
public typealias Epoch = UInt32

/// A 64-bit hash that is the same in every process, on every machine and in every release.
///
/// FNV-1a over the bytes, and the finalizer of MurmurHash3. Swift's own `Hasher` is seeded per process and cannot be
/// used.
public enum StableHash {
    public static func hash(_ text: String, seed: UInt64 = 0) -> UInt64 { hash(text.utf8, seed: seed) }

    /// The same over bytes. Inlinable, so that it costs no call per byte in other modules.
    @inlinable
    public static func hash(_ bytes: some Sequence<UInt8>, seed: UInt64 = 0) -> UInt64 {
        var hash: UInt64 = 0xcbf2_9ce4_8422_2325 ^ mix(seed)
        for byte in bytes {
            hash ^= UInt64(byte)
            hash &*= 0x0000_0100_0000_01b3
        }
        return mix(hash)
    }

    /// Mixes: every output bit depends on every input bit.
    @inlinable
    public static func mix(_ value: UInt64) -> UInt64 {
        var hash = value
        hash ^= hash >> 33
        hash &*= 0xff51_afd7_ed55_8ccd
        hash ^= hash >> 33
        hash &*= 0xc4ce_b9fe_1a85_ec53
        hash ^= hash >> 33
        return hash
    }
}

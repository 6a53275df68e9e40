package import ApusCore

/// The kind of an entity. The number is part of the wire format and is never reused.
package struct EntityKind: Sendable, Hashable, CustomStringConvertible {
    package let rawValue: UInt8
    package init(rawValue: UInt8) { self.rawValue = rawValue }

    /// A device's session, presence and commands.
    package static let device = Self(rawValue: 1)
    /// An app's session.
    package static let app = Self(rawValue: 2)
    /// Probes with a durability (``EntityDurability``), for measurements. No service uses them.
    package static let unkeptProbe = Self(rawValue: 10)
    package static let recordedProbe = Self(rawValue: 11)
    package static let replicatedProbe = Self(rawValue: 12)
    /// For measurements and tests; no service uses it.
    package static let probe = Self(rawValue: 15)

    package var description: String { "\(rawValue)" }
}

/// Identifies one entity of the cluster: its kind, its key and its shard (D5).
package struct EntityAddress: Sendable, Hashable, CustomStringConvertible {
    /// The longest key, in bytes.
    package static let keyByteCountMax = 63

    package var kind: EntityKind
    /// 1 to 63 bytes, as the identifiers of ApusCore.
    package var key: String
    package var shard: ShardID

    /// - Parameter shard: the shard that the entity belongs to; nil derives it from the key.
    /// - Precondition: the key has 1 to 63 bytes.
    package init(kind: EntityKind, key: String, shard: ShardID? = nil) {
        precondition((1...63).contains(key.utf8.count), "an entity's key has 1 to 63 bytes, not \(key.utf8.count)")
        self.kind = kind
        self.key = key
        self.shard = shard ?? ShardID(key: key)
    }

    /// Of a record; nil if the numbers or the key are not valid.
    init?(kind: UInt32, key: String, shard: UInt32) {
        guard let shard = UInt16(exactly: shard), shard < ShardID.count, let kind = UInt8(exactly: kind),
            (1...Self.keyByteCountMax).contains(key.utf8.count)
        else { return nil }
        self.init(kind: EntityKind(rawValue: kind), key: key, shard: ShardID(shard))
    }

    package var description: String { "\(kind)/\(key)" }
}

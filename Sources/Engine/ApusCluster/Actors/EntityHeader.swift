package import ApusCore
import ApusWire
package import NIOCore

/// The fixed layout before an entity message's protobuf bytes, written by hand (D2), big endian:
/// `u8 kind`, `u16 shard`, `u32 epoch`, `u8 key length`, key.
///
/// It is all that the receiver needs to refuse a message before it decodes it (D1): an unknown kind,
/// a shard that is not here, an epoch that is not the current one.
package struct EntityHeader: Sendable, Equatable {
    package var kind: EntityKind
    package var shard: ShardID
    package var epoch: Epoch
    package var key: String

    package init(kind: EntityKind, shard: ShardID, epoch: Epoch, key: String) {
        self.kind = kind
        self.shard = shard
        self.epoch = epoch
        self.key = key
    }

    /// The header's length, in bytes.
    var byteCount: Int { 8 + key.utf8.count }

    /// Appends the header.
    package func encode(into buffer: inout ByteBuffer) {
        buffer.writeMultipleIntegers(kind.rawValue, shard.rawValue, epoch, UInt8(truncatingIfNeeded: key.utf8.count))
        buffer.writeString(key)
    }

    /// Takes the header off the front; nil, with nothing taken, where it is not one.
    package init?(from buffer: inout ByteBuffer) {
        var rest = buffer
        guard let (kind, shard, epoch, length) = rest.readMultipleIntegers(as: (UInt8, UInt16, UInt32, UInt8).self),
            shard < ShardID.count, epoch <= WireNumber.termMax, (1...63).contains(length),
            let key = rest.readString(length: Int(length))
        else { return nil }
        self.init(kind: EntityKind(rawValue: kind), shard: ShardID(shard), epoch: epoch, key: key)
        buffer = rest
    }
}

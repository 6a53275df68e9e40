package import ApusCore
import ApusWire
package import NIOCore

/// The fixed header before an entity message's protobuf bytes, encoded by hand (D2), big endian: `u8 kind`, `u16
/// shard`, `u32 epoch`, `u8 key length`, key.
///
/// With it the receiver can refuse a message before it decodes the body (D1): for an unknown kind, a shard that is not
/// at this node, or an epoch that is not the current one.
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

    /// True if a later epoch of the entity's shard is known: the entity is one of a former owner.
    package func isStale(knowing known: (ShardID) -> Epoch) -> Bool { epoch < known(shard) }

    /// The header's length, in bytes.
    var byteCount: Int { 8 + key.utf8.count }

    /// Appends the header.
    package func encode(into buffer: inout ByteBuffer) {
        RawWriter.append(byteCount, to: &buffer) { encode(into: &$0) }
    }

    func encode(into writer: inout RawWriter) {
        writer.write(kind.rawValue)
        writer.write(shard.rawValue)
        writer.write(epoch)
        writer.write(UInt8(truncatingIfNeeded: key.utf8.count))
        writer.write(key)
    }

    /// Decodes a header from the front of the buffer. Returns nil, and consumes nothing, if there is none.
    package init?(from buffer: inout ByteBuffer) {
        guard let header = RawReader.take(from: &buffer, { EntityHeader(from: &$0) }) else { return nil }
        self = header
    }

    /// Decodes a header. Returns nil if there is none.
    init?(from reader: inout RawReader) {
        guard let kind = reader.read(UInt8.self), let shard = reader.read(UInt16.self), shard < ShardID.count,
            let epoch = reader.read(UInt32.self), epoch <= WireNumber.termMax, let length = reader.read(UInt8.self),
            (1...63).contains(length), let key = reader.readText(byteCount: Int(length))
        else { return nil }
        self.init(kind: EntityKind(rawValue: kind), shard: ShardID(shard), epoch: epoch, key: key)
    }
}

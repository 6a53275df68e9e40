package import ApusCore
import ApusWire
package import NIOCore
import SwiftProtobuf

/// The fixed layout before an entity message's protobuf bytes, written by hand (D2), big endian:
/// `u8 kind`, `u16 shard`, `u32 epoch`, `u8 key length`, key.
///
/// It is all that the receiver needs to refuse a message before it decodes it (D1): an unknown kind,
/// a shard that is not here, an epoch that is not the current one.
package struct EntityHeader: Sendable, Equatable {
    /// The longest header, in bytes.
    package static let byteCountMax = 8 + 63

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

/// A `ByteBuffer` as the bag of bytes that SwiftProtobuf writes to and reads from, so that a message
/// is encoded in place, with room for its header before it: one allocation per message.
struct MessageBytes: SwiftProtobufContiguousBytes {
    /// Free bytes before the message.
    private static let headroom = EntityHeader.byteCountMax

    private(set) var buffer: ByteBuffer

    init(_ buffer: ByteBuffer) { self.buffer = buffer }

    init(repeating byte: UInt8, count: Int) {
        buffer = ByteBufferAllocator().buffer(capacity: Self.headroom + count)
        buffer.moveWriterIndex(to: Self.headroom)
        buffer.moveReaderIndex(to: Self.headroom)
        buffer.writeRepeatingByte(byte, count: count)
    }

    init<S: Sequence>(_ sequence: S) where S.Element == UInt8 { buffer = ByteBuffer(bytes: sequence) }

    var count: Int { buffer.readableBytes }

    // SAFETY: both hand the buffer's own pointer on for the closure's time, as ByteBuffer does.
    func withUnsafeBytes<R>(_ body: (UnsafeRawBufferPointer) throws -> R) rethrows -> R {
        try buffer.withUnsafeReadableBytes(body)
    }

    // SAFETY: as above; the closure has exclusive access to `self`.
    mutating func withUnsafeMutableBytes<R>(_ body: (UnsafeMutableRawBufferPointer) throws -> R) rethrows -> R {
        try buffer.withUnsafeMutableReadableBytes(body)
    }

    /// Writes a header into the room before the message.
    mutating func prepend(_ header: EntityHeader) {
        let length = 8 + header.key.utf8.count
        guard buffer.readerIndex >= length else {
            var joined = ByteBuffer()
            header.encode(into: &joined)
            joined.writeImmutableBuffer(buffer)
            buffer = joined
            return
        }
        let start = buffer.readerIndex - length
        buffer.setInteger(header.kind.rawValue, at: start)
        buffer.setInteger(header.shard.rawValue, at: start + 1)
        buffer.setInteger(header.epoch, at: start + 3)
        buffer.setInteger(UInt8(truncatingIfNeeded: length - 8), at: start + 7)
        buffer.setString(header.key, at: start + 8)
        buffer.moveReaderIndex(to: start)
    }
}

extension RemoteMessage {
    /// Reads the message; 10001 where it cannot be read, or a number is out of bounds.
    init(reading payload: ByteBuffer) throws(ApusError) {
        guard let message = try? Self(serializedBytes: MessageBytes(payload)), message.isWithinBounds else {
            throw ApusError(.malformed, "a message of the method \(Self.method) cannot be read")
        }
        self = message
    }
}

extension Message {
    /// The message's bytes; 10018 where they cannot be made, which proto3 does not know.
    func encoded() throws(ApusError) -> MessageBytes {
        do {
            return try serializedBytes()
        } catch {
            throw ApusError(.internalFailure, "a message cannot be encoded")
        }
    }
}

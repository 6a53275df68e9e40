package import ApusTraversal

/// Parsing of clients' bytes in the packet path of a plane, without copies and reference counts.
///
/// Every function is passed the location and the number of bytes, and reads none beyond. Each was fuzzed with buffers
/// that end where the bytes end.
package enum ClientMessage {
    /// A Send indication: the location of its data in the message, and the peer.
    package struct Send: Equatable {
        package let peer: TransportAddress
        package let start: Int
        package let count: Int
    }

    /// Detects a Send indication by its type (RFC 8656 §11.1) and the cookie; of at least eight bytes.
    @inline(__always)
    package static func isSendIndication(_ bytes: UnsafeRawPointer) -> Bool {
        bytes.loadUnaligned(as: UInt64.self).bigEndian & 0xFFFF_0000_FFFF_FFFF == 0x0016_0000_2112_A442
    }

    /// Parses a Send indication of `size` bytes, at least 20 (RFC 8656 §11.2).
    ///
    /// - Returns: nil if it has anything except the peer and the data: control handles it.
    @inline(__always)
    package static func send(_ bytes: UnsafeRawPointer, _ size: Int) -> Send? {
        let length = Int(UInt16(bigEndian: bytes.loadUnaligned(fromByteOffset: 2, as: UInt16.self)))
        guard length & 3 == 0, length <= size - 20 else { return nil }
        var peer: TransportAddress?
        var data: (start: Int, count: Int)?
        var offset = 20
        while offset + 4 <= 20 + length {
            let type = UInt16(bigEndian: bytes.loadUnaligned(fromByteOffset: offset, as: UInt16.self))
            let count = Int(UInt16(bigEndian: bytes.loadUnaligned(fromByteOffset: offset + 2, as: UInt16.self)))
            guard offset + 4 + count <= 20 + length else { return nil }
            switch type {
            case 0x0012 where peer == nil:
                // An invalid address is not skipped for a later one; control does not skip it either.
                guard let address = peerAddress(bytes, at: offset + 4, count) else { return nil }
                peer = address
            case 0x0013 where data == nil: data = (offset + 4, count)
            case 0x8000...0xFFFF: break
            default: return nil
            }
            offset += 4 + (count + 3) & ~3
        }
        guard let peer, let data else { return nil }
        return Send(peer: peer, start: data.start, count: data.count)
    }

    /// XOR-PEER-ADDRESS (RFC 8489 §14.2), whose value is at `offset` and has `count` bytes.
    private static func peerAddress(_ message: UnsafeRawPointer, at offset: Int, _ count: Int) -> TransportAddress? {
        guard count >= 8 else { return nil }
        let port = UInt16(bigEndian: message.loadUnaligned(fromByteOffset: offset + 2, as: UInt16.self)) ^ 0x2112
        switch (message.load(fromByteOffset: offset + 1, as: UInt8.self), count) {
        case (1, 8):
            let bits = UInt32(bigEndian: message.loadUnaligned(fromByteOffset: offset + 4, as: UInt32.self))
            return TransportAddress(v4: bits ^ 0x2112_A442, port: port)
        case (2, 20):
            let mask = (
                UInt64(bigEndian: message.loadUnaligned(fromByteOffset: 4, as: UInt64.self)),
                UInt64(bigEndian: message.loadUnaligned(fromByteOffset: 12, as: UInt64.self))
            )
            return TransportAddress(
                v6High: UInt64(bigEndian: message.loadUnaligned(fromByteOffset: offset + 4, as: UInt64.self)) ^ mask.0,
                low: UInt64(bigEndian: message.loadUnaligned(fromByteOffset: offset + 12, as: UInt64.self)) ^ mask.1,
                port: port)
        default: return nil
        }
    }

    // MARK: Streams

    /// The size of the next message of a stream with padding, from its first four bytes (RFC 8656 §12.5); nil if it is
    /// neither STUN nor ChannelData.
    @inline(__always)
    package static func streamByteCount(_ bytes: UnsafeRawPointer) -> Int? {
        let first = bytes.load(as: UInt8.self)
        let length = Int(UInt16(bigEndian: bytes.loadUnaligned(fromByteOffset: 2, as: UInt16.self)))
        if first & 0xC0 == 0x40 { return 4 &+ (length &+ 3) & ~3 }
        return first < 4 && length & 3 == 0 ? 20 &+ length : nil
    }

    // MARK: Listeners of TLS and DTLS

    /// The bytes that identify a connection: the headers of a record and of its first message.
    private static let helloHeadBytes = 9
    /// The longest ClientHello that is accepted. libssl allocates memory for a message when it sees its header.
    private static let helloMax: UInt32 = 16_384
    /// The size of a DTLS record's header (RFC 6347 §4.1).
    package static let recordHeadBytes = 13

    /// True if a connection begins with a ClientHello of at most 16 KiB (RFC 8446 §4, §5.1). Nil if more bytes are
    /// needed to decide. There is at least one byte.
    package static func isStreamHello(_ bytes: UnsafeRawPointer, _ count: Int) -> Bool? {
        // A handshake record of any version 3.x.
        guard bytes.load(as: UInt8.self) == 22, count < 2 || bytes.load(fromByteOffset: 1, as: UInt8.self) == 3 else {
            return false
        }
        guard count >= helloHeadBytes else { return nil }
        let head = UInt32(bigEndian: bytes.loadUnaligned(fromByteOffset: 5, as: UInt32.self))
        return head >> 24 == 1 && head & 0xFF_FFFF <= helloMax
    }

    /// True if a datagram can consist of DTLS records (RFC 7983 §7: 20...63 in the first byte).
    @inline(__always)
    package static func isRecord(_ bytes: UnsafeRawPointer, _ size: Int) -> Bool {
        size >= recordHeadBytes && (20...63).contains(bytes.load(as: UInt8.self))
    }

    /// True for an unencrypted ClientHello: a handshake record of epoch 0 whose first message has type 1 (RFC 6347
    /// §4.1, §4.2.2).
    @inline(__always)
    package static func isDatagramHello(_ bytes: UnsafeRawPointer, _ size: Int) -> Bool {
        guard size > recordHeadBytes, bytes.load(as: UInt8.self) == 22 else { return false }
        return bytes.loadUnaligned(fromByteOffset: 3, as: UInt16.self) == 0
            && bytes.load(fromByteOffset: recordHeadBytes, as: UInt8.self) == 1
    }
}

import ApusCore
import ApusWire
import NIOCore
import SwiftProtobuf

/// The encoded bytes of a message on their way to a link's output. A short message is stored in the value itself, so it
/// needs no allocation (docs/decisions/22).
struct EncodedMessage: SwiftProtobufContiguousBytes {
    /// Longer messages are stored in an array, in bytes.
    private static var shortByteCountMax: Int { 240 }

    private var short: InlineArray<240, UInt8>
    /// Empty if the message is short.
    private var long: [UInt8]
    let count: Int

    init(repeating byte: UInt8, count: Int) {
        short = InlineArray(repeating: byte)
        long = count > Self.shortByteCountMax ? Array(repeating: byte, count: count) : []
        self.count = count
    }

    init<S: Sequence>(_ sequence: S) where S.Element == UInt8 {
        short = InlineArray(repeating: 0)
        long = Array(sequence)
        count = long.count
    }

    // SAFETY: both pass a pointer to the value's own bytes, valid for the closure.
    func withUnsafeBytes<R>(_ body: (UnsafeRawBufferPointer) throws -> R) rethrows -> R {
        guard long.isEmpty else { return try long.withUnsafeBytes(body) }
        return try Swift.withUnsafeBytes(of: short) { try body(UnsafeRawBufferPointer(rebasing: $0[..<count])) }
    }

    // SAFETY: as above; the closure has exclusive access to `self`.
    mutating func withUnsafeMutableBytes<R>(_ body: (UnsafeMutableRawBufferPointer) throws -> R) rethrows -> R {
        guard long.isEmpty else { return try long.withUnsafeMutableBytes(body) }
        let count = count
        return try Swift.withUnsafeMutableBytes(of: &short) {
            try body(UnsafeMutableRawBufferPointer(rebasing: $0[..<count]))
        }
    }

    /// Appends the bytes.
    func write(into buffer: inout ByteBuffer) {
        RawWriter.append(count, to: &buffer) { writer in withUnsafeBytes { writer.write($0) } }
    }

    /// The bytes in a new buffer.
    var buffer: ByteBuffer {
        var buffer = ByteBufferAllocator().buffer(capacity: count)
        write(into: &buffer)
        return buffer
    }
}

extension RemoteMessage {
    /// Decodes the message. Throws 10001 if it cannot be decoded, or a number is out of bounds.
    init(reading payload: ByteBuffer) throws(ApusError) {
        guard let message = try? Self(serializedBytes: payload.readableBytesSpan), message.isWithinBounds else {
            throw ApusError(.malformed, "a message of the method \(Self.method) cannot be read")
        }
        self = message
    }
}

extension Message {
    /// Encodes the message. Throws 10018 if that fails, which proto3 messages do not.
    func encoded() throws(ApusError) -> EncodedMessage {
        do {
            return try serializedBytes()
        } catch {
            throw ApusError(.internalFailure, "a message cannot be encoded")
        }
    }
}

import ApusCore
import NIOCore
import Testing

/// Feeds a decoder its bytes whole, cut off at each offset, and with each single bit flipped.
///
/// A cut off message must be refused; a flipped bit may give another value or an error, never a crash.
func verify<Value: Equatable>(
    _ value: Value, encode: (Value, inout ByteBuffer) -> Void, decode: (ByteBuffer) throws(ApusError) -> Value
) throws {
    var bytes = ByteBuffer()
    encode(value, &bytes)
    #expect(try decode(bytes) == value)
    for count in 0..<bytes.readableBytes {
        let cut = try #require(bytes.getSlice(at: bytes.readerIndex, length: count))
        #expect(throws: ApusError.self, "cut off at \(count)") { _ = try decode(cut) }
    }
    for bit in 0..<bytes.readableBytes * 8 {
        var flipped = bytes
        let index = flipped.readerIndex + bit / 8
        let byte = try #require(flipped.getInteger(at: index, as: UInt8.self))
        flipped.setInteger(byte ^ UInt8(1) << (bit % 8), at: index)
        _ = try? decode(flipped)
    }
    var longer = bytes
    longer.writeInteger(UInt8(0))
    #expect(throws: ApusError.self, "a byte behind the end") { _ = try decode(longer) }
}

import ApusCore
import ApusTransport
import NIOCore
import Testing

@Suite("Compressed payloads (D3)")
struct ZstdCodecTests {
    private let text = ByteBuffer(string: String(repeating: "what is said again and again ", count: 40))

    private func code(_ payload: ByteBuffer, byteCountMax: Int = 1 << 20) -> ErrorCode? {
        var codec = ZstdCodec()
        do throws(ApusError) {
            _ = try codec.decompress(payload, byteCountMax: byteCountMax)
            return nil
        } catch {
            return error.code
        }
    }

    @Test("What is compressed is smaller, and comes back as it was")
    func roundTrip() throws {
        var codec = ZstdCodec()
        let compressed = codec.compress(text)
        let small = try #require(compressed)
        #expect(small.readableBytes < text.readableBytes)
        let whole = try codec.decompress(small, byteCountMax: text.readableBytes)
        #expect(whole == text)
        let random = codec.compress(ByteBuffer(bytes: (0..<64).map { UInt8(truncatingIfNeeded: $0 &* 167) }))
        #expect(random == nil, "what would grow is not compressed")
    }

    @Test("A payload over the limit is refused with 10002 by what its header says, and one that says nothing too")
    func limits() throws {
        var codec = ZstdCodec()
        let compressed = codec.compress(text)
        let small = try #require(compressed)
        #expect(code(small, byteCountMax: text.readableBytes - 1) == .frameTooLarge)
        // A frame without a content size: a window of 1 KiB, then one raw block.
        let silent: [UInt8] = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x00, 0x09, 0x00, 0x00, 0x61]
        #expect(code(ByteBuffer(bytes: silent)) == .frameTooLarge)
        #expect(code(ByteBuffer()) == .frameTooLarge)
    }

    @Test("A payload that is cut anywhere is refused with 10001, and so is one that is longer than it says")
    func malformed() throws {
        var codec = ZstdCodec()
        let compressed = codec.compress(text)
        let small = try #require(compressed)
        for count in 0..<small.readableBytes {
            let cut = small.getSlice(at: small.readerIndex, length: count) ?? ByteBuffer()
            #expect(code(cut) != nil, "\(count) bytes are read")
        }
        // It says that it is empty, and is not: one raw block of five bytes.
        let lie: [UInt8] = [0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x00, 0x29, 0x00, 0x00] + Array("hello".utf8)
        #expect(code(ByteBuffer(bytes: lie)) == .malformed)
    }
}

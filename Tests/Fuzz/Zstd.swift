import ApusTransport
import NIOCore

private let byteCountMax = 64 << 10

/// D3: a compressed payload is read whole, within the limit, or refused. A refusal changes nothing for the next one.
/// What is compressed here comes back as it was, but not when it is cut or over the limit.
func fuzzZstd(_ input: [UInt8]) {
    let payload = ByteBuffer(bytes: input)
    var codec = ZstdCodec()
    let read = try? codec.decompress(payload, byteCountMax: byteCountMax)
    precondition((read?.readableBytes ?? 0) <= byteCountMax, "a payload over the limit is read")
    precondition((try? codec.decompress(payload, byteCountMax: byteCountMax)) == read, "the second time it is another")
    if let read, read.readableBytes > 0 {
        let less = try? codec.decompress(payload, byteCountMax: read.readableBytes - 1)
        precondition(less == nil, "the limit is not kept")
    }
    guard let small = codec.compress(payload) else { return }
    precondition(small.readableBytes < payload.readableBytes, "it has grown")
    let again = try? codec.decompress(small, byteCountMax: payload.readableBytes)
    precondition(again == payload, "it comes back as something else")
    let cut = small.getSlice(at: small.readerIndex, length: Int(input[0]) % small.readableBytes) ?? ByteBuffer()
    precondition((try? codec.decompress(cut, byteCountMax: byteCountMax)) == nil, "what was cut is read")
}

import ApusRelay
import ApusTraversal

/// D8: what a plane reads of clients by itself is never beyond the bytes that came, is what the codec reads where both
/// read it, and does not depend on how a connection's beginning was cut.
func fuzzEndpoint(_ input: [UInt8]) {
    guard !input.isEmpty else { return }
    // Memory that ends where the input ends, so that a sanitizer sees each byte that is read beyond.
    let bytes = UnsafeMutableRawBufferPointer.allocate(byteCount: input.count, alignment: 1)
    defer { bytes.deallocate() }
    bytes.copyBytes(from: input)
    guard let start = UnsafeRawPointer(bytes.baseAddress) else { return }
    indication(start, input)
    stream(start, input)
    let whole = ClientMessage.isStreamHello(start, input.count)
    for count in 1...min(input.count, 16) {
        let early = ClientMessage.isStreamHello(start, count)
        precondition(early == nil || early == whole, "a hello is judged otherwise when it is cut")
    }
    precondition(whole != nil || input.count < 16, "a connection's beginning never tells what it is")
    if ClientMessage.isDatagramHello(start, input.count) {
        precondition(ClientMessage.isRecord(start, input.count), "a hello is no record")
    }
}

private func indication(_ start: UnsafeRawPointer, _ input: [UInt8]) {
    guard input.count >= 20, ClientMessage.isSendIndication(start),
        let send = ClientMessage.send(start, input.count)
    else { return }
    precondition(send.start >= 24 && send.start + send.count <= input.count, "data lies beyond its message")
    // The codec is stricter about what stands behind the message, and about FINGERPRINT.
    guard let message = try? StunMessage(input), !message.has(.fingerprint) else { return }
    precondition((try? message.xorAddress(.xorPeerAddress)) == send.peer, "a plane reads another peer")
    precondition(message.range(of: .data) == send.start..<send.start + send.count, "a plane reads other data")
}

private func stream(_ start: UnsafeRawPointer, _ input: [UInt8]) {
    var offset = 0
    while input.count - offset >= 4, let size = ClientMessage.streamByteCount(start + offset) {
        let codec = try? StunStreamSplitter.messageByteCount(
            input[offset...], stunByteCountMax: 70_000, numbers: 0x4000...0x7FFF)
        precondition(codec == size && size >= 4, "a plane cuts a stream otherwise")
        guard input.count - offset >= size else { return }
        if size >= 20, ClientMessage.isSendIndication(start + offset) {
            _ = ClientMessage.send(start + offset, size)
        }
        offset += size
    }
}

import ApusCore
import ApusWire
import NIOCore

/// D3: a link's bytes, cut anywhere, are the same frames, and a frame that was read is written as it came.
func fuzzLink(_ input: [UInt8]) {
    guard let cut = input.first else { return }
    let bytes = ByteBuffer(bytes: input.dropFirst())
    let whole = frames([bytes])
    let head = min(Int(cut), bytes.readableBytes)
    let parts = [
        bytes.getSlice(at: bytes.readerIndex, length: head),
        bytes.getSlice(at: bytes.readerIndex + head, length: bytes.readableBytes - head),
    ]
    precondition(whole == frames(parts.compactMap { $0 }), "the cut changes what is read")
    for frame in whole {
        guard let trace = try? frame.trace() else { continue }
        precondition(TraceContext(traceparent: trace.traceparent) == trace, "a trace context is written otherwise")
    }
    var written = ByteBuffer()
    for frame in whole { frame.encode(into: &written) }
    precondition(bytes.readableBytesView.starts(with: written.readableBytesView), "a frame is written otherwise")
}

private func frames(_ parts: [ByteBuffer]) -> [LinkFrame] {
    var decoder = LinkFrameDecoder(lengthMax: 1024)
    var frames: [LinkFrame] = []
    for part in parts {
        decoder.append(part)
        do {
            while let frame = try decoder.next() { frames.append(frame) }
        } catch {
            return frames
        }
    }
    return frames
}

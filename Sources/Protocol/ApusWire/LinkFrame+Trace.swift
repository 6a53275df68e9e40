public import ApusCore
public import NIOCore

extension TraceContext {
    /// Appends the form of frames, ``LinkFrame/traceByteCount`` bytes, big endian: 16 bytes of trace id, 8 of span id,
    /// 1 of flags as in `traceparent`.
    public func encode(into buffer: inout ByteBuffer) {
        buffer.writeMultipleIntegers(traceHigh, traceLow, span, UInt8(isSampled ? 1 : 0))
    }
}

extension LinkFrame {
    /// The trace context before the payload; nil where the frame has none. ``payload`` still begins with it.
    ///
    /// - Throws: 10001 where the payload is too short for it, or an id is 0.
    public func trace() throws(ApusError) -> TraceContext? {
        guard flags.contains(.traced) else { return nil }
        var bytes = payload
        guard
            let (high, low, span, marks) = bytes.readMultipleIntegers(as: (UInt64, UInt64, UInt64, UInt8).self),
            let trace = TraceContext(traceHigh: high, traceLow: low, span: span, isSampled: marks & 1 != 0)
        else { throw ApusError(.malformed, "a frame says that it has a trace context and has none") }
        return trace
    }

    /// Takes the trace context off the payload; nil where the frame has none.
    ///
    /// - Throws: as ``trace()``.
    public mutating func takeTrace() throws(ApusError) -> TraceContext? {
        guard let trace = try trace() else { return nil }
        payload.moveReaderIndex(forwardBy: Self.traceByteCount)
        flags.remove(.traced)
        return trace
    }
}

import NIOCore

/// Writes the parts of a message one after the other into a buffer. Memory is reserved once for all parts.
struct RawWriter {
    private let bytes: UnsafeMutableRawBufferPointer
    private(set) var count = 0

    /// Appends what the body writes, up to the given number of bytes.
    ///
    /// - Precondition: the body writes no more.
    @inline(__always)
    static func append(_ byteCountMax: Int, to buffer: inout ByteBuffer, _ body: (inout RawWriter) -> Void) {
        buffer.writeWithUnsafeMutableBytes(minimumWritableBytes: byteCountMax) { bytes in
            var writer = RawWriter(bytes: UnsafeMutableRawBufferPointer(rebasing: bytes.prefix(byteCountMax)))
            body(&writer)
            return writer.count
        }
    }

    private init(bytes: UnsafeMutableRawBufferPointer) { self.bytes = bytes }

    /// Big endian.
    @inline(__always)
    mutating func write<Number: FixedWidthInteger & BitwiseCopyable>(_ number: Number) {
        precondition(count + MemoryLayout<Number>.size <= bytes.count, "more bytes are written than were reserved")
        bytes.storeBytes(of: number.bigEndian, toByteOffset: count, as: Number.self)
        count += MemoryLayout<Number>.size
    }

    @inline(__always)
    mutating func write(_ source: UnsafeRawBufferPointer) {
        precondition(count + source.count <= bytes.count, "more bytes are written than were reserved")
        UnsafeMutableRawBufferPointer(rebasing: bytes[count...]).copyMemory(from: source)
        count += source.count
    }

    /// The text's UTF-8.
    @inline(__always)
    mutating func write(_ text: String) {
        var text = text
        text.withUTF8 { write(UnsafeRawBufferPointer($0)) }
    }
}

/// Reads the parts of a message in place. Each read returns nil, and consumes nothing, if too few bytes are left.
struct RawReader {
    private let bytes: UnsafeRawBufferPointer
    /// Bytes read so far.
    private(set) var count = 0

    /// Consumes from the buffer what the body reads. If the body returns nil, nothing is consumed.
    @inline(__always)
    static func take<Value>(from buffer: inout ByteBuffer, _ body: (inout RawReader) -> Value?) -> Value? {
        var count = 0
        let value = buffer.withUnsafeReadableBytes { bytes -> Value? in
            var reader = RawReader(bytes: bytes)
            let value = body(&reader)
            count = reader.count
            return value
        }
        if value != nil { buffer.moveReaderIndex(forwardBy: count) }
        return value
    }

    private init(bytes: UnsafeRawBufferPointer) { self.bytes = bytes }

    /// Big endian.
    @inline(__always)
    mutating func read<Number: FixedWidthInteger & BitwiseCopyable>(_ type: Number.Type) -> Number? {
        guard bytes.count - count >= MemoryLayout<Number>.size else { return nil }
        defer { count += MemoryLayout<Number>.size }
        return Number(bigEndian: bytes.loadUnaligned(fromByteOffset: count, as: Number.self))
    }

    /// UTF-8. Invalid sequences are replaced.
    @inline(__always)
    mutating func readText(byteCount: Int) -> String? {
        guard bytes.count - count >= byteCount else { return nil }
        defer { count += byteCount }
        return String(decoding: UnsafeRawBufferPointer(rebasing: bytes[count..<count + byteCount]), as: UTF8.self)
    }
}

public import ApusCore
public import NIOCore

/// The kind of a link frame. The same frames are used between nodes and between clients and a node (D3).
public struct FrameKind: Sendable, Hashable, CustomStringConvertible {
    public let rawValue: UInt8
    public init(rawValue: UInt8) { self.rawValue = rawValue }

    /// The first frame of the side that connected. Nothing is trusted before it.
    public static let hello = Self(rawValue: 0x01)
    /// The answer to ``hello``.
    public static let welcome = Self(rawValue: 0x02)
    /// The last frame before an intended close. Carries a `Failure`.
    public static let goodbye = Self(rawValue: 0x03)
    /// A call that expects an answer.
    public static let request = Self(rawValue: 0x10)
    /// The answer to a call; with ``FrameFlags/failure`` it carries a `Failure`.
    public static let response = Self(rawValue: 0x11)
    /// A message without an answer.
    public static let tell = Self(rawValue: 0x12)
    /// The caller no longer wants the answer of the call with this correlation.
    public static let cancel = Self(rawValue: 0x13)
    /// One media frame of the stream that the correlation names (D7).
    public static let media = Self(rawValue: 0x20)
    /// A keepalive that expects a ``pong``.
    public static let ping = Self(rawValue: 0x30)
    public static let pong = Self(rawValue: 0x31)

    public var description: String { "0x" + String(rawValue, radix: 16) }
}

/// Flags about the encoding of a frame's payload.
public struct FrameFlags: OptionSet, Sendable, Hashable {
    public let rawValue: UInt8
    public init(rawValue: UInt8) { self.rawValue = rawValue }

    /// The payload is one zstd frame.
    public static let compressed = Self(rawValue: 1)
    /// A 25-byte W3C trace context (trace id, span id, flags) comes before the payload (``LinkFrame/trace()``). Only
    /// requests have one, and only if their trace is recorded. Every version of the links skips it.
    public static let traced = Self(rawValue: 2)
    /// The response is a `Failure`.
    public static let failure = Self(rawValue: 4)
    /// The time that the caller waits, in milliseconds as a `u32`, comes before the payload.
    public static let timed = Self(rawValue: 8)
}

/// One length-prefixed frame of a link (D3).
///
/// Layout, big endian: `u32 length` (of everything after it), `u8 kind`, `u8 flags`, `u16 method`, `u32 correlation`,
/// then the trace context if ``FrameFlags/traced`` is set, then the time if ``FrameFlags/timed`` is set, then the
/// payload.
public struct LinkFrame: Sendable, Equatable {
    /// The length field and the header after it, in bytes.
    public static let headerByteCount = 12
    /// The header without the length field, in bytes; no frame is shorter.
    public static let lengthMin = 8
    /// The trace context, in bytes.
    public static let traceByteCount = 25

    public var kind: FrameKind
    public var flags: FrameFlags
    /// The stable id of the message's type, or 0.
    public var method: UInt16
    /// Matches an answer to its call; for media, the stream's number on this connection.
    public var correlation: UInt32
    public var payload: ByteBuffer

    public init(
        kind: FrameKind, flags: FrameFlags = [], method: UInt16 = 0, correlation: UInt32 = 0,
        payload: ByteBuffer = ByteBuffer()
    ) {
        self.kind = kind
        self.flags = flags
        self.method = method
        self.correlation = correlation
        self.payload = payload
    }

    /// Appends the frame to a buffer.
    @inlinable
    public func encode(into buffer: inout ByteBuffer) {
        Self.encodeHeader(
            kind: kind, flags: flags, method: method, correlation: correlation, payloadByteCount: payload.readableBytes,
            into: &buffer)
        buffer.writeImmutableBuffer(payload)
    }

    /// Appends only a header. The caller writes the payload right after it.
    @inlinable
    public static func encodeHeader(
        kind: FrameKind, flags: FrameFlags = [], method: UInt16 = 0, correlation: UInt32 = 0, payloadByteCount: Int,
        into buffer: inout ByteBuffer
    ) {
        let length = UInt32(truncatingIfNeeded: payloadByteCount + Self.lengthMin)
        // Reserves memory for the payload too, which follows.
        buffer.reserveCapacity(minimumWritableBytes: Self.headerByteCount + payloadByteCount)
        buffer.writeWithUnsafeMutableBytes(minimumWritableBytes: Self.headerByteCount) { bytes in
            bytes.storeBytes(of: length.bigEndian, toByteOffset: 0, as: UInt32.self)
            bytes.storeBytes(of: kind.rawValue, toByteOffset: 4, as: UInt8.self)
            bytes.storeBytes(of: flags.rawValue, toByteOffset: 5, as: UInt8.self)
            bytes.storeBytes(of: method.bigEndian, toByteOffset: 6, as: UInt16.self)
            bytes.storeBytes(of: correlation.bigEndian, toByteOffset: 8, as: UInt32.self)
            return Self.headerByteCount
        }
    }
}

extension LinkFrame {
    /// Takes the time that the caller waits off the payload; nil where the frame has none.
    ///
    /// - Throws: 10001 where the payload is too short for it.
    public mutating func takeTimeLeft() throws(ApusError) -> Duration? {
        guard flags.contains(.timed) else { return nil }
        guard let milliseconds = payload.readInteger(as: UInt32.self) else {
            throw ApusError(.malformed, "a frame says that it has a time and has none")
        }
        flags.remove(.timed)
        return .milliseconds(Int64(milliseconds))
    }
}

/// Splits a stream of bytes into link frames.
///
/// The length is checked before memory is used for it. A header that announces more than ``lengthMax`` fails at once
/// with 10002 (D3).
public struct LinkFrameDecoder: Sendable {
    /// The longest frame that is accepted, in bytes after the length field.
    public var lengthMax: Int
    private var buffered = ByteBuffer()

    public init(lengthMax: Int) { self.lengthMax = lengthMax }

    /// Bytes of an incomplete frame.
    public var bufferedByteCount: Int { buffered.readableBytes }

    /// Adds bytes from the wire.
    public mutating func append(_ bytes: ByteBuffer) {
        if buffered.readableBytes == 0 {
            buffered = bytes
        } else {
            buffered.writeImmutableBuffer(bytes)
        }
    }

    /// Removes and returns the bytes of the incomplete frame, for a decoder with other limits.
    public mutating func takeBuffered() -> ByteBuffer {
        defer { buffered = ByteBuffer() }
        return buffered
    }

    /// The next complete frame, or nil if more bytes are needed. Its payload is a slice of the appended bytes: copy it
    /// to keep it longer.
    ///
    /// - Throws: 10002 for a frame over the limit, 10001 for one shorter than its header.
    public mutating func next() throws(ApusError) -> LinkFrame? {
        guard let length = buffered.getInteger(at: buffered.readerIndex, as: UInt32.self) else {
            // Releases the reader's buffer, which otherwise would allocate a new one for its next read.
            if buffered.readableBytes == 0 { buffered = ByteBuffer() }
            return nil
        }
        guard Int(length) <= lengthMax else {
            throw ApusError(.frameTooLarge, "a frame of \(length) bytes was announced; the limit is \(lengthMax)")
        }
        guard Int(length) >= LinkFrame.lengthMin else {
            throw ApusError(.malformed, "a frame of \(length) bytes is shorter than its header")
        }
        guard buffered.readableBytes >= 4 + Int(length) else {
            // The rest is still to come. The tail is copied to a buffer of its own, to release the reader's.
            if buffered.readerIndex > 0 { buffered.discardReadBytes() }
            return nil
        }
        guard
            let (_, kind, flags, method, correlation) = buffered.readMultipleIntegers(
                as: (UInt32, UInt8, UInt8, UInt16, UInt32).self),
            let payload = buffered.readSlice(length: Int(length) - LinkFrame.lengthMin)
        else {
            throw ApusError(.malformed)
        }
        return LinkFrame(
            kind: FrameKind(rawValue: kind), flags: FrameFlags(rawValue: flags), method: method,
            correlation: correlation, payload: payload)
    }
}

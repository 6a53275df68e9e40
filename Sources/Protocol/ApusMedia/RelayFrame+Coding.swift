public import ApusCore
public import NIOCore

extension RelayFrame {
    /// The offset of the payload in ``encoded``: after the headers of the link frame and the media frame.
    public static let payloadOffset = linkHeaderByteCount + MediaHeader.byteCount
    /// The link frame's header; see `LinkFrame.headerByteCount`.
    public static let linkHeaderByteCount = 12
    private static let termOffset = linkHeaderByteCount
    private static let flagsOffset = linkHeaderByteCount + 36

    /// Decodes a media frame from a link frame's payload, and copies it into a buffer of its own in the form in which
    /// this node sends it. `linkHeader` writes the 12 bytes before it. The copy releases the reader's buffer.
    ///
    /// - Throws: 10001 or 10003, see ``MediaFrame/init(decoding:)``. 10001 also for a track beyond
    ///   ``TrackConfiguration/trackCountMax``, and for a configuration or a repeated frame that is not a
    ///   ``TrackConfiguration``: relays keep the newest configuration of each track outside the limits of a ring.
    public init(
        copying payload: ByteBuffer, linkHeader: (_ payloadByteCount: Int, _ buffer: inout ByteBuffer) -> Void
    ) throws(ApusError) {
        let frame = try MediaFrame(decoding: payload)
        try Self.check(frame)
        var encoded = ByteBufferAllocator().buffer(
            capacity: Self.linkHeaderByteCount + payload.readableBytes)
        linkHeader(payload.readableBytes, &encoded)
        encoded.writeImmutableBuffer(payload)
        self.init(header: frame.header, encoded: encoded)
    }

    /// Encodes a frame of a publisher within this process in the form in which this node sends it.
    ///
    /// - Throws: 10001 as ``init(copying:linkHeader:)`` for the track and the configuration.
    public init(
        encoding frame: MediaFrame, linkHeader: (_ payloadByteCount: Int, _ buffer: inout ByteBuffer) -> Void
    ) throws(ApusError) {
        try Self.check(frame)
        let byteCount = MediaHeader.byteCount + frame.payload.readableBytes
        var encoded = ByteBufferAllocator().buffer(capacity: Self.linkHeaderByteCount + byteCount)
        linkHeader(byteCount, &encoded)
        frame.encode(into: &encoded)
        self.init(header: frame.header, encoded: encoded)
    }

    private static func check(_ frame: MediaFrame) throws(ApusError) {
        guard frame.header.track < TrackConfiguration.trackCountMax else {
            throw ApusError(.malformed, "the media frame's track is out of bounds")
        }
        if !frame.header.flags.isDisjoint(with: [.configuration, .repeated]) {
            guard frame.header.flags.contains(.configuration) else {
                throw ApusError(.malformed, "only configurations may be repeated")
            }
            _ = try TrackConfiguration(decoding: frame.payload)
        }
    }

    /// Wraps a frame that is already encoded.
    public init(header: MediaHeader, encoded: ByteBuffer) {
        self.init(
            position: header.position, ptsMicroseconds: header.ptsMicroseconds, flags: header.flags,
            track: header.track, encoded: encoded)
    }

    /// The frame without the link's header, as ``MediaFrame/encode(into:)`` writes it: a slice of ``encoded``.
    public var content: ByteBuffer { slice(from: Self.linkHeaderByteCount) }

    /// A slice of ``encoded``.
    public var payload: ByteBuffer { slice(from: Self.payloadOffset) }

    private func slice(from offset: Int) -> ByteBuffer {
        var slice = encoded
        slice.moveReaderIndex(forwardBy: min(offset, slice.readableBytes))
        return slice
    }

    /// The term in the frame's header.
    public var term: Epoch {
        encoded.getInteger(at: encoded.readerIndex + Self.termOffset, as: UInt32.self) ?? 0
    }

    /// Sets the term of this relay. The change is made in place if nothing else references the bytes.
    public mutating func stamp(term: Epoch) {
        encoded.setInteger(term, at: encoded.readerIndex + Self.termOffset)
    }

    /// A copy that is marked as repeated at the start of a join.
    public func repeated() -> RelayFrame {
        var copy = self
        copy.flags.insert(.repeated)
        copy.encoded.setInteger(copy.flags.rawValue, at: copy.encoded.readerIndex + Self.flagsOffset)
        return copy
    }
}

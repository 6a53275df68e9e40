public import ApusCore
public import NIOCore

extension RelayFrame {
    /// Where the payload begins in ``encoded``: after the link frame's and the media frame's header.
    public static let payloadOffset = linkHeaderByteCount + MediaHeader.byteCount
    /// The link frame's header; see `LinkFrame.headerByteCount`.
    public static let linkHeaderByteCount = 12
    private static let termOffset = linkHeaderByteCount
    private static let flagsOffset = linkHeaderByteCount + 36

    /// Reads a media frame from a link frame's payload and copies it into a buffer of its own, as this
    /// node sends it on: `linkHeader` writes the 12 bytes before it. The copy frees the reader's buffer.
    ///
    /// - Throws: 10001 or 10003, see ``MediaFrame/init(decoding:)``; 10001 for a track beyond
    ///   ``TrackConfiguration/trackCountMax``, and for a configuration or a repeated frame that is no
    ///   ``TrackConfiguration``: relays keep the newest of each track outside of what a ring forgets.
    public init(
        copying payload: ByteBuffer, linkHeader: (_ payloadByteCount: Int, _ buffer: inout ByteBuffer) -> Void
    ) throws(ApusError) {
        let frame = try MediaFrame(decoding: payload)
        guard frame.header.track < TrackConfiguration.trackCountMax else {
            throw ApusError(.malformed, "the media frame's track is out of bounds")
        }
        if !frame.header.flags.isDisjoint(with: [.configuration, .repeated]) {
            guard frame.header.flags.contains(.configuration) else {
                throw ApusError(.malformed, "only configurations are repeated")
            }
            _ = try TrackConfiguration(decoding: frame.payload)
        }
        var encoded = ByteBufferAllocator().buffer(
            capacity: Self.linkHeaderByteCount + payload.readableBytes)
        linkHeader(payload.readableBytes, &encoded)
        encoded.writeImmutableBuffer(payload)
        self.init(header: frame.header, encoded: encoded)
    }

    /// Wraps a frame that is already encoded.
    public init(header: MediaHeader, encoded: ByteBuffer) {
        self.init(
            position: header.position, ptsMicroseconds: header.ptsMicroseconds, flags: header.flags,
            track: header.track, encoded: encoded)
    }

    /// The term that the frame is stamped with.
    public var term: Epoch {
        encoded.getInteger(at: encoded.readerIndex + Self.termOffset, as: UInt32.self) ?? 0
    }

    /// Stamps the frame with the term of this relay; in place while nobody else holds the bytes.
    public mutating func stamp(term: Epoch) {
        encoded.setInteger(term, at: encoded.readerIndex + Self.termOffset)
    }

    /// A copy that says that it is sent again at the head of a join.
    public func repeated() -> RelayFrame {
        var copy = self
        copy.flags.insert(.repeated)
        copy.encoded.setInteger(copy.flags.rawValue, at: copy.encoded.readerIndex + Self.flagsOffset)
        return copy
    }
}

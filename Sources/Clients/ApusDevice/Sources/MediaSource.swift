public import ApusCore
public import ApusMedia
public import NIOCore

/// The events of a media source, in this order: every configuration, then frames, then the end.
///
/// A later configuration of a track replaces its earlier one, from that track's next frame on.
public enum SourceEvent: Sendable {
    /// The decoder configuration of a track's next frames.
    case configuration(track: UInt8, TrackConfiguration)
    /// One frame. All tracks share a time line, which starts near 0 and never goes back in decode order. Key frames of
    /// video have `.key`, and so has every frame of a source without video. The payload has at most
    /// ``MediaFrame/joinedByteCountMax`` bytes.
    case frame(
        track: UInt8, ptsMicroseconds: Int64, dtsDeltaMicroseconds: Int32, flags: MediaFlags, payload: ByteBuffer)
    /// The source was stopped, or a source that does not loop has ended. Nothing follows.
    case ended
    /// The source failed: 10026 if the media cannot be decoded, 10022 if its configuration is invalid. Nothing follows.
    case failed(ApusError)

    /// Delivers the end of a source's thread.
    static func end(_ deliver: @escaping @Sendable (SourceEvent) -> Void) -> @Sendable (ApusError?) -> Void {
        { error in deliver(error.map { .failed($0) } ?? .ended) }
    }
}

/// A camera's media: a file, a test pattern, or another camera.
///
/// Concurrency model: a source runs on an OS thread of its own (D10) and calls `deliver` on it, one event at a time, at
/// real-time pace. A `deliver` that blocks slows the source. ``start(_:)`` and ``stop()`` may be called from any
/// thread.
public protocol MediaSource: Sendable {
    /// Starts the source. A second call has no effect.
    func start(_ deliver: @escaping @Sendable (SourceEvent) -> Void)
    /// Requests the end of the source. Returns at once. `.ended` follows within about a second.
    func stop()
}

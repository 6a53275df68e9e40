public import ApusCore
public import ApusMedia
public import NIOCore

/// What a source of media tells, in this order: every configuration, then frames, then the end.
///
/// A later configuration of a track replaces its earlier one, from that track's next frame on.
public enum SourceEvent: Sendable {
    /// What a decoder needs for a track's next frames.
    case configuration(track: UInt8, TrackConfiguration)
    /// One frame. Times stand on one line over all tracks that starts near 0 and never goes back in
    /// decode order. Only video carries `.key`. The payload is at most ``MediaFrame/payloadByteCountMax``.
    case frame(
        track: UInt8, ptsMicroseconds: Int64, dtsDeltaMicroseconds: Int32, flags: MediaFlags, payload: ByteBuffer)
    /// Nothing follows: the source was stopped, or a source that does not loop is over.
    case ended
    /// Nothing follows: 10026 if the media cannot be read, 10022 if the source is described wrongly.
    case failed(ApusError)
}

/// A camera's media: a file, a test pattern, or another camera.
///
/// Concurrency model: a source runs on an operating system thread of its own (D10) and calls
/// `deliver` on it, one event at a time, at real-time pace; a `deliver` that blocks slows the source.
/// ``start(_:)`` and ``stop()`` may be called from any thread.
public protocol MediaSource: Sendable {
    /// Starts the source. Called once; a second call does nothing.
    func start(_ deliver: @escaping @Sendable (SourceEvent) -> Void)
    /// Asks the source to end; returns at once. `.ended` comes within about a second.
    func stop()
}

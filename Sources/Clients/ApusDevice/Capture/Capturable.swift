public import ApusCore
public import ApusMedia
public import NIOCore

/// What a capture delivers.
public enum CaptureEvent<Media: Sendable>: Sendable {
    case media(Media)
    /// The capture was stopped, or its file has ended. Nothing follows.
    case ended
    /// The capture failed: 10026 if the device or file cannot be read, 10022 if its configuration is invalid. Nothing
    /// follows.
    case failed(ApusError)
}

/// Sound from a microphone, a file, or the app itself (IV-C7, IV-C10).
///
/// Concurrency model: `deliver` is called on a thread of the capture, one event at a time, at real-time pace. A
/// `deliver` that blocks slows the capture. ``start(_:)`` is called once; ``stop()`` may be called from any thread.
public protocol AudioCapturable: Sendable {
    /// Starts the capture. Times start near 0 and never go back.
    func start(_ deliver: @escaping @Sendable (CaptureEvent<SoundSamples>) -> Void)
    /// Requests the end of the capture. Returns at once. `.ended` follows within about a second.
    func stop()
}

/// Pictures from a camera, or from the app itself (IV-C8, IV-C10).
///
/// Concurrency model: as ``AudioCapturable``.
public protocol VideoCapturable: Sendable {
    /// Starts the capture. Times start near 0 and never go back. The size does not change.
    func start(_ deliver: @escaping @Sendable (CaptureEvent<Picture>) -> Void)
    /// Requests the end of the capture. Returns at once. `.ended` follows within about a second.
    func stop()
}

/// An encoded frame of one track.
public struct EncodedFrame: Sendable {
    public var payload: ByteBuffer
    /// In microseconds.
    public var ptsMicroseconds: Int64
    /// True if a decoder can begin with it. Only video frames have it.
    public var isKey: Bool

    public init(payload: ByteBuffer, ptsMicroseconds: Int64, isKey: Bool = false) {
        self.payload = payload
        self.ptsMicroseconds = ptsMicroseconds
        self.isKey = isKey
    }
}

/// An encoder of sound (IV-C10).
///
/// Concurrency model: used by one thread at a time.
public protocol AudioEncodable: AnyObject {
    /// What the stream's header says of the track (IV-C9). `trackCount` is set by the source.
    var configuration: TrackConfiguration { get }
    /// Encodes samples of any rate. Returns the frames that are complete.
    ///
    /// - Throws: 10026 if the encoder fails.
    func encode(_ sound: SoundSamples) throws(ApusError) -> [EncodedFrame]
    /// The last frames, at the end of the capture. Nothing is encoded afterwards.
    ///
    /// - Throws: 10026 if the encoder fails.
    func finish() throws(ApusError) -> [EncodedFrame]
}

/// An encoder of pictures, without frames that refer to later ones (IV-C10).
///
/// Concurrency model: used by one thread at a time.
public protocol VideoEncodable: AnyObject {
    /// What the stream's header says of the track (IV-C9). `trackCount` is set by the source.
    var configuration: TrackConfiguration { get }
    /// Encodes one picture of the size that the configuration has.
    ///
    /// - Throws: 10026 if the encoder fails.
    func encode(_ picture: Picture) throws(ApusError) -> [EncodedFrame]
    /// The last frames, at the end of the capture. Nothing is encoded afterwards.
    ///
    /// - Throws: 10026 if the encoder fails.
    func finish() throws(ApusError) -> [EncodedFrame]
}

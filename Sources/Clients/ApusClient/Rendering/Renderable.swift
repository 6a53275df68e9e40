public import ApusCore
public import ApusMedia

/// Plays sound: a loudspeaker, a file, or the app's own (IV-C10).
///
/// Concurrency model: called on one thread of the ``MediaRenderer``, which may block.
public protocol AudioRenderable: AnyObject, Sendable {
    /// The rate in which it wants samples, one of ``SoundSamples/sampleRates``.
    var sampleRate: Int { get }
    /// Sound that is further behind the newest that has arrived is left out; nil: none is. In microseconds.
    var delayMaxMicroseconds: Int64? { get }
    /// Plays samples of ``sampleRate``.
    ///
    /// - Throws: an error ends the rendering.
    func render(_ sound: SoundSamples) throws(ApusError)
    /// Nothing follows.
    ///
    /// - Throws: an error of the end, such as that of a full disk.
    func finish() throws(ApusError)
}

extension AudioRenderable {
    public var delayMaxMicroseconds: Int64? { nil }
}

/// Shows pictures: a display, a file, or the app's own (IV-C10).
///
/// Concurrency model: as ``AudioRenderable``.
public protocol VideoRenderable: AnyObject, Sendable {
    /// Shows one picture.
    ///
    /// - Throws: an error ends the rendering.
    func render(_ picture: Picture) throws(ApusError)
    /// Nothing follows.
    ///
    /// - Throws: an error of the end, such as that of a full disk.
    func finish() throws(ApusError)
}

/// A decoder of sound (IV-C10).
///
/// Concurrency model: used by one thread.
public protocol AudioDecodable: AnyObject {
    /// Decodes one frame. A frame that cannot be decoded gives nothing.
    ///
    /// - Throws: 10026 if nothing more can be decoded.
    func decode(_ frame: MediaFrame) throws(ApusError) -> [SoundSamples]
    /// The last sound. Nothing is decoded afterwards.
    ///
    /// - Throws: 10026 if the decoder fails.
    func finish() throws(ApusError) -> [SoundSamples]
}

/// A decoder of pictures (IV-C10).
///
/// Concurrency model: used by one thread.
public protocol VideoDecodable: AnyObject {
    /// Decodes one frame. A frame that cannot be decoded gives nothing.
    ///
    /// - Throws: 10026 if nothing more can be decoded.
    func decode(_ frame: MediaFrame) throws(ApusError) -> [Picture]
    /// The last pictures. Nothing is decoded afterwards.
    ///
    /// - Throws: 10026 if the decoder fails.
    func finish() throws(ApusError) -> [Picture]
}

/// Records the frames of a player as they are (IV-C10): ``MP4Recorder``, or the app's own.
public protocol AVRecordable: Sendable {
    /// Adds a frame, including repeated configurations. Returns at once.
    func write(_ frame: MediaFrame)
    /// Ends the recording.
    ///
    /// - Returns: the number of recorded frames.
    /// - Throws: 10021 if it could not be written; 10026 if nothing could be recorded.
    @discardableResult
    func finish() throws(ApusError) -> Int
}

extension MP4Recorder: AVRecordable {}

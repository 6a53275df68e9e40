import ApusCore

/// An encoder of sound of one channel, frame by frame.
///
/// Concurrency model: created, used and released by one thread at a time.
protocol FrameEncoder: AnyObject {
    /// The number of samples of each frame.
    var samplesPerFrame: Int { get }
    /// What a decoder needs besides the frames: AudioSpecificConfig, or empty.
    var extraData: [UInt8] { get }
    /// Encodes ``samplesPerFrame`` samples.
    ///
    /// - Parameter pts: the number of the first sample. Times of outputs have the same unit.
    /// - Throws: 10026 if the encoder fails; 10018 if there is no memory.
    func encode(_ samples: ArraySlice<Int16>, pts: Int64) throws(ApusError) -> [Encoder.Output]
    /// The frames that the encoder holds back. Nothing can be encoded afterwards.
    ///
    /// - Throws: 10026 if the encoder fails.
    func finish() throws(ApusError) -> [Encoder.Output]
}

extension Encoder: FrameEncoder {
    func encode(_ samples: ArraySlice<Int16>, pts: Int64) throws(ApusError) -> [Output] {
        try prepareFrame()
        try fill(with: samples)
        return try encode(pts: pts)
    }
}

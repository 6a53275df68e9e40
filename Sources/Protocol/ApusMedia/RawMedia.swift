/// Sound that is not encoded: signed samples of one channel (IV-C10).
public struct SoundSamples: Sendable, Hashable {
    /// The rates in which sound is captured and played, in samples a second.
    public static let sampleRates = 8_000...48_000

    /// The number of samples a second.
    public var sampleRate: Int
    /// The time of the first sample, in microseconds.
    public var ptsMicroseconds: Int64
    public var samples: [Int16]

    public init(sampleRate: Int, ptsMicroseconds: Int64, samples: [Int16]) {
        self.sampleRate = sampleRate
        self.ptsMicroseconds = ptsMicroseconds
        self.samples = samples
    }

    /// The time after the last sample, in microseconds.
    public var endMicroseconds: Int64 {
        ptsMicroseconds &+ Int64(samples.count) * 1_000_000 / Int64(max(sampleRate, 1))
    }
}

/// A picture that is not encoded, in planar YUV 4:2:0 with 8 bits a sample (IV-C10).
public struct Picture: Sendable, Hashable {
    /// In pixels; even.
    public var width: Int
    /// In pixels; even.
    public var height: Int
    /// In microseconds.
    public var ptsMicroseconds: Int64
    /// The luma plane, then the blue and the red difference with half the width and height. Rows have no padding.
    public var bytes: [UInt8]

    public init(width: Int, height: Int, ptsMicroseconds: Int64, bytes: [UInt8]) {
        self.width = width
        self.height = height
        self.ptsMicroseconds = ptsMicroseconds
        self.bytes = bytes
    }

    /// The number of bytes of a picture of this size.
    public static func byteCount(width: Int, height: Int) -> Int { width * height * 3 / 2 }
}

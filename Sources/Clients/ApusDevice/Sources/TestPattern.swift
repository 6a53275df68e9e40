public import ApusCore

/// The parameters of a test pattern. Text form: `1280x720@25`.
public struct TestPattern: Sendable, Hashable, CustomStringConvertible {
    public static let widths = 64...3840
    public static let heights = 64...2160
    public static let frameRates = 1...120

    /// In pixels; even.
    public var width: Int
    public var height: Int
    /// Frames a second.
    public var frameRate: Int
    /// Seconds between key frames.
    public var keyIntervalSeconds = 2
    /// The video's bit rate, per second.
    public var bitsPerSecond = 1_000_000
    /// True for a quiet tone of 440 Hz as a second track.
    public var hasTone = true
    /// How the tone is encoded.
    public var sound = SoundEncoding.standard

    /// - Throws: 10022 if a number is out of range.
    public init(width: Int, height: Int, frameRate: Int) throws(ApusError) {
        guard Self.widths.contains(width), Self.heights.contains(height), width % 2 == 0, height % 2 == 0 else {
            throw ApusError(
                .configurationInvalid,
                "a test pattern of \(width)x\(height) cannot be made: width \(Self.widths.lowerBound) to "
                    + "\(Self.widths.upperBound), "
                    + "height \(Self.heights.lowerBound) to \(Self.heights.upperBound), both even"
            )
        }
        guard Self.frameRates.contains(frameRate) else {
            throw ApusError(
                .configurationInvalid,
                "a test pattern of \(frameRate) frames a second cannot be made: 1 to \(Self.frameRates.upperBound)")
        }
        self.width = width
        self.height = height
        self.frameRate = frameRate
    }

    /// Parses the text form.
    ///
    /// - Throws: 10022 with the expected form.
    public init(parsing text: String) throws(ApusError) {
        let parts = text.split(separator: "@", omittingEmptySubsequences: false)
        let sides = (parts.first ?? "").split(separator: "x", omittingEmptySubsequences: false)
        guard parts.count == 2, sides.count == 2, let width = Int(sides[0]), let height = Int(sides[1]),
            let rate = Int(parts[1])
        else {
            throw ApusError(
                .configurationInvalid,
                "the test pattern \"\(text)\" is not of the form WIDTHxHEIGHT@RATE, such as 1280x720@25")
        }
        try self.init(width: width, height: height, frameRate: rate)
    }

    var encoding: PictureEncoding {
        PictureEncoding(
            width: width, height: height, frameRate: frameRate, keyIntervalSeconds: keyIntervalSeconds,
            bitsPerSecond: bitsPerSecond)
    }

    public var description: String { "\(width)x\(height)@\(frameRate)" }
}

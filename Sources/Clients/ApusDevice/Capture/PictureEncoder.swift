import ApusClient
public import ApusCore
public import ApusMedia
import NIOCore

/// How pictures are encoded: H.264 without B frames (IV-C8).
public struct PictureEncoding: Sendable, Hashable {
    /// The limits of ``keyIntervalSeconds``.
    public static let keyIntervals = 1...60
    /// The limits of ``bitsPerSecond``.
    public static let bitRates = 10_000...100_000_000

    /// In pixels; even, ``TestPattern/widths``.
    public var width: Int
    /// In pixels; even, ``TestPattern/heights``.
    public var height: Int
    /// Pictures a second, ``TestPattern/frameRates``.
    public var frameRate: Int
    /// Seconds between key frames.
    public var keyIntervalSeconds: Int
    public var bitsPerSecond: Int

    public init(
        width: Int, height: Int, frameRate: Int = 25, keyIntervalSeconds: Int = 2, bitsPerSecond: Int = 1_000_000
    ) {
        (self.width, self.height, self.frameRate) = (width, height, frameRate)
        (self.keyIntervalSeconds, self.bitsPerSecond) = (keyIntervalSeconds, bitsPerSecond)
    }

    /// - Throws: 10022 if a number is out of range.
    func check() throws(ApusError) {
        let isPossible =
            TestPattern.widths.contains(width) && TestPattern.heights.contains(height) && width % 2 == 0
            && height % 2 == 0 && TestPattern.frameRates.contains(frameRate)
            && Self.keyIntervals.contains(keyIntervalSeconds) && Self.bitRates.contains(bitsPerSecond)
        guard isPossible else {
            throw ApusError(
                .configurationInvalid,
                "pictures of \(width)x\(height) at \(frameRate) a second cannot be encoded with \(bitsPerSecond) bits "
                    + "a second and \(keyIntervalSeconds) s between key frames")
        }
    }
}

/// The default encoder of pictures: libx264 (IV-C8, IV-C10).
///
/// Concurrency model: created, used and released by one thread at a time.
public final class PictureEncoder: VideoEncodable {
    public let configuration: TrackConfiguration
    private let encoder: Encoder
    private var shaper: TrackShaper
    private var last = Int64.min

    /// - Throws: 10022 if the size is not possible; 21036 if this machine's libavcodec does not have the encoder.
    public init(_ encoding: PictureEncoding) throws(ApusError) {
        try encoding.check()
        encoder = try Encoder(video: encoding, ticksPerSecond: Self.ticksPerSecond)
        shaper = TrackShaper(
            input: TrackConfiguration(
                codec: .h264, trackCount: 1, first: UInt32(encoding.width), second: UInt32(encoding.height),
                third: UInt32(encoding.frameRate) * 1000, extraData: encoder.extraData))
        guard let configuration = shaper.configuration else {
            throw ApusError(.internalFailure, "the encoder did not report its parameters")
        }
        self.configuration = configuration
    }
    private static let ticksPerSecond = 90_000

    public func encode(_ picture: Picture) throws(ApusError) -> [EncodedFrame] {
        try MediaTime.check(picture.ptsMicroseconds)
        let ticks = picture.ptsMicroseconds * 9 / 100
        // The encoder needs increasing times.
        guard ticks > last else { return [] }
        last = ticks
        try encoder.prepareFrame()
        try encoder.fill(with: picture)
        return shape(try encoder.encode(pts: ticks))
    }

    public func finish() throws(ApusError) -> [EncodedFrame] { shape(try encoder.finish()) }

    private func shape(_ outputs: [Encoder.Output]) -> [EncodedFrame] {
        outputs.compactMap { output in
            shaper.shape(output.bytes, isKey: output.isKey).map { shaped in
                EncodedFrame(payload: shaped.payload, ptsMicroseconds: output.pts * 100 / 9, isKey: output.isKey)
            }
        }
    }
}

/// The times of captured media.
enum MediaTime {
    /// 142 years, in microseconds: the times of frames are counted with.
    private static let limit: UInt64 = 1 << 52

    /// - Throws: 10022 if the time is out of range.
    static func check(_ ptsMicroseconds: Int64) throws(ApusError) {
        guard ptsMicroseconds.magnitude < limit else {
            throw ApusError(.configurationInvalid, "the time \(ptsMicroseconds) of captured media is out of range")
        }
    }
}

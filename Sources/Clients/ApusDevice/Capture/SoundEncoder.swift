import ApusClient
public import ApusCore
public import ApusMedia
import NIOCore

/// The default encoder of sound, from libavcodec, and of AMR from libraries of its own (IV-C7, IV-C10).
///
/// Samples of another rate are converted. Where the captured times are more than ``gapMaxMicroseconds`` ahead of the
/// number of samples, the frames' times follow them; where they are that much behind, samples are left out, so times
/// never go back.
///
/// Concurrency model: created, used and released by one thread at a time.
public final class SoundEncoder: AudioEncodable {
    /// How far the captured times may be from the number of samples.
    public static let gapMaxMicroseconds: Int64 = 100_000

    public let configuration: TrackConfiguration
    private let encoder: any FrameEncoder
    private let sampleRate: Int
    private let frameSampleCount: Int
    private let converter: SoundConverter
    /// Samples at the encoder's rate that do not fill a frame yet.
    private var pending: [Int16] = []
    /// The number of samples that the encoder has.
    private var encodedCount = 0
    /// The time of the encoder's sample 0 for frames from this sample on, in microseconds. The last one is the newest.
    private var anchors: [(sample: Int, microseconds: Int64)] = []

    /// - Throws: 21036 if this machine does not have the encoder.
    public convenience init(_ encoding: SoundEncoding) throws(ApusError) {
        try self.init(encoding, libraryOfAMR: nil)
    }

    /// - Parameter libraryOfAMR: the file that is loaded for AMR; nil for that of the codec. Tests set it.
    /// - Throws: 21036 if this machine does not have the encoder.
    package init(_ encoding: SoundEncoding, libraryOfAMR: String?) throws(ApusError) {
        encoder =
            switch encoding.codec {
            case .amrNarrow, .amrWide: try AMREncoder(encoding, fileName: libraryOfAMR)
            case .aac, .opus, .g711a, .g711u, .l16, .mp3, .h264, .h265: try Encoder(sound: encoding)
            }
        sampleRate = encoding.sampleRate
        converter = SoundConverter(sampleRate: encoding.sampleRate)
        frameSampleCount = encoder.samplesPerFrame
        configuration = TrackConfiguration(
            codec: encoding.codec, trackCount: 1, first: UInt32(encoding.sampleRate), second: 1,
            third: UInt32(frameSampleCount), extraData: encoder.extraData)
    }

    public func encode(_ sound: SoundSamples) throws(ApusError) -> [EncodedFrame] {
        guard SoundSamples.sampleRates.contains(sound.sampleRate) else {
            throw ApusError(
                .configurationInvalid,
                "sound with \(sound.sampleRate) samples a second is not supported: "
                    + "\(SoundSamples.sampleRates.lowerBound) to \(SoundSamples.sampleRates.upperBound)")
        }
        try MediaTime.check(sound.ptsMicroseconds)
        guard follow(sound.ptsMicroseconds) else { return [] }
        pending += try converter.convert(sound.samples, sampleRate: sound.sampleRate)
        return try encodePending()
    }

    /// Encodes the samples that do not fill a frame, with silence behind them.
    public func finish() throws(ApusError) -> [EncodedFrame] {
        if !pending.isEmpty { pending += [Int16](repeating: 0, count: frameSampleCount - pending.count) }
        var frames = try encodePending()
        for output in try encoder.finish() { append(output, to: &frames) }
        return frames
    }

    private func encodePending() throws(ApusError) -> [EncodedFrame] {
        var frames: [EncodedFrame] = []
        var start = 0
        while pending.count - start >= frameSampleCount {
            let samples = pending[start..<start + frameSampleCount]
            for output in try encoder.encode(samples, pts: Int64(encodedCount)) { append(output, to: &frames) }
            encodedCount += frameSampleCount
            start += frameSampleCount
        }
        pending.removeFirst(start)
        return frames
    }

    /// Moves the times of the next frames to those of the capture, if these are ahead.
    ///
    /// - Returns: false if they are behind.
    private func follow(_ pts: Int64) -> Bool {
        let next = encodedCount + pending.count
        let anchor = pts - Int64(next) * 1_000_000 / Int64(sampleRate)
        guard let newest = anchors.last else {
            anchors = [(next, anchor)]
            return true
        }
        if anchor - newest.microseconds > Self.gapMaxMicroseconds {
            anchors.append((next, anchor))
        }
        return newest.microseconds - anchor <= Self.gapMaxMicroseconds
    }

    /// An encoder's first frames are before its first sample, by its delay. They are left out, and a frame that is only
    /// partly before it has its time.
    private func append(_ output: Encoder.Output, to frames: inout [EncodedFrame]) {
        guard output.pts + Int64(frameSampleCount) > 0 else { return }
        while anchors.count > 1, anchors[1].sample <= output.pts { anchors.removeFirst() }
        let time = max(output.pts, 0) * 1_000_000 / Int64(sampleRate)
        frames.append(
            EncodedFrame(
                payload: ByteBuffer(bytes: output.bytes), ptsMicroseconds: (anchors.first?.microseconds ?? 0) + time))
    }
}

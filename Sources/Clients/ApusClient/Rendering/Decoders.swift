public import ApusCore
public import ApusMedia
import CApusMedia
import NIOCore

/// The default decoder of sound, from libavcodec (IV-C10): AAC, Opus, G.711, AMR and MP3.
///
/// Concurrency model: see ``AudioDecodable``.
public final class SoundDecoder: AudioDecodable {
    private let decoder: FrameDecoder
    private let converter: SoundConverter
    private let sampleRate: Int
    /// The time after the last sound.
    private var end: Int64 = 0

    /// - Parameter sampleRate: the rate of the samples that it returns, one of ``SoundSamples/sampleRates``.
    /// - Throws: 10026 if this machine's libav cannot decode the codec; 10022 for another rate.
    public init(_ configuration: TrackConfiguration, sampleRate: Int) throws(ApusError) {
        guard SoundSamples.sampleRates.contains(sampleRate) else {
            throw ApusError(.configurationInvalid, "sound is not decoded to \(sampleRate) samples a second")
        }
        decoder = try FrameDecoder(configuration)
        converter = SoundConverter(sampleRate: sampleRate)
        self.sampleRate = sampleRate
    }

    public func decode(_ frame: MediaFrame) throws(ApusError) -> [SoundSamples] {
        end = frame.header.ptsMicroseconds
        var sounds: [SoundSamples] = []
        try decoder.decode(frame.payload, pts: frame.header.ptsMicroseconds) { decoded throws(ApusError) in
            try append(decoded, to: &sounds)
        }
        return sounds
    }

    public func finish() throws(ApusError) -> [SoundSamples] {
        var sounds: [SoundSamples] = []
        try decoder.finish { decoded throws(ApusError) in try append(decoded, to: &sounds) }
        return sounds
    }

    private func append(_ decoded: UnsafeMutablePointer<AVFrame>, to sounds: inout [SoundSamples]) throws(ApusError) {
        let samples = try converter.convert(decoded)
        guard !samples.isEmpty else { return }
        // Of several frames in one packet, libav gives only the first a time.
        let time = decoded.pointee.pts == APUS_AV_NOPTS ? end : decoded.pointee.pts
        let sound = SoundSamples(sampleRate: sampleRate, ptsMicroseconds: time, samples: samples)
        end = sound.endMicroseconds
        sounds.append(sound)
    }
}

/// The default decoder of pictures, from libavcodec (IV-C10): H.264 and H.265.
///
/// Concurrency model: see ``VideoDecodable``.
public final class PictureDecoder: VideoDecodable {
    private let decoder: FrameDecoder
    private let converter = PictureConverter()
    private var last: Int64 = 0

    /// - Throws: 10026 if this machine's libav cannot decode the codec.
    public init(_ configuration: TrackConfiguration) throws(ApusError) {
        decoder = try FrameDecoder(configuration)
    }

    public func decode(_ frame: MediaFrame) throws(ApusError) -> [Picture] {
        last = frame.header.ptsMicroseconds
        var pictures: [Picture] = []
        try decoder.decode(frame.payload, pts: frame.header.ptsMicroseconds) { decoded throws(ApusError) in
            try append(decoded, to: &pictures)
        }
        return pictures
    }

    public func finish() throws(ApusError) -> [Picture] {
        var pictures: [Picture] = []
        try decoder.finish { decoded throws(ApusError) in try append(decoded, to: &pictures) }
        return pictures
    }

    private func append(_ decoded: UnsafeMutablePointer<AVFrame>, to pictures: inout [Picture]) throws(ApusError) {
        let time = decoded.pointee.pts == APUS_AV_NOPTS ? last : decoded.pointee.pts
        pictures.append(try converter.convert(decoded, ptsMicroseconds: time))
    }
}

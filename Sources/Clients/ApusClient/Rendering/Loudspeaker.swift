public import ApusCore
public import ApusMedia
import CApusMedia
import Synchronization

/// Plays sound with a playback device of ALSA, such as `default` or `hw:0`. It needs Debian's package libavdevice59.
///
/// Concurrency model: see ``AudioRenderable``. ``render(_:)`` blocks while the device's buffer is full.
public final class Loudspeaker: AudioRenderable, @unchecked Sendable {  // SAFETY: the state's lock guards them.
    public let sampleRate: Int
    /// A loudspeaker plays no faster than it receives: sound that came too late would stay late.
    public let delayMaxMicroseconds: Int64? = 500_000
    private let device: String
    private let context: UnsafeMutablePointer<AVFormatContext>
    private let packet: UnsafeMutablePointer<AVPacket>
    private let state = Mutex((count: Int64(0), isClosed: false))

    /// - Throws: 10026 if the device cannot be opened; 10022 if this machine has no libavdevice, or the rate is not one
    ///   of ``SoundSamples/sampleRates``.
    public init(device: String = "default", sampleRate: Int = 48_000) throws(ApusError) {
        LibAV.prepare()
        guard SoundSamples.sampleRates.contains(sampleRate) else {
            throw ApusError(.configurationInvalid, "\(sampleRate) samples a second cannot be played")
        }
        try LibAV.registerDevices(for: "the loudspeaker \(device)")
        var made: UnsafeMutablePointer<AVFormatContext>?
        var result = avformat_alloc_output_context2(&made, nil, "alsa", device)
        guard result >= 0, let context = made else {
            throw LibAV.error(result, "the loudspeaker \(device) cannot be opened")
        }
        guard let stream = avformat_new_stream(context, nil), let parameters = stream.pointee.codecpar,
            let packet = av_packet_alloc()
        else {
            avformat_free_context(context)
            throw ApusError(.internalFailure, "no memory")
        }
        parameters.pointee.codec_type = AVMEDIA_TYPE_AUDIO
        parameters.pointee.codec_id = AV_CODEC_ID_PCM_S16LE
        parameters.pointee.format = AV_SAMPLE_FMT_S16.rawValue
        parameters.pointee.sample_rate = Int32(sampleRate)
        av_channel_layout_default(&parameters.pointee.ch_layout, 1)
        result = avformat_write_header(context, nil)
        guard result >= 0 else {
            var unused: UnsafeMutablePointer<AVPacket>? = packet
            av_packet_free(&unused)
            avformat_free_context(context)
            throw LibAV.error(result, "the loudspeaker \(device) cannot be opened")
        }
        (self.device, self.sampleRate, self.context, self.packet) = (device, sampleRate, context, packet)
    }

    deinit {
        try? finish()
        var packet: UnsafeMutablePointer<AVPacket>? = packet
        av_packet_free(&packet)
        avformat_free_context(context)
    }

    public func render(_ sound: SoundSamples) throws(ApusError) {
        let result: Int32 = state.withLock { state in
            guard !state.isClosed, !sound.samples.isEmpty else { return 0 }
            let bytes = sound.samples.count * 2
            guard av_new_packet(packet, Int32(bytes)) >= 0, let data = packet.pointee.data else { return 0 }
            // SAFETY: `av_new_packet` allocated exactly this many bytes.
            sound.samples.withUnsafeBytes { source in
                if let start = source.baseAddress {
                    UnsafeMutableRawPointer(data).copyMemory(from: start, byteCount: bytes)
                }
            }
            (packet.pointee.pts, packet.pointee.dts) = (state.count, state.count)
            state.count += Int64(sound.samples.count)
            let result = av_write_frame(context, packet)
            av_packet_unref(packet)
            return result
        }
        guard result >= 0 else { throw LibAV.error(result, "the loudspeaker \(device) failed") }
    }

    public func finish() throws(ApusError) {
        state.withLock { state in
            guard !state.isClosed else { return }
            state.isClosed = true
            av_write_trailer(context)
        }
    }
}

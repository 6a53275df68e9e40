import ApusClient
import ApusCore
import ApusMedia
import CApusMedia
import Glibc

/// One encoder of libavcodec with its input picture or samples.
///
/// Concurrency model: created, used and released on one thread.
final class Encoder {
    /// An encoded packet. Times are in the encoder's own units.
    struct Output {
        var bytes: [UInt8]
        var pts: Int64
        var isKey: Bool
    }

    private let context: UnsafeMutablePointer<AVCodecContext>
    private let packet: UnsafeMutablePointer<AVPacket>
    /// Filled by the caller before ``encode(pts:)``.
    let frame: UnsafeMutablePointer<AVFrame>

    /// Opens an encoder by its name in libav.
    ///
    /// - Throws: 21036 if this build of libav does not have it; 10026 if it refuses the settings.
    init(name: String, configure: (UnsafeMutablePointer<AVCodecContext>) -> Void) throws(ApusError) {
        guard let codec = avcodec_find_encoder_by_name(name) else {
            throw ApusError(
                .encoderUnavailable,
                "the encoder \(name) is missing in this machine's libavcodec; install one that has it"
            )
        }
        guard let context = avcodec_alloc_context3(codec), let packet = av_packet_alloc(), let frame = av_frame_alloc()
        else { throw ApusError(.internalFailure, "no memory") }
        self.context = context
        self.packet = packet
        self.frame = frame
        context.pointee.flags |= AV_CODEC_FLAG_GLOBAL_HEADER
        configure(context)
        let result = avcodec_open2(context, codec, nil)
        guard result >= 0 else { throw LibAV.error(result, "the encoder \(name) cannot be started") }
        try allocateFrame()
    }

    /// H.264 for a live picture: no frames held back, no B frames, one thread.
    ///
    /// - Parameter ticksPerSecond: the unit of the pictures' times.
    convenience init(video encoding: PictureEncoding, ticksPerSecond: Int) throws(ApusError) {
        try self.init(name: "libx264") { context in
            context.pointee.width = Int32(encoding.width)
            context.pointee.height = Int32(encoding.height)
            context.pointee.time_base = AVRational(num: 1, den: Int32(ticksPerSecond))
            context.pointee.framerate = AVRational(num: Int32(encoding.frameRate), den: 1)
            context.pointee.pix_fmt = AV_PIX_FMT_YUV420P
            context.pointee.gop_size = Int32(encoding.frameRate * encoding.keyIntervalSeconds)
            context.pointee.keyint_min = context.pointee.gop_size
            context.pointee.max_b_frames = 0
            context.pointee.bit_rate = Int64(encoding.bitsPerSecond)
            context.pointee.rc_max_rate = Int64(encoding.bitsPerSecond)
            context.pointee.rc_buffer_size = Int32(clamping: encoding.bitsPerSecond)
            context.pointee.thread_count = 1
            av_opt_set(context.pointee.priv_data, "preset", "ultrafast", 0)
            av_opt_set(context.pointee.priv_data, "tune", "zerolatency", 0)
            av_opt_set(context.pointee.priv_data, "profile", "high", 0)
            av_opt_set(context.pointee.priv_data, "x264-params", "scenecut=0:open-gop=0", 0)
        }
    }

    /// Sound of one channel.
    convenience init(sound encoding: SoundEncoding) throws(ApusError) {
        let name =
            switch encoding.codec {
            case .opus: "libopus"
            case .g711a: "pcm_alaw"
            case .g711u: "pcm_mulaw"
            case .l16: "pcm_s16be"
            case .aac, .amrNarrow, .amrWide, .mp3, .h264, .h265: "aac"
            }
        try self.init(name: name) { context in
            context.pointee.sample_rate = Int32(encoding.sampleRate)
            context.pointee.sample_fmt = encoding.codec == .aac ? AV_SAMPLE_FMT_FLTP : AV_SAMPLE_FMT_S16
            context.pointee.bit_rate = Int64(encoding.bitsPerSecond)
            context.pointee.time_base = AVRational(num: 1, den: Int32(encoding.sampleRate))
            av_channel_layout_default(&context.pointee.ch_layout, 1)
        }
    }

    deinit {
        var (context, packet, frame): (UnsafeMutablePointer<AVCodecContext>?, _, _) = (
            self.context, Optional(self.packet), Optional(self.frame)
        )
        av_packet_free(&packet)
        av_frame_free(&frame)
        avcodec_free_context(&context)
    }

    private func allocateFrame() throws(ApusError) {
        if context.pointee.codec_type == AVMEDIA_TYPE_VIDEO {
            frame.pointee.format = context.pointee.pix_fmt.rawValue
            frame.pointee.width = context.pointee.width
            frame.pointee.height = context.pointee.height
        } else {
            frame.pointee.format = context.pointee.sample_fmt.rawValue
            frame.pointee.nb_samples = Int32(samplesPerFrame)
            frame.pointee.sample_rate = context.pointee.sample_rate
            av_channel_layout_copy(&frame.pointee.ch_layout, &context.pointee.ch_layout)
        }
        let result = av_frame_get_buffer(frame, 0)
        guard result >= 0 else { throw LibAV.error(result, "no memory for the encoder's input") }
    }

    /// The parameter sets, or the AudioSpecificConfig.
    var extraData: [UInt8] {
        guard let bytes = context.pointee.extradata else { return [] }
        // SAFETY: libav owns `extradata_size` bytes there for as long as the context lives.
        return Array(UnsafeBufferPointer(start: bytes, count: Int(context.pointee.extradata_size)))
    }

    /// The number of samples per ``encode(pts:)``: the codec's, or those of 20 ms where it takes any number.
    var samplesPerFrame: Int {
        context.pointee.frame_size > 0 ? Int(context.pointee.frame_size) : Int(context.pointee.sample_rate) / 50
    }

    /// Copies ``samplesPerFrame`` samples into ``frame``.
    ///
    /// - Throws: 10018 if there is no memory.
    func fill(with samples: ArraySlice<Int16>) throws(ApusError) {
        guard let bytes = frame.pointee.data.0, samples.count == samplesPerFrame else {
            throw ApusError(.internalFailure, "no memory for the encoder's input")
        }
        // SAFETY: libav allocated `samplesPerFrame` values of this type in the first plane.
        if context.pointee.sample_fmt == AV_SAMPLE_FMT_FLTP {
            bytes.withMemoryRebound(to: Float.self, capacity: samples.count) { values in
                for (index, sample) in samples.enumerated() { values[index] = Float(sample) / 32_768 }
            }
        } else {
            bytes.withMemoryRebound(to: Int16.self, capacity: samples.count) { values in
                for (index, sample) in samples.enumerated() { values[index] = sample }
            }
        }
    }

    /// Copies a picture of the encoder's size into ``frame``.
    ///
    /// - Throws: 10022 if the size is another one.
    func fill(with picture: Picture) throws(ApusError) {
        let (width, height) = (Int(context.pointee.width), Int(context.pointee.height))
        guard picture.width == width, picture.height == height,
            picture.bytes.count == Picture.byteCount(width: width, height: height)
        else {
            throw ApusError(
                .configurationInvalid,
                "a picture of \(picture.width)x\(picture.height) with \(picture.bytes.count) bytes is not one of "
                    + "\(width)x\(height) in YUV 4:2:0")
        }
        guard let luma = frame.pointee.data.0, let blue = frame.pointee.data.1, let red = frame.pointee.data.2 else {
            throw ApusError(.internalFailure, "no memory for the encoder's input")
        }
        let lines = frame.pointee.linesize
        picture.bytes.withUnsafeBufferPointer { source in
            guard let start = source.baseAddress else { return }
            // SAFETY: libav allocated `height` rows of `linesize` bytes, half of them for the others; the picture has
            // the bytes that are copied, as checked above.
            for row in 0..<height { memcpy(luma + row * Int(lines.0), start + row * width, width) }
            let half = width / 2
            for row in 0..<height / 2 {
                memcpy(blue + row * Int(lines.1), start + width * height + row * half, half)
                memcpy(red + row * Int(lines.2), start + width * height * 5 / 4 + row * half, half)
            }
        }
    }

    /// Makes ``frame`` writable: libav may still reference the previous one.
    ///
    /// - Throws: 10026 if there is no memory.
    func prepareFrame() throws(ApusError) {
        let result = av_frame_make_writable(frame)
        guard result >= 0 else { throw LibAV.error(result, "no memory for the encoder's input") }
    }

    /// Encodes ``frame``.
    ///
    /// - Throws: 10026 if the encoder fails.
    func encode(pts: Int64) throws(ApusError) -> [Output] {
        frame.pointee.pts = pts
        return try send(frame)
    }

    /// The frames that the encoder holds back. Nothing can be encoded afterwards.
    ///
    /// - Throws: 10026 if the encoder fails.
    func finish() throws(ApusError) -> [Output] { try send(nil) }

    private func send(_ frame: UnsafeMutablePointer<AVFrame>?) throws(ApusError) -> [Output] {
        let sent = avcodec_send_frame(context, frame)
        guard sent >= 0 else { throw LibAV.error(sent, "the encoder refused a frame") }
        var outputs: [Output] = []
        while true {
            let result = avcodec_receive_packet(context, packet)
            if result == apus_av_again() || result == APUS_AV_EOF { return outputs }
            guard result >= 0 else { throw LibAV.error(result, "the encoder failed") }
            defer { av_packet_unref(packet) }
            guard let data = packet.pointee.data else { continue }
            outputs.append(
                Output(
                    // SAFETY: libav owns `size` bytes there until the packet is unreferenced.
                    bytes: Array(UnsafeBufferPointer(start: data, count: Int(packet.pointee.size))),
                    pts: packet.pointee.pts, isKey: packet.pointee.flags & AV_PKT_FLAG_KEY != 0))
        }
    }
}

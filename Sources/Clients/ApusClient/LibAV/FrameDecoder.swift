import ApusCore
import ApusMedia
import CApusMedia
import NIOCore

/// One decoder of libavcodec, for the frames of one track.
///
/// Concurrency model: created, used and released on one thread; calls take milliseconds.
final class FrameDecoder {
    /// The most pixels of a picture: 8K. The size is a number of another side.
    private static let pixelCountMax: Int64 = 7_680 * 4_320

    private let context: UnsafeMutablePointer<AVCodecContext>
    private let packet: UnsafeMutablePointer<AVPacket>
    private let frame: UnsafeMutablePointer<AVFrame>

    /// - Throws: 10026 if this machine's libav cannot decode the codec.
    init(_ configuration: TrackConfiguration) throws(ApusError) {
        LibAV.prepare()
        guard let codec = avcodec_find_decoder(LibAV.id(configuration.codec)) else {
            throw ApusError(.mediaUnreadable, "this machine's libavcodec cannot decode \(configuration.codec)")
        }
        guard let context = avcodec_alloc_context3(codec), let packet = av_packet_alloc(), let frame = av_frame_alloc()
        else { throw ApusError(.internalFailure, "no memory") }
        (self.context, self.packet, self.frame) = (context, packet, frame)
        context.pointee.thread_count = 1
        context.pointee.max_pixels = Self.pixelCountMax
        if !configuration.codec.isVideo {
            context.pointee.sample_rate = Int32(clamping: configuration.sampleRate)
            av_channel_layout_default(
                &context.pointee.ch_layout, Int32(clamping: min(max(configuration.channelCount, 1), 8)))
        }
        let extra = configuration.extraData
        if !extra.isEmpty {
            guard let copy = av_mallocz(extra.count + Int(AV_INPUT_BUFFER_PADDING_SIZE)) else {
                throw ApusError(.internalFailure, "no memory")
            }
            // SAFETY: `copy` has room for `extra.count` bytes and the padding; the context frees it.
            copy.copyMemory(from: extra, byteCount: extra.count)
            context.pointee.extradata = copy.assumingMemoryBound(to: UInt8.self)
            context.pointee.extradata_size = Int32(extra.count)
        }
        let result = avcodec_open2(context, codec, nil)
        guard result >= 0 else { throw LibAV.error(result, "the decoder cannot be started") }
    }

    deinit {
        var (packet, context, frame) = (Optional(self.packet), Optional(self.context), Optional(self.frame))
        av_packet_free(&packet)
        av_frame_free(&frame)
        avcodec_free_context(&context)
    }

    /// Decodes one frame. A frame that cannot be decoded is skipped, as in a player.
    ///
    /// - Parameter body: receives each decoded frame, which is valid until it returns. Its time has the unit of `pts`.
    func decode(
        _ payload: ByteBuffer, pts: Int64, _ body: (UnsafeMutablePointer<AVFrame>) throws(ApusError) -> Void
    ) throws(ApusError) {
        guard av_new_packet(packet, Int32(payload.readableBytes)) >= 0, let data = packet.pointee.data else { return }
        // SAFETY: `av_new_packet` allocated exactly this many bytes.
        payload.withUnsafeReadableBytes { source in
            if let start = source.baseAddress {
                UnsafeMutableRawPointer(data).copyMemory(from: start, byteCount: source.count)
            }
        }
        packet.pointee.pts = pts
        packet.pointee.dts = APUS_AV_NOPTS
        let result = avcodec_send_packet(context, packet)
        av_packet_unref(packet)
        if result >= 0 { try receive(body) }
    }

    /// Passes on the frames that the decoder holds back. Nothing can be decoded afterwards.
    func finish(_ body: (UnsafeMutablePointer<AVFrame>) throws(ApusError) -> Void) throws(ApusError) {
        if avcodec_send_packet(context, nil) >= 0 { try receive(body) }
    }

    private func receive(_ body: (UnsafeMutablePointer<AVFrame>) throws(ApusError) -> Void) throws(ApusError) {
        while avcodec_receive_frame(context, frame) >= 0 { try body(frame) }
    }
}

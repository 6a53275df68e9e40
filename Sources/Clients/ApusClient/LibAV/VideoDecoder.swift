import ApusCore
import ApusMedia
import CApusMedia
import NIOCore

/// Decodes one track's frames and converts a picture to PNG.
///
/// Concurrency model: created, used and released on one thread; calls take milliseconds.
final class VideoDecoder {
    private let decoder: FrameDecoder
    /// The latest picture in presentation order.
    private let picture: UnsafeMutablePointer<AVFrame>
    private(set) var pictureCount = 0

    /// - Throws: 10026 if this machine's libav cannot decode the codec.
    init(configuration: TrackConfiguration) throws(ApusError) {
        decoder = try FrameDecoder(configuration)
        guard let picture = av_frame_alloc() else { throw ApusError(.internalFailure, "no memory") }
        self.picture = picture
    }

    deinit {
        var picture = Optional(self.picture)
        av_frame_free(&picture)
    }

    /// Decodes one frame. A frame that cannot be decoded is skipped, as in a player.
    ///
    /// - Throws: as ``FrameDecoder/decode(_:pts:_:)``.
    func decode(_ payload: ByteBuffer, pts: Int64) throws(ApusError) { try decoder.decode(payload, pts: pts, keep) }

    /// Flushes the pictures that the decoder holds back.
    func finish() throws(ApusError) { try decoder.finish(keep) }

    private func keep(_ decoded: UnsafeMutablePointer<AVFrame>) {
        av_frame_unref(picture)
        av_frame_move_ref(picture, decoded)
        pictureCount += 1
    }

    /// The latest picture as the bytes of a PNG file.
    ///
    /// - Throws: 10026 if nothing was decoded or the encoder fails.
    func png() throws(ApusError) -> [UInt8] {
        guard pictureCount > 0 else { throw ApusError(.mediaUnreadable, "no picture could be decoded") }
        guard let coder = avcodec_find_encoder_by_name("png") else {
            throw ApusError(.mediaUnreadable, "the encoder png is missing in this machine's libavcodec")
        }
        let colours = try inColours()
        var owned: UnsafeMutablePointer<AVFrame>? = colours
        defer { av_frame_free(&owned) }
        guard let context = avcodec_alloc_context3(coder), let packet = av_packet_alloc() else {
            throw ApusError(.internalFailure, "no memory")
        }
        var closing: UnsafeMutablePointer<AVCodecContext>? = context
        var ownedPacket: UnsafeMutablePointer<AVPacket>? = packet
        defer {
            avcodec_free_context(&closing)
            av_packet_free(&ownedPacket)
        }
        context.pointee.width = picture.pointee.width
        context.pointee.height = picture.pointee.height
        context.pointee.pix_fmt = AV_PIX_FMT_RGB24
        context.pointee.time_base = AVRational(num: 1, den: 1)
        var result = avcodec_open2(context, coder, nil)
        guard result >= 0 else { throw LibAV.error(result, "the PNG encoder cannot be started") }
        result = avcodec_send_frame(context, colours)
        guard result >= 0 else { throw LibAV.error(result, "the PNG encoder refused the picture") }
        result = avcodec_receive_packet(context, packet)
        guard result >= 0, let data = packet.pointee.data else { throw LibAV.error(result, "the PNG encoder failed") }
        // SAFETY: libav owns `size` bytes there until the packet is unreferenced.
        return Array(UnsafeBufferPointer(start: data, count: Int(packet.pointee.size)))
    }

    /// The picture in RGB. The caller frees it.
    private func inColours() throws(ApusError) -> UnsafeMutablePointer<AVFrame> {
        guard let target = av_frame_alloc() else { throw ApusError(.internalFailure, "no memory") }
        target.pointee.width = picture.pointee.width
        target.pointee.height = picture.pointee.height
        target.pointee.format = AV_PIX_FMT_RGB24.rawValue
        let format = AVPixelFormat(rawValue: picture.pointee.format)
        let scaler = sws_getContext(
            picture.pointee.width, picture.pointee.height, format, target.pointee.width, target.pointee.height,
            AV_PIX_FMT_RGB24, SWS_BILINEAR, nil, nil, nil)
        defer { sws_freeContext(scaler) }
        let result = scaler == nil ? APUS_AV_INVALID_DATA : sws_scale_frame(scaler, target, picture)
        guard result >= 0 else {
            var unused: UnsafeMutablePointer<AVFrame>? = target
            av_frame_free(&unused)
            throw LibAV.error(result, "the picture cannot be converted")
        }
        return target
    }
}

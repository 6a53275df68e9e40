import ApusClient
import ApusCore
import CApusMedia

/// One open input of libavformat whose best track of a kind is decoded: a file of sound, a microphone or a camera.
///
/// Concurrency model: created, used and released on one thread.
final class RawInput {
    private let context: UnsafeMutablePointer<AVFormatContext>
    private let decoder: UnsafeMutablePointer<AVCodecContext>
    private let packet: UnsafeMutablePointer<AVPacket>
    private let frame: UnsafeMutablePointer<AVFrame>
    private let stream: Int32
    private let name: String
    /// The unit of the frames' times.
    let timeBase: AVRational

    /// - Parameters:
    ///   - format: an input of libavdevice or a container's name.
    ///   - name: for error messages, such as "the microphone default".
    /// - Throws: 10026 if it cannot be opened or decoded; 10022 if this machine has no libavdevice.
    init(
        address: String, format: String, device isDevice: Bool, kind: AVMediaType, name: String,
        options: [(String, String)] = [], interrupt: LibAVInterrupt
    ) throws(ApusError) {
        if isDevice { try LibAV.registerDevices(for: name) }
        guard let input = av_find_input_format(format) else {
            throw ApusError(.mediaUnreadable, "this machine's libav has no input \(format)")
        }
        var opened = apus_format_context(interrupt.handle)
        var dictionary: OpaquePointer?
        for (key, value) in options { av_dict_set(&dictionary, key, value, 0) }
        // After a failure libav frees the context itself.
        let result = avformat_open_input(&opened, address, input, &dictionary)
        av_dict_free(&dictionary)
        guard result >= 0, let context = opened else {
            throw LibAV.error(result, "\(name) cannot be opened")
        }
        do throws(ApusError) {
            // A device says what it has when it is opened; libav would hold back its first pictures.
            let found = isDevice ? 0 : avformat_find_stream_info(context, nil)
            guard found >= 0 else { throw LibAV.error(found, "\(name) cannot be read") }
            let stream = av_find_best_stream(context, kind, -1, -1, nil, 0)
            guard stream >= 0, let parameters = context.pointee.streams[Int(stream)]?.pointee.codecpar else {
                throw ApusError(
                    .mediaUnreadable, "\(name) has no \(kind == AVMEDIA_TYPE_AUDIO ? "sound" : "pictures")")
            }
            self.stream = stream
            timeBase = context.pointee.streams[Int(stream)]?.pointee.time_base ?? AVRational(num: 1, den: 1_000_000)
            decoder = try Self.decoder(parameters, name)
        } catch {
            avformat_close_input(&opened)
            throw error
        }
        guard let packet = av_packet_alloc(), let frame = av_frame_alloc() else {
            throw ApusError(.internalFailure, "no memory")
        }
        (self.context, self.packet, self.frame, self.name) = (context, packet, frame, name)
    }

    private static func decoder(
        _ parameters: UnsafeMutablePointer<AVCodecParameters>, _ name: String
    ) throws(ApusError) -> UnsafeMutablePointer<AVCodecContext> {
        guard let codec = avcodec_find_decoder(parameters.pointee.codec_id) else {
            throw ApusError(
                .mediaUnreadable,
                "\(name) has \(LibAV.name(parameters.pointee.codec_id)), which this machine's libavcodec cannot decode")
        }
        guard let decoder = avcodec_alloc_context3(codec) else { throw ApusError(.internalFailure, "no memory") }
        decoder.pointee.thread_count = 1
        var result = avcodec_parameters_to_context(decoder, parameters)
        if result >= 0 { result = avcodec_open2(decoder, codec, nil) }
        guard result >= 0 else {
            var unused: UnsafeMutablePointer<AVCodecContext>? = decoder
            avcodec_free_context(&unused)
            throw LibAV.error(result, "\(name) cannot be decoded")
        }
        return decoder
    }

    deinit {
        var (packet, frame) = (Optional(self.packet), Optional(self.frame))
        var (decoder, context) = (Optional(self.decoder), Optional(self.context))
        av_packet_free(&packet)
        av_frame_free(&frame)
        avcodec_free_context(&decoder)
        avformat_close_input(&context)
    }

    /// The next decoded frame, which is valid until the next call; nil at the end. A packet that cannot be decoded is
    /// skipped.
    ///
    /// - Throws: 10026 if the input fails.
    func next() throws(ApusError) -> UnsafeMutablePointer<AVFrame>? {
        while true {
            let received = avcodec_receive_frame(decoder, frame)
            if received >= 0 { return frame }
            if received == APUS_AV_EOF { return nil }
            let result = av_read_frame(context, packet)
            if result == APUS_AV_EOF {
                avcodec_send_packet(decoder, nil)
                continue
            }
            guard result >= 0 else { throw LibAV.error(result, "\(name) cannot be read further") }
            if packet.pointee.stream_index == stream { avcodec_send_packet(decoder, packet) }
            av_packet_unref(packet)
        }
    }

    /// Returns to the start of a file.
    ///
    /// - Throws: 10026 if it cannot.
    func rewind() throws(ApusError) {
        let result = av_seek_frame(context, stream, 0, AVSEEK_FLAG_BACKWARD)
        guard result >= 0 else { throw LibAV.error(result, "\(name) cannot be started again") }
        avcodec_flush_buffers(decoder)
    }
}

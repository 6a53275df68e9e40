import ApusClient
import ApusCore
import ApusMedia
import CApusMedia

/// One open input of libavformat, with its best video and its best audio track.
///
/// Concurrency model: created, used and released on one thread. Every call may block until the interrupt's deadline.
final class Demuxer {
    /// One of the tracks that are sent.
    struct Track {
        let streamIndex: Int
        /// The configuration in the container; `extraData` is unchanged.
        let input: TrackConfiguration
        /// The duration of a frame in microseconds, if the packet has none.
        let frameDuration: Int64
        /// The delay between decoding and presentation of the first frame, in microseconds. B frames need it.
        let reorderDelay: Int64
        /// True once a packet of it was read.
        var hasStarted = false
    }

    /// A packet's bytes and times, copied from libav. Times are in microseconds.
    struct Packet {
        var track: Int
        var pts: Int64?
        var dts: Int64?
        var duration: Int64
        var isKey: Bool
        var bytes: [UInt8]
        /// Set where the container has another header from this packet on: FLV with a second sequence header, MP4 with
        /// a second sample entry.
        var extraData: [UInt8]?
    }

    private(set) var tracks: [Track] = []
    /// For the log: a sentence for each track of the input that is ignored.
    private(set) var omissions: [String] = []
    private var context: UnsafeMutablePointer<AVFormatContext>
    private var packet: UnsafeMutablePointer<AVPacket>
    private let name: String
    private static let microseconds = AVRational(num: 1, den: 1_000_000)

    /// Opens an input and finds its tracks.
    ///
    /// - Parameters:
    ///   - address: a path with the prefix `file:`, or a URL.
    ///   - name: the input's name in messages.
    ///   - options: libavformat's options.
    /// - Throws: 10026 with a message that says what to do; `failure` has libav's number.
    init(
        address: String, name: String, options: [(String, String)], interrupt: LibAVInterrupt
    ) throws(DemuxerError) {
        self.name = name
        guard let packet = av_packet_alloc() else { throw DemuxerError(0, ApusError(.internalFailure, "no memory")) }
        var opened = apus_format_context(interrupt.handle)
        var dictionary: OpaquePointer?
        for (key, value) in options { av_dict_set(&dictionary, key, value, 0) }
        // After a failure libav frees the context itself.
        let result = avformat_open_input(&opened, address, nil, &dictionary)
        av_dict_free(&dictionary)
        guard result >= 0, let context = opened else {
            var unused: UnsafeMutablePointer<AVPacket>? = packet
            av_packet_free(&unused)
            throw DemuxerError(result, LibAV.error(result, "\(name) cannot be opened as audio and video"))
        }
        self.context = context
        self.packet = packet
        let found = avformat_find_stream_info(context, nil)
        guard found >= 0 else {
            throw DemuxerError(found, LibAV.error(found, "\(name) cannot be read as audio and video"))
        }
        do { try chooseTracks() } catch { throw DemuxerError(0, error) }
    }

    deinit {
        var packet: UnsafeMutablePointer<AVPacket>? = packet
        av_packet_free(&packet)
        var context: UnsafeMutablePointer<AVFormatContext>? = context
        avformat_close_input(&context)
    }

    // MARK: - Tracks

    private func stream(_ index: Int) -> UnsafeMutablePointer<AVStream>? { context.pointee.streams[index] }

    private func chooseTracks() throws(ApusError) {
        let count = Int(context.pointee.nb_streams)
        var refused: String?
        for index in 0..<count {
            guard let stream = stream(index), let parameters = stream.pointee.codecpar else { continue }
            let kind = parameters.pointee.codec_type
            let isPicture = stream.pointee.disposition & AV_DISPOSITION_ATTACHED_PIC != 0
            guard kind == AVMEDIA_TYPE_VIDEO, !isPicture, !tracks.contains(where: { $0.input.codec.isVideo }) else {
                continue
            }
            guard let codec = LibAV.codec(parameters.pointee.codec_id), codec.isVideo else {
                refused = LibAV.name(parameters.pointee.codec_id)
                continue
            }
            let track = videoTrack(stream, parameters.pointee, codec, index)
            if track.input.first == 0 || track.input.second == 0 { continue }
            tracks.append(track)
        }
        guard !tracks.isEmpty else {
            if let refused {
                throw ApusError(
                    .mediaUnreadable,
                    "\(name) holds \(refused) video; only H.264 and H.265 can be sent. "
                        + "Convert it, for example: ffmpeg -i IN -c:v libx264 -c:a aac OUT.mp4")
            }
            throw ApusError(
                .mediaUnreadable, "\(name) holds no video track; give a file or stream with H.264 or H.265 video")
        }
        chooseAudio(count)
        for index in 0..<count where !tracks.contains(where: { $0.streamIndex == index }) {
            stream(index)?.pointee.discard = AVDISCARD_ALL
        }
        for index in tracks.indices { tracks[index] = tracks[index].counted(tracks.count) }
    }

    private func chooseAudio(_ count: Int) {
        for index in 0..<count {
            guard let stream = stream(index), let parameters = stream.pointee.codecpar,
                parameters.pointee.codec_type == AVMEDIA_TYPE_AUDIO
            else { continue }
            guard let codec = LibAV.codec(parameters.pointee.codec_id), parameters.pointee.sample_rate > 0 else {
                omissions.append("\(LibAV.name(parameters.pointee.codec_id)) audio is not supported")
                continue
            }
            tracks.append(audioTrack(parameters.pointee, codec, index))
            return
        }
    }

    private func videoTrack(
        _ stream: UnsafeMutablePointer<AVStream>, _ parameters: AVCodecParameters, _ codec: Codec, _ index: Int
    ) -> Track {
        var rate = stream.pointee.avg_frame_rate
        if rate.num <= 0 || rate.den <= 0 { rate = stream.pointee.r_frame_rate }
        let thousandths = rate.num > 0 && rate.den > 0 ? Int64(rate.num) * 1000 / Int64(rate.den) : 0
        let isUsable = thousandths > 0 && thousandths <= 1_000_000
        let input = TrackConfiguration(
            codec: codec, trackCount: 1, first: UInt32(max(parameters.width, 0)),
            second: UInt32(max(parameters.height, 0)),
            third: isUsable ? UInt32(thousandths) : 0, extraData: Self.extraData(parameters))
        let duration = isUsable ? 1_000_000_000 / thousandths : 40_000
        return Track(
            streamIndex: index, input: input, frameDuration: duration,
            reorderDelay: Int64(min(max(parameters.video_delay, 0), 16)) * duration)
    }

    private func audioTrack(_ parameters: AVCodecParameters, _ codec: Codec, _ index: Int) -> Track {
        let samples: UInt32 =
            switch codec {
            case .aac: 1024
            case .amrNarrow: 160
            case .amrWide: 320
            case .mp3: parameters.sample_rate < 32_000 ? 576 : 1152
            case .h264, .h265, .opus, .g711a, .g711u, .l16: 0
            }
        let input = TrackConfiguration(
            codec: codec, trackCount: 1, first: UInt32(parameters.sample_rate),
            second: UInt32(max(parameters.ch_layout.nb_channels, 1)), third: samples,
            extraData: codec == .aac || codec == .opus ? Self.extraData(parameters) : [])
        let duration = samples > 0 ? Int64(samples) * 1_000_000 / Int64(parameters.sample_rate) : 20_000
        return Track(streamIndex: index, input: input, frameDuration: duration, reorderDelay: 0)
    }

    /// The extra data; empty if it is longer than a configuration frame allows.
    private static func extraData(_ parameters: AVCodecParameters) -> [UInt8] {
        let count = Int(parameters.extradata_size)
        guard let bytes = parameters.extradata, count > 0, count <= TrackConfiguration.extraByteCountMax else {
            return []
        }
        // SAFETY: libav owns `extradata_size` bytes there for as long as the context lives.
        return Array(UnsafeBufferPointer(start: bytes, count: count))
    }

    // MARK: - Packets

    /// The next packet of a chosen track; nil at the input's end.
    ///
    /// - Throws: 10026 if the input fails.
    func read() throws(DemuxerError) -> Packet? {
        while true {
            let result = av_read_frame(context, packet)
            if result == APUS_AV_EOF { return nil }
            guard result >= 0 else { throw DemuxerError(result, LibAV.error(result, "\(name) cannot be read further")) }
            defer { av_packet_unref(packet) }
            let index = Int(packet.pointee.stream_index)
            guard let track = tracks.firstIndex(where: { $0.streamIndex == index }), let stream = stream(index),
                let data = packet.pointee.data, packet.pointee.size > 0
            else { continue }
            let extraData = Self.newExtraData(packet)
            let base = stream.pointee.time_base
            let duration = Self.time(packet.pointee.duration, base) ?? 0
            let pts = Self.time(packet.pointee.pts, base)
            var dts = Self.time(packet.pointee.dts, base)
            // Matroska has no decode times, and libav has none for the first frame.
            if dts == nil, !tracks[track].hasStarted { dts = pts.map { $0 - tracks[track].reorderDelay } }
            tracks[track].hasStarted = true
            return Packet(
                track: track, pts: pts, dts: dts,
                duration: duration > 0 ? duration : tracks[track].frameDuration,
                isKey: packet.pointee.flags & AV_PKT_FLAG_KEY != 0,
                // SAFETY: libav owns `size` bytes there until the packet is unreferenced, below.
                bytes: Array(UnsafeBufferPointer(start: data, count: Int(packet.pointee.size))), extraData: extraData)
        }
    }

    private static func newExtraData(_ packet: UnsafeMutablePointer<AVPacket>) -> [UInt8]? {
        var count = 0
        guard let bytes = av_packet_get_side_data(packet, AV_PKT_DATA_NEW_EXTRADATA, &count), count > 0,
            count <= TrackConfiguration.extraByteCountMax
        else { return nil }
        // SAFETY: libav owns `count` bytes there until the packet is unreferenced.
        return Array(UnsafeBufferPointer(start: bytes, count: count))
    }

    /// True if the container has one time line, so that a long step is a pause. MPEG-TS and raw streams are joined from
    /// parts with clocks of their own.
    var hasOneTimeline: Bool {
        let format = context.pointee.iformat.map { String(cString: $0.pointee.name) } ?? ""
        return !["h264", "hevc", "mpegts"].contains(format)
    }

    /// A time in microseconds; nil if the packet has none, or one that no frame can have. libav passes on whatever a
    /// damaged file says.
    private static func time(_ value: Int64, _ base: AVRational) -> Int64? {
        value == APUS_AV_NOPTS ? nil : MediaTimeline.plausible(av_rescale_q(value, base, microseconds))
    }

    /// Seeks to the start. Returns false if this input cannot.
    func rewind() -> Bool {
        let format = context.pointee.iformat.map { String(cString: $0.pointee.name) } ?? ""
        if ["h264", "hevc", "mpegts"].contains(format) {
            return av_seek_frame(context, -1, 0, AVSEEK_FLAG_BYTE) >= 0
        }
        let start = context.pointee.start_time
        let target = start == APUS_AV_NOPTS ? 0 : min(start, 0)
        return avformat_seek_file(context, -1, .min, target, target, 0) >= 0
            || av_seek_frame(context, -1, target, AVSEEK_FLAG_BACKWARD) >= 0
    }
}

extension Demuxer.Track {
    fileprivate func counted(_ count: Int) -> Self {
        var input = input
        input.trackCount = UInt8(count)
        return Self(
            streamIndex: streamIndex, input: input, frameDuration: frameDuration, reorderDelay: reorderDelay)
    }
}

/// An error of an input, with libav's number.
struct DemuxerError: Error {
    let number: Int32
    let error: ApusError

    init(_ number: Int32, _ error: ApusError) {
        self.number = number
        self.error = error
    }
}

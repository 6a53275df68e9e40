import ApusCore
import NIOCore

/// The boxes of a fragmented MP4 file (ISO/IEC 14496-12;
/// sample entries: 14496-14, 14496-15, Opus in ISOBMFF, 3GPP TS 26.244).
enum MP4Boxes {
    /// Writes a box whose length is known once its content is written.
    static func box(_ type: StaticString, into buffer: inout ByteBuffer, _ content: (inout ByteBuffer) -> Void) {
        let start = buffer.writerIndex
        buffer.writeInteger(UInt32(0))
        buffer.writeStaticString(type)
        content(&buffer)
        buffer.setInteger(UInt32(buffer.writerIndex - start), at: start)
    }

    /// A box with a version and flags.
    static func fullBox(
        _ type: StaticString, version: UInt8 = 0, flags: UInt32 = 0, into buffer: inout ByteBuffer,
        _ content: (inout ByteBuffer) -> Void
    ) {
        box(type, into: &buffer) { buffer in
            buffer.writeInteger(UInt32(version) << 24 | flags & 0xff_ffff)
            content(&buffer)
        }
    }

    // MARK: - Head

    /// Writes `ftyp` and `moov`; track ids count from 1 in the order given, and so do the sample entries of a track.
    ///
    /// - Parameters:
    ///   - tracks: the formats of each track, at least one, all of one codec.
    ///   - start: the media time, in ticks, at which the presentation begins, as an edit list says (§8.6.6); nil: at
    ///     the start of the media, and there is no edit list.
    /// - Throws: 10026 if a configuration has no decoder record.
    static func writeHead(
        _ tracks: [[TrackConfiguration]], timescale: UInt32, start: Int64? = nil, into output: inout ByteBuffer
    ) throws(ApusError) {
        guard tracks.joined().allSatisfy(canHold) else {
            throw ApusError(.mediaUnreadable, "the track's configuration has no decoder record; it cannot be recorded")
        }
        box("ftyp", into: &output) { buffer in
            buffer.writeStaticString("iso6")
            buffer.writeInteger(UInt32(0))
            buffer.writeStaticString("iso6iso5mp41")
        }
        box("moov", into: &output) { buffer in
            fullBox("mvhd", into: &buffer) { buffer in
                buffer.writeMultipleIntegers(UInt32(0), UInt32(0), UInt32(1000), UInt32(0))
                buffer.writeMultipleIntegers(UInt32(0x0001_0000), UInt16(0x0100), UInt16(0), UInt64(0))
                writeMatrix(&buffer)
                buffer.writeRepeatingByte(0, count: 24)
                buffer.writeInteger(UInt32(tracks.count + 1))
            }
            for (index, track) in tracks.enumerated() {
                writeTrack(track, id: UInt32(index + 1), timescale: timescale, start: start, into: &buffer)
            }
            box("mvex", into: &buffer) { buffer in
                for index in tracks.indices {
                    fullBox("trex", into: &buffer) {
                        $0.writeMultipleIntegers(UInt32(index + 1), UInt32(1), UInt32(0), UInt32(0), UInt32(0))
                    }
                }
            }
        }
    }

    /// False if a decoder of the track needs a record that its configuration does not have.
    static func canHold(_ track: TrackConfiguration) -> Bool {
        !track.extraData.isEmpty || !track.codec.isVideo && track.codec != .aac
    }

    private static func writeMatrix(_ buffer: inout ByteBuffer) {
        buffer.writeMultipleIntegers(
            UInt32(0x0001_0000), UInt32(0), UInt32(0), UInt32(0), UInt32(0x0001_0000), UInt32(0), UInt32(0), UInt32(0),
            UInt32(0x4000_0000))
    }

    private static func writeTrack(
        _ formats: [TrackConfiguration], id: UInt32, timescale: UInt32, start: Int64?, into output: inout ByteBuffer
    ) {
        let track = formats[0]
        let isVideo = track.codec.isVideo
        box("trak", into: &output) { buffer in
            fullBox("tkhd", flags: 3, into: &buffer) { buffer in
                buffer.writeMultipleIntegers(UInt32(0), UInt32(0), id, UInt32(0), UInt32(0), UInt64(0))
                buffer.writeMultipleIntegers(
                    UInt16(0), UInt16(isVideo ? 0 : 1), UInt16(isVideo ? 0 : 0x0100), UInt16(0))
                writeMatrix(&buffer)
                buffer.writeMultipleIntegers(isVideo ? track.width << 16 : 0, isVideo ? track.height << 16 : 0)
            }
            if let start { writeEdit(start, into: &buffer) }
            box("mdia", into: &buffer) { buffer in
                fullBox("mdhd", into: &buffer) {
                    $0.writeMultipleIntegers(UInt32(0), UInt32(0), timescale, UInt32(0), UInt16(0x55c4), UInt16(0))
                }
                fullBox("hdlr", into: &buffer) { buffer in
                    buffer.writeInteger(UInt32(0))
                    buffer.writeStaticString(isVideo ? "vide" : "soun")
                    buffer.writeRepeatingByte(0, count: 12)
                    buffer.writeStaticString(isVideo ? "video\0" : "sound\0")
                }
                box("minf", into: &buffer) { buffer in
                    if isVideo {
                        fullBox("vmhd", flags: 1, into: &buffer) { $0.writeInteger(UInt64(0)) }
                    } else {
                        fullBox("smhd", into: &buffer) { $0.writeInteger(UInt32(0)) }
                    }
                    box("dinf", into: &buffer) { buffer in
                        fullBox("dref", into: &buffer) { buffer in
                            buffer.writeInteger(UInt32(1))
                            fullBox("url ", flags: 1, into: &buffer) { _ in }
                        }
                    }
                    box("stbl", into: &buffer) { writeSampleTable(formats, into: &$0) }
                }
            }
        }
    }

    /// One edit, from a media time on, for the whole duration.
    private static func writeEdit(_ start: Int64, into output: inout ByteBuffer) {
        box("edts", into: &output) { buffer in
            fullBox("elst", version: 1, into: &buffer) {
                $0.writeMultipleIntegers(UInt32(1), UInt64(0), start, UInt16(1), UInt16(0))
            }
        }
    }

    private static func writeSampleTable(_ formats: [TrackConfiguration], into buffer: inout ByteBuffer) {
        fullBox("stsd", into: &buffer) { buffer in
            buffer.writeInteger(UInt32(formats.count))
            for format in formats {
                if format.codec.isVideo {
                    writeVideoEntry(format, into: &buffer)
                } else {
                    writeAudioEntry(format, into: &buffer)
                }
            }
        }
        fullBox("stts", into: &buffer) { $0.writeInteger(UInt32(0)) }
        fullBox("stsc", into: &buffer) { $0.writeInteger(UInt32(0)) }
        fullBox("stsz", into: &buffer) { $0.writeInteger(UInt64(0)) }
        fullBox("stco", into: &buffer) { $0.writeInteger(UInt32(0)) }
    }

    private static func writeVideoEntry(_ track: TrackConfiguration, into output: inout ByteBuffer) {
        let isH265 = track.codec == .h265
        box(isH265 ? "hev1" : "avc1", into: &output) { buffer in
            buffer.writeRepeatingByte(0, count: 6)
            buffer.writeInteger(UInt16(1))
            buffer.writeRepeatingByte(0, count: 16)
            buffer.writeMultipleIntegers(UInt16(clamping: track.width), UInt16(clamping: track.height))
            buffer.writeMultipleIntegers(UInt32(0x0048_0000), UInt32(0x0048_0000), UInt32(0), UInt16(1))
            buffer.writeRepeatingByte(0, count: 32)
            buffer.writeMultipleIntegers(UInt16(24), UInt16(0xffff))
            box(isH265 ? "hvcC" : "avcC", into: &buffer) { $0.writeBytes(track.extraData) }
        }
    }

    private static func writeAudioEntry(_ track: TrackConfiguration, into output: inout ByteBuffer) {
        let type: StaticString =
            switch track.codec {
            case .opus: "Opus"
            case .g711a: "alaw"
            case .g711u: "ulaw"
            case .amrNarrow: "samr"
            case .amrWide: "sawb"
            case .l16: "twos"
            case .aac, .mp3, .h264, .h265: "mp4a"
            }
        box(type, into: &output) { buffer in
            buffer.writeRepeatingByte(0, count: 6)
            buffer.writeMultipleIntegers(
                UInt16(1), UInt64(0), UInt16(clamping: track.channelCount), UInt16(16), UInt32(0))
            // 16.16 fixed point. A rate that does not fit is in the decoder's own record.
            buffer.writeInteger(track.sampleRate < 65_536 ? track.sampleRate << 16 : 0)
            switch track.codec {
            case .aac, .mp3: writeStreamDescriptor(track, into: &buffer)
            case .opus: writeOpus(track, into: &buffer)
            case .amrNarrow, .amrWide:
                // 3GPP TS 26.244 §6.7: every mode may come, the mode may change at any frame, and a sample is a frame.
                let modes: UInt16 = track.codec == .amrWide ? 0x83ff : 0x81ff
                box("damr", into: &buffer) { buffer in
                    buffer.writeStaticString("apus")
                    buffer.writeMultipleIntegers(UInt8(0), modes, UInt8(0), UInt8(1))
                }
            case .g711a, .g711u, .l16, .h264, .h265: break
            }
        }
    }

    /// `esds`: ISO/IEC 14496-1 §7.2.6.5, 14496-14 §5.6.
    private static func writeStreamDescriptor(_ track: TrackConfiguration, into output: inout ByteBuffer) {
        func descriptor(_ tag: UInt8, _ content: [UInt8]) -> [UInt8] {
            let count = content.count
            return [
                tag, 0x80 | UInt8(count >> 21 & 127), 0x80 | UInt8(count >> 14 & 127), 0x80 | UInt8(count >> 7 & 127),
            ]
                + [UInt8(count & 127)] + content
        }
        let objectType: UInt8 = track.codec == .mp3 ? (track.sampleRate < 32_000 ? 0x69 : 0x6b) : 0x40
        var decoder: [UInt8] = [objectType, 0x15] + [UInt8](repeating: 0, count: 11)
        if !track.extraData.isEmpty { decoder += descriptor(5, track.extraData) }
        let stream = descriptor(3, [0, 1, 0] + descriptor(4, decoder) + descriptor(6, [2]))
        fullBox("esds", into: &output) { $0.writeBytes(stream) }
    }

    /// `dOps` from the `OpusHead` that containers carry (RFC 7845 §5.1), whose numbers are little endian.
    private static func writeOpus(_ track: TrackConfiguration, into output: inout ByteBuffer) {
        let head = track.extraData
        box("dOps", into: &output) { buffer in
            buffer.writeInteger(UInt8(0))
            guard head.count >= 19, head.starts(with: "OpusHead".utf8) else {
                buffer.writeMultipleIntegers(
                    UInt8(clamping: track.channelCount), UInt16(312), track.sampleRate, Int16(0), UInt8(0))
                return
            }
            buffer.writeBytes([head[9], head[11], head[10], head[15], head[14], head[13], head[12], head[17], head[16]])
            buffer.writeBytes(head[18...])
        }
    }
}

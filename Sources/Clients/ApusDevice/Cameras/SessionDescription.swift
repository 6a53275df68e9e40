package import ApusCore
package import ApusMedia
import Foundation

/// A camera's description of its media (SDP, RFC 8866), as far as a client needs it.
///
/// Bounded by the body of an RTSP response, and by ``mediaCountMax``. Pure value.
package struct SessionDescription: Sendable {
    /// A section `m=`.
    package struct Media: Sendable {
        package var kind: String
        package var payloadType: UInt8
        /// The name of the encoding in lower case; empty if it is unknown.
        package var encoding = ""
        package var clockRate: UInt32 = 0
        package var channels: UInt32 = 1
        /// The parameters of `a=fmtp`, by their names in lower case.
        package var parameters: [String: String] = [:]
        package var control = ""
    }

    /// The most sections that are read.
    package static let mediaCountMax = 16

    package private(set) var media: [Media] = []
    /// The address of the whole presentation; empty if there is none.
    package private(set) var control = ""

    package init(_ text: String) {
        for line in text.utf8.split(whereSeparator: { $0 == 0x0a || $0 == 0x0d }) {
            guard line.count > 2, line[line.index(after: line.startIndex)] == UInt8(ascii: "=") else { continue }
            let value = String(decoding: line.dropFirst(2), as: UTF8.self)
            switch line.first {
            case UInt8(ascii: "m"):
                guard media.count < Self.mediaCountMax else { return }
                media.append(Self.section(value))
            case UInt8(ascii: "a"): attribute(value)
            default: break
            }
        }
    }

    /// `video 0 RTP/AVP 96`.
    private static func section(_ value: String) -> Media {
        let words = value.split(separator: " ")
        let type = words.count > 3 ? UInt8(words[3]) ?? .max : .max
        var media = Media(kind: words.first?.lowercased() ?? "", payloadType: type)
        // RFC 3551 §6: types that need no attribute.
        switch type {
        case 0: (media.encoding, media.clockRate) = ("pcmu", 8000)
        case 8: (media.encoding, media.clockRate) = ("pcma", 8000)
        case 14: (media.encoding, media.clockRate) = ("mpa", 90_000)
        case 26: (media.encoding, media.clockRate) = ("jpeg", 90_000)
        default: break
        }
        return media
    }

    private mutating func attribute(_ value: String) {
        let parts = value.split(separator: ":", maxSplits: 1, omittingEmptySubsequences: false)
        guard parts.count == 2 else { return }
        let text = String(parts[1])
        guard let last = media.indices.last else {
            if parts[0] == "control" { control = text }
            return
        }
        switch parts[0] {
        case "control": media[last].control = text
        case "rtpmap": Self.map(text, &media[last])
        case "fmtp": Self.format(text, &media[last])
        default: break
        }
    }

    /// `96 H264/90000` or `97 MPEG4-GENERIC/16000/2`.
    private static func map(_ text: String, _ media: inout Media) {
        let words = text.split(separator: " ")
        guard words.count > 1, UInt8(words[0]) == media.payloadType else { return }
        let parts = words[1].split(separator: "/")
        guard parts.count > 1, let rate = UInt32(parts[1]), (1...1_000_000).contains(rate) else { return }
        (media.encoding, media.clockRate) = (parts[0].lowercased(), rate)
        if parts.count > 2, let channels = UInt32(parts[2]), (1...8).contains(channels) { media.channels = channels }
    }

    /// `96 packetization-mode=1;sprop-parameter-sets=…`.
    private static func format(_ text: String, _ media: inout Media) {
        let words = text.split(separator: " ", maxSplits: 1)
        guard words.count > 1, UInt8(words[0]) == media.payloadType else { return }
        for pair in words[1].split(separator: ";") {
            let parts = pair.split(separator: "=", maxSplits: 1, omittingEmptySubsequences: false)
            guard parts.count == 2 else { continue }
            media.parameters[parts[0].trimmingCharacters(in: .whitespaces).lowercased()] =
                parts[1].trimmingCharacters(in: .whitespaces)
        }
    }
}

/// A track that a camera offers and the source can send.
package struct CameraTrack: Sendable {
    /// How the packets carry the frames.
    package enum Packing: Sendable, Equatable {
        case h264, h265
        /// RFC 3640, mode AAC-hbr: bits of the size and of the index of an access unit.
        case aac(sizeBits: Int, indexBits: Int)
        /// RFC 6416 with the configuration in the description.
        case latm
        /// RFC 4867, octet-aligned.
        case amr
        /// RFC 2250 §3.5.
        case mp3
        /// A packet is a frame: G.711 and Opus.
        case whole
    }

    package var media: SessionDescription.Media
    package var packing: Packing
    /// `extraData` has parameter sets in Annex B form, or an AudioSpecificConfig; empty if the description has none.
    /// The sizes of pictures, and the sample rate of MP3, are in the media.
    package var input: TrackConfiguration

    /// The tracks of a description: its first video and its first sound.
    ///
    /// - Returns: the tracks, and a sentence for each one that is ignored.
    /// - Throws: 10026 if there is no video that can be sent.
    package static func choose(
        from description: SessionDescription, name: String
    ) throws(ApusError) -> (tracks: [CameraTrack], omissions: [String]) {
        var (tracks, omissions) = ([CameraTrack](), [String]())
        for kind in ["video", "audio"] {
            for media in description.media where media.kind == kind {
                guard !tracks.contains(where: { $0.media.kind == kind }) else { continue }
                if let track = Self(media) {
                    tracks.append(track)
                } else {
                    let encoding = media.encoding.isEmpty ? "unnamed" : media.encoding.uppercased()
                    omissions.append("\(encoding) \(kind) is not supported")
                }
            }
            guard kind == "audio" || !tracks.isEmpty else {
                let offered = omissions.isEmpty ? "no video" : omissions.joined(separator: ", ")
                throw ApusError(
                    .mediaUnreadable,
                    "\(name) offers no video that can be sent (\(offered)); choose H.264 or H.265 at the camera")
            }
        }
        for index in tracks.indices { tracks[index].input.trackCount = UInt8(tracks.count) }
        return (tracks, omissions)
    }

    /// Nil if the encoding is not supported.
    init?(_ media: SessionDescription.Media) {
        guard media.payloadType < 128, media.clockRate > 0 else { return nil }
        self.media = media
        let parameters = media.parameters
        func sound(_ codec: Codec, _ samples: UInt32, _ extra: [UInt8] = [], rate: UInt32? = nil) -> TrackConfiguration
        {
            TrackConfiguration(
                codec: codec, trackCount: 1, first: rate ?? media.clockRate, second: media.channels, third: samples,
                extraData: extra)
        }
        func video(_ codec: Codec, _ sets: [String]) -> TrackConfiguration {
            TrackConfiguration(
                codec: codec, trackCount: 1, first: 0, second: 0, third: 0, extraData: Self.annexB(sets, parameters))
        }
        switch (media.kind, media.encoding) {
        case ("video", "h264"): (packing, input) = (.h264, video(.h264, ["sprop-parameter-sets"]))
        case ("video", "h265"), ("video", "hevc"):
            (packing, input) = (.h265, video(.h265, ["sprop-vps", "sprop-sps", "sprop-pps"]))
        case ("audio", "pcma"): (packing, input) = (.whole, sound(.g711a, 0))
        case ("audio", "pcmu"): (packing, input) = (.whole, sound(.g711u, 0))
        case ("audio", "opus"): (packing, input) = (.whole, sound(.opus, 0))
        case ("audio", "amr") where parameters["octet-align"] == "1": (packing, input) = (.amr, sound(.amrNarrow, 160))
        case ("audio", "amr-wb") where parameters["octet-align"] == "1": (packing, input) = (.amr, sound(.amrWide, 320))
        case ("audio", "mpa"): (packing, input) = (.mp3, sound(.mp3, 0, rate: 0))
        case ("audio", "mpeg4-generic"):
            guard let config = Self.bytes(hexadecimal: parameters["config"]), config.count >= 2,
                let size = parameters["sizelength"].flatMap({ Int($0) }), (1...16).contains(size)
            else { return nil }
            let index = parameters["indexlength"].flatMap { Int($0) } ?? 0
            guard (0...16).contains(index) else { return nil }
            (packing, input) = (.aac(sizeBits: size, indexBits: index), sound(.aac, 1024, config))
        case ("audio", "mp4a-latm"):
            guard parameters["cpresent"] == "0", let config = Self.bytes(hexadecimal: parameters["config"]),
                let specific = Self.audioSpecificConfig(streamMux: config)
            else { return nil }
            (packing, input) = (.latm, sound(.aac, 1024, specific))
        default: return nil
        }
    }

    /// The parameter sets of the fields, in Annex B form.
    private static func annexB(_ names: [String], _ parameters: [String: String]) -> [UInt8] {
        var bytes: [UInt8] = []
        for text in names.compactMap({ parameters[$0] }).flatMap({ $0.split(separator: ",") }) {
            guard let unit = Data(base64Encoded: String(text)), !unit.isEmpty,
                bytes.count + unit.count + 4 <= TrackConfiguration.extraByteCountMax
            else { continue }
            bytes += [0, 0, 0, 1] + unit
        }
        return bytes
    }

    private static func bytes(hexadecimal text: String?) -> [UInt8]? {
        guard let digits = text.map({ Array($0.utf8) }), !digits.isEmpty, digits.count % 2 == 0, digits.count <= 128
        else { return nil }
        var bytes: [UInt8] = []
        for index in stride(from: 0, to: digits.count, by: 2) {
            guard let high = CameraAddress.hexadecimal(digits[index]),
                let low = CameraAddress.hexadecimal(digits[index + 1])
            else { return nil }
            bytes.append(high << 4 | low)
        }
        return bytes
    }

    /// The configuration of the one program and layer of a StreamMuxConfig (ISO/IEC 14496-3 §1.7.3): 15 bits lie before
    /// it.
    private static func audioSpecificConfig(streamMux bytes: [UInt8]) -> [UInt8]? {
        guard bytes.count >= 4, bytes[0] & 0x80 == 0, bytes[0] & 0x3f == 0, bytes[1] & 0xfe == 0 else { return nil }
        // Bit 15 is the first one of the configuration.
        return (1..<bytes.count - 1).map { bytes[$0] << 7 | bytes[$0 + 1] >> 1 }
    }
}

import ApusCore
package import ApusMedia
package import NIOCore

/// A frame of a source. Times are in microseconds on the source's time line.
package struct SourceFrame: Sendable {
    package var track: UInt8
    package var pts: Int64
    package var dts: Int64
    package var flags: MediaFlags
    package var payload: ByteBuffer
    /// Set if the track's configuration changes with this frame.
    package var configuration: TrackConfiguration?

    /// Delivers the frame, and a changed configuration before it, to the source's receiver.
    func deliver(to receive: (SourceEvent) -> Void) {
        if let configuration { receive(.configuration(track: track, configuration)) }
        receive(
            .frame(
                track: track, ptsMicroseconds: pts, dtsDeltaMicroseconds: Int32(clamping: dts - pts), flags: flags,
                payload: payload))
    }
}

/// Converts one track of an input to the form that the cluster uses: length-prefixed NAL units with an `avcC` or `hvcC`
/// record, raw AAC with its AudioSpecificConfig (see ``TrackConfiguration``).
///
/// Bytes of an input that already has this form are not changed. A configuration changes with the container's header,
/// and with a key frame that has other parameter sets. Its picture size is that of the sets. Pure value.
struct TrackShaper {
    /// The result of a packet.
    struct Shaped: Equatable {
        var payload: ByteBuffer
        var isDiscardable = false
        /// Set if the track's configuration is another one from this packet on.
        var configuration: TrackConfiguration?
    }

    private enum Form {
        /// The bytes are unchanged. Video has length prefixes of this size, and the sets of its record.
        case asIs(lengthByteCount: Int, ParameterSets)
        case annexB(ParameterSets)
        case adts
        /// MP3 whose sample rate is in its frames.
        case mp3
    }

    /// The decoder configuration of the track's next frames; nil if the input has not sent it yet.
    private(set) var configuration: TrackConfiguration?
    private let input: TrackConfiguration
    private var draft: TrackConfiguration
    private var form: Form
    /// The next frame has another configuration than the last one.
    private var hasChanged = false

    /// - Parameter input: the track in the container's form, with unchanged `extraData`.
    init(input: TrackConfiguration) {
        self.input = input
        (draft, form) = (input, .adts)
        configure(extraData: input.extraData)
    }

    /// Takes the container's header. One that is not complete leaves the configuration unknown.
    private mutating func configure(extraData extra: [UInt8]) {
        let codec = draft.codec
        guard codec.isVideo else {
            if codec == .aac, extra.isEmpty { return form = .adts }
            if codec == .mp3, draft.first == 0 { return form = .mp3 }
            draft.extraData = extra
            (form, configuration) = (.asIs(lengthByteCount: 0, ParameterSets()), draft)
            return
        }
        if let count = ParameterSets.lengthByteCount(record: extra, codec: codec) {
            let sets = ParameterSets(record: extra, codec: codec) ?? ParameterSets()
            form = .asIs(lengthByteCount: count, sets)
            configure(record: ParameterSets.withFourByteLengths(record: extra, codec: codec), sets)
        } else {
            let sets = ParameterSets(annexB: extra, codec: codec)
            form = .annexB(sets)
            if let record = sets.record(codec: codec) { configure(record: record, sets) }
        }
    }

    /// Takes a record and the sets in it. The container's own size counts if it has one, until the sets change.
    private mutating func configure(record: [UInt8], _ sets: ParameterSets) {
        let isFirst = configuration == nil
        let isOther = draft.extraData != record
        draft.extraData = record
        if !isFirst && isOther || draft.first == 0 || draft.second == 0,
            let size = sets.sequence.first.flatMap({ PictureSize(sequence: $0, codec: draft.codec) })
        {
            (draft.first, draft.second) = (size.width, size.height)
        }
        if !isFirst, configuration != draft { hasChanged = true }
        configuration = draft
    }

    /// The input starts again from its first packet.
    mutating func rewind() {
        let first = Self(input: input)
        guard let configuration = first.configuration, configuration != self.configuration else { return }
        self = first
        hasChanged = true
    }

    /// Converts one packet. Returns nil if nothing of it is left to send, or the configuration is still unknown.
    ///
    /// - Parameter extraData: the container's header from this packet on, if it is another one than before.
    mutating func shape(_ bytes: [UInt8], isKey: Bool, extraData: [UInt8]? = nil) -> Shaped? {
        if let extraData { changeHeader(extraData) }
        var shaped =
            switch form {
            case .adts: shapeADTS(bytes)
            case .annexB(let sets): shapeAnnexB(bytes, sets: sets, isKey: isKey)
            case .asIs(let count, let sets): shapeAsIs(bytes, lengthByteCount: count, sets, isKey: isKey)
            case .mp3: shapeMP3(bytes)
            }
        guard shaped != nil, hasChanged else { return shaped }
        hasChanged = false
        shaped?.configuration = configuration
        return shaped
    }

    private mutating func changeHeader(_ extraData: [UInt8]) {
        guard draft.codec.isVideo || draft.codec == .aac, !extraData.isEmpty else { return }
        if draft.codec == .aac, let sound = AudioSpecificConfig(extraData) {
            (draft.first, draft.second) = (sound.sampleRate, sound.channels)
        }
        let before = configuration
        configure(extraData: extraData)
        if before != nil, configuration != before { hasChanged = true }
    }

    private mutating func shapeAsIs(
        _ bytes: [UInt8], lengthByteCount: Int, _ sets: ParameterSets, isKey: Bool
    ) -> Shaped? {
        guard !bytes.isEmpty else { return nil }
        guard draft.codec.isVideo else { return Shaped(payload: ByteBuffer(bytes: bytes)) }
        guard let ranges = NALUnits.ranges(lengthPrefixed: bytes, prefix: lengthByteCount) else { return nil }
        if isKey {
            var seen = ParameterSets()
            for range in ranges where range.count <= ParameterSets.unitByteCountMax {
                seen.add(Array(bytes[range]), codec: draft.codec)
            }
            // MP4 with `avc3` or `hev1`, whose sets are in the stream.
            if !seen.all.allSatisfy(sets.contains), let record = seen.record(codec: draft.codec) {
                form = .asIs(lengthByteCount: lengthByteCount, seen)
                configure(record: record, seen)
            }
        }
        let isDiscardable = isDiscardable(bytes, ranges)
        guard lengthByteCount != 4 else {
            return Shaped(payload: ByteBuffer(bytes: bytes), isDiscardable: isDiscardable)
        }
        return Shaped(payload: Self.lengthPrefixed(bytes, ranges), isDiscardable: isDiscardable)
    }

    private mutating func shapeAnnexB(_ bytes: [UInt8], sets: ParameterSets, isKey: Bool) -> Shaped? {
        let codec = draft.codec
        var seen = ParameterSets()
        var units: [Range<Int>] = []
        for range in NALUnits.ranges(annexB: bytes) {
            switch NALUnits.kind(firstByte: bytes[range.lowerBound], codec: codec) {
            case .delimiter: continue
            case .videoParameters, .sequenceParameters, .pictureParameters:
                let unit = Array(bytes[range])
                seen.add(unit, codec: codec)
                // A set that the configuration includes is not sent again. Another one stays in the stream.
                if !sets.contains(unit) { units.append(range) }
            case .slice, .other: units.append(range)
            }
        }
        let isNew = seen.all.contains { !sets.contains($0) }
        if isKey || configuration == nil, isNew, let record = seen.record(codec: codec) {
            form = .annexB(seen)
            configure(record: record, seen)
            units.removeAll { seen.contains(Array(bytes[$0])) }
        }
        guard configuration != nil, !units.isEmpty else { return nil }
        return Shaped(payload: Self.lengthPrefixed(bytes, units), isDiscardable: isDiscardable(bytes, units))
    }

    /// ISO/IEC 13818-7 §6.2: a header of 7 bytes, 9 with a check sum.
    private mutating func shapeADTS(_ bytes: [UInt8]) -> Shaped? {
        guard bytes.count > 7, bytes[0] == 0xff, bytes[1] & 0xf6 == 0xf0 else { return nil }
        let headerByteCount = bytes[1] & 1 == 1 ? 7 : 9
        let objectType = (bytes[2] >> 6) + 1
        let rate = bytes[2] >> 2 & 15
        let channels = (bytes[2] & 1) << 2 | bytes[3] >> 6
        guard bytes.count > headerByteCount, rate < 13, channels > 0 else { return nil }
        if configuration == nil {
            draft.extraData = [objectType << 3 | rate >> 1, (rate & 1) << 7 | channels << 3]
            configuration = draft
        }
        return Shaped(payload: ByteBuffer(bytes: bytes[headerByteCount...]))
    }

    private mutating func shapeMP3(_ bytes: [UInt8]) -> Shaped? {
        guard let header = MP3Header(bytes[...]) else { return nil }
        (draft.first, draft.second, draft.third) = (header.sampleRate, header.channels, header.samples)
        configure(extraData: draft.extraData)
        return Shaped(payload: ByteBuffer(bytes: bytes))
    }

    private func isDiscardable(_ bytes: [UInt8], _ ranges: [Range<Int>]) -> Bool {
        var hasSlice = false
        for range in ranges {
            guard case .slice(let isReference) = NALUnits.kind(firstByte: bytes[range.lowerBound], codec: draft.codec)
            else { continue }
            if isReference { return false }
            hasSlice = true
        }
        return hasSlice
    }

    private static func lengthPrefixed(_ bytes: [UInt8], _ ranges: [Range<Int>]) -> ByteBuffer {
        var buffer = ByteBuffer()
        buffer.reserveCapacity(ranges.reduce(0) { $0 + 4 + $1.count })
        for range in ranges {
            buffer.writeInteger(UInt32(range.count))
            buffer.writeBytes(bytes[range])
        }
        return buffer
    }
}

/// The sample rate and the channels of an AudioSpecificConfig (ISO/IEC 14496-3 §1.6.2.1).
private struct AudioSpecificConfig {
    var sampleRate: UInt32
    var channels: UInt32

    private static let sampleRates: [UInt32] = [
        96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8000, 7350,
    ]

    /// Nil for a rate that is not in the table, and for channels that are in the stream.
    init?(_ bytes: [UInt8]) {
        guard bytes.count >= 2 else { return nil }
        let rate = Int(bytes[0] & 7) << 1 | Int(bytes[1] >> 7)
        let channels = bytes[1] >> 3 & 15
        guard rate < Self.sampleRates.count, (1...7).contains(channels) else { return nil }
        (sampleRate, self.channels) = (Self.sampleRates[rate], channels == 7 ? 8 : UInt32(channels))
    }
}

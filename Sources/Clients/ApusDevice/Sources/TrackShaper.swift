import ApusCore
import ApusMedia
import NIOCore

/// A frame of a source. Times are in microseconds on the source's time line.
struct SourceFrame: Sendable {
    var track: UInt8
    var pts: Int64
    var dts: Int64
    var flags: MediaFlags
    var payload: ByteBuffer
    /// Set if the track's configuration changes with this frame.
    var configuration: TrackConfiguration?

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
/// Bytes of an input that already has this form are not changed. Pure value.
struct TrackShaper {
    /// The result of a packet.
    struct Shaped: Equatable {
        var payload: ByteBuffer
        var isDiscardable = false
        /// Set if the packet has other parameter sets than the ones before.
        var configuration: TrackConfiguration?
    }

    private enum Form {
        /// The bytes are unchanged. Video has length prefixes of this size.
        case asIs(lengthByteCount: Int)
        case annexB(ParameterSets)
        case adts
    }

    /// The decoder configuration of the track's next frames; nil if the input has not sent it yet.
    private(set) var configuration: TrackConfiguration?
    private var draft: TrackConfiguration
    private var form: Form

    /// - Parameter input: the track in the container's form, with unchanged `extraData`.
    init(input: TrackConfiguration) {
        draft = input
        let extra = input.extraData
        guard input.codec.isVideo else {
            form = input.codec == .aac && extra.isEmpty ? .adts : .asIs(lengthByteCount: 0)
            configuration = input.codec == .aac && extra.isEmpty ? nil : input
            return
        }
        if let count = ParameterSets.lengthByteCount(record: extra, codec: input.codec) {
            form = .asIs(lengthByteCount: count)
            draft.extraData = ParameterSets.withFourByteLengths(record: extra, codec: input.codec)
            configuration = draft
        } else {
            let sets = ParameterSets(annexB: extra, codec: input.codec)
            form = .annexB(sets)
            if let record = sets.record(codec: input.codec) {
                draft.extraData = record
                configuration = draft
            }
        }
    }

    /// Converts one packet. Returns nil if nothing of it is left to send, or the configuration is still unknown.
    mutating func shape(_ bytes: [UInt8], isKey: Bool) -> Shaped? {
        switch form {
        case .adts: shapeADTS(bytes)
        case .annexB(let sets): shapeAnnexB(bytes, sets: sets, isKey: isKey)
        case .asIs(let lengthByteCount): shapeAsIs(bytes, lengthByteCount: lengthByteCount)
        }
    }

    private func shapeAsIs(_ bytes: [UInt8], lengthByteCount: Int) -> Shaped? {
        guard !bytes.isEmpty else { return nil }
        guard draft.codec.isVideo else { return Shaped(payload: ByteBuffer(bytes: bytes)) }
        guard let ranges = NALUnits.ranges(lengthPrefixed: bytes, prefix: lengthByteCount) else { return nil }
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
        var changed: TrackConfiguration?
        let isNew = seen.all.contains { !sets.contains($0) } && seen.isComplete(codec: codec)
        if isKey || configuration == nil, isNew, let record = seen.record(codec: codec) {
            form = .annexB(seen)
            draft.extraData = record
            changed = configuration == nil ? nil : draft
            configuration = draft
            units.removeAll { seen.contains(Array(bytes[$0])) }
        }
        guard configuration != nil, !units.isEmpty else { return nil }
        return Shaped(
            payload: Self.lengthPrefixed(bytes, units), isDiscardable: isDiscardable(bytes, units),
            configuration: changed)
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

import ApusMedia
import NIOCore

/// Puts the frames of one track of a camera together from its RTP packets, which come in order over TCP.
///
/// Video: an access unit ends at the marker, or where the time changes; a camera that sets the marker on every packet
/// is recognized. Units whose packets are missing are left out. An access unit of more than
/// ``MediaFrame/joinedByteCountMax`` bytes is dropped and counted. Pure value: it holds one access unit.
package struct RTPDepacketizer {
    /// A frame: an access unit in Annex B form, or a frame of sound.
    package struct Frame: Equatable {
        package var timestamp: UInt32
        /// Units of the media's clock from the timestamp to this frame, for the later frames of a packet.
        package var offset: Int64 = 0
        package var bytes: [UInt8]
        package var isKey = false
    }

    private let packing: CameraTrack.Packing
    private let samples: Int64
    private var next: UInt16?
    private var unit = AccessUnit()
    /// The timestamp of the last access unit that ended with a marker.
    private var ended: UInt32?
    /// The camera sets the marker on packets that end no access unit.
    private var hasWrongMarkers = false
    /// Bytes of a unit or a frame whose packets are not complete.
    private var fragment: (bytes: [UInt8], timestamp: UInt32)?
    /// Pictures and frames of sound that were too large.
    package private(set) var framesTooLarge = 0

    private struct AccessUnit {
        var timestamp: UInt32 = 0
        var bytes: [UInt8] = []
        var hasSlice = false
        var isKey = false
        /// Further bytes are dropped.
        var isTooLarge = false
    }

    private static let byteCountMax = MediaFrame.joinedByteCountMax
    /// The longest frame of sound. The size field of an access unit has 13 bits.
    private static let soundByteCountMax = 64 << 10

    package init(_ track: CameraTrack) {
        packing = track.packing
        // Of a frame, on the clock of the media: AMR and AAC have the sample rate there.
        samples = Int64(track.input.third)
    }

    /// Takes the next packet of the track, and returns the frames that it completes.
    package mutating func take(_ packet: RTPPacket) -> [Frame] {
        let isMissing = next.map { $0 != packet.sequence } ?? false
        next = packet.sequence &+ 1
        if isMissing { fragment = nil }
        let payload = Array(packet.payload.readableBytesView)
        guard !payload.isEmpty else { return [] }
        switch packing {
        case .h264, .h265: return takeVideo(payload, packet)
        case .whole: return [Frame(timestamp: packet.timestamp, bytes: payload)]
        case .aac(let sizeBits, let indexBits): return takeAAC(payload, packet, sizeBits, indexBits)
        case .latm: return takeLATM(payload, packet)
        case .amr: return takeAMR(payload, packet)
        case .mp3: return takeMP3(payload, packet)
        }
    }

    // MARK: - Video

    private mutating func takeVideo(_ payload: [UInt8], _ packet: RTPPacket) -> [Frame] {
        var frames: [Frame] = []
        if unit.timestamp != packet.timestamp {
            fragment = nil
            if unit.hasSlice, let frame = finishUnit() { frames.append(frame) }
            // Parameter sets of an earlier time belong to the next picture.
            unit.timestamp = packet.timestamp
        } else if ended == packet.timestamp, !unit.hasSlice, !hasWrongMarkers {
            hasWrongMarkers = true
        }
        if packing == .h264 { takeH264(payload) } else { takeH265(payload) }
        if packet.hasMarker, unit.hasSlice, !hasWrongMarkers, fragment == nil {
            if let frame = finishUnit() { frames.append(frame) }
            ended = packet.timestamp
        }
        return frames
    }

    /// RFC 6184 §5.
    private mutating func takeH264(_ payload: [UInt8]) {
        let type = payload[0] & 0x1f
        switch type {
        case 1...23: add(payload[...])
        case 24: addAggregated(payload[1...])
        case 28:
            guard payload.count > 2 else { return }
            let header = payload[1]
            addFragment(
                [payload[0] & 0xe0 | header & 0x1f], payload[2...], isFirst: header & 0x80 != 0,
                isLast: header & 0x40 != 0)
        default: break
        }
    }

    /// RFC 7798 §4.4.
    private mutating func takeH265(_ payload: [UInt8]) {
        guard payload.count > 2 else { return }
        switch payload[0] >> 1 & 0x3f {
        case 0...47: add(payload[...])
        case 48: addAggregated(payload[2...])
        case 49:
            guard payload.count > 3 else { return }
            let header = payload[2]
            addFragment(
                [payload[0] & 0x81 | (header & 0x3f) << 1, payload[1]], payload[3...], isFirst: header & 0x80 != 0,
                isLast: header & 0x40 != 0)
        default: break
        }
    }

    /// Units, each behind its size.
    private mutating func addAggregated(_ bytes: ArraySlice<UInt8>) {
        var rest = bytes
        while rest.count > 2 {
            let size = Int(rest[rest.startIndex]) << 8 | Int(rest[rest.startIndex + 1])
            rest = rest.dropFirst(2)
            guard size > 0, size <= rest.count else { return }
            add(rest.prefix(size))
            rest = rest.dropFirst(size)
        }
    }

    private mutating func addFragment(
        _ header: [UInt8], _ bytes: ArraySlice<UInt8>, isFirst: Bool, isLast: Bool
    ) {
        if isFirst { fragment = (header, unit.timestamp) }
        guard fragment != nil else { return }
        guard (fragment?.bytes.count ?? 0) + bytes.count <= Self.byteCountMax else {
            fragment = nil
            unit.isTooLarge = true
            // The picture ends like any other, and is counted then.
            unit.hasSlice = true
            return
        }
        fragment?.bytes.append(contentsOf: bytes)
        if isLast, let whole = fragment?.bytes {
            fragment = nil
            add(whole[...])
        }
    }

    /// Adds a NAL unit to the access unit.
    private mutating func add(_ bytes: ArraySlice<UInt8>) {
        guard let first = bytes.first, !unit.isTooLarge else { return }
        guard unit.bytes.count + bytes.count + 4 <= Self.byteCountMax else {
            (unit.isTooLarge, unit.hasSlice) = (true, true)
            return
        }
        let codec: Codec = packing == .h264 ? .h264 : .h265
        if case .slice = NALUnits.kind(firstByte: first, codec: codec) { unit.hasSlice = true }
        if isKey(bytes) { unit.isKey = true }
        unit.bytes += [0, 0, 0, 1]
        unit.bytes += bytes
    }

    /// A decoder can start at an IDR picture, at a picture with a recovery point (H.264 §D.1.8), and at any intra
    /// random access picture of H.265.
    private func isKey(_ bytes: ArraySlice<UInt8>) -> Bool {
        let first = bytes[bytes.startIndex]
        if packing == .h265 { return (16...23).contains(first >> 1 & 0x3f) }
        return first & 0x1f == 5 || first & 0x1f == 6 && bytes.count > 1 && bytes[bytes.startIndex + 1] == 6
    }

    private mutating func finishUnit() -> Frame? {
        defer { unit = AccessUnit(timestamp: unit.timestamp) }
        guard !unit.isTooLarge else {
            framesTooLarge += 1
            return nil
        }
        return Frame(timestamp: unit.timestamp, bytes: unit.bytes, isKey: unit.isKey)
    }

    // MARK: - Sound

    /// RFC 3640 §3.3.6.
    private mutating func takeAAC(
        _ payload: [UInt8], _ packet: RTPPacket, _ sizeBits: Int, _ indexBits: Int
    ) -> [Frame] {
        guard payload.count > 2 else { return [] }
        let headerBits = Int(payload[0]) << 8 | Int(payload[1])
        var (bit, offset) = (16, 2 + (headerBits + 7) / 8)
        var frames: [Frame] = []
        while bit - 16 + sizeBits + indexBits <= headerBits, bit + sizeBits + indexBits <= payload.count * 8 {
            var size = 0
            for index in bit..<(bit + sizeBits) { size = size << 1 | Int(payload[index / 8] >> (7 - index % 8) & 1) }
            bit += sizeBits + indexBits
            guard size > 0 else { continue }
            if offset + size > payload.count {
                // An access unit over several packets is alone in each of them.
                guard frames.isEmpty else { return frames }
                return addPart(payload[min(offset, payload.count)...], packet, size: size)
            }
            frames.append(
                Frame(
                    timestamp: packet.timestamp, offset: Int64(frames.count) * samples,
                    bytes: Array(payload[offset..<(offset + size)])))
            offset += size
        }
        fragment = nil
        return frames
    }

    private mutating func addPart(_ bytes: ArraySlice<UInt8>, _ packet: RTPPacket, size: Int) -> [Frame] {
        if fragment?.timestamp != packet.timestamp { fragment = ([], packet.timestamp) }
        fragment?.bytes.append(contentsOf: bytes)
        guard let whole = fragment?.bytes, whole.count >= size else {
            if packet.hasMarker { fragment = nil }
            return []
        }
        fragment = nil
        return whole.count == size ? [Frame(timestamp: packet.timestamp, bytes: whole)] : []
    }

    /// RFC 6416 §6.3: elements, each behind its length in bytes of 255 and a last one. The marker ends them.
    private mutating func takeLATM(_ payload: [UInt8], _ packet: RTPPacket) -> [Frame] {
        if fragment?.timestamp != packet.timestamp { fragment = ([], packet.timestamp) }
        guard (fragment?.bytes.count ?? 0) + payload.count <= Self.soundByteCountMax else {
            fragment = nil
            framesTooLarge += 1
            return []
        }
        fragment?.bytes += payload
        guard packet.hasMarker, let whole = fragment?.bytes else { return [] }
        fragment = nil
        var (frames, index) = ([Frame](), 0)
        while index < whole.count {
            var size = 0
            while index < whole.count, whole[index] == 255 { (size, index) = (size + 255, index + 1) }
            guard index < whole.count else { break }
            (size, index) = (size + Int(whole[index]), index + 1)
            guard size > 0, index + size <= whole.count else { break }
            frames.append(
                Frame(
                    timestamp: packet.timestamp, offset: Int64(frames.count) * samples,
                    bytes: Array(whole[index..<(index + size)])))
            index += size
        }
        return frames
    }

    /// RFC 4867 §4.4: a codec mode request, the table of contents, then the frames of 20 ms.
    private func takeAMR(_ payload: [UInt8], _ packet: RTPPacket) -> [Frame] {
        let sizes = samples == 320 ? Self.wideSizes : Self.narrowSizes
        var (contents, index) = ([UInt8](), 1)
        while index < payload.count {
            contents.append(payload[index])
            index += 1
            if contents[contents.count - 1] & 0x80 == 0 { break }
        }
        var frames: [Frame] = []
        for (number, entry) in contents.enumerated() {
            let size = sizes[Int(entry >> 3 & 15)]
            guard index + size <= payload.count else { break }
            frames.append(
                Frame(
                    timestamp: packet.timestamp, offset: Int64(number) * samples,
                    bytes: [entry & 0x7c] + payload[index..<(index + size)]))
            index += size
        }
        return frames
    }
    /// The bytes of a frame by its type (3GPP TS 26.101, 26.201).
    private static let narrowSizes = [12, 13, 15, 17, 19, 20, 26, 31, 5, 0, 0, 0, 0, 0, 0, 0]
    private static let wideSizes = [17, 23, 32, 36, 40, 46, 50, 58, 60, 5, 0, 0, 0, 0, 0, 0]

    /// RFC 2250 §3.5: an offset, then whole frames, or parts of one.
    private mutating func takeMP3(_ payload: [UInt8], _ packet: RTPPacket) -> [Frame] {
        guard payload.count > 4 else { return [] }
        let offset = Int(payload[2]) << 8 | Int(payload[3])
        if offset == 0 { fragment = ([], packet.timestamp) }
        guard let before = fragment?.bytes, before.count == offset else {
            fragment = nil
            return []
        }
        fragment?.bytes += payload[4...]
        var (rest, frames, time) = ((fragment?.bytes ?? [])[...], [Frame](), Int64(0))
        while let header = MP3Header(rest), header.byteCount <= rest.count {
            frames.append(Frame(timestamp: packet.timestamp, offset: time, bytes: Array(rest.prefix(header.byteCount))))
            time += Int64(header.samples) * 90_000 / Int64(header.sampleRate)
            rest = rest.dropFirst(header.byteCount)
        }
        if !frames.isEmpty || rest.count > Self.soundByteCountMax { fragment = nil }
        return frames
    }
}

import ApusMedia
import NIOCore

/// A frame as a relay holds it; configurations are numbered like all others.
func relayFrame(
    _ sequence: UInt64, epoch: UInt32 = 1, track: UInt8 = 0, flags: MediaFlags = [], codec: Codec = .h264,
    byteCount: Int = 10
) -> RelayFrame {
    var payload = ByteBuffer()
    if flags.contains(.configuration) {
        TrackConfiguration(codec: codec, trackCount: 2, first: 0, second: 0, third: 0, extraData: []).encode(
            into: &payload)
    } else {
        payload.writeRepeatingByte(UInt8(truncatingIfNeeded: sequence), count: byteCount)
    }
    let header = MediaHeader(
        position: FramePosition(epoch: epoch, sequence: sequence), ptsMicroseconds: Int64(sequence) * 40_000,
        flags: flags,
        track: track)
    var encoded = ByteBuffer(repeating: 0, count: RelayFrame.linkHeaderByteCount)
    MediaFrame(header: header, payload: payload).encode(into: &encoded)
    return RelayFrame(header: header, encoded: encoded)
}

/// Video configuration, audio configuration, then video with a key frame at each of `keys`.
func stream(_ range: Range<UInt64>, epoch: UInt32 = 1, keys: Set<UInt64>) -> [RelayFrame] {
    range.map { sequence in
        switch sequence {
        case 0: relayFrame(0, epoch: epoch, flags: .configuration)
        case 1: relayFrame(1, epoch: epoch, track: 1, flags: .configuration, codec: .aac)
        default: relayFrame(sequence, epoch: epoch, flags: keys.contains(sequence) ? .key : [])
        }
    }
}

func at(_ sequence: UInt64, _ epoch: UInt32 = 1) -> FramePosition { FramePosition(epoch: epoch, sequence: sequence) }

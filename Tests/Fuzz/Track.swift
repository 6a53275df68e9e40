import ApusMedia
import NIOCore

/// D7: a track's configuration is refused or means the same when written again; its records may be anything.
func fuzzTrack(_ input: [UInt8]) {
    guard let track = try? TrackConfiguration(decoding: ByteBuffer(bytes: input)) else { return }
    var written = ByteBuffer()
    track.encode(into: &written)
    precondition((try? TrackConfiguration(decoding: written)) == track, "a configuration is written otherwise")
    _ = ParameterSets(annexB: track.extraData, codec: track.codec).record(codec: track.codec)
    _ = ParameterSets(record: track.extraData, codec: track.codec)?.record(codec: track.codec)
    _ = PictureSize(sequence: track.extraData, codec: track.codec)
    _ = NALUnits.withoutEmulation(track.extraData)
    if let prefix = ParameterSets.lengthByteCount(record: track.extraData, codec: track.codec) {
        _ = NALUnits.ranges(lengthPrefixed: track.extraData, prefix: prefix)
        _ = ParameterSets.withFourByteLengths(record: track.extraData, codec: track.codec)
    }
}

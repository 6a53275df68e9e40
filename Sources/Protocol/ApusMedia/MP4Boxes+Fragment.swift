import NIOCore

extension MP4Boxes {
    /// One sample of a fragment.
    struct Sample {
        var payload: ByteBuffer
        var duration: UInt32
        /// Presentation time minus decode time.
        var composition: Int32
        var isSync: Bool
    }

    /// The samples of a track in one fragment.
    struct TrackFragment {
        /// From 1 on.
        var id: UInt32
        /// The sample entry, from 1 on; nil for the track's default, which is not named.
        var entry: UInt32?
        /// Decode time of the first sample, in ticks.
        var time: Int64
        var samples: [Sample]
    }

    /// Writes one `moof` and `mdat` with the samples of every track that has some.
    static func writeFragment(_ tracks: [TrackFragment], sequence: UInt32, into output: inout ByteBuffer) {
        let start = output.writerIndex
        var offsets: [(place: Int, track: Int)] = []
        box("moof", into: &output) { buffer in
            fullBox("mfhd", into: &buffer) { $0.writeInteger(sequence) }
            for (index, track) in tracks.enumerated() where !track.samples.isEmpty {
                box("traf", into: &buffer) { buffer in
                    // Flags: data offsets count from the moof, and a sample entry that is named.
                    fullBox("tfhd", flags: track.entry == nil ? 0x02_0000 : 0x02_0002, into: &buffer) { buffer in
                        buffer.writeInteger(track.id)
                        if let entry = track.entry { buffer.writeInteger(entry) }
                    }
                    fullBox("tfdt", version: 1, into: &buffer) { $0.writeInteger(UInt64(max(0, track.time))) }
                    // Flags: data offset, and each sample's duration, size, flags and composition offset.
                    fullBox("trun", version: 1, flags: 0xf01, into: &buffer) { buffer in
                        buffer.writeInteger(UInt32(track.samples.count))
                        offsets.append((buffer.writerIndex, index))
                        buffer.writeInteger(UInt32(0))
                        for sample in track.samples {
                            buffer.writeMultipleIntegers(
                                sample.duration, UInt32(sample.payload.readableBytes),
                                sample.isSync ? UInt32(0x0200_0000) : UInt32(0x0101_0000), sample.composition)
                        }
                    }
                }
            }
        }
        box("mdat", into: &output) { buffer in
            for (place, index) in offsets {
                buffer.setInteger(UInt32(buffer.writerIndex - start), at: place)
                for sample in tracks[index].samples { buffer.writeImmutableBuffer(sample.payload) }
            }
        }
    }

    /// The size of a fragment's `moof`, if every track names its sample entry.
    ///
    /// - Parameters:
    ///   - trackCount: the tracks that have samples in the fragment.
    ///   - sampleCount: the samples of all of them.
    static func fragmentHeadByteCount(trackCount: Int, sampleCount: Int) -> Int {
        24 + trackCount * 68 + sampleCount * 16
    }

    // MARK: - Index

    /// What a segment index says of one part of the media that follows it.
    struct IndexEntry {
        var byteCount: Int
        /// Until the next part begins, in ticks.
        var duration: Int64
        /// A decoder can start at its first sample.
        var startsWithSync: Bool
    }

    /// The size of a `sidx` with so many entries.
    static func indexByteCount(entries count: Int) -> Int { 40 + count * 12 }

    /// The most entries of a `sidx`: their number has 16 bits.
    static let indexEntryCountMax = 65_535

    /// Writes `sidx` (§8.16.3). The media follows at once.
    ///
    /// - Parameters:
    ///   - track: the track whose times it has.
    ///   - start: the earliest presentation time of the track, in ticks.
    ///   - entries: at most ``indexEntryCountMax``, each below 2 GiB.
    static func writeIndex(
        track: UInt32, timescale: UInt32, start: Int64, _ entries: [IndexEntry], into output: inout ByteBuffer
    ) {
        fullBox("sidx", version: 1, into: &output) { buffer in
            buffer.writeMultipleIntegers(track, timescale, UInt64(max(0, start)), UInt64(0))
            buffer.writeMultipleIntegers(UInt16(0), UInt16(clamping: entries.count))
            for entry in entries {
                buffer.writeMultipleIntegers(
                    UInt32(entry.byteCount) & 0x7fff_ffff, UInt32(clamping: entry.duration),
                    // A stream access point of type 1 (annex I).
                    entry.startsWithSync ? UInt32(0x9000_0000) : UInt32(0))
            }
        }
    }
}

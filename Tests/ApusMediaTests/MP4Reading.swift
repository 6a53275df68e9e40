import ApusCore
import ApusMedia
import NIOCore

/// What a test reads of an MP4: the sample entries of its head, and the samples of its fragments.
struct ReadMP4 {
    struct Entry: Equatable {
        var type: String
        var width: UInt16
        var height: UInt16
    }
    struct Sample: Equatable {
        /// Decode time, in microseconds.
        var time: Int64
        var duration: Int64
        var byteCount: Int
        /// From 1 on.
        var entry: Int
    }
    /// The sample entries of each track, by its id.
    var entries: [UInt32: [Entry]] = [:]
    var samples: [UInt32: [Sample]] = [:]

    init(_ bytes: ByteBuffer) {
        var track: UInt32 = 0
        Self.boxes(bytes) { type, content in
            switch type {
            case "moov":
                Self.boxes(content) { type, content in
                    guard type == "trak" else { return }
                    track += 1
                    readEntries(of: track, content)
                }
            case "moof":
                Self.boxes(content) { type, content in if type == "traf" { readSamples(content) } }
            default: break
            }
        }
    }

    private static func boxes(_ bytes: ByteBuffer, _ body: (String, ByteBuffer) -> Void) {
        var bytes = bytes
        while let size = bytes.readInteger(as: UInt32.self), let type = bytes.readString(length: 4),
            let content = bytes.readSlice(length: Int(size) - 8)
        { body(type, content) }
    }

    private mutating func readEntries(of track: UInt32, _ trak: ByteBuffer) {
        var found: [Entry] = []
        func descend(_ bytes: ByteBuffer) {
            Self.boxes(bytes) { type, content in
                if ["mdia", "minf", "stbl"].contains(type) { descend(content) }
                guard type == "stsd" else { return }
                var list = content
                list.moveReaderIndex(forwardBy: 8)
                Self.boxes(list) { type, entry in
                    let (width, height) =
                        entry.getMultipleIntegers(
                            at: entry.readerIndex + 24, as: (UInt16, UInt16).self) ?? (0, 0)
                    let isVideo = ["avc1", "hev1"].contains(type)
                    found.append(Entry(type: type, width: isVideo ? width : 0, height: isVideo ? height : 0))
                }
            }
        }
        descend(trak)
        entries[track] = found
    }

    private mutating func readSamples(_ traf: ByteBuffer) {
        var (track, entry, time) = (UInt32(0), 1, Int64(0))
        var found: [Sample] = []
        Self.boxes(traf) { type, content in
            var content = content
            let flags = content.readInteger(as: UInt32.self) ?? 0
            switch type {
            case "tfhd":
                track = content.readInteger(as: UInt32.self) ?? 0
                if flags & 2 != 0 { entry = Int(content.readInteger(as: UInt32.self) ?? 0) }
            case "tfdt": time = Int64(content.readInteger(as: UInt64.self) ?? 0)
            case "trun":
                let count = content.readInteger(as: UInt32.self) ?? 0
                content.moveReaderIndex(forwardBy: 4)
                for _ in 0..<count {
                    guard
                        let (duration, size, _, _) = content.readMultipleIntegers(
                            as: (UInt32, UInt32, UInt32, Int32).self)
                    else { return }
                    found.append(
                        Sample(time: time, duration: Int64(duration), byteCount: Int(size), entry: entry))
                    time += Int64(duration)
                }
            default: break
            }
        }
        samples[track, default: []] += found
    }

    /// The end of a track, in microseconds.
    func end(_ track: UInt32) -> Int64 { samples[track]?.last.map { $0.time + $0.duration } ?? 0 }
}

/// Frames for tests of writers.
struct FrameMaker {
    var sequence: UInt64 = 0
    var epoch: UInt32 = 1

    mutating func configuration(_ track: UInt8, _ configuration: TrackConfiguration) -> MediaFrame {
        var payload = ByteBuffer()
        configuration.encode(into: &payload)
        return frame(track, milliseconds: 0, flags: .configuration, payload)
    }

    mutating func frame(
        _ track: UInt8, milliseconds: Int64, flags: MediaFlags = [], _ payload: ByteBuffer = ByteBuffer(bytes: [7])
    ) -> MediaFrame {
        defer { sequence += 1 }
        let header = MediaHeader(
            position: FramePosition(epoch: epoch, sequence: sequence), ptsMicroseconds: milliseconds * 1000,
            flags: flags, track: track)
        return MediaFrame(header: header, payload: payload)
    }

    static func video(_ codec: Codec, width: UInt32 = 640, count: UInt8 = 1) -> TrackConfiguration {
        TrackConfiguration(
            codec: codec, trackCount: count, first: width, second: width / 2, third: 0,
            extraData: [1, UInt8(truncatingIfNeeded: width), 3])
    }

    static func sound(_ codec: Codec, count: UInt8 = 2) -> TrackConfiguration {
        TrackConfiguration(codec: codec, trackCount: count, first: 8000, second: 1, third: 160, extraData: [])
    }
}

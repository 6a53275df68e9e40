import ApusClientAPI
import ApusContract
import ApusCore
import ApusDevice
import ApusHTTP
import ApusMedia
import ApusObjectStore
import ApusRecordings
import ApusSessions
import ApusStorage
import ApusTestKit
import Foundation
import NIOCore
import SwiftProtobuf
import Synchronization
import Testing

#if canImport(FoundationNetworking)
import FoundationNetworking
#endif

/// A reader of recordings over a directory, with segments of a made-up camera.
private struct Recordings {
    static let start: Int64 = 1_793_139_200_000_000
    static let channel = RecordedChannel(
        account: AccountID(unchecked: "home"), device: DeviceID(unchecked: "cam"), source: 0)

    let folder = Folder()
    let store = MemoryRecordStore()
    let objects: DirectoryObjectStore
    let reader: ApusRecordings.RecordingReader

    init() async throws {
        objects = try await DirectoryObjectStore(path: folder.file("objects"))
        let sealer = TicketSealer(clusterKey: [UInt8](repeating: 7, count: 32))
        let device = DeviceRecord(device: Self.channel.device, account: Self.channel.account, epoch: 1)
        let seconds = Self.start / 1_000_000
        reader = ApusRecordings.RecordingReader(
            index: RecordingIndex(store), objects: objects,
            sessions: RecordingSessions(
                device: { id throws(ApusError) in id == device.device ? device : nil },
                seal: { session, device, content, _ throws(ApusError) in
                    try sealer.sealAddress(session, device: device, content: content, expiresAt: seconds + 99_999)
                },
                open: { text throws(ApusError) in try sealer.openAddress(text, wallSeconds: seconds) },
                check: { _ throws(ApusError) in }),
            now: { seconds * 1000 + 3_600_000 })
    }

    /// Stores the segments of a run, cut at key frames after two seconds, with their index.
    ///
    /// - Returns: the end, in microseconds of UTC.
    func put(_ frames: [MediaFrame], at start: Int64, run: UInt8) async throws -> Int64 {
        var (tracks, media, stored) = ([SegmentTrack](), [SegmentFrame](), [Segment]())
        for frame in frames {
            if frame.header.flags.contains(.configuration) {
                let configuration = try TrackConfiguration(decoding: frame.payload)
                tracks.append(SegmentTrack(number: frame.header.track, configuration: configuration))
            } else {
                // Each run has a time line of its own.
                media.append(SegmentFrame(frame, shiftMicroseconds: 5_000_000))
            }
        }
        let id = try #require(SegmentRunID(bytes: [UInt8](repeating: run, count: 16)))
        let video = tracks.first { $0.configuration.codec.isVideo }?.number
        var description = SegmentDescription(label: [], run: id, anchorMicroseconds: 0, tracks: tracks, sequence: 1)
        var (writer, begin) = (try SegmentWriter(description), media[0].decodeMicroseconds)
        for (index, frame) in media.enumerated() {
            let isKey = frame.track == video && frame.flags.contains(.key)
            if writer.frameCount > 0, isKey, frame.decodeMicroseconds - begin >= 2_000_000 {
                var next: [UInt8: Int64] = [:]
                for later in media[index...] where next[later.track] == nil {
                    next[later.track] = later.decodeMicroseconds
                }
                stored.append(try writer.finish(until: next, end: .continues))
                description.sequence += UInt32(stored[stored.count - 1].footer.fragments.count)
                (writer, begin) = (try SegmentWriter(description), frame.decodeMicroseconds)
            }
            try writer.add(frame)
        }
        stored.append(try writer.finish(end: .epoch))
        return try await put(stored, at: start, run: id)
    }

    private func put(_ segments: [Segment], at start: Int64, run: SegmentRunID) async throws -> Int64 {
        let shift = start - segments[0].footer.startMicroseconds
        var end = start
        for (index, segment) in segments.enumerated() {
            let (footer, name) = (segment.footer, "\(run.description.prefix(4))-\(index)")
            let begin = footer.startMicroseconds + shift
            let number = RecordingIndex.hour(of: begin)
            let object = try RecordingIndex.objectName(Self.channel, hour: number, object: name)
            _ = try await objects.put(object, ObjectContent(segment.bytes))
            var hour =
                try await store.record(RecordingRecords.hours, RecordingRecords.hourKey(Self.channel, number))?.body
                ?? .with { ($0.account, $0.device, $0.hour) = ("home", "cam", number) }
            if hour.runs.last?.id != Data(run.bytes) {
                hour.runs.append(
                    .with {
                        $0.id = Data(run.bytes)
                        $0.tracks = footer.description.tracks.map { track in
                            var bytes = ByteBuffer()
                            track.configuration.encode(into: &bytes)
                            return .with {
                                ($0.number, $0.configuration) = (UInt32(track.number), Data(bytes.readableBytesView))
                            }
                        }
                    })
            }
            hour.segments.append(
                .with {
                    ($0.startUs, $0.durationUs) = (begin, UInt64(footer.durationMicroseconds))
                    ($0.object, $0.bytes) = (name, UInt64(segment.bytes.readableBytes))
                    ($0.run, $0.initBytes) = (UInt32(hour.runs.count - 1), UInt32(footer.initByteCount))
                    ($0.mediaEnd, $0.mediaStartUs) = (UInt64(footer.mediaRange.upperBound), footer.startMicroseconds)
                    ($0.end, $0.startsWithKey) = (UInt32(footer.end.rawValue), true)
                })
            try await store.commit(RecordStep(RecordingRecords.hours.put(hour, fence: .none)))
            end = begin + footer.durationMicroseconds
        }
        var head =
            try await reader.index.head(of: Self.channel)?.body
            ?? .with {
                ($0.account, $0.device, $0.firstUs) = ("home", "cam", start)
            }
        head.segments += UInt64(segments.count)
        head.endUs = end
        try await store.commit(RecordStep(RecordingRecords.heads.put(head, fence: .none)))
        return end
    }

    /// The addresses of the play list and of the export, as paths.
    func addresses(from start: Int64, to end: Int64) async throws -> ClientGetRecordingAddressResponse {
        let session = Session(
            id: "1", role: .app, access: AccessID(unchecked: "app"), account: Self.channel.account, device: nil,
            sinceMilliseconds: 0, token: TokenMark(tag: 1, issuedAt: 0, expires: .max))
        return try await reader.address(
            of: Self.channel, .with { ($0.start, $0.end) = (start / 1_000_000, end / 1_000_000) }, for: session)
    }
}

/// The frames of a test pattern with a tone.
private func frames(_ text: String, count: UInt64) async throws -> [MediaFrame] {
    var pattern = try TestPattern(parsing: text)
    (pattern.keyIntervalSeconds, pattern.hasTone) = (1, true)
    let source = TestPatternSource(pattern, frameCountMax: count, isPaced: false)
    let (stream, feed) = AsyncStream.makeStream(of: Void.self)
    let frames = Mutex<[MediaFrame]>([])
    source.start { event in
        func append(_ track: UInt8, _ pts: Int64, _ delta: Int32, _ flags: MediaFlags, _ payload: ByteBuffer) {
            frames.withLock { frames in
                let header = MediaHeader(
                    position: FramePosition(epoch: 1, sequence: UInt64(frames.count)), ptsMicroseconds: pts,
                    dtsDeltaMicroseconds: delta, flags: flags, track: track)
                frames.append(MediaFrame(header: header, payload: payload))
            }
        }
        switch event {
        case .configuration(let track, let configuration):
            var payload = ByteBuffer()
            configuration.encode(into: &payload)
            append(track, 0, 0, .configuration, payload)
        case .frame(let track, let pts, let delta, let flags, let payload): append(track, pts, delta, flags, payload)
        case .ended, .failed: feed.finish()
        }
    }
    for await _ in stream {}
    return frames.withLock { $0 }
}

extension HTTPListenerTests {
    private struct Probe: Decodable {
        struct Packet: Decodable {
            var codec_type: String
            var pts_time: String?
            var flags: String
        }
        var packets: [Packet]
        func count(_ type: String) -> Int { packets.count { $0.codec_type == type } }
        var times: [Double] { packets.filter { $0.codec_type == "video" }.compactMap { Double($0.pts_time ?? "") } }
    }

    private static func probe(_ url: String) throws -> Probe {
        let tool = try #require(Tool.ffprobe)
        let text = try #require(Tool.run(tool, ["-v", "error", "-show_packets", "-of", "json", url]), "\(url)")
        return try JSONDecoder().decode(Probe.self, from: Data(text.utf8))
    }

    @Test(
        "ffmpeg plays the play list of two runs with a gap, and the same as one file, also from within (IV-E5)",
        .enabled(if: Tool.ffmpeg != nil && Tool.ffprobe != nil, "ffmpeg is not installed"))
    func recordingFiles() async throws {
        let recordings = try await Recordings()
        let first = try await frames("320x240@25", count: 200)
        let second = try await frames("160x120@25", count: 100)
        let gap = try await recordings.put(first, at: Recordings.start, run: 1)
        let end = try await recordings.put(second, at: gap + 30_000_000, run: 2)
        var sources = Node().sources
        sources.clients?.downloads = recordings.reader
        try await withListener(sources: sources) { address in
            let all = try await recordings.addresses(from: Recordings.start, to: end + 999_999)
            #expect(all.endflag && all.url.contains("?starttime=20261027221320&endtime="))
            let list = try Self.probe("http://\(address)\(all.url)")
            #expect(list.count("video") == 300)
            let sounds = (first + second).count { $0.header.track == 1 && !$0.header.flags.contains(.configuration) }
            #expect(list.count("audio") == sounds)
            // The second run follows the first one without the gap of 30 s: its time line is another one.
            let lengths = zip(list.times.sorted(), list.times.sorted().dropFirst()).map { $1 - $0 }
            #expect(lengths.allSatisfy { $0 < 0.2 }, "\(lengths.max() ?? 0)")
            let export = try Self.probe("http://\(address)\(all.exportURL)")
            #expect(export.count("video") == 300 && export.count("audio") == sounds)
            // From the fourth second to the seventh: the fragments that have them, and the edit list hides the rest.
            let part = try await recordings.addresses(
                from: Recordings.start + 3_000_000, to: Recordings.start + 7_000_000)
            let cut = try Self.probe("http://\(address)\(part.exportURL)")
            #expect((100...126).contains(cut.count("video")), "\(cut.count("video"))")
            let shown = cut.packets.filter { $0.codec_type == "video" && !$0.flags.contains("D") }
            #expect((100...101).contains(shown.count), "\(shown.count)")
            #expect(shown.first?.flags.hasPrefix("K") == true)
            // ffmpeg decodes one picture size of a track (SegmentFileTests), so one run.
            let ffmpeg = try #require(Tool.ffmpeg)
            for url in [part.exportURL, try await recordings.addresses(from: Recordings.start, to: gap).exportURL] {
                let strict = ["-v", "error", "-xerror", "-i", "http://\(address)\(url)", "-f", "null", "-"]
                #expect(Tool.run(ffmpeg, strict) != nil)
            }
        }
    }

    @Test("An export is the same bytes in any pieces, and a lost object ends it early")
    func exportPieces() async throws {
        let recordings = try await Recordings()
        let end = try await recordings.put(
            try await frames("160x120@25", count: 150), at: Recordings.start, run: 3)
        var sources = Node().sources
        sources.clients?.downloads = recordings.reader
        try await withListener(sources: sources, change: { $0.downloads.pieceByteCount = 4096 }) { address in
            let all = try await recordings.addresses(from: Recordings.start, to: end + 999_999)
            let token = String(all.exportURL.split(separator: "/")[2])
            let whole = try await recordings.reader.download("export.mp4", at: token)
            let path = "/v1/recordings/\(token)/export.mp4"
            let url = try #require(URL(string: "http://\(address)\(path)"))
            let (data, response) = try await URLSession(configuration: .ephemeral).data(from: url)
            #expect(data.count == whole.byteCount)
            #expect(
                (response as? HTTPURLResponse)?.value(forHTTPHeaderField: "Content-Disposition")
                    == "attachment; filename=\"cam-0-20261027221320.mp4\"")
            var generator = SeededRandom(seed: 5)
            for _ in 0..<30 {
                let start = Int.random(in: 0..<data.count, using: &generator)
                let range = start..<Int.random(in: start + 1...data.count, using: &generator)
                var request = URLRequest(url: url)
                request.setValue("bytes=\(range.lowerBound)-\(range.upperBound - 1)", forHTTPHeaderField: "Range")
                let (part, answer) = try await URLSession(configuration: .ephemeral).data(for: request)
                #expect((answer as? HTTPURLResponse)?.statusCode == 206 && part == data[range])
            }
            // The same tag at another node, and another one for another stretch.
            let other = try await recordings.addresses(from: Recordings.start, to: Recordings.start + 3_000_000)
            let shorter = try await recordings.reader.download(
                "export.mp4", at: String(other.exportURL.split(separator: "/")[2]))
            #expect(try await recordings.reader.download("export.mp4", at: token).tag == whole.tag)
            #expect(shorter.tag != whole.tag && shorter.byteCount < whole.byteCount)
        }
    }
}

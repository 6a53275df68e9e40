import ApusClient
import ApusCore
import ApusMedia
import NIOCore

/// Reads a file's frames in decode order on a continuous time line, also across loops.
///
/// Concurrency model: created and used on one thread.
final class FileReader {
    /// The longest time between two frames of a file that is a pause, in microseconds.
    static let pauseMax: Int64 = 3_600_000_000
    /// The most packets that are read before each track's configuration must be known.
    static let scanCountMax = 2000

    private let path: String
    private let loops: Bool
    private let interrupt: LibAVInterrupt
    private var demuxer: Demuxer
    private var shapers: [TrackShaper]
    private var timeline: MediaTimeline
    private var interleaver: Interleaver
    private var firstPts: Int64 = .max
    private var framesOfPass = 0
    private var isOver = false
    /// The container has changed a header since it was opened. It must be opened again to have the first one.
    private var hasOtherHeader = false

    var omissions: [String] { demuxer.omissions }

    /// - Throws: 10026.
    init(path: String, loops: Bool, interrupt: LibAVInterrupt) throws(ApusError) {
        self.path = path
        self.loops = loops
        self.interrupt = interrupt
        demuxer = try Self.open(path, interrupt)
        shapers = demuxer.tracks.map { TrackShaper(input: $0.input) }
        timeline = MediaTimeline(
            trackCount: shapers.count, pauseMax: demuxer.hasOneTimeline ? Self.pauseMax : MediaTimeline.jumpMax)
        interleaver = Interleaver(trackCount: shapers.count)
    }

    private static func open(_ path: String, _ interrupt: LibAVInterrupt) throws(ApusError) -> Demuxer {
        do {
            // Only files: a playlist must not cause the agent to open network addresses.
            return try Demuxer(
                address: "file:\(path)", name: "the file \(path)", options: [("protocol_whitelist", "file")],
                interrupt: interrupt)
        } catch {
            guard error.number == LibAV.invalidData else { throw error.error }
            throw ApusError(
                .mediaUnreadable,
                "the file \(path) is not audio or video in a known format; "
                    + "give an MP4, MKV, MPEG-TS or raw H.264/H.265 file"
            )
        }
    }

    /// Every track's configuration. Reads ahead if the container does not include it.
    ///
    /// - Throws: 10026 if a track has none.
    func configurations() throws(ApusError) -> [TrackConfiguration] {
        var isAhead = false
        var count = 0
        while shapers.contains(where: { $0.configuration == nil }), count < Self.scanCountMax {
            isAhead = true
            count += 1
            guard let packet = try readPacket() else { break }
            _ = shapers[packet.track].shape(packet.bytes, isKey: packet.isKey, extraData: packet.extraData)
        }
        if isAhead { try restart() }
        var configurations: [TrackConfiguration] = []
        for shaper in shapers {
            guard let configuration = shaper.configuration else {
                throw ApusError(
                    .mediaUnreadable,
                    "the file \(path) does not contain the configuration of a decoder; convert it, "
                        + "for example: ffmpeg -i IN -c:v libx264 -c:a aac OUT.mp4")
            }
            configurations.append(configuration)
        }
        return configurations
    }

    /// The next frame; nil at the end of a file that does not loop.
    ///
    /// - Throws: 10026 if the file is truncated, or has no frame.
    func next() throws(ApusError) -> SourceFrame? {
        while true {
            if let frame = interleaver.pop() { return frame }
            if isOver { return nil }
            try readNext()
        }
    }

    private func readNext() throws(ApusError) {
        guard let packet = try readPacket() else {
            guard framesOfPass > 0 else {
                throw ApusError(.mediaUnreadable, "the file \(path) contains no frame that can be sent")
            }
            if loops {
                try restart()
                timeline.beginPass(firstPts: firstPts)
            } else {
                isOver = true
                interleaver.finish()
            }
            framesOfPass = 0
            return
        }
        let shaped = shapers[packet.track].shape(packet.bytes, isKey: packet.isKey, extraData: packet.extraData)
        guard let shaped else { return }
        guard shaped.payload.readableBytes <= MediaFrame.joinedByteCountMax else {
            throw ApusError(
                .mediaUnreadable,
                "the file \(path) holds a frame of \(shaped.payload.readableBytes) bytes; "
                    + "at most \(MediaFrame.joinedByteCountMax) can be sent")
        }
        if let time = packet.pts ?? packet.dts {
            firstPts = min(firstPts, time)
        } else if firstPts == .max {
            firstPts = 0
        }
        framesOfPass += 1
        let place = timeline.place(track: packet.track, pts: packet.pts, dts: packet.dts, duration: packet.duration)
        var flags: MediaFlags = []
        if packet.isKey, demuxer.tracks[packet.track].input.codec.isVideo { flags.insert(.key) }
        if shaped.isDiscardable { flags.insert(.discardable) }
        interleaver.push(
            SourceFrame(
                track: UInt8(packet.track), pts: place.pts, dts: place.dts, flags: flags, payload: shaped.payload,
                configuration: shaped.configuration))
    }

    private func readPacket() throws(ApusError) -> Demuxer.Packet? {
        do {
            let packet = try demuxer.read()
            if packet?.extraData != nil { hasOtherHeader = true }
            return packet
        } catch {
            throw error.error
        }
    }

    /// Returns to the first packet. Opens the file again if it cannot seek.
    private func restart() throws(ApusError) {
        for index in shapers.indices { shapers[index].rewind() }
        if !hasOtherHeader, demuxer.rewind() { return }
        hasOtherHeader = false
        let count = demuxer.tracks.count
        demuxer = try Self.open(path, interrupt)
        guard demuxer.tracks.count == count else {
            throw ApusError(.mediaUnreadable, "the file \(path) changed while it was read")
        }
    }
}

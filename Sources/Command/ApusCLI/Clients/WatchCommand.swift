import ApusClient
import ApusCore
import ApusMedia
import ApusSessions
import ArgumentParser
import Foundation
import Logging
import NIOCore

/// `apus watch`: runs a viewer without a display.
struct WatchCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "watch", abstract: "Watch a device: record it, take a picture, or only count frames.")

    @Argument(help: "Watch the device with this id.") var device: String
    @Option(help: "Set the source's number on a device with several cameras.") var source: UInt16 = 0
    @Option(help: "Record the frames into this MP4 file, without re-encoding.") var record: String?
    @Option(help: "Write the last picture to this PNG file.") var snapshot: String?
    @Option(
        help: """
            Play what the device has recorded, from this time on: 2026-11-28T12:00:00Z, Unix seconds, or -60 for a \
            minute ago (--at=-60).
            """)
    var at: TimeArgument?
    @Option(help: "Stop after this number of seconds.") var seconds: Double?
    @Option(help: "Write one JSON line for every frame to this file.") var log: String?
    @Option(help: "Set this viewer's access id. Default: a random one.") var access: String?
    @OptionGroup var rendering: RenderOptions
    @OptionGroup var connection: ConnectOptions
    @OptionGroup var output: OutputOptions

    func validate() throws {
        _ = try identifiers()
    }

    private func identifiers() throws -> (device: DeviceID, access: AccessID) {
        let access = access ?? "watch-\(String(UInt64.random(in: 0...(.max)), radix: 36))"
        return (try .argument(device, "the device"), try .argument(access, "--access"))
    }

    func run() async throws {
        let (device, access) = try identifiers()
        let log = connection.log
        let configuration = try await connection.client(role: .app, access: access, device: nil)
        let frames = try self.log.map { path throws(ApusError) in try FrameLog(path: path) }
        let recorder = try record.map { path throws(ApusError) in try MP4Recorder(path: path) }
        let picture = snapshot.map { _ in Snapshot() }
        let renderer = try rendering.renderer()
        let link = try CommandSession(configuration, log: log)
        let (session, ending) = (link.session, link.ending)
        let viewer = Viewer(frames: frames, recorder: recorder, picture: picture, renderer: renderer) {
            ending.end($0)
        }
        session.start()
        let result = await ending.race(seconds: seconds) { [self] () throws(ApusError) in
            if let at {
                try await play(at: at.date, of: device, session, viewer, ending, log)
            } else {
                watch(device, session, viewer, ending, log)
                while !Task.isCancelled { try? await Task.sleep(for: .seconds(3600)) }
            }
        }
        try await link.close()
        frames?.close()
        let recording = Result { () throws(ApusError) in
            let played = Result { () throws(ApusError) in try renderer?.finish() }
            _ = try recorder?.finish()
            try played.get()
        }
        // The error that ended the command comes first: a missing recording or picture is its consequence.
        try result.get()
        try recording.get()
        if let snapshot { try picture?.save(to: snapshot) }
        let report = viewer.report
        log.notice(
            "The viewer has ended",
            metadata: [
                "apus.frames": "\(report.frames)", "apus.bytes": "\(report.bytes)",
                "apus.gap_longest_ms": "\(report.gap_longest_ms)",
            ])
        try output.show(report, [])
    }

    private func watch(
        _ device: DeviceID, _ session: ClientSession, _ viewer: Viewer, _ ending: Ending, _ log: Logger
    ) {
        let player = Player(
            session: session, device: device, source: source, onFrame: { viewer.received($0) },
            onEvent: { event in
                switch event {
                case .live: log.info("Frames are arriving")
                case .waiting: log.notice("No frames are arriving")
                case .skipped(let count): Self.note(skipped: count, log)
                case .ended(let error): ending.end(error)
                case .began(let timing): Self.note(timing, log)
                }
            })
        if let renderer = viewer.renderer { player.attach(renderer) }
        player.start()
    }

    /// Plays a recording to its end.
    private func play(
        at time: Date, of device: DeviceID, _ session: ClientSession, _ viewer: Viewer, _ ending: Ending, _ log: Logger
    ) async throws(ApusError) {
        let (finished, feed) = AsyncStream<Void>.makeStream()
        let player = PlaybackPlayer(
            session: session, device: device, source: source, onFrame: { viewer.received($0) },
            onEvent: { event in
                switch event {
                case .live, .waiting: break
                case .skipped(let count): Self.note(skipped: count, log)
                case .finished: feed.finish()
                case .ended(let error): ending.end(error)
                case .began(let timing): Self.note(timing, log)
                }
            })
        try await session.repeating(until: .now() + .seconds(10)) { _ throws(ApusError) in
            try await player.play(at: time)
        }
        if let recording = player.recording {
            log.notice(
                "A recording is played",
                metadata: [
                    "apus.from": "\(recording.start.ISO8601Format())", "apus.until": "\(recording.end.ISO8601Format())",
                ])
        }
        // Ends with the recording, or when the task is cancelled.
        for await _ in finished {}
        await player.stop()
    }

    private static func note(skipped count: UInt64, _ log: Logger) {
        log.warning("Frames were skipped: too slow", metadata: [LogKey.count: "\(count)"])
    }

    private static func note(_ timing: Player.Timing, _ log: Logger) {
        log.info(
            "The first frame has arrived",
            metadata: [
                "apus.granted_ms": "\(timing.granted?.milliseconds ?? 0)",
                "apus.header_ms": "\(timing.header?.milliseconds ?? 0)",
                "apus.first_frame_ms": "\(timing.firstFrame?.milliseconds ?? 0)",
            ])
    }
}

/// Passes what a client plays to the log, the recording and the picture. Confined to the session's loop.
final class Viewer: @unchecked Sendable {  // SAFETY: one loop calls it; `report` comes after its end.
    private let frames: FrameLog?
    private let recorder: MP4Recorder?
    private let picture: Snapshot?
    fileprivate let renderer: MediaRenderer?
    /// The log or the recording cannot be written.
    private let onFailure: @Sendable (ApusError) -> Void
    private var count = 0
    private var byteCount = 0
    private var gapLongest = Duration.zero
    private var lastArrival: MonotonicTime?

    init(
        frames: FrameLog?, recorder: MP4Recorder?, picture: Snapshot? = nil,
        renderer: MediaRenderer? = nil, onFailure: @escaping @Sendable (ApusError) -> Void
    ) {
        self.frames = frames
        self.recorder = recorder
        self.picture = picture
        self.renderer = renderer
        self.onFailure = onFailure
    }

    func received(_ frame: MediaFrame) {
        recorder?.write(frame)
        picture?.write(frame)
        renderer?.render(frame)
        if let failure = recorder?.failure ?? frames?.failure ?? renderer?.failure { onFailure(failure) }
        guard !frame.header.flags.contains(.repeated) else { return }
        frames?.append(frame)
        let now = MonotonicTime.now()
        if let lastArrival { gapLongest = max(gapLongest, now - lastArrival) }
        lastArrival = now
        count += 1
        byteCount += frame.payload.readableBytes
    }

    /// The frames that arrived.
    struct Report: Encodable {
        var frames: Int
        /// The payloads of the frames.
        var bytes: Int
        /// The longest time between two frames.
        var gap_longest_ms: Int
    }

    var report: Report {
        Report(frames: count, bytes: byteCount, gap_longest_ms: Int(gapLongest.milliseconds))
    }
}

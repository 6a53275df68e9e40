import ApusClient
import ApusCore
import ApusDevice
import ApusMedia
import ArgumentParser
import Logging
import NIOCore
import Synchronization

/// What a client sends and keeps in a call (CALL-13).
struct CallMediaOptions: ParsableArguments {
    @OptionGroup var source: SourceOptions
    @Option(help: "Record what the other side sends into this MP4 file, without re-encoding.") var record: String?
    @Option(help: "Write one JSON line for every frame that the other side sends to this file.") var log: String?
    @OptionGroup var rendering: RenderOptions

    func validate() throws {
        guard source.count <= 1 else {
            throw ValidationError("Use at most one of --file, --rtsp, --test-pattern, and a camera or sound.")
        }
    }

    /// Nothing is sent or kept: the call is reported as connected at once.
    var isEmpty: Bool { source.count == 0 && record == nil && log == nil && rendering.isEmpty }
}

/// One side of a call on the command line: sends a source, and records and counts what the other side sends.
///
/// Concurrency model: frames arrive on the session's event loop, and all else is called from the command's task.
final class CallMedia: Sendable {
    /// What the call has carried, as `--json` has it.
    struct Report: Encodable {
        var call: String
        var event = "media"
        /// The frames that have arrived.
        var frames: Int
        var bytes: Int
        /// From the start of the call to the ring, and from there to the accept; null for a called client.
        var ring_ms: Double?
        var accept_ms: Double?
        /// From the accept to the grant of the other side's stream, its header, and its first frame; null if that has
        /// not come (IV-G4).
        var granted_ms: Double?
        var header_ms: Double?
        var first_frame_ms: Double?

        var line: String {
            let first = first_frame_ms.map { ", the first after \(Int($0)) ms" } ?? ""
            return "\(call): \(frames) frames have arrived\(first)"
        }
    }

    /// When the caller's call rang and was accepted.
    struct Steps: Sendable {
        private var last = MonotonicTime.now()
        private(set) var ring: Duration?
        private(set) var accept: Duration?

        /// Notes a step of the call.
        mutating func note(_ stage: ClientSession.CallNotice.Stage) {
            let now = MonotonicTime.now()
            switch stage {
            case .ringing where ring == nil: ring = now - last
            case .accepted where accept == nil: accept = now - last
            case .ring, .ringing, .accepted, .message, .ended: return
            }
            last = now
        }
    }

    let call: String
    private let session: ClientSession
    private let player: Player
    private let viewer: Viewer
    private let recorder: MP4Recorder?
    private let frames: FrameLog?
    private let renderer: MediaRenderer?
    private let work: [Task<Void, Never>]
    private let timing: Timing
    private let steps: Steps?

    /// When the first frame arrived, after the accept.
    private final class Timing: Sendable {
        let value = Mutex(Player.Timing())
    }

    /// Begins to send and to play.
    ///
    /// - Throws: 10021 if a file cannot be written, 10022 for a test pattern that cannot be read, 10026 for a
    ///   loudspeaker that cannot be opened.
    init(
        _ options: CallMediaOptions, _ session: ClientSession, call: String, steps: Steps? = nil, log: Logger
    ) throws(ApusError) {
        (self.call, self.session, self.steps) = (call, session, steps)
        recorder = try options.record.map { path throws(ApusError) in try MP4Recorder(path: path) }
        frames = try options.log.map { path throws(ApusError) in try FrameLog(path: path) }
        let source = try options.source.source(log: log)
        renderer = try options.rendering.renderer()
        let viewer = Viewer(frames: frames, recorder: recorder, renderer: renderer) { error in
            log.warning("What the other side sends cannot be kept", metadata: Logger.facts(of: error))
        }
        let timing = Timing()
        let (arrivals, arrival) = AsyncStream<Void>.makeStream(bufferingPolicy: .bufferingOldest(1))
        (self.viewer, self.timing) = (viewer, timing)
        player = Player(
            session: session, call: call,
            onFrame: { viewer.received($0) },
            onEvent: { event in
                switch event {
                case .ended(let error):
                    log.debug("The other side is not played any more", metadata: Logger.facts(of: error))
                case .began(let steps):
                    timing.value.withLock { $0 = steps }
                    arrival.yield()
                case .live, .waiting, .skipped: break
                }
            })
        let connecting = Task {
            for await _ in arrivals { _ = try? await session.reportCallConnected(call) }
        }
        let agent = source.map { source in
            DeviceAgent(session: session, source: source, call: call, log: log)
        }
        let sending = agent.map { agent in
            Task {
                do throws(ApusError) {
                    try await agent.run()
                } catch {
                    log.debug("This side is not sent any more", metadata: Logger.facts(of: error))
                }
            }
        }
        work = [connecting] + (sending.map { [$0] } ?? [])
        player.start()
    }

    /// Ends both directions, and the recording.
    ///
    /// - Throws: 10021 and 10026 if the recording or a renderer failed.
    func end() async throws(ApusError) -> Report {
        for task in work { task.cancel() }
        for task in work { await task.value }
        player.stop()
        // The event loop calls nothing more of this call afterwards.
        let report = try? await session.eventLoop.submit { [viewer] in viewer.report }.get()
        frames?.close()
        let count = report?.frames ?? 0
        let played = Result { () throws(ApusError) in try renderer?.finish() }
        if count > 0 { _ = try recorder?.finish() }
        try played.get()
        let timing = timing.value.withLock { $0 }
        return Report(
            call: call, frames: count, bytes: report?.bytes ?? 0, ring_ms: steps?.ring?.milliseconds,
            accept_ms: steps?.accept?.milliseconds, granted_ms: timing.granted?.milliseconds,
            header_ms: timing.header?.milliseconds, first_frame_ms: timing.firstFrame?.milliseconds)
    }
}

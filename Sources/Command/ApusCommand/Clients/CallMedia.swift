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

    func validate() throws {
        guard source.count <= 1 else {
            throw ValidationError("Use at most one of --file, --rtsp and --test-pattern.")
        }
    }

    /// Nothing is sent or kept: the call is reported as connected at once.
    var isEmpty: Bool { source.count == 0 && record == nil && log == nil }
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
        /// From the accept to the first frame; null if none has arrived.
        var first_frame_ms: Double?

        var line: String {
            let first = first_frame_ms.map { ", the first after \(Int($0)) ms" } ?? ""
            return "\(call): \(frames) frames have arrived\(first)"
        }
    }

    let call: String
    private let session: ClientSession
    private let player: Player
    private let viewer: Viewer
    private let recorder: MP4Recorder?
    private let frames: FrameLog?
    private let work: [Task<Void, Never>]
    private let first: First

    /// When the first frame arrived, after the accept.
    private final class First: Sendable {
        let wait = Mutex<Duration?>(nil)
    }

    /// Begins to send and to play.
    ///
    /// - Throws: 10021 if a file cannot be written, 10022 for a test pattern that cannot be read.
    init(_ options: CallMediaOptions, _ session: ClientSession, call: String, log: Logger) throws(ApusError) {
        (self.call, self.session) = (call, session)
        recorder = try options.record.map { path throws(ApusError) in try MP4Recorder(path: path) }
        frames = try options.log.map { path throws(ApusError) in try FrameLog(path: path) }
        let viewer = Viewer(frames: frames, recorder: recorder) { error in
            log.warning("What the other side sends cannot be kept", metadata: Logger.facts(of: error))
        }
        let (first, begin) = (First(), MonotonicTime.now())
        let (arrivals, arrival) = AsyncStream<Void>.makeStream(bufferingPolicy: .bufferingOldest(1))
        (self.viewer, self.first) = (viewer, first)
        player = Player(
            session: session, call: call,
            onFrame: { frame in
                viewer.received(frame)
                guard !frame.header.flags.contains(.repeated) else { return }
                let isFirst = first.wait.withLock { wait in
                    defer { wait = wait ?? (.now() - begin) }
                    return wait == nil
                }
                if isFirst { arrival.yield() }
            },
            onEvent: { event in
                if case .ended(let error) = event {
                    log.debug("The other side is not played any more", metadata: Logger.facts(of: error))
                }
            })
        let connecting = Task {
            for await _ in arrivals { _ = try? await session.reportCallConnected(call) }
        }
        let agent = try options.source.source(log: log).map { source in
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
    /// - Throws: 10021 and 10026 if the recording failed.
    func end() async throws(ApusError) -> Report {
        for task in work { task.cancel() }
        for task in work { await task.value }
        player.stop()
        // The event loop calls nothing more of this call afterwards.
        let report = try? await session.eventLoop.submit { [viewer] in viewer.report }.get()
        frames?.close()
        let count = report?.frames ?? 0
        if count > 0 { _ = try recorder?.finish() }
        return Report(
            call: call, frames: count, bytes: report?.bytes ?? 0,
            first_frame_ms: first.wait.withLock { $0 }.map { Double($0.nanoseconds) / 1_000_000 })
    }
}

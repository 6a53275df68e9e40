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
    @Option(help: "Send this file in a loop, at its own pace.") var file: String?
    @Option(help: "Send a generated picture with a frame counter and a clock: WIDTHxHEIGHT@FPS.")
    var testPattern: String?
    @Option(help: "Record what the other side sends into this MP4 file, without re-encoding.") var record: String?
    @Option(help: "Write one JSON line for every frame that the other side sends to this file.") var log: String?

    func validate() throws {
        guard file == nil || testPattern == nil else {
            throw ValidationError("Use at most one of --file and --test-pattern.")
        }
    }

    /// Nothing is sent or kept: the call is reported as connected at once.
    var isEmpty: Bool { file == nil && testPattern == nil && record == nil && log == nil }

    func source(log: Logger) throws(ApusError) -> (any MediaSource)? {
        if let file { return FileSource(path: file, log: log) }
        return try testPattern.map { text throws(ApusError) in TestPatternSource(try TestPattern(parsing: text)) }
    }
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

    private struct Count {
        var frames = 0
        var bytes = 0
        var first: Duration?
    }

    let call: String
    private let session: ClientSession
    private let player: Player
    private let recorder: MP4Recorder?
    private let frames: FrameLog?
    private let sending: Task<Void, Never>?
    private let count: SharedCount

    private final class SharedCount: Sendable {
        let value = Mutex(Count())
    }

    /// Begins to send and to play.
    ///
    /// - Throws: 10021 if a file cannot be written, 10026 for a source that cannot be sent.
    init(_ options: CallMediaOptions, _ session: ClientSession, call: String, log: Logger) throws(ApusError) {
        (self.call, self.session) = (call, session)
        let recorder = try options.record.map { path throws(ApusError) in try MP4Recorder(path: path) }
        let frames = try options.log.map { path throws(ApusError) in try FrameLog(path: path) }
        let (count, begin) = (SharedCount(), MonotonicTime.now())
        (self.recorder, self.frames, self.count) = (recorder, frames, count)
        player = Player(
            session: session, call: call,
            onFrame: { frame in
                recorder?.write(frame)
                guard !frame.header.flags.contains(.repeated) else { return }
                frames?.append(frame)
                let isFirst = count.value.withLock { count in
                    defer { count.first = count.first ?? (MonotonicTime.now() - begin) }
                    count.frames += 1
                    count.bytes += frame.payload.readableBytes
                    return count.frames == 1
                }
                guard isFirst else { return }
                session.reportCallConnectedLater(call)
            },
            onEvent: { event in
                if case .ended(let error) = event { log.debug("The media of the call have ended: \(error)") }
            })
        sending = try options.source(log: log).map { source in
            let agent = DeviceAgent(session: session, source: source, call: call, log: log)
            return Task {
                do throws(ApusError) {
                    try await agent.run()
                } catch {
                    log.debug("This side of the call is not sent any more: \(error)")
                }
            }
        }
        player.start()
    }

    /// Ends both directions, and the recording.
    ///
    /// - Throws: 10021 and 10026 if the recording failed.
    func end() async throws(ApusError) -> Report {
        sending?.cancel()
        await sending?.value
        player.stop()
        // The event loop calls nothing more of this call afterwards.
        _ = try? await session.eventLoop.submit {}.get()
        frames?.close()
        let count = count.value.withLock { $0 }
        if count.frames > 0 { _ = try recorder?.finish() }
        return Report(
            call: call, frames: count.frames, bytes: count.bytes,
            first_frame_ms: count.first.map { Double($0.nanoseconds) / 1_000_000 })
    }
}

extension ClientSession {
    /// Reports from the event loop that media arrive.
    fileprivate func reportCallConnectedLater(_ call: String) {
        Task { _ = try? await reportCallConnected(call) }
    }
}

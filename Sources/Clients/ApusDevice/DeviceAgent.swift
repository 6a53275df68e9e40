public import ApusClient
public import ApusCore
import ApusMedia
import Foundation
public import Logging
import NIOCore
import Synchronization

/// A camera: reads media from a source and publishes it as one device's channel (IV-C1, IV-C9), or as a side of a call
/// (CALL-13).
///
/// Concurrency model: the source's thread delivers events, in order; the publisher handles them on the session's event
/// loop. ``run()`` waits for the end, and is called once.
public final class DeviceAgent: Sendable {
    private struct State {
        var source: any MediaSource
        /// Grows with each source. Events of earlier ones are ignored.
        var generation = 0
        var media = OutgoingMedia()
        var isRunning = false
    }

    private let session: ClientSession
    private let state: Mutex<State>
    private let frameLog: FrameLog?
    private let recording: RecordingWriter?
    private let log: Logger
    private let publisher: Publisher
    private let ending: AsyncStream<ApusError?>
    private let endingFeed: AsyncStream<ApusError?>.Continuation

    /// - Parameters:
    ///   - channel: the source's number on a device with several cameras (IV-C4).
    ///   - call: the session id of an accepted call, whose side is published instead. Apps do that too.
    ///   - frameLog: receives one line for every frame, once its epoch is known.
    ///   - recording: records what is sent, also while the cluster cannot be reached. It ends with ``run()``.
    public init(
        session: ClientSession, source: any MediaSource, channel: UInt16 = 0, call: String? = nil,
        frameLog: FrameLog? = nil, recording: RecordingWriter? = nil, log: Logger
    ) {
        self.session = session
        state = Mutex(State(source: source))
        (self.frameLog, self.recording) = (frameLog, recording)
        self.log = log
        let (ending, endingFeed) = AsyncStream<ApusError?>.makeStream()
        (self.ending, self.endingFeed) = (ending, endingFeed)
        let onNumbered: @Sendable (MediaFrame) -> Void = { frame in frameLog?.append(frame) }
        let onEvent: @Sendable (Publisher.Event) -> Void = { event in
            switch event {
            case .open(let isProtected):
                log.info("The cluster accepts the stream", metadata: ["apus.protected": "\(isProtected)"])
            case .ended(let error):
                endingFeed.yield(error)
            }
        }
        publisher =
            if let call {
                Publisher(session: session, call: call, onNumbered: onNumbered, onEvent: onEvent)
            } else {
                Publisher(session: session, source: channel, onNumbered: onNumbered, onEvent: onEvent)
            }
    }

    /// Publishes until the source ends, the stream is refused permanently, or the task is cancelled.
    ///
    /// - Throws: the error of the source or the cluster: 10026, 10024, 12004; −2508, −2522 and 8003 for a call.
    public func run() async throws(ApusError) {
        publisher.start()
        let (first, generation) = state.withLock { state in
            state.isRunning = true
            return (state.source, state.generation)
        }
        start(first, generation)
        var result: ApusError?
        for await error in ending {
            result = error
            break
        }
        let last = state.withLock { state in
            state.isRunning = false
            state.generation += 1
            return state.source
        }
        last.stop()
        if Task.isCancelled || result != nil {
            publisher.stop()
        } else {
            await publisher.finish()
        }
        await recording?.finish()
        if let result { throw result }
    }

    /// Sends nothing of this kind until it is sent again: the microphone is off, or the camera closed (IV-C7, IV-C8).
    /// Video goes on with its next key frame. May be called from any task.
    public func setMuted(_ kind: MediaKind, _ isMuted: Bool) { state.withLock { $0.media.setMuted(kind, isMuted) } }

    /// Sends another source from now on, such as that of another camera (IV-C8). May be called from any task.
    public func switchSource(to source: any MediaSource) {
        let (earlier, generation) = state.withLock { state in
            let earlier = state.source
            state.source = source
            state.generation += 1
            state.media.sourceChanged()
            return (earlier, state.isRunning ? state.generation : nil)
        }
        earlier.stop()
        if let generation { start(source, generation) }
    }

    private func start(_ source: any MediaSource, _ generation: Int) {
        source.start { [weak self] event in self?.received(event, generation) }
    }

    private func received(_ event: SourceEvent, _ generation: Int) {
        // The lock keeps the frames of two sources in order; sending does not wait.
        state.withLock { state in
            guard generation == state.generation else { return }
            switch event {
            case .configuration(let track, let configuration):
                state.media.configured(track, configuration)
                var payload = ByteBuffer()
                configuration.encode(into: &payload)
                record(track, 0, 0, UInt32(truncatingIfNeeded: Date().milliseconds), .configuration, payload)
                publisher.send(
                    track: track, ptsMicroseconds: 0, dtsDeltaMicroseconds: 0, flags: .configuration, payload: payload)
            case .frame(let track, let pts, let dtsDelta, let flags, let payload):
                guard let time = state.media.time(of: track, ptsMicroseconds: pts, flags: flags) else { return }
                // A source delivers what it captures at once.
                let capture = UInt32(truncatingIfNeeded: Date().milliseconds)
                record(track, time, dtsDelta, capture, flags, payload)
                publisher.send(
                    track: track, ptsMicroseconds: time, dtsDeltaMicroseconds: dtsDelta, captureMilliseconds: capture,
                    flags: flags, payload: payload)
            case .ended: endingFeed.yield(nil)
            case .failed(let error): endingFeed.yield(error)
            }
        }
    }

    private func record(
        _ track: UInt8, _ pts: Int64, _ dtsDelta: Int32, _ capture: UInt32, _ flags: MediaFlags, _ payload: ByteBuffer
    ) {
        guard let recording else { return }
        // A writer of files needs no position.
        let header = MediaHeader(
            position: FramePosition(epoch: 0, sequence: 0), ptsMicroseconds: pts, dtsDeltaMicroseconds: dtsDelta,
            captureMilliseconds: capture, flags: flags, track: track)
        recording.write(MediaFrame(header: header, payload: payload))
    }
}

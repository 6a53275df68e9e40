import ApusContract
public import ApusCore
import ApusDiagnosis
public import ApusMedia
import ApusWire
import Foundation
import Logging
import NIOCore
import SwiftProtobuf

/// Plays one channel, and resumes at its position when its connection is replaced (IV-C1, D7).
///
/// Every frame is delivered once, in order. Frames that a second node sends again are dropped by their position.
///
/// Concurrency model: confined to the session's event loop; callbacks are called on it.
public final class Player: SessionStream, @unchecked Sendable {  // SAFETY: confined to the session's loop.
    /// Events of a player other than frames.
    public enum Event: Sendable, Equatable {
        /// Frames arrive, or will.
        case live
        /// There is no publisher at the moment, or its node is being replaced.
        case waiting
        /// The node skipped frames because this viewer was too slow.
        case skipped(UInt64)
        /// The stream ended permanently.
        case ended(ApusError)
        /// The first frame has arrived. Comes once, before that frame.
        case began(Timing)
    }

    /// How long the steps to the first frame took, each since ``Player/start()`` (IV-G4).
    public struct Timing: Sendable, Equatable {
        /// The cluster has granted the stream: the client is connected and may play it.
        public internal(set) var granted: Duration?
        /// The first configuration has arrived: the header of the stream (IV-C9).
        public internal(set) var header: Duration?
        public internal(set) var firstFrame: Duration?

        public init() {}
    }

    private let session: ClientSession
    /// Nil for a call.
    private let device: DeviceID?
    private let source: UInt16
    /// The session id of a call; empty for a device's channel.
    private let call: String
    private let onFrame: @Sendable (MediaFrame) -> Void
    private let onEvent: @Sendable (Event) -> Void
    private var place = StreamPlace()
    private var last: FramePosition?
    /// Joins the parts of large pictures.
    private var joiner = FrameJoiner()
    /// The last node's grant. With it the stream is opened at another node without a delay.
    private var grant = Data()
    private var isOver = false
    private var began = MonotonicTime.now()
    private var timing = Timing()
    private let recording = StreamRecording()
    /// Frames of earlier runs of the publisher are not delivered.
    private var epochMin: UInt32 = 0
    /// What a ``PlaybackPlayer`` hears beside ``onEvent``.
    private let hooks: Hooks
    /// The steps of this player; nil before ``start()``, and for calls and recordings.
    private var trace: PlayTrace?
    private var renderer: MediaRenderer?
    private var reporting: RepeatedTask?

    /// Called on the session's event loop.
    package struct Hooks: Sendable {
        /// The cluster has granted the stream. Frames that the publisher sends from now on are not missed.
        package var onGranted: @Sendable () -> Void
        /// The publisher has ended the run of this number.
        package var onEndOfRun: @Sendable (UInt32) -> Void
        /// The player is a live stream, whose steps are reported.
        package var isTraced = false

        package init(
            onGranted: @escaping @Sendable () -> Void = {}, onEndOfRun: @escaping @Sendable (UInt32) -> Void = { _ in }
        ) {
            (self.onGranted, self.onEndOfRun) = (onGranted, onEndOfRun)
        }
    }

    /// Makes a player, which plays once ``start()`` is called.
    ///
    /// - Parameters:
    ///   - session: the session on which it plays.
    ///   - device: the device whose channel it plays.
    ///   - source: the number of the device's source.
    ///   - onFrame: called for every frame. A picture that was sent in parts is one frame. Frames with `.repeated` are
    ///     configurations that are sent again at the start of a join. They are not part of the sequence.
    ///   - onEvent: called for everything else.
    public convenience init(
        session: ClientSession, device: DeviceID, source: UInt16 = 0,
        onFrame: @escaping @Sendable (MediaFrame) -> Void, onEvent: @escaping @Sendable (Event) -> Void = { _ in }
    ) {
        var hooks = Hooks()
        hooks.isTraced = true
        self.init(
            session: session, device: device, source: source, call: "", hooks: hooks, onFrame: onFrame,
            onEvent: onEvent)
    }

    /// Makes a player of the other side of a call that was accepted (CALL-13). A client never plays its own side.
    ///
    /// It ends with −2508 when the call does, and with −2522 or 8003 if this client is not, or no longer, one of its
    /// sides.
    ///
    /// - Parameters:
    ///   - session: the session of the device or app.
    ///   - call: the session id of the call.
    ///   - onFrame: as ``init(session:device:source:onFrame:onEvent:)``, and so is `onEvent`.
    public convenience init(
        session: ClientSession, call: String, onFrame: @escaping @Sendable (MediaFrame) -> Void,
        onEvent: @escaping @Sendable (Event) -> Void = { _ in }
    ) {
        self.init(session: session, device: nil, source: 0, call: call, onFrame: onFrame, onEvent: onEvent)
    }

    /// - Parameters:
    ///   - device: nil for a call.
    ///   - call: empty for a device's channel.
    ///   - hooks: called beside `onEvent`.
    package init(
        session: ClientSession, device: DeviceID?, source: UInt16, call: String, hooks: Hooks = Hooks(),
        onFrame: @escaping @Sendable (MediaFrame) -> Void, onEvent: @escaping @Sendable (Event) -> Void
    ) {
        self.session = session
        self.device = device
        self.source = source
        self.call = call
        self.hooks = hooks
        self.onFrame = onFrame
        self.onEvent = onEvent
    }

    /// Starts playing: the live picture from its last key frame.
    public func start() {
        session.eventLoop.execute { [self] in
            began = .now()
            beginTrace()
            session.add(self)
        }
    }

    deinit {
        reporting?.cancel()
        guard let trace else { return }
        trace.note { $0.released(now: .now()) }
        session.report(trace)
    }

    /// Stops playing.
    public func stop() {
        session.eventLoop.execute { [self] in
            isOver = true
            session.remove(self)
            endTrace()
            if let (connection, stream) = place.current {
                connection.request(.stop, ClientStopRequest.with { $0.stream = stream }) { _ in }
            }
        }
    }

    // MARK: - The play session

    /// The steps of a renderer belong to this player: it decodes and renders what ``onFrame`` passes to it (IV-G3).
    /// Call it before ``start()``.
    public func attach(_ renderer: MediaRenderer) {
        session.eventLoop.execute { [self] in
            self.renderer = renderer
            if let trace { renderer.observe(trace) }
        }
    }

    private func beginTrace() {
        guard let device, hooks.isTraced, trace == nil else { return }
        let trace = PlayTrace(device: device.rawValue, source: source, log: session.log, now: began)
        self.trace = trace
        renderer?.observe(trace)
        trace.reached(.create, now: began)
        trace.reached(.connecting, now: began)
        let interval = TimeAmount(ReportPace.interval)
        reporting = session.eventLoop.scheduleRepeatedTask(initialDelay: interval, delay: interval) {
            [session] _ in session.report(trace)
        }
    }

    private func endTrace() {
        guard let trace else { return }
        reporting?.cancel()
        reporting = nil
        trace.reached(.stop)
        session.report(trace)
    }

    private func note(_ media: MediaFrame) {
        guard let trace, !media.header.flags.contains(.endOfEpoch) else { return }
        if media.header.flags.contains(.configuration) {
            guard let configuration = try? TrackConfiguration(decoding: media.payload) else { return }
            return trace.note { $0.configured(media.header.track, configuration, now: .now()) }
        }
        let isTracing = trace.isTracing
        trace.note {
            $0.received(media.header, byteCount: media.payload.readableBytes, isTracing: isTracing, now: .now())
        }
    }

    /// The play session at this moment; nil before ``start()``.
    func currentReport() async -> ClientPlayReport? {
        try? await session.eventLoop.submit { [self] in
            trace?.change { [session] in $0.linkChanged(isConnected: session.active != nil) }
            return trace?.report
        }.get()
    }

    /// Delivers no frame of a run before this one, from now on. A lower number than before has no effect.
    func skipRuns(before epoch: UInt32) {
        session.eventLoop.execute { [self] in epochMin = max(epochMin, epoch) }
    }

    // MARK: - Recording

    /// Records what is played into an MP4 file, from the next key frame on, without re-encoding (IV-C12). May be called
    /// from any thread; it opens the file.
    ///
    /// - Throws: 21034 if a recording is in progress, 10021 if the file cannot be written.
    public func startRecording(to path: String) throws(ApusError) { try recording.start(path) }

    /// Ends the recording. It goes on if the player stops.
    ///
    /// - Returns: the number of frames in the file; 0 if nothing was being recorded.
    /// - Throws: 10021 if the disk is full or failed, 10026 if nothing could be recorded.
    @discardableResult
    public func stopRecording() async throws(ApusError) -> Int { try await recording.stop() }

    func attach(to connection: ClientConnection, from retiring: ClientConnection?) {
        place.move(to: connection, from: retiring)
        open(on: connection)
    }

    /// Until the next node's frames arrive.
    var isMoving: Bool { place.previous != nil }

    private func open(on connection: ClientConnection) {
        let request = ClientPlayRequest.with {
            $0.device = device?.rawValue ?? ""
            $0.call = call
            $0.source = UInt32(source)
            $0.grant = grant
            if let last {
                $0.after.epoch = last.epoch
                $0.after.sequence = last.sequence
            }
        }
        connection.request(.play, request, trace: trace?.trace) { [weak self] result in
            guard let self, connection === place.connection, !isOver else { return }
            switch result {
            case .success(let bytes):
                guard let answer = try? ClientPlayResponse(bounded: bytes) else {
                    return
                }
                place.stream = answer.stream
                grant = answer.grant
                timing.granted = timing.granted ?? (.now() - began)
                trace?.reached(.connected)
                hooks.onGranted()
            case .failure(let error): refused(error, on: connection)
            }
        }
    }

    private func refused(_ error: ApusError, on connection: ClientConnection) {
        switch error.code {
        case let code where code.ends(.playing):
            isOver = true
            session.remove(self)
            trace?.note { $0.failed(.stream, error) }
            endTrace()
            onEvent(.ended(error))
        case .linkLost, .notConnected:
            break  // The session attaches the next connection.
        default:
            onEvent(.waiting)
            session.eventLoop.assumeIsolated().scheduleTask(in: Self.retryDelay) { [weak self] in
                guard let self, connection === place.connection, place.stream == nil, !isOver else { return }
                open(on: connection)
            }
        }
    }
    private static let retryDelay = TimeAmount.milliseconds(100)

    func received(_ frame: LinkFrame, on connection: ClientConnection) {
        if let previous = place.previous, connection === previous.connection {
            if frame.kind == .media, frame.correlation == previous.stream { received(frame) }
            return
        }
        guard connection === place.connection, let stream = place.stream else { return }
        if frame.kind == .media {
            guard frame.correlation == stream else { return }
            received(frame)
            if place.leavePrevious() { session.checkRetired() }
        } else if frame.kind == .tell, frame.method == ClientMethod.streamState.rawValue {
            guard let state = try? ClientStreamState(bounded: frame.payload),
                state.stream == stream
            else { return }
            switch state.state {
            case .live: onEvent(.live)
            case .waiting: onEvent(.waiting)
            case .skipped:
                trace?.change { $0.skipped(state.skipped) }
                onEvent(.skipped(state.skipped))
            case .ended:
                place.stream = nil
                refused(ApusError(state.failure), on: connection)
            case .unspecified, .UNRECOGNIZED: break
            }
        }
    }

    private func received(_ frame: LinkFrame) {
        guard let media = try? MediaFrame(decoding: frame.payload) else {
            return session.log.warning(
                "A media frame cannot be decoded", metadata: [LogKey.device: "\(device?.rawValue ?? call)"])
        }
        let isRepeated = media.header.flags.contains(.repeated)
        if !isRepeated {
            if let last, media.header.position <= last { return }
            last = media.header.position
        }
        guard media.header.position.epoch >= epochMin else { return }
        step(media)
        if media.header.flags.contains(.endOfEpoch) {
            onEvent(.waiting)
            return hooks.onEndOfRun(media.header.position.epoch)
        }
        guard let whole = joiner.add(media) else { return }
        recording.write(whole)
        onFrame(whole)
    }

    /// Notes when the stream began.
    private func step(_ media: MediaFrame) {
        note(media)
        guard timing.firstFrame == nil else { return }
        guard !media.header.flags.contains(.configuration) else {
            return timing.header = timing.header ?? (.now() - began)
        }
        guard !media.header.flags.contains(.endOfEpoch) else { return }
        timing.firstFrame = .now() - began
        onEvent(.began(timing))
    }

    func becameWritable(_ connection: ClientConnection) {}
}

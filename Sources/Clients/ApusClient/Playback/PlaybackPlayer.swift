public import ApusCore
public import ApusMedia
public import Foundation
import Synchronization

/// Plays what a device has recorded, from a time on (IV-C5, IV-C6, docs/recordings.md).
///
///     let player = PlaybackPlayer(session: session, device: device) { frame in renderer.render(frame) }
///     try await player.play(at: .now - 3600)
///     try await player.seek(to: .now - 1800)
///     await player.stop()
///
/// The device reads the recording and publishes it for this player alone. A frame's time, in
/// `MediaHeader.ptsMicroseconds`, counts from the start of the recording. A device plays a few recordings at a time,
/// and ends one whose player it has not heard of for a minute.
///
/// Concurrency model: an actor; one request at a time is in progress. Callbacks are called on the session's event loop.
public actor PlaybackPlayer {
    /// Events of a playback other than frames.
    public enum Event: Sendable, Equatable {
        /// Frames arrive, or will.
        case live
        /// No frames arrive at the moment: it is paused, or a node is being replaced.
        case waiting
        /// The node skipped frames because this viewer was too slow.
        case skipped(UInt64)
        /// The first frame has arrived, before that frame.
        case began(Player.Timing)
        /// The recording was played to its end. It can be played from another time.
        case finished
        /// The playback ended permanently: 20002 if the device has ended it, 20008 if the device heard nothing of this
        /// player for too long, 20009 if the device has restarted, 8003 if the right is lost, 20011 if the device was
        /// disabled.
        case ended(ApusError)
    }

    private struct Opened: Sendable {
        var player: Player
        var id: String
        var keeper: Task<Void, Never>
    }

    private enum Phase: Sendable {
        case closed
        case opening
        case open
    }

    /// What the event loop and the actor share.
    private struct Shared: Sendable {
        var phase = Phase.closed
        /// Why the stream was refused while it was being opened.
        var refusal: ApusError?
        var recording: Recording?
        /// Of the last frame, in microseconds from the start of the recording.
        var position: Int64?
        /// The run of the device's publisher that is played.
        var epoch: UInt32 = 0
        /// The newest run that has ended.
        var endedRun: UInt32 = 0
        /// The device goes to another time, and ends the run for that.
        var isSeeking = false
    }

    private let session: ClientSession
    private let device: DeviceID
    private let source: UInt16
    private let onFrame: @Sendable (MediaFrame) -> Void
    private let onEvent: @Sendable (Event) -> Void
    private let shared = Mutex(Shared())
    private let file = StreamRecording()
    private let turn = AsyncLock()
    private var opened: Opened?
    private var isPlaying = false

    /// The device hears of this player that often. It ends a playback after a minute without that.
    private static let keepInterval = Duration.seconds(20)
    private static let idleTime = Duration.seconds(60)

    /// Makes a player, which has no connection to the device yet.
    ///
    /// - Parameters:
    ///   - session: the session on which it plays.
    ///   - source: the number of the recorded source.
    ///   - onFrame: as that of a ``Player``.
    ///   - onEvent: called for everything else.
    public init(
        session: ClientSession, device: DeviceID, source: UInt16 = 0,
        onFrame: @escaping @Sendable (MediaFrame) -> Void, onEvent: @escaping @Sendable (Event) -> Void = { _ in }
    ) {
        (self.session, self.device, self.source) = (session, device, source)
        (self.onFrame, self.onEvent) = (onFrame, onEvent)
    }

    deinit {
        opened?.keeper.cancel()
        opened?.player.stop()
    }

    /// The recording that is played; nil before ``prepare(at:)``.
    public nonisolated var recording: Recording? { shared.withLock { $0.recording } }

    /// The time of the last frame; nil before the first one.
    public nonisolated var position: Date? {
        shared.withLock { shared in
            guard let start = shared.recording?.start, let position = shared.position else { return nil }
            return start.addingTimeInterval(Double(position) / 1_000_000)
        }
    }

    /// Opens the playback, so that ``play(at:)`` begins sooner. The first frame is shown then (IV-C6).
    ///
    /// - Returns: the recording that has this time, or the next one.
    /// - Throws: 21021 if it is open already, 21030 if the device offers no recordings, 21032 if it has none of this
    ///   time or later, 20007 if it plays as many recordings as it can, 20003 if it does not answer in time, 8003 and
    ///   12004 if this client may not control the device, otherwise as
    ///   ``ClientSession/performAction(_:json:on:timeout:)``.
    @discardableResult
    public func prepare(at time: Date) async throws(ApusError) -> Recording {
        await turn.acquire()
        defer { turn.release() }
        return try await open(at: time)
    }

    /// Plays from the key frame at this time, or before it, or from the start of the next recording.
    ///
    /// - Parameter time: nil: where ``prepare(at:)`` has opened it.
    /// - Throws: as ``prepare(at:)``; 21031 without a time if nothing is open.
    public func play(at time: Date? = nil) async throws(ApusError) {
        await turn.acquire()
        defer { turn.release() }
        forgetEnded()
        if opened == nil {
            guard let time else { throw ApusError(.badParameter, "a time is needed") }
            try await open(at: time)
        } else if let time {
            try await moved(to: time)
        }
        guard !isPlaying else { return }
        try await control(.resume)
        isPlaying = true
    }

    /// Goes on at another time. A paused playback remains paused, and shows the picture of that time.
    ///
    /// - Throws: 21023 if nothing is open, 21032 if nothing was recorded then or later, and as ``pause()``.
    public func seek(to time: Date) async throws(ApusError) {
        await turn.acquire()
        defer { turn.release() }
        try await moved(to: time)
    }

    /// Stops the frames until ``resume()``.
    ///
    /// - Throws: 21023 if nothing is open, 20002, 20008 and 20009 if the device has ended the playback, 20003 if it
    ///   does not answer in time, otherwise as ``ClientSession/performAction(_:json:on:timeout:)``.
    public func pause() async throws(ApusError) {
        await turn.acquire()
        defer { turn.release() }
        try await control(.pause)
        isPlaying = false
    }

    /// Goes on after ``pause()``, with the next frame. Throws as ``pause()``.
    public func resume() async throws(ApusError) { try await play() }

    /// Ends the playback. The device learns of it if it can be reached.
    public func stop() async {
        await turn.acquire()
        defer { turn.release() }
        guard let opened else { return }
        leave()
        _ = try? await ask(.init(.stop, opened.id))
    }

    /// Records what is played into an MP4 file, from the next key frame on (IV-C12).
    ///
    /// - Throws: 21034 if a recording is in progress, 10021 if the file cannot be written.
    public nonisolated func startRecording(to path: String) throws(ApusError) { try file.start(path) }

    /// Ends the recording. Returns and throws as ``Player/stopRecording()``.
    @discardableResult
    public nonisolated func stopRecording() async throws(ApusError) -> Int { try await file.stop() }

    // MARK: - The device

    @discardableResult
    private func open(at time: Date) async throws(ApusError) -> Recording {
        forgetEnded()
        guard opened == nil else { throw ApusError(.connectionExists, "this playback is open already") }
        let id = ClientSession.randomCommandID()
        let at = time.milliseconds
        guard (0...PlaybackMessages.timeMax).contains(at) else { throw ApusError(.badParameter, "no such time") }
        let answer = try await askOpened(.init(.open, id, source: source, at: at))
        let (granted, feed) = AsyncStream<Void>.makeStream(bufferingPolicy: .bufferingNewest(1))
        let player = makePlayer(of: answer.source, granted: feed)
        shared.withLock { ($0.phase, $0.refusal, $0.epoch, $0.endedRun) = (.opening, nil, 0, 0) }
        let recording = note(answer)
        player.skipRuns(before: answer.epoch)
        player.start()
        // The device sends frames once this player cannot miss them.
        let isGranted = await Self.isFirst(of: granted, within: Self.grantTime)
        let isOpen = shared.withLock { shared in
            // It may have been refused, or ended, since.
            guard isGranted, shared.phase == .opening else { return false }
            shared.phase = .open
            return true
        }
        guard isOpen else {
            player.stop()
            _ = try? await ask(.init(.stop, id))
            throw shared.withLock { shared in
                shared.phase = .closed
                return shared.refusal ?? ApusError(.openingTimedOut)
            }
        }
        opened = Opened(player: player, id: id, keeper: keeper(of: id))
        isPlaying = false
        return recording
    }

    private func makePlayer(of source: UInt16, granted: AsyncStream<Void>.Continuation) -> Player {
        Player(
            session: session, device: device, source: source, call: "",
            hooks: Player.Hooks(
                onGranted: { granted.yield() }, onEndOfRun: { [weak self] epoch in self?.ended(run: epoch) }),
            onFrame: { [weak self] frame in self?.received(frame) },
            onEvent: { [weak self] event in
                self?.received(event)
                if case .ended = event { granted.finish() }
            })
    }
    private static let grantTime = Duration.seconds(10)

    private func moved(to time: Date) async throws(ApusError) {
        let opened = try current()
        let at = min(max(0, time.milliseconds), PlaybackMessages.timeMax)
        shared.withLock { $0.isSeeking = true }
        defer {
            // The run may have ended meanwhile.
            let isFinished = shared.withLock { shared in
                shared.isSeeking = false
                return shared.endedRun >= shared.epoch
            }
            if isFinished { report(.finished) }
        }
        let answer = try await askOpened(.init(.seek, opened.id, at: at))
        opened.player.skipRuns(before: answer.epoch)
        note(answer)
    }

    private func control(_ verb: PlaybackMessages.Verb) async throws(ApusError) {
        _ = try await ask(.init(verb, try current().id))
    }

    /// The cluster may have ended the stream meanwhile.
    private func forgetEnded() {
        if shared.withLock({ $0.phase == .closed }) { leave() }
    }

    private func current() throws(ApusError) -> Opened {
        forgetEnded()
        guard let opened else { throw ApusError(.notConnected, "the playback is not open") }
        return opened
    }

    @discardableResult
    private func note(_ answer: PlaybackMessages.Opened) -> Recording {
        let recording = Recording(milliseconds: answer.start...max(answer.start, answer.end))
        shared.withLock { shared in
            shared.recording = recording
            // Frames of the new run may have come before this answer.
            if shared.epoch < answer.epoch { (shared.epoch, shared.position) = (answer.epoch, nil) }
        }
        return recording
    }

    private func askOpened(_ message: PlaybackMessages.Control) async throws(ApusError) -> PlaybackMessages.Opened {
        let answer = try await ask(message)
        guard let opened = PlaybackMessages.decoded(answer, as: PlaybackMessages.Opened.self) else {
            throw ApusError(.recordingListInvalid, "the device's answer cannot be read")
        }
        return opened
    }

    private func ask(_ message: PlaybackMessages.Control) async throws(ApusError) -> String {
        do throws(ApusError) {
            return try await session.askDevice(
                device, PlaybackMessages.playAction, try PlaybackMessages.json(message))
        } catch {
            if Self.endings.contains(error.code), message.verb != .open { over(error) }
            guard [.answerTimedOut, .peerTimedOut].contains(error.code) else { throw error }
            throw ApusError(.openingTimedOut)
        }
    }
    private static let endings: Set<ErrorCode> = [
        .hungUp, .connectionIdle, .destinationUnknown, .duplicateConnection, .illegalRelation, .notAllowed,
        .deviceDisabled, .targetUnknown, .notImplemented,
    ]

    private func keeper(of id: String) -> Task<Void, Never> {
        Task { [weak self] in
            var lastKept = MonotonicTime.now()
            while (try? await Task.sleep(for: Self.keepInterval)) != nil {
                guard let self else { return }
                // A failure that lasts has ended the playback. After another one the next round tries again, until the
                // device has given it up.
                if (try? await self.ask(.init(.keep, id))) != nil {
                    lastKept = .now()
                } else if MonotonicTime.now() - lastKept >= Self.idleTime {
                    return await self.over(ApusError(.connectionIdle, "the device was not reached for a minute"))
                }
            }
        }
    }

    private func leave() {
        guard let opened else { return }
        opened.keeper.cancel()
        opened.player.stop()
        shared.withLock { $0.phase = .closed }
        self.opened = nil
        isPlaying = false
    }

    private func over(_ error: ApusError) {
        guard opened != nil else { return }
        report(.ended(error))
        leave()
    }

    /// Nothing is reported before the playback is open, or after its end.
    private nonisolated func report(_ event: Event) {
        let isOpen = shared.withLock { shared in
            let isOpen = shared.phase == .open
            if case .ended(let error) = event {
                if shared.phase == .opening { shared.refusal = error }
                shared.phase = .closed
            }
            return isOpen
        }
        if isOpen { onEvent(event) }
    }

    // MARK: - On the event loop

    private nonisolated func received(_ frame: MediaFrame) {
        shared.withLock { shared in
            shared.epoch = max(shared.epoch, frame.header.position.epoch)
            if !frame.header.flags.contains(.configuration) { shared.position = frame.header.ptsMicroseconds }
        }
        file.write(frame)
        onFrame(frame)
    }

    private nonisolated func received(_ event: Player.Event) {
        switch event {
        case .live: report(.live)
        case .waiting: report(.waiting)
        case .skipped(let count): report(.skipped(count))
        case .began(let timing): report(.began(timing))
        case .ended(let error): report(.ended(error))
        }
    }

    /// The device ends a run when the recording is over, and before it plays from another time.
    private nonisolated func ended(run epoch: UInt32) {
        let isFinished = shared.withLock { shared in
            shared.endedRun = max(shared.endedRun, epoch)
            return !shared.isSeeking && epoch >= shared.epoch
        }
        if isFinished { report(.finished) }
    }

    private static func isFirst(of stream: AsyncStream<Void>, within time: Duration) async -> Bool {
        await withTaskGroup(of: Bool.self) { group in
            group.addTask {
                for await _ in stream { return true }
                return false
            }
            group.addTask {
                try? await Task.sleep(for: time)
                return false
            }
            defer { group.cancelAll() }
            return await group.next() ?? false
        }
    }
}

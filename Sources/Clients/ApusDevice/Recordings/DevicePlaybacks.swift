public import ApusClient
import ApusContract
import ApusCore
import Foundation
public import Logging
import Synchronization

/// Offers the recordings of a device to apps (IV-C5, docs/recordings.md): lists them, and plays up to four at a time.
///
/// Apps need the right to control the device. A playback is published as one of the device's sources from
/// ``sourceMin`` on, which only such apps may play.
///
/// Isolation: `Sendable`; ``run()`` is called once, before the commands are carried out.
public final class DevicePlaybacks: Sendable {
    /// The sources of playbacks.
    public static let sourceMin = ClientPlayRequest.playbackSourceMin

    private let session: ClientSession
    private let store: any RecordingStore
    private let log: Logger
    /// A device carries out one command at a time, so one request at a time is in progress.
    private let state: Mutex<State>

    private struct State {
        var table: PlaybackTable
        var playbacks: [Int: Playback] = [:]
    }

    private struct Playback {
        let source: UInt16
        var isPaused: Bool
        var feed: PlaybackFeed
    }

    /// How long the cluster has to accept a stream, and the disk to give the recording.
    private static let openTime = Duration.seconds(2)
    private static let expiryInterval = Duration.seconds(1)

    /// - Parameters:
    ///   - session: the device's own.
    ///   - commands: takes the requests of apps.
    ///   - store: what is offered, such as a ``RecordingFolder``.
    public convenience init(
        session: ClientSession, commands: DeviceCommands, store: any RecordingStore, log: Logger
    ) {
        self.init(session: session, commands: commands, store: store, limits: PlaybackTable.Limits(), log: log)
    }

    package init(
        session: ClientSession, commands: DeviceCommands, store: any RecordingStore, limits: PlaybackTable.Limits,
        log: Logger
    ) {
        (self.session, self.store, self.log) = (session, store, log)
        state = Mutex(State(table: PlaybackTable(limits: limits)))
        commands.onAction(PlaybackMessages.listAction) { [weak self] json throws(ApusError) in
            guard let self else { throw ApusError(.notImplemented) }
            return try list(json)
        }
        commands.onDelivery(PlaybackMessages.playAction) { [weak self] delivery throws(ApusError) in
            guard let self else { throw ApusError(.notImplemented) }
            return try await control(delivery)
        }
    }

    /// Ends playbacks that nobody uses any more, and erases recordings of a former account, until the task is
    /// cancelled. All playbacks end then, with 20002.
    public func run() async {
        await withDiscardingTaskGroup { group in
            group.addTask { await self.eraseFormer() }
            while (try? await Task.sleep(for: Self.expiryInterval)) != nil {
                let idle = state.withLock { state in
                    state.table.expire(now: .now()).compactMap { state.playbacks.removeValue(forKey: $0) }
                }
                for playback in idle { playback.feed.stop() }
            }
            group.cancelAll()
        }
        endAll()
    }

    /// Erases what was recorded for a former account, at the start and after each connection.
    private func eraseFormer() async {
        let connections = session.newConnections()
        await eraseOnce()
        for await _ in connections { await eraseOnce() }
    }

    private func eraseOnce() async {
        let since = try? await session.untilAnswered { [session] () throws(ApusError) in
            try await session.dataSince()
        }
        if let since { store.erase(before: since) }
    }

    /// Ends all playbacks, such as for the privacy of those that the camera sees. Their players receive 20002.
    public func endAll() {
        let playbacks = state.withLock { state in
            for place in state.table.places { state.table.end(place, .hungUp) }
            defer { state.playbacks = [:] }
            return state.playbacks
        }
        for playback in playbacks.values { playback.feed.stop() }
    }

    // MARK: - Requests

    private func list(_ json: String) throws(ApusError) -> String {
        guard let request = PlaybackMessages.decoded(json, as: PlaybackMessages.ListRequest.self),
            (0...PlaybackMessages.timeMax).contains(request.from), request.from <= request.to,
            request.to <= PlaybackMessages.timeMax
        else { throw ApusError(.jsonInvalid, "a source and two times are expected") }
        let limit = PlaybackMessages.listCountMax
        let found = store.recordings(
            of: request.source, from: Date(milliseconds: request.from), to: Date(milliseconds: request.to),
            limit: limit + 1)
        let times = found.prefix(limit).map { $0.start.milliseconds...$0.end.milliseconds }
        return try PlaybackMessages.json(PlaybackMessages.List(times, more: found.count > limit))
    }

    private func control(_ delivery: ClientCommandDelivery) async throws(ApusError) -> String {
        guard let request = PlaybackMessages.decoded(delivery.json, as: PlaybackMessages.Control.self),
            request.id.utf8.count == 32, request.at.map({ (0...PlaybackMessages.timeMax).contains($0) }) ?? true
        else { throw ApusError(.jsonInvalid, "a request about a playback is expected") }
        guard request.verb != .open else { return try await open(request, delivery.sender) }
        let (place, isRefused) = try state.withLock { state throws(ApusError) in
            let place = try state.table.heard(request.id, of: delivery.sender, now: .now())
            return (place, state.playbacks[place]?.feed.isRefused ?? false)
        }
        guard !isRefused else {
            end(place, .hungUp)
            throw ApusError(.hungUp)
        }
        switch request.verb {
        case .seek: return try await seek(to: request.at, at: place)
        case .pause: setPaused(true, place)
        case .resume: setPaused(false, place)
        case .stop: end(place, .hungUp)
        case .open, .keep: break
        }
        return "{}"
    }

    private func open(_ request: PlaybackMessages.Control, _ client: String) async throws(ApusError) -> String {
        guard let source = request.source, let at = request.at else {
            throw ApusError(.jsonInvalid, "a source and a time are expected")
        }
        let place = try state.withLock { state throws(ApusError) in
            try state.table.open(request.id, of: client, now: .now())
        }
        do throws(ApusError) {
            // It is paused until its player cannot miss a frame.
            let answer = try await play(source, at: at, place, isPaused: true, showsPicture: false)
            log.notice("A recording is played", metadata: ["apus.access": "\(client)"])
            return answer
        } catch {
            end(place, .hungUp)
            throw error
        }
    }

    private func seek(to time: Int64?, at place: Int) async throws(ApusError) -> String {
        guard let time, let playback = state.withLock({ $0.playbacks[place] }) else {
            throw ApusError(.jsonInvalid, "a time is expected")
        }
        return try await play(
            playback.source, at: time, place, isPaused: playback.isPaused, showsPicture: playback.isPaused)
    }

    /// Publishes a recording at a place, instead of what is published there.
    private func play(
        _ source: UInt16, at time: Int64, _ place: Int, isPaused: Bool, showsPicture: Bool
    ) async throws(ApusError) -> String {
        let wanted = Date(milliseconds: time)
        guard let recording = store.recording(of: source, at: wanted) else { throw ApusError(.recordingListEmpty) }
        let channel = Self.sourceMin + UInt16(place)
        let feed = PlaybackFeed(
            session: session, channel: channel, store: store, source: source, recording: recording,
            time: max(wanted, recording.start), isPaused: isPaused, showsPicture: showsPicture, log: log)
        state.withLock { state -> PlaybackFeed? in
            guard state.table.places.contains(place) else { return nil }
            let new = Playback(source: source, isPaused: isPaused, feed: feed)
            return state.playbacks.updateValue(new, forKey: place)?.feed
        }?.stop()
        let epoch: UInt32
        do throws(ApusError) {
            epoch = try await feed.start(within: Self.openTime)
        } catch {
            feed.stop()
            // It may have ended meanwhile: for its idleness, or by endAll().
            throw state.withLock { $0.playbacks[place]?.feed === feed } ? error : ApusError(.hungUp)
        }
        guard state.withLock({ $0.playbacks[place]?.feed === feed }) else {
            feed.stop()
            throw ApusError(.hungUp)
        }
        return try PlaybackMessages.json(
            PlaybackMessages.Opened(
                source: channel, epoch: epoch,
                recording: recording.start.milliseconds...recording.end.milliseconds))
    }

    private func setPaused(_ isPaused: Bool, _ place: Int) {
        state.withLock { state in
            state.playbacks[place]?.isPaused = isPaused
            return state.playbacks[place]?.feed
        }?.setPaused(isPaused)
    }

    private func end(_ place: Int, _ code: ErrorCode) {
        state.withLock { state in
            state.table.end(place, code)
            return state.playbacks.removeValue(forKey: place)?.feed
        }?.stop()
    }
}

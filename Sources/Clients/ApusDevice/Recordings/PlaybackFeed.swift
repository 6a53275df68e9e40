import ApusClient
import ApusCore
import ApusMedia
import ApusThreads
import Foundation
import Logging
import NIOCore
import Synchronization

/// Publishes one recording from one time on, at the pace of its frames.
///
/// Concurrency model: a thread reads and paces. The other methods may be called from any thread.
final class PlaybackFeed: Sendable {
    private struct State {
        var isPaused: Bool
        /// A picture is sent although it is paused.
        var showsPicture: Bool
        /// Frames are published from now on; nil until the cluster has accepted the stream.
        var epoch: UInt32?
        var waiting: CheckedContinuation<UInt32?, Never>?
        /// Waits until the recording is open, or cannot be opened.
        var reading: CheckedContinuation<ApusError?, Never>?
        /// It was stopped, or not opened in time.
        var isOver = false
        /// The cluster does not accept the stream any more.
        var isRefused = false
    }

    private let publisher: Publisher
    private let store: any RecordingStore
    private let source: UInt16
    private let recording: Recording
    private let time: Date
    private let log: Logger
    private let thread = SourceThread()
    private let state: Mutex<State>

    /// How often a paused feed looks whether it goes on.
    private static let pauseSlice = Duration.milliseconds(50)

    /// - Parameters:
    ///   - channel: the number of the source that it publishes.
    ///   - showsPicture: send one picture although it is paused.
    init(
        session: ClientSession, channel: UInt16, store: any RecordingStore, source: UInt16, recording: Recording,
        time: Date, isPaused: Bool, showsPicture: Bool, log: Logger
    ) {
        (self.store, self.source, self.recording, self.time, self.log) = (store, source, recording, time, log)
        let events = PublisherEvents()
        publisher = Publisher(session: session, source: channel, onEvent: { event in events.received(event) })
        state = Mutex(State(isPaused: isPaused, showsPicture: showsPicture))
        events.feed.withLock { $0.value = self }
    }

    /// Opens the stream, and begins to read.
    ///
    /// - Returns: the number of the run.
    /// - Throws: 20100 if the cluster has not accepted the stream in time, or the disk has not answered, 21032 if the
    ///   recording was removed, 10026 if it cannot be read.
    func start(within limit: Duration) async throws(ApusError) -> UInt32 {
        publisher.start()
        let timer = Task { [weak self] in
            guard (try? await Task.sleep(for: limit)) != nil else { return }
            self?.opened(nil)
            self?.opened(reader: ApusError(.deviceBusy, "the disk does not give the recording now"))
        }
        defer { timer.cancel() }
        let epoch = await withCheckedContinuation { continuation in
            let (isOpen, epoch) = state.withLock { state in
                if state.epoch == nil, !state.isOver { state.waiting = continuation }
                return (state.epoch != nil || state.isOver, state.epoch)
            }
            if isOpen { continuation.resume(returning: epoch) }
        }
        guard let epoch else {
            throw ApusError(.deviceBusy, "the cluster does not accept the stream of the recording now")
        }
        let failure = await withCheckedContinuation { continuation in
            state.withLock { $0.reading = continuation }
            thread.start(
                name: "apus-playback",
                onEnd: { [self] error in
                    opened(reader: error ?? ApusError(.hungUp))
                    ended(error)
                }, run: { [self] _ throws(ApusError) in try run() })
        }
        if let failure { throw failure }
        return epoch
    }

    /// The cluster does not accept the stream any more.
    var isRefused: Bool { state.withLock(\.isRefused) }

    func setPaused(_ isPaused: Bool) { state.withLock { $0.isPaused = isPaused } }

    /// Ends the stream at once: the next one of this channel may follow.
    func stop() {
        thread.stop()
        publisher.stop()
        opened(nil)
    }

    // MARK: - The stream

    fileprivate func received(_ event: Publisher.Event) {
        switch event {
        // On the event loop, where the epoch may be read.
        case .open: opened(publisher.epoch)
        case .ended(let error):
            log.notice("The stream of a recording has ended", metadata: Logger.facts(of: error))
            state.withLock { $0.isRefused = true }
            thread.stop()
            opened(nil)
        }
    }

    private func opened(_ epoch: UInt32?) {
        let waiting = state.withLock { state in
            state.epoch = state.epoch ?? epoch
            if epoch == nil { state.isOver = true }
            defer { state.waiting = nil }
            return state.waiting
        }
        waiting?.resume(returning: epoch)
    }

    // MARK: - Reading

    /// The recording is open, or why it is not. The first call counts.
    private func opened(reader failure: ApusError?) {
        let reading = state.withLock { state in
            defer { state.reading = nil }
            return state.reading
        }
        reading?.resume(returning: failure)
    }

    private func run() throws(ApusError) {
        let reader = try store.reader(of: source, in: recording, at: time)
        opened(reader: nil)
        // A player that has not joined the stream yet must not miss its end.
        defer { while isPaused, (MonotonicTime.now() + Self.pauseSlice).sleep(unless: { thread.isStopped }) {} }
        var anchor: (line: Int64, clock: MonotonicTime)?
        while !thread.isStopped {
            switch try reader.next() {
            case .configuration(let track, let configuration):
                var payload = ByteBuffer()
                configuration.encode(into: &payload)
                publisher.send(
                    track: track, ptsMicroseconds: 0, dtsDeltaMicroseconds: 0, flags: .configuration, payload: payload)
            case .frame(let track, let pts, let dtsDelta, let flags, let payload):
                if waitWhilePaused(before: flags) { anchor = nil }
                let line = pts + Int64(dtsDelta)
                let start = anchor ?? (line, .now())
                anchor = start
                let due = start.clock + .microseconds(line - start.line)
                guard !thread.isStopped, due.sleep(unless: { thread.isStopped }) else { return }
                publisher.send(
                    track: track, ptsMicroseconds: pts, dtsDeltaMicroseconds: dtsDelta, flags: flags, payload: payload)
            case .ended: return
            case .failed(let error): throw error
            }
        }
    }

    private var isPaused: Bool { state.withLock { $0.isPaused } }

    /// - Returns: true if it was paused.
    private func waitWhilePaused(before flags: MediaFlags) -> Bool {
        var wasPaused = false
        while !thread.isStopped {
            let isFree = state.withLock { state in
                guard state.isPaused else { return true }
                // One picture, and what comes before it.
                guard state.showsPicture else { return false }
                if flags.contains(.key) { state.showsPicture = false }
                return true
            }
            if isFree { return wasPaused }
            wasPaused = true
            _ = (MonotonicTime.now() + Self.pauseSlice).sleep(unless: { thread.isStopped })
        }
        return wasPaused
    }

    private func ended(_ error: ApusError?) {
        if let error { log.warning("A recording cannot be played further", metadata: Logger.facts(of: error)) }
        guard !thread.isStopped else { return }
        // Once the frames are at two nodes: the player is to have the last one.
        Task { [publisher] in await publisher.finish() }
    }
}

/// Passes the events of a publisher to what is made after it.
private final class PublisherEvents: Sendable {
    struct Feed: Sendable {
        weak var value: PlaybackFeed?
    }
    let feed = Mutex(Feed())

    func received(_ event: Publisher.Event) { feed.withLock(\.value)?.received(event) }
}

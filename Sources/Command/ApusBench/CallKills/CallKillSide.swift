import ApusClient
import ApusCore
import ApusMedia
import NIOCore
import Synchronization

/// One side of a call with media through all kills: sends numbered frames, and notes when those of the other side
/// arrive.
final class CallKillSide: Sendable {
    private struct State {
        var sent = 0
        var isPaused = false
        var arrivals: [(sequence: UInt64, at: MonotonicTime)] = []
        var doubled = 0
        var wrong = 0
        var end: ApusError?
    }

    private final class Shared: Sendable {
        let value = Mutex(State())
    }

    /// Of each frame, 25 a second: 200 kb/s.
    private static let frameByteCount = 1000
    private static let framesPerKey = 50

    let session: ClientSession
    private let own: DeviceID
    private let state: Shared
    private let publisher: Publisher
    private let player: Player

    /// - Parameters:
    ///   - own: what its frames are made of.
    ///   - peer: what those of the other side are made of.
    init(_ session: ClientSession, _ call: String, own: String, peer: String) {
        let (state, peer) = (Shared(), DeviceID(unchecked: peer))
        (self.session, self.state, self.own) = (session, state, DeviceID(unchecked: own))
        let note: @Sendable (ApusError) -> Void = { error in state.value.withLock { $0.end = $0.end ?? error } }
        publisher = Publisher(
            session: session, call: call, onEvent: { if case .ended(let error) = $0 { note(error) } })
        player = Player(
            session: session, call: call, onFrame: { frame in Self.received(frame, of: peer, state) },
            onEvent: { if case .ended(let error) = $0 { note(error) } })
    }

    private static func received(_ frame: MediaFrame, of peer: DeviceID, _ shared: Shared) {
        guard !frame.header.flags.contains(.repeated) else { return }
        let (sequence, now) = (frame.header.position.sequence, MonotonicTime.now())
        let isRight = frame.payload == BenchPublisher.payload(peer, Int(sequence), byteCount: frameByteCount)
        shared.value.withLock { state in
            if !isRight { state.wrong += 1 }
            if let last = state.arrivals.last?.sequence, sequence <= last { state.doubled += 1 }
            state.arrivals.append((sequence, now))
        }
    }

    func start() {
        publisher.start()
        player.start()
        let delay = TimeAmount.milliseconds(Int64.random(in: 0..<40))
        session.eventLoop.scheduleRepeatedTask(
            initialDelay: delay, delay: BenchPublisher.frameInterval
        ) { [state, publisher, own] task in
            let number = state.value.withLock { state -> Int? in
                guard !state.isPaused else { return nil }
                defer { state.sent += 1 }
                return state.sent
            }
            guard let number else { return task.cancel() }
            publisher.send(
                track: 0, ptsMicroseconds: Int64(number) * 40_000, dtsDeltaMicroseconds: 0,
                flags: number.isMultiple(of: Self.framesPerKey) ? .key : [],
                payload: BenchPublisher.payload(own, number, byteCount: Self.frameByteCount))
        }
    }

    /// Sends no further frames.
    func pause() { state.value.withLock { $0.isPaused = true } }

    func stop() {
        pause()
        publisher.stop()
        player.stop()
    }

    var sent: Int { state.value.withLock { $0.sent } }
    var received: Int { state.value.withLock { $0.arrivals.count } }
    /// The newest frame of the other side.
    var newest: UInt64? { state.value.withLock { $0.arrivals.last?.sequence } }
    /// Frames that came twice, or after a later one.
    var doubled: Int { state.value.withLock { $0.doubled } }
    var wrong: Int { state.value.withLock { $0.wrong } }
    /// The error with which the cluster has ended a direction.
    var end: ApusError? { state.value.withLock { $0.end } }

    /// Frames that are missing between the first one and the last one that the other side has sent.
    func lost(of sentCount: Int) -> Int {
        state.value.withLock { state in
            guard let first = state.arrivals.first?.sequence else { return sentCount }
            return max(0, sentCount - Int(first) - Set(state.arrivals.map(\.sequence)).count)
        }
    }

    /// The longest time between two arrivals that overlaps a window.
    func gap(from start: MonotonicTime, to end: MonotonicTime) -> Duration {
        let times = state.value.withLock { $0.arrivals.map(\.at) }
        var longest = Duration.zero
        for (previous, next) in zip(times, times.dropFirst()) where next >= start && previous <= end {
            longest = max(longest, next - previous)
        }
        // Silence until the end of the window also counts.
        if let last = times.last, last < end { longest = max(longest, end - last) }
        return longest
    }
}

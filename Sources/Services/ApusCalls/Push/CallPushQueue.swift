import ApusCore
import Synchronization

/// Apps that wait to be notified by push. The notifications of a call keep their order. A notification that is
/// tried again holds up those of its lane.
///
/// Concurrency model: any thread. Each lane has one reader. A `Mutex` guards the calls that are over.
final class CallPushQueue: Sendable {
    /// Notifications that wait in one lane. One more is dropped.
    private static let waitingMax = 1024
    private static let laneCount = 8

    let lanes: [AsyncStream<CallPush>]
    private let feeds: [AsyncStream<CallPush>.Continuation]
    /// Notifications whose end waits in a lane; true for those that were not sent.
    private let over = Mutex<[String: Bool]>([:])

    init() {
        let made = (0..<Self.laneCount).map { _ in
            AsyncStream<CallPush>.makeStream(bufferingPolicy: .bufferingOldest(Self.waitingMax))
        }
        (lanes, feeds) = (made.map(\.stream), made.map(\.continuation))
    }

    func yield(_ push: CallPush) {
        if push.over { over.withLock { $0[push.id] = false } }
        let lane = feeds[Int(push.id.hashValue.magnitude % UInt(Self.laneCount))]
        if case .enqueued = lane.yield(push) { return }
        if push.over { ended(push) }
    }

    /// The end of this notification waits behind it.
    func isOver(_ push: CallPush) -> Bool { over.withLock { $0[push.id] != nil } }

    /// The notification is not sent, since its end waits behind it.
    func skipped(_ push: CallPush) { over.withLock { if $0[push.id] != nil { $0[push.id] = true } } }

    func wasSkipped(_ push: CallPush) -> Bool { over.withLock { $0[push.id] ?? false } }

    /// The end of a notification was taken from its lane.
    func ended(_ push: CallPush) { over.withLock { $0[push.id] = nil } }
}

import ApusCore
import Synchronization

/// Apps that wait to be notified by push. What an app has to learn of a call keeps its order. A notification that is
/// tried again holds up those of its lane.
///
/// Concurrency model: any thread. Each lane has one reader. A `Mutex` guards the calls that are over.
final class CallPushQueue: Sendable {
    /// Notifications that wait in one lane. One more is dropped.
    private static let waitingMax = 1024
    private static let laneCount = 8

    let lanes: [AsyncStream<CallPush>]
    private let feeds: [AsyncStream<CallPush>.Continuation]
    /// Notifications whose end waits in a lane.
    private let over = Mutex<Set<String>>([])

    init() {
        let made = (0..<Self.laneCount).map { _ in
            AsyncStream<CallPush>.makeStream(bufferingPolicy: .bufferingOldest(Self.waitingMax))
        }
        (lanes, feeds) = (made.map(\.stream), made.map(\.continuation))
    }

    func yield(_ push: CallPush) {
        if push.over { over.withLock { _ = $0.insert(push.id) } }
        let lane = feeds[Int(push.id.hashValue.magnitude % UInt(Self.laneCount))]
        if case .enqueued = lane.yield(push) { return }
        if push.over { ended(push) }
    }

    /// The end of this notification waits behind it.
    func isOver(_ push: CallPush) -> Bool { over.withLock { $0.contains(push.id) } }

    /// The end of a notification was taken from its lane.
    func ended(_ push: CallPush) { over.withLock { _ = $0.remove(push.id) } }
}

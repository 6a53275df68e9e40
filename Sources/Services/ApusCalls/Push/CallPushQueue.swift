import ApusCore

/// Apps that wait to be notified by push. What an app has to learn of a call keeps its order. A store that cannot be
/// read holds up one lane's notifications only.
///
/// Concurrency model: any thread. Each lane has one reader.
final class CallPushQueue: Sendable {
    /// Notifications that wait in one lane. One more is dropped.
    private static let waitingMax = 1024
    private static let laneCount = 8

    let lanes: [AsyncStream<CallPush>]
    private let feeds: [AsyncStream<CallPush>.Continuation]

    init() {
        let made = (0..<Self.laneCount).map { _ in
            AsyncStream<CallPush>.makeStream(bufferingPolicy: .bufferingOldest(Self.waitingMax))
        }
        (lanes, feeds) = (made.map(\.stream), made.map(\.continuation))
    }

    func yield(_ push: CallPush) { feeds[Int(push.id.hashValue.magnitude % UInt(Self.laneCount))].yield(push) }
}

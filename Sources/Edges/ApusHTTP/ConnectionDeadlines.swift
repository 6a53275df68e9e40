import ApusCore
import CoreMetrics
import NIOCore
import Synchronization

/// The connections of a listener, by the time of the last write. A client that sends nothing, or sends a request byte
/// by byte, makes room for others (D13).
/// A connection without a write for ``timeout`` is closed: its client has not completed a request in that time, or is
/// idle. If nearly all places are taken, the connection with the oldest write is closed at once. Clients without a
/// request therefore cannot keep `/healthz` from an operator.
/// Concurrency: any thread; channels are closed on their own event loops.
final class ConnectionDeadlines: Sendable {
    private struct Entry {
        var channel: any Channel
        var since: MonotonicTime
    }

    /// The maximum time without a write to a connection.
    let timeout: Duration
    /// The number of connections from which on the one with the oldest write is closed.
    private let countMax: Int
    private let entries = Mutex<[ObjectIdentifier: Entry]>([:])
    private let displaced = Counter(label: "apus_http_displaced_total")
    private let late = Counter(label: "apus_http_late_total")

    /// - Parameter connectionsMax: the listener's maximum. A sixteenth of it stays free.
    init(connectionsMax: Int, timeout: Duration) {
        self.timeout = timeout
        countMax = connectionsMax - max(1, connectionsMax / 16)
    }

    /// The handler for a connection's pipeline.
    func handler() -> any RemovableChannelHandler { ConnectionDeadlineHandler(self) }

    fileprivate func add(_ channel: any Channel) {
        let oldest = entries.withLock { entries -> (any Channel)? in
            var oldest: (any Channel)?
            if entries.count >= countMax, let entry = entries.min(by: { $0.value.since < $1.value.since }) {
                entries.removeValue(forKey: entry.key)
                oldest = entry.value.channel
            }
            entries[ObjectIdentifier(channel)] = Entry(channel: channel, since: .now())
            return oldest
        }
        guard let oldest else { return }
        displaced.increment()
        oldest.close(promise: nil)
    }

    fileprivate func touch(_ channel: any Channel) {
        entries.withLock { $0[ObjectIdentifier(channel)]?.since = .now() }
    }

    fileprivate func remove(_ channel: any Channel) {
        entries.withLock { _ = $0.removeValue(forKey: ObjectIdentifier(channel)) }
    }

    fileprivate func closeLate(_ channel: any Channel) {
        late.increment()
        channel.close(promise: nil)
    }
}

/// Confined to the connection's event loop.
private final class ConnectionDeadlineHandler: ChannelOutboundHandler, RemovableChannelHandler {
    typealias OutboundIn = Any

    private let deadlines: ConnectionDeadlines
    private var lastWrite = NIODeadline.now()
    private var timer: Scheduled<Void>?

    init(_ deadlines: ConnectionDeadlines) { self.deadlines = deadlines }

    func handlerAdded(context: ChannelHandlerContext) {
        deadlines.add(context.channel)
        lastWrite = .now()
        schedule(context.channel, in: .nanoseconds(deadlines.timeout.nanoseconds))
    }

    func handlerRemoved(context: ChannelHandlerContext) {
        timer?.cancel()
        timer = nil
        deadlines.remove(context.channel)
    }

    func write(context: ChannelHandlerContext, data: NIOAny, promise: EventLoopPromise<Void>?) {
        lastWrite = .now()
        deadlines.touch(context.channel)
        context.write(data, promise: promise)
    }

    /// One timer serves many writes: when it fires, it checks the time of the last write.
    private func schedule(_ channel: any Channel, in time: TimeAmount) {
        let bound = NIOLoopBound(self, eventLoop: channel.eventLoop)
        timer = channel.eventLoop.assumeIsolated().scheduleTask(in: time) {
            let handler = bound.value
            let left = .nanoseconds(handler.deadlines.timeout.nanoseconds) - (NIODeadline.now() - handler.lastWrite)
            if left > .nanoseconds(0) {
                handler.schedule(channel, in: left)
            } else {
                handler.deadlines.closeLate(channel)
            }
        }
    }
}

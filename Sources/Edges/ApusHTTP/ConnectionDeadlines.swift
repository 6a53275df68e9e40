import ApusCore
import CoreMetrics
import NIOCore
import Synchronization

/// The connections of a listener in the order in which they last got something written: who says nothing, or a request
/// byte by byte, makes room for who asks (D13).
///
/// A connection on which nothing is written for ``timeout`` is closed: whoever opened it has not finished a request in
/// that time, or wants nothing more. Where nearly all places are taken, the connection that has waited for longest is
/// closed at once, so that clients without a request cannot keep `/healthz` from an operator.
///
/// Concurrency: any thread; channels are closed on their own event loops.
final class ConnectionDeadlines: Sendable {
    private struct Entry {
        var channel: any Channel
        var since: MonotonicTime
    }

    /// How long a connection may be without anything written to it.
    let timeout: Duration
    /// Connections from which on the one that waited for longest makes room.
    private let countMax: Int
    private let entries = Mutex<[ObjectIdentifier: Entry]>([:])
    private let displaced = Counter(label: "apus_http_displaced_total")
    private let late = Counter(label: "apus_http_late_total")

    /// - Parameter connectionsMax: of the listener, which takes no more than these; a sixteenth stays free.
    init(connectionsMax: Int, timeout: Duration) {
        self.timeout = timeout
        countMax = connectionsMax - max(1, connectionsMax / 16)
    }

    /// What a connection needs in its pipeline.
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

    /// One timer for many writes: when it fires it looks how long ago the last one was.
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

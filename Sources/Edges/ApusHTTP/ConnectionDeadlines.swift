import ApusCore
import ApusTraversal
import CoreMetrics
import NIOCore
import Synchronization

/// The connections of a listener, by the time since which each waits for its client. A client that sends nothing, or
/// sends a request byte by byte, makes room for others (D13).
///
/// A connection waits for its client from its last write on, until a complete request has come. If that takes
/// ``timeout``, it is closed: its client has not completed a request in that time, or is idle. If nearly all places are
/// taken, the connection that has waited longest is closed at once: one of the machine, or network, that has most
/// connections that wait. Clients without a request therefore cannot keep `/healthz` from an operator.
///
/// While a complete request is carried out, the connection waits for this node. It is then closed only after
/// ``runningTimeout``, and never for another.
///
/// Concurrency: any thread; channels are closed on their own event loops.
final class ConnectionDeadlines: Sendable {
    private struct Entry {
        var channel: any Channel
        var source: ConnectionSource
        var since: MonotonicTime
        /// A complete request is carried out.
        var isRunning = false
    }

    /// The maximum time without a write to a connection that waits for its client.
    let timeout: Duration
    /// The maximum time without a write to a connection whose request is carried out.
    let runningTimeout: Duration
    /// The number of connections from which on the one that has waited longest is closed.
    private let countMax: Int
    private let entries = Mutex<[ObjectIdentifier: Entry]>([:])
    private let displaced = Counter(label: "apus_http_displaced_total")
    private let late = Counter(label: "apus_http_late_total")

    /// - Parameters:
    ///   - connectionsMax: the listener's maximum. A sixteenth of it stays free.
    ///   - requestTimeoutMax: the longest time that a client may name for a request. ``timeout`` is added to it, so the
    ///     request's own error is written first.
    init(connectionsMax: Int, timeout: Duration, requestTimeoutMax: Duration) {
        self.timeout = timeout
        runningTimeout = requestTimeoutMax + timeout
        countMax = connectionsMax - max(1, connectionsMax / 16)
    }

    /// The handler for a connection's pipeline.
    func handler() -> ConnectionDeadlineHandler { ConnectionDeadlineHandler(self) }

    fileprivate func add(_ channel: any Channel) {
        let oldest = entries.withLock { entries -> (any Channel)? in
            var oldest: (any Channel)?
            if entries.count >= countMax, let key = Self.leastUseful(of: entries) {
                oldest = entries.removeValue(forKey: key)?.channel
            }
            entries[ObjectIdentifier(channel)] = Entry(
                channel: channel, source: ConnectionSource(channel.remoteAddress), since: .now())
            return oldest
        }
        guard let oldest else { return }
        displaced.increment()
        oldest.close(promise: nil)
    }

    /// Of the source that has most connections that wait for their client, the one that has waited longest; nil if all
    /// wait for this node.
    private static func leastUseful(of entries: [ObjectIdentifier: Entry]) -> ObjectIdentifier? {
        let waiting = entries.filter { !$0.value.isRunning }
        let counts = waiting.values.reduce(into: [ConnectionSource: Int]()) { $0[$1.source, default: 0] += 1 }
        let most = counts.values.max() ?? 0
        return waiting.filter { counts[$0.value.source] == most }.min { $0.value.since < $1.value.since }?.key
    }

    fileprivate func touch(_ channel: any Channel, isRunning: Bool) {
        entries.withLock { entries in
            entries[ObjectIdentifier(channel)]?.since = .now()
            entries[ObjectIdentifier(channel)]?.isRunning = isRunning
        }
    }

    fileprivate func remove(_ channel: any Channel) {
        entries.withLock { _ = $0.removeValue(forKey: ObjectIdentifier(channel)) }
    }

    fileprivate func closeLate(_ channel: any Channel) {
        late.increment()
        channel.close(promise: nil)
    }
}

/// Where a connection comes from: an IPv4 address, or the /64 network of an IPv6 address, since one machine has all of
/// its addresses.
struct ConnectionSource: Hashable, Sendable {
    private let network: UInt64
    private let family: TransportAddress.Family?

    init(_ address: SocketAddress?) {
        let address = address?.ipAddress.flatMap { TransportAddress($0, port: 0) }
        family = address?.family
        network = address.map { $0.family == .v4 ? $0.low : $0.high } ?? 0
    }

    /// As the key of a table.
    var text: String { "\(family == .v4 ? 4 : 6)/\(network)" }
}

/// The timer of a connection. It is below HTTP, and ``RequestWatchHandler`` tells it of requests and answers.
/// Confined to the connection's event loop.
final class ConnectionDeadlineHandler: ChannelInboundHandler, ChannelOutboundHandler, RemovableChannelHandler {
    typealias InboundIn = Any
    typealias OutboundIn = Any

    private let deadlines: ConnectionDeadlines
    /// The time of the last write, or at which the connection began to wait for its client or for this node.
    private var since = NIODeadline.now()
    /// The number of complete requests without a complete answer. It is -1 between an answer that was written before
    /// the end of its request, and that end.
    private var unansweredCount = 0
    /// An answer has begun and not ended.
    private var isAnswering = false
    private var isRunning = false
    /// The connection closes after the answer to the present request. What its client sends behind it is dropped.
    var isLastRequest = false
    private var isInputEnded = false
    private var timer: Scheduled<Void>?

    init(_ deadlines: ConnectionDeadlines) { self.deadlines = deadlines }

    func handlerAdded(context: ChannelHandlerContext) {
        deadlines.add(context.channel)
        since = .now()
        schedule(context.channel, in: .nanoseconds(deadlines.timeout.nanoseconds))
    }

    func handlerRemoved(context: ChannelHandlerContext) {
        timer?.cancel()
        timer = nil
        deadlines.remove(context.channel)
    }

    func write(context: ChannelHandlerContext, data: NIOAny, promise: EventLoopPromise<Void>?) {
        since = .now()
        deadlines.touch(context.channel, isRunning: isRunning)
        context.write(data, promise: promise)
    }

    func channelRead(context: ChannelHandlerContext, data: NIOAny) {
        if !isInputEnded { context.fireChannelRead(data) }
    }

    func channelWritabilityChanged(context: ChannelHandlerContext) {
        update(context.channel)
        context.fireChannelWritabilityChanged()
    }

    /// Drops what the client sends from now on.
    func endInput() { isInputEnded = true }

    func requestEnded(_ channel: any Channel) {
        unansweredCount += 1
        isInputEnded = isLastRequest
        update(channel)
    }

    func answerBegan(_ channel: any Channel) {
        isAnswering = true
        update(channel)
    }

    func answerEnded(_ channel: any Channel) {
        isAnswering = false
        unansweredCount -= 1
        update(channel)
    }

    /// A client that does not read its answers is waited for, whatever else it has asked.
    private func update(_ channel: any Channel) {
        let isRunning = unansweredCount > 0 && !isAnswering && channel.isWritable
        guard isRunning != self.isRunning else { return }
        self.isRunning = isRunning
        since = .now()
        deadlines.touch(channel, isRunning: isRunning)
    }

    /// One timer serves many writes: when it fires, it checks the time since the last. It never sleeps longer than an
    /// idle connection may live, because a request may be answered meanwhile.
    private func schedule(_ channel: any Channel, in time: TimeAmount) {
        let bound = NIOLoopBound(self, eventLoop: channel.eventLoop)
        timer = channel.eventLoop.assumeIsolated().scheduleTask(in: time) {
            let handler = bound.value
            let (timeout, deadlines) = (handler.deadlines.timeout, handler.deadlines)
            let allowed = handler.isRunning ? deadlines.runningTimeout : timeout
            let left = .nanoseconds(allowed.nanoseconds) - (NIODeadline.now() - handler.since)
            if left > .nanoseconds(0) {
                handler.schedule(channel, in: min(left, .nanoseconds(timeout.nanoseconds)))
            } else {
                deadlines.closeLate(channel)
            }
        }
    }
}

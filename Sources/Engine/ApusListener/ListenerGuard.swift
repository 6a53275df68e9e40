package import ApusCore
import CoreMetrics
import Logging
package import NIOCore

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Handles the errors of accept(2) for lack of descriptors or memory (EMFILE, ENFILE, ENOBUFS, ENOMEM). It is the first
/// handler of a server channel.
///
/// NIO leaves such a listener registered as readable and does not use its back-off. The event loop would then spin for
/// as long as a client waits. This handler does one of the following:
///
/// - A listener for clients refuses all waiting connections, with a descriptor that it reserved, and pauses
///   (``AcceptBackoff``).
/// - A listener for operators releases one of its reserved descriptors, so that the connection is served. If none is
///   left it pauses. It opens them again as soon as the system has any.
///
/// Each event is counted in `apus_listener_refused_total{listener,reason}`. At most one line in ten seconds is logged.
///
/// Concurrency model: confined to the channel's event loop. Listeners may share their reserved descriptors.
package final class ListenerGuard: ChannelInboundHandler, @unchecked Sendable {  // SAFETY: confined to the event loop.
    package typealias InboundIn = Channel

    /// The handling of connections for which there is no descriptor.
    package enum Policy: Sendable {
        case refuse, serve
    }

    private let listener: String
    private let policy: Policy
    private let reserve: ReservedDescriptors
    private let log: LogLimiter
    private let mayResume: @Sendable () -> Bool
    private var backoff = AcceptBackoff()
    private var isPaused = false
    private var isRefilling = false
    private static let refillInterval = TimeAmount.milliseconds(250)

    /// - Parameters:
    ///   - listener: the name in the log and in the metric.
    ///   - mayResume: called at the end of a pause, on the event loop. Returns true if the channel may read again.
    package init(
        listener: String, policy: Policy = .refuse, reserve: ReservedDescriptors, log: LogLimiter,
        mayResume: @escaping @Sendable () -> Bool = { true }
    ) {
        self.listener = listener
        self.policy = policy
        self.reserve = reserve
        self.log = log
        self.mayResume = mayResume
    }

    package func errorCaught(context: ChannelHandlerContext, error: any Error) {
        guard let error = error as? IOError, let reason = Self.reason(error.errnoCode) else {
            return context.fireErrorCaught(error)
        }
        if policy == .serve, reserve.release() {
            // The next turn of the loop accepts the waiting connection.
            refillLater(context)
            return
        }
        let descriptor = try? context.pipeline.syncOperations.withUnsafeTransportIfAvailable(of: CInt.self) { $0 }
        let count = policy == .refuse ? descriptor.map { reserve.refuse(waitingAt: $0) } ?? 0 : 0
        Self.counter(listener, reason).increment(by: Int64(max(1, count)))
        log.log(
            .warning, "A listener refuses connections: the system gives no descriptor or memory for them",
            metadata: [
                LogKey.listener: "\(listener)", LogKey.reason: "\(reason)", LogKey.count: "\(count)",
            ])
        pause(context)
    }

    /// The reason as a label of the metric; nil if the error is not an exhaustion.
    package static func reason(_ number: CInt) -> String? {
        switch number {
        case EMFILE: "process_descriptors"
        case ENFILE: "system_descriptors"
        case ENOBUFS, ENOMEM: "memory"
        default: nil
        }
    }

    private static func counter(_ listener: String, _ reason: String) -> Counter {
        Counter(label: "apus_listener_refused_total", dimensions: [("listener", listener), ("reason", reason)])
    }

    private func pause(_ context: ChannelHandlerContext) {
        let now = MonotonicTime.now()
        let next = backoff.exhausted(at: now)
        // Without autoRead the listener is not polled, and the event loop sleeps.
        try? context.channel.syncOptions?.setOption(.autoRead, value: false)
        guard !isPaused else { return }
        isPaused = true
        let channel = context.channel
        context.eventLoop.assumeIsolated().scheduleTask(in: .nanoseconds((next - now).nanoseconds)) { [self] in
            isPaused = false
            reserve.refill()
            if mayResume() { try? channel.syncOptions?.setOption(.autoRead, value: true) }
        }
    }

    private func refillLater(_ context: ChannelHandlerContext) {
        guard !isRefilling else { return }
        isRefilling = true
        context.eventLoop.assumeIsolated().scheduleTask(in: Self.refillInterval) { [self] in
            isRefilling = false
            if !reserve.refill(), context.channel.isActive { refillLater(context) }
        }
    }
}

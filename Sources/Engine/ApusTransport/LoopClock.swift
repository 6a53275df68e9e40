package import ApusCore
import CApusThreads
package import NIOCore
import NIOPosix

/// A clock of one event loop for deadlines that change with each frame.
///
/// NIO moves the kernel's timer to an earlier time only. A deadline that was postponed or cleared therefore still wakes
/// the thread, which costs some 100 µs with cold caches, and each frame of a camera changes several deadlines. This
/// clock has a timer of its own and moves it in both directions (docs/decisions/5).
///
/// Concurrency model: confined to `eventLoop`, except for its creation.
package final class LoopClock: @unchecked Sendable {  // SAFETY: confined to the event loop, as each method asserts.
    package let eventLoop: any EventLoop
    private let timer: CInt
    /// Reads the timer. The channel owns the descriptor.
    private let channel: EventLoopFuture<any Channel>
    private var heap = DeadlineHeap()
    /// The time at which the timer fires.
    private var armed = MonotonicTime(nanoseconds: .max)

    /// - Throws: 10007 if the process has no descriptor left.
    package init(on eventLoop: any EventLoop) throws(ApusError) {
        self.eventLoop = eventLoop
        timer = apus_timer_new()
        guard timer >= 0 else {
            throw ApusError(.overloaded, "no timer for an event loop: raise the limit of open files")
        }
        let handler = TimerHandler()
        channel = NIOPipeBootstrap(group: eventLoop)
            .channelInitializer { channel in
                channel.eventLoop.makeCompletedFuture { try channel.pipeline.syncOperations.addHandler(handler) }
            }
            .takingOwnershipOfDescriptor(input: timer)
        handler.clock = self
    }

    deinit { channel.whenSuccess { $0.close(promise: nil) } }

    /// Makes a deadline. It is not set yet.
    package func deadline(_ body: @escaping @Sendable () -> Void) -> LoopDeadline {
        LoopDeadline(clock: self, body: body)
    }

    fileprivate func set(_ deadline: LoopDeadline, _ time: MonotonicTime?) {
        eventLoop.assertInEventLoop()
        heap.set(deadline, time)
        arm()
    }

    /// Without a deadline the timer stays armed, and fires once without effect.
    private func arm() {
        guard let due = heap.first?.time else { return }
        guard due < armed || due - armed > Self.slack else { return }
        armed = due
        apus_timer_set(timer, due.nanoseconds)
    }
    /// The timer is not postponed by less than this, because each change is a system call.
    private static let slack = Duration.milliseconds(2)

    fileprivate func wentOff() {
        armed = MonotonicTime(nanoseconds: .max)
        let now = MonotonicTime.now()
        // Bounded: a deadline that is set again to a time in the past waits for the next call.
        for _ in 0..<heap.count {
            guard let first = heap.first, let time = first.time, time <= now else { break }
            heap.set(first, nil)
            first.body()
        }
        arm()
    }
}

/// An action at a time that can change. Made by ``LoopClock/deadline(_:)``.
///
/// Isolation: every member is used on the clock's event loop.
package final class LoopDeadline: @unchecked Sendable {  // SAFETY: confined to the clock's event loop.
    /// The time at which it fires; nil if it is not set or has fired.
    package fileprivate(set) var time: MonotonicTime?
    fileprivate var place = 0
    fileprivate let body: @Sendable () -> Void
    /// While the deadline is set, the clock and the deadline retain each other.
    private let clock: LoopClock

    fileprivate init(clock: LoopClock, body: @escaping @Sendable () -> Void) {
        self.clock = clock
        self.body = body
    }

    package func set(_ time: MonotonicTime) { clock.set(self, time) }
    /// Clears the deadline. Has no effect if it is not set.
    package func clear() { if time != nil { clock.set(self, nil) } }
}

/// A binary heap of deadlines, the earliest first. Each deadline stores its index, so any of them can be moved.
private struct DeadlineHeap {
    private var entries: [LoopDeadline] = []

    var first: LoopDeadline? { entries.first }
    var count: Int { entries.count }

    mutating func set(_ deadline: LoopDeadline, _ time: MonotonicTime?) {
        let wasSet = deadline.time != nil
        deadline.time = time
        switch (wasSet, time != nil) {
        case (false, false): break
        case (false, true):
            deadline.place = entries.count
            entries.append(deadline)
            rise(from: deadline.place)
        case (true, true): settle(at: deadline.place)
        case (true, false):
            let place = deadline.place
            let last = entries.removeLast()
            guard last !== deadline else { return }
            put(last, at: place)
            settle(at: place)
        }
    }

    private mutating func settle(at place: Int) {
        sink(from: place)
        rise(from: place)
    }

    private mutating func rise(from place: Int) {
        var place = place
        while place > 0, isEarlier(place, than: (place - 1) / 2) {
            swap(place, (place - 1) / 2)
            place = (place - 1) / 2
        }
    }

    private mutating func sink(from place: Int) {
        var place = place
        while true {
            let (left, right) = (2 * place + 1, 2 * place + 2)
            guard left < entries.count else { return }
            let child = right < entries.count && isEarlier(right, than: left) ? right : left
            guard isEarlier(child, than: place) else { return }
            swap(place, child)
            place = child
        }
    }

    private func isEarlier(_ one: Int, than other: Int) -> Bool {
        guard let time = entries[one].time, let otherTime = entries[other].time else { return false }
        return time < otherTime
    }

    private mutating func put(_ deadline: LoopDeadline, at place: Int) {
        entries[place] = deadline
        deadline.place = place
    }

    private mutating func swap(_ one: Int, _ other: Int) {
        let (first, second) = (entries[one], entries[other])
        put(first, at: other)
        put(second, at: one)
    }
}

/// Reads the timer of a ``LoopClock``.
///
/// Concurrency model: confined to the event loop. `clock` is set before the handler is added to the loop.
private final class TimerHandler: ChannelInboundHandler, @unchecked Sendable {  // SAFETY: confined to the event loop.
    typealias InboundIn = ByteBuffer
    weak var clock: LoopClock?
    func channelRead(context: ChannelHandlerContext, data: NIOAny) { clock?.wentOff() }
}

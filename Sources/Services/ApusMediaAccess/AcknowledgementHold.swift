package import ApusChannels
package import ApusContract
import ApusCore
package import ApusTransport

/// The acknowledgements of one published stream, on their way to the client. Each covers all before it, so one that
/// comes soon after another is held for the next, or sent a little later.
///
/// Concurrency model: confined to the clock's event loop.
package final class AcknowledgementHold: @unchecked Sendable {  // SAFETY: confined to the event loop.
    private let clock: LoopClock
    private let send: (ClientPublishAck) -> Void
    private var lastSent = MonotonicTime.zero
    private var held: ClientPublishAck?
    /// The time at which the held acknowledgement is sent anyway.
    private lazy var holdEnd = clock.deadline { [weak self] in
        if let ack = self?.held { self?.sendNow(ack) }
    }
    /// The shortest interval between acknowledgements. A frame of audio does not justify one.
    private static let interval = Duration.milliseconds(30)
    /// How long one is held. Longer than the interval of video frames, so that the next one replaces it.
    private static let holdMax = Duration.milliseconds(60)

    package init(_ clock: LoopClock, send: @escaping (ClientPublishAck) -> Void) {
        (self.clock, self.send) = (clock, send)
    }

    /// Sends the acknowledgement now or later.
    package func acknowledged(_ stream: StreamNumber, epoch: UInt32, next: UInt64) {
        var ack = ClientPublishAck()
        (ack.stream, ack.epoch, ack.next) = (stream, epoch, next)
        guard MonotonicTime.now() - lastSent < Self.interval else { return sendNow(ack) }
        if held == nil { holdEnd.set(.now() + Self.holdMax) }
        held = ack
    }

    /// The held acknowledgement is not sent: the stream has ended, or goes back.
    package func clear() {
        holdEnd.clear()
        held = nil
    }

    private func sendNow(_ ack: ClientPublishAck) {
        clear()
        lastSent = .now()
        send(ack)
    }
}

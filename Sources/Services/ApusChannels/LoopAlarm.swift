import ApusCore
package import NIOCore

/// Calls something on an event loop later, without the promise and future of `scheduleTask`: for clocks that are set
/// and cancelled with each frame.
package struct LoopAlarm: Sendable {
    private struct Handler: NIOScheduledCallbackHandler, Sendable {
        let body: @Sendable () -> Void
        func handleScheduledCallback(eventLoop: some EventLoop) { body() }
    }

    private let callback: NIOScheduledCallback

    /// Sets the alarm; nil where the loop has ended.
    package init?(on eventLoop: any EventLoop, in delay: Duration, _ body: @escaping @Sendable () -> Void) {
        let amount = TimeAmount.nanoseconds(max(delay, .zero).nanoseconds)
        let handler = Handler(body: body)
        guard let callback = try? eventLoop.scheduleCallback(in: amount, handler: handler) else { return nil }
        self.callback = callback
    }

    /// Takes the alarm back; harmless after it went off.
    package func cancel() { callback.cancel() }
}

public import ApusClient
public import ApusContract
public import ApusCore
import Synchronization

/// Applies ``FocusStateMachine`` at a device (docs/voice.md): its dialog, its timers, and the directives of other
/// devices of the room decide how loud its content is.
///
///     let focus = VoiceFocus { change in player.apply(change) }
///     callbacks.onState = { focus.phaseChanged($0) }
///     commands.onDirective { directive throws(ApusError) in
///         if !focus.take(directive) { … }
///     }
///     focus.acquire(.content, by: "music")
///     async let running: Void = focus.run(session, device)
///
/// Isolation: `Sendable`; the `Mutex` guards the machine. The callback is called from any task, one change after the
/// other, and must not block or call this object.
public final class VoiceFocus: Sendable {
    private struct State: Sendable {
        var machine = FocusStateMachine()
        /// The numbers of the timers that ring.
        var ringing: Set<Int> = []
    }

    private let state = Mutex(State())
    private let onChange: @Sendable (FocusStateMachine.Change) -> Void
    /// A duck has begun, whose end is to be waited for.
    private let wakes: AsyncStream<Void>
    private let feed: AsyncStream<Void>.Continuation

    private static let dialogUser = "dialog"
    /// The longest time for which another device makes this one quieter.
    public static let duckTimeMax = Duration.seconds(120)
    private static let pauses = (first: Duration.milliseconds(100), longest: Duration.seconds(5))

    public init(onChange: @escaping @Sendable (FocusStateMachine.Change) -> Void) {
        self.onChange = onChange
        (wakes, feed) = AsyncStream.makeStream(bufferingPolicy: .bufferingNewest(1))
    }

    /// The focus of a channel.
    public func focus(of channel: FocusStateMachine.Channel) -> FocusStateMachine.Focus {
        state.withLock { $0.machine.focus(of: channel) }
    }

    /// Something uses a channel from now on.
    public func acquire(_ channel: FocusStateMachine.Channel, by user: String) {
        apply { $0.acquire(channel, by: user) }
    }

    public func release(_ channel: FocusStateMachine.Channel, by user: String) {
        apply { $0.release(channel, by: user) }
    }

    /// The dialog of this device has another phase. It has the focus while it listens, thinks and speaks.
    public func phaseChanged(_ phase: ClientDialogPhase) {
        switch phase {
        case .listening, .thinking, .speaking: acquire(.dialog, by: Self.dialogUser)
        case .disconnected, .pending, .idle, .finished, .unspecified, .UNRECOGNIZED:
            release(.dialog, by: Self.dialogUser)
        }
    }

    /// The numbers of the timers of this device that ring: each is an alert.
    public var alerts: Set<Int> { state.withLock { $0.ringing } }

    /// These timers of the device ring, and no others.
    public func setAlerts(_ ringing: Set<Int>) {
        let before = state.withLock { state in
            defer { state.ringing = ringing }
            return state.ringing
        }
        for id in ringing.subtracting(before) { acquire(.alert, by: "timer-\(id)") }
        for id in before.subtracting(ringing) { release(.alert, by: "timer-\(id)") }
    }

    /// Carries out a directive, if it is one of the focus: `Focus.Duck` or `Focus.Restore`.
    ///
    /// - Returns: false for another directive.
    /// - Throws: 20102 if it is not valid.
    public func take(_ directive: ClientDialogDirective) throws(ApusError) -> Bool {
        guard directive.namespace.isExactly("Focus") else { return false }
        let payload = JSONValue(ArraySlice(directive.payload.utf8))
        guard let source = payload?["source"]?.string, (1...63).contains(source.utf8.count),
            let version = payload?["version"]?.string.flatMap({ UInt64($0) })
        else { throw ApusError(.jsonInvalid, "the directive has no source, or no version") }
        let now = MonotonicTime.now()
        switch directive.name {
        case "Duck":
            guard let time = payload?["forMs"]?.string.flatMap({ Int64($0) }), time > 0 else {
                throw ApusError(.jsonInvalid, "the directive has no time")
            }
            let until = now + min(.milliseconds(time), Self.duckTimeMax)
            apply { $0.duck(for: source, version: version, until: until, at: now) }
            feed.yield()
        case "Restore": apply { $0.restore(from: source, version: version, at: now) }
        default: return false
        }
        return true
    }

    /// Follows the timers of the device, and ends ducks in time, until the task is cancelled.
    public func run(_ session: ClientSession, _ device: DeviceID) async {
        await withDiscardingTaskGroup { group in
            group.addTask { await self.endDucks() }
            group.addTask { await self.follow(session, device) }
        }
    }

    /// Ends ducks in time, until the task is cancelled. ``run(_:_:)`` does so, too.
    package func endDucks() async {
        var wakes = self.wakes.makeAsyncIterator()
        while !Task.isCancelled {
            guard let next = state.withLock({ $0.machine.next }) else {
                if await wakes.next() == nil { return }
                continue
            }
            // A duck that begins meanwhile ends later than this one, or is seen after it.
            let pause = min(max(.zero, next - .now()), Self.lookInterval)
            guard (try? await Task.sleep(for: pause)) != nil else { return }
            apply { $0.advance(at: .now()) }
        }
    }
    /// How late a duck may end.
    private static let lookInterval = Duration.milliseconds(250)

    private func follow(_ session: ClientSession, _ device: DeviceID) async {
        var pauses = Backoff(first: Self.pauses.first, longest: Self.pauses.longest)
        repeat {
            let changes = session.timerChanges(of: device)
            do {
                try await readTimers(session, device)
                pauses.reset()
                for try await event in changes {
                    let timer = event.message.timer
                    let isRinging = timer.status == .ringing
                    if event.missed {
                        try await readTimers(session, device)
                    } else {
                        setAlerts(isRinging ? alerts.union([Int(timer.id)]) : alerts.subtracting([Int(timer.id)]))
                    }
                }
            } catch {
                // The session may be away: the timers are read again.
            }
        } while (try? await Task.sleep(for: pauses.next())) != nil
    }

    private func readTimers(_ session: ClientSession, _ device: DeviceID) async throws(ApusError) {
        let all = try await session.untilAnswered { () throws(ApusError) in try await session.timers(of: device) }
        setAlerts(Set(all.filter { $0.status == .ringing }.map(\.id)))
    }

    private func apply(_ change: (inout FocusStateMachine) -> [FocusStateMachine.Change]) {
        // Under the lock: the changes of two callers do not mix.
        state.withLock { state in
            for item in change(&state.machine) { onChange(item) }
        }
    }
}

import ApusCore

/// The bounds of timers and alarm clocks (VA-2).
package struct TimerConfiguration: Sendable, Hashable {
    /// Timers of one device that have not ended, at most 32; one more is refused with 10007. Key `timers.count_max`.
    package var countMax = 32
    /// How long a timer rings if no client stops it. Key `timers.ring_time`.
    package var ringTime: Duration = .seconds(60)
    /// A timer that became due while no node was up rings if it is less than this late. Otherwise it is missed. Key
    /// `timers.late_max`.
    package var lateMax: Duration = .seconds(600)

    package init() {}

    /// As the state machine has them.
    package var limits: TimerStateMachine.Limits {
        var limits = TimerStateMachine.Limits()
        limits.countMax = countMax
        limits.ringMilliseconds = Int64(ringTime.milliseconds)
        limits.lateMilliseconds = Int64(lateMax.milliseconds)
        return limits
    }
}

/// A change of the listening device's timers. The raw value is the path of a step.
enum TimerAction: String, Sendable {
    /// With a duration in milliseconds.
    case set
    /// With a time in Unix milliseconds.
    case alarm
    /// Each of these with the number of a timer.
    case cancel, pause, resume
    /// Silences those that ring.
    case stop
}

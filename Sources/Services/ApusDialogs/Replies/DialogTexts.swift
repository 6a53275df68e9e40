import ApusGrammar
import Foundation

/// The replies in a language.
///
/// Isolation: values; any thread.
protocol DialogTexts: Sendable {
    var notUnderstood: String { get }
    var tookTooLong: String { get }
    var nothingHeard: String { get }
    var help: String { get }
    var stopped: String { get }
    var cancelled: String { get }
    var nothingToConfirm: String { get }
    var nothingToRepeat: String { get }
    var whichArea: String { get }
    var tooMany: String { get }
    var noScreen: String { get }
    var noTimers: String { get }
    var noAlarms: String { get }
    var noSuchTime: String { get }
    var tooManyTimers: String { get }
    /// - Parameter now: Unix milliseconds.
    func time(_ now: Int64, _ zone: TimeZone) -> String
    func date(_ now: Int64, _ zone: TimeZone) -> String
    /// No device of the kind is in the area; nil: in the home.
    func none(_ area: String?) -> String
    func noSuch(_ name: String, in area: String?) -> String
    func which(_ choices: [(name: String, area: String?)]) -> String
    func cannot(_ name: String) -> String
    func neverByVoice(_ name: String) -> String
    func confirm(_ intent: VoiceIntent, _ names: [String]) -> String

    /// What a device is after a step: such as `on` or `at 40 percent`.
    func state(_ intent: VoiceIntent, _ step: DialogStep) -> String
    func done(_ name: String, _ state: String) -> String
    func already(_ name: String, _ state: String) -> String
    func sent(_ name: String) -> String
    func queued(_ name: String, _ state: String) -> String
    func offline(_ name: String) -> String
    func forbidden(_ name: String) -> String
    func failed(_ name: String) -> String
    func unknown(_ name: String) -> String
    /// - Parameter state: what is known of a device that is offline.
    func lastKnown(_ name: String, _ state: String) -> String
    /// Several devices have taken a state.
    func doneAll(_ count: Int, _ state: String) -> String

    /// A duration in seconds, such as `10 minutes`.
    func span(_ seconds: Int64) -> String
    /// A time as people say it, such as `7:00 AM tomorrow`. Both times are Unix milliseconds.
    func moment(_ due: Int64, _ now: Int64, _ zone: TimeZone) -> String
    func whichTimer(_ names: [String]) -> String
    /// - Parameter left: in seconds.
    func timersLeft(_ left: [(left: Int64, isPaused: Bool)]) -> String
    /// What was done with a timer or an alarm clock.
    func timer(_ action: TimerAction, _ name: String) -> String

    /// A directive was carried out.
    ///
    /// - Parameters:
    ///   - device: the device that has carried it out.
    ///   - other: the device that it names; empty: none.
    func directed(_ intent: VoiceIntent, _ device: String, _ other: String) -> String

    /// What a reading says.
    func reading(_ name: String, _ what: VoiceControl.What, _ value: String) -> String
    /// Whether a switch is on, open, locked or armed.
    func position(_ what: VoiceControl.What, isOn: Bool) -> String
    func answer(_ isSo: Bool, _ name: String, _ state: String) -> String
    func status(_ name: String, _ state: String) -> String
}

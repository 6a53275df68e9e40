import ApusContract
import ApusCore
import ApusGrammar
import Foundation
import SwiftProtobuf

// Timers and alarm clocks of the listening device (docs/timers.md).

extension SentenceReader {
    /// Sentences about timers that there are: the reader needs ``timers`` to read them.
    static let aboutTimers: Set<VoiceIntent> = [
        .timerCancel, .timerQuery, .timerPause, .timerResume, .alarmCancel,
    ]

    /// Whether the plan depends on ``timers``, which are not known yet.
    func needsTimers(_ plan: DialogPlan) -> Bool {
        timers.isEmpty && (VoiceIntent(rawValue: plan.intent).map(Self.aboutTimers.contains) ?? false)
    }

    func plan(forTimers intent: VoiceIntent, _ match: GrammarMatch) -> DialogPlan {
        switch intent {
        case .timerSet:
            let duration = duration(match)
            guard duration > 0 else { return reply(texts.notUnderstood, .notUnderstood) }
            return run(intent, [(.set, duration, texts.span(duration / 1000))])
        case .alarmSet:
            guard let due = HomeTime.due(match, now, home.timeZone) else { return reply(texts.noSuchTime, .refused) }
            return run(intent, [(.alarm, due, texts.moment(due, now, home.timeZone))])
        case .timerQuery: return query()
        case .timerCancel, .timerPause, .timerResume: return change(intent, match, .timer)
        case .alarmCancel: return change(intent, match, .alarm)
        default: return reply(texts.notUnderstood, .notUnderstood)
        }
    }

    private func run(
        _ intent: VoiceIntent, _ actions: [(action: TimerAction, number: Int64, name: String)]
    ) -> DialogPlan {
        let steps = actions.map { action, number, name in
            DialogStep.with {
                ($0.name, $0.device, $0.kind) = (hearing.name, speaker.rawValue, .timer)
                ($0.path, $0.json, $0.what) = (action.rawValue, "\(number)", name)
            }
        }
        return .with { ($0.intent, $0.steps) = (intent.rawValue, steps) }
    }

    /// In milliseconds.
    private func duration(_ match: GrammarMatch) -> Int64 {
        func part(_ slot: VoiceSlot, _ seconds: Int64) -> Int64 {
            (match.value(slot.rawValue).flatMap { Int64($0) } ?? 0) * seconds * 1000
        }
        return part(.hours, 3600) + part(.minutes, 60) + part(.seconds, 1)
    }

    private func query() -> DialogPlan {
        let known = timers.filter { $0.kind == .timer }
        guard !known.isEmpty else { return reply(texts.noTimers, .done) }
        let left = known.map { timer -> (left: Int64, isPaused: Bool) in
            let isPaused = timer.status == .paused
            return (max(0, (isPaused ? timer.remainingMs : timer.dueMs - now) / 1000), isPaused)
        }
        return reply(texts.timersLeft(left), .done)
    }

    /// Cancels, pauses or resumes. Which one is meant is not guessed.
    private func change(_ intent: VoiceIntent, _ match: GrammarMatch, _ kind: ClientTimerKind) -> DialogPlan {
        var found = timers.filter { $0.kind == kind }
        if let minutes = match.value(VoiceSlot.minutes.rawValue).flatMap({ Int64($0) }) {
            found = found.filter { $0.durationMs == minutes * 60_000 }
        }
        if kind == .alarm { found = found.filter { isMeant($0, match) } }
        if intent == .timerPause { found = found.filter { $0.status == .running } }
        if intent == .timerResume { found = found.filter { $0.status == .paused } }
        let isAll = match.value(VoiceSlot.count.rawValue) == "all"
        if found.count > 1, !isAll {
            let ringing = found.filter { $0.status == .ringing }
            guard ringing.count == 1 else { return reply(texts.whichTimer(found.map(name)), .refused) }
            found = ringing
        }
        guard !found.isEmpty else { return reply(kind == .timer ? texts.noTimers : texts.noAlarms, .refused) }
        let action: TimerAction =
            switch intent {
            case .timerPause: .pause
            case .timerResume: .resume
            default: .cancel
            }
        return run(intent, found.map { (action, Int64($0.id), name($0)) })
    }

    /// Whether a sentence about alarm clocks may mean this one.
    private func isMeant(_ alarm: ClientTimer, _ match: GrammarMatch) -> Bool {
        let (due, today) = (HomeTime(alarm.dueMs, home.timeZone), HomeTime(now, home.timeZone))
        if let (hours, minute) = HomeTime.clock(match) {
            guard hours.contains(where: { $0 % 24 == due.hour }), minute == nil || minute == due.minute else {
                return false
            }
        }
        return switch match.value(VoiceSlot.day.rawValue) {
        case "today"?: due.isSameDay(as: today)
        case "tomorrow"?: due.isSameDay(as: today.next(home.timeZone))
        case let name?: HomeTime.days[due.weekday] == name
        case nil: true
        }
    }

    private func name(_ timer: ClientTimer) -> String {
        timer.kind == .timer ? texts.span(timer.durationMs / 1000) : texts.moment(timer.dueMs, now, home.timeZone)
    }

    /// Ends what the device does: it stops talking, and what rings is silent.
    func planOfStop() -> DialogPlan { run(.stop, [(.stop, 0, "")]) }
}

extension HomeTime {
    static let days = ["sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"]

    /// The time of day in a sentence; nil: it names none. The hours are those that it may mean, and may be those of the
    /// next day (24 and above).
    static func clock(_ match: GrammarMatch) -> (hours: [Int], minute: Int?)? {
        func number(_ slot: VoiceSlot) -> Int? { match.value(slot.rawValue).flatMap { Int($0) } }
        guard let said = number(.hour), (0...23).contains(said) else { return nil }
        var (hours, minute) = ([said], number(.minute))
        switch match.value(VoiceSlot.period.rawValue) {
        case "am": hours = [said == 12 ? 0 : said]
        case "pm": hours = [said < 12 ? said + 12 : said]
        case "noon": hours = [said < 4 ? said + 12 : said]
        case "night":
            // Twelve at night is the end of the day; two at night is in the next one.
            hours = [said == 12 || said == 0 ? 24 : said < 6 ? said + 24 : said < 12 ? said + 12 : said]
        default: if (1...12).contains(said) { hours = [said % 12, said % 12 + 12] }
        }
        if match.value(VoiceSlot.direction.rawValue) == "to" {
            (hours, minute) = (hours.map { ($0 + 23) % 24 }, 60 - (minute ?? 0))
        }
        guard (0...59).contains(minute ?? 0) else { return nil }
        return (hours, minute)
    }

    /// When an alarm clock must ring, in Unix milliseconds; nil if the sentence names no time of the day, or one that
    /// is over today.
    ///
    /// Without a half of the day, an hour up to 12 is the next one, in the morning or in the evening.
    static func due(_ match: GrammarMatch, _ now: Int64, _ zone: TimeZone) -> Int64? {
        guard let (hours, minute) = clock(match) else { return nil }
        var calendar = Calendar(identifier: .gregorian)
        calendar.timeZone = zone
        let today = Date(timeIntervalSince1970: Double(now) / 1000)
        let day = match.value(VoiceSlot.day.rawValue)
        var found: [Int64] = []
        for offset in 0...8 {
            guard let date = calendar.date(byAdding: .day, value: offset, to: today) else { continue }
            switch day {
            case "today" where offset > 0, "tomorrow" where offset != 1: continue
            case let name? where name != "today" && name != "tomorrow":
                guard days[calendar.component(.weekday, from: date) - 1] == name else { continue }
            default: break
            }
            for hour in hours {
                guard let day = calendar.date(byAdding: .day, value: hour / 24, to: date),
                    let at = calendar.date(bySettingHour: hour % 24, minute: minute ?? 0, second: 0, of: day)
                else { continue }
                found.append(Int64(at.timeIntervalSince1970 * 1000))
            }
        }
        // A day that is named means its morning.
        return found.filter { $0 > now }.min()
    }
}

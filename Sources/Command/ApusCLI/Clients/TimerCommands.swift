import ApusClient
import ApusContract
import ApusCore
import ApusLocal
import ArgumentParser
import Foundation
import SwiftProtobuf

/// `apus timers`: timers and alarm clocks of devices (VA-2, docs/timers.md).
struct TimersCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "timers", abstract: "Show, set and stop the timers and alarm clocks of a device.",
        subcommands: [
            TimersList.self, TimersSet.self, TimersCancel.self, TimersPause.self, TimersResume.self, TimersStop.self,
            TimersWatch.self,
        ])
}

/// A timer as a row of a table.
private enum TimerRow {
    static let head = ["ID", "KIND", "STATUS", "RINGS", "LABEL"]

    static func row(_ timer: ClientTimer) -> [String] {
        ["\(timer.id)", kind(timer), "\(timer.status)", time(timer), timer.label]
    }

    static func kind(_ timer: ClientTimer) -> String { timer.kind == .alarm ? "alarm" : "timer" }

    /// When it rings, or what is left of a paused timer.
    private static func time(_ timer: ClientTimer) -> String {
        guard timer.status == .paused else {
            return Date(timeIntervalSince1970: Double(timer.dueMs) / 1000).ISO8601Format()
        }
        return "\(Double(timer.remainingMs) / 1000) s left"
    }

    static func line(_ timer: ClientTimer) -> String { row(timer).filter { !$0.isEmpty }.joined(separator: "  ") }
}

/// `apus timers list DEVICE`
struct TimersList: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "list", abstract: "List the timers of a device that have not ended.")
    @OptionGroup var options: PropertyOptions

    func run() async throws {
        try await options.run { [output = options.output] session, device throws(ApusError) in
            let found = try await session.ask(ClientListTimersRequest.with { $0.device = device.rawValue })
            let lines = TextTable.lines([TimerRow.head] + found.timers.map { TimerRow.row($0) })
            try output.show(found, found.timers.isEmpty ? ["No timers."] : lines)
        }
    }
}

/// `apus timers set DEVICE`
struct TimersSet: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "set", abstract: "Set a timer with --after, or an alarm clock with --at.")
    @OptionGroup var options: PropertyOptions
    @Option(help: "Ring after this duration, such as 90s, 15m, 12h or 7d.") var after: String?
    @Option(help: "Ring at this time, such as 2026-11-28T12:00:00Z, or Unix seconds.") var at: TimeArgument?
    @Option(help: "Set the name of the timer, at most 64 bytes.") var label = ""

    func validate() throws {
        guard (after == nil) != (at == nil) else { throw ValidationError("Use --after or --at.") }
        guard after.map({ AdminToken.span($0) != nil }) ?? true else {
            throw ValidationError("--after must be a duration such as 90s, 15m, 12h or 7d.")
        }
    }

    func run() async throws {
        let request = ClientSetTimerRequest.with {
            ($0.device, $0.label) = (options.device, label)
            if let span = after.flatMap({ AdminToken.span($0) }) { $0.durationMs = Int64(span.milliseconds) }
            if let at { $0.dueMs = Int64(at.date.timeIntervalSince1970 * 1000) }
        }
        try await options.run { [output = options.output] session, _ throws(ApusError) in
            let timer = try await session.ask(request)
            try output.show(timer, [TimerRow.line(timer)])
        }
    }
}

/// `apus timers cancel DEVICE ID`
struct TimersCancel: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "cancel", abstract: "Cancel a timer, those that ring, or all timers of a device.")
    @OptionGroup var options: PropertyOptions
    @Argument(help: "The timer's number, `ringing` or `all`.") var id: String

    func run() async throws {
        try await options.run { [output = options.output, id] session, device throws(ApusError) in
            let request = ClientCancelTimerRequest.with { ($0.device, $0.id) = (device.rawValue, id) }
            let ended = try await session.ask(request)
            let lines = ended.timers.map { "Cancelled \($0.id)." }
            try output.show(ended, lines.isEmpty ? ["Nothing to cancel."] : lines)
        }
    }
}

/// What the verbs about one timer take.
struct TimerOptions: ParsableArguments {
    @OptionGroup var options: PropertyOptions
    @Argument(help: "The timer's number.") var id: UInt32

    func change(_ change: ClientTimerChange) async throws {
        try await options.run { [output = options.output, id] session, device throws(ApusError) in
            let timer = try await session.ask(
                ClientChangeTimerRequest.with { ($0.device, $0.id, $0.change) = (device.rawValue, id, change) })
            try output.show(timer, [TimerRow.line(timer)])
        }
    }
}

/// `apus timers pause DEVICE ID`
struct TimersPause: AsyncParsableCommand {
    static let configuration = CommandConfiguration(commandName: "pause", abstract: "Pause a timer of a device.")
    @OptionGroup var options: TimerOptions

    func run() async throws { try await options.change(.pause) }
}

/// `apus timers resume DEVICE ID`
struct TimersResume: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "resume", abstract: "Let a paused timer of a device run again.")
    @OptionGroup var options: TimerOptions

    func run() async throws { try await options.change(.resume) }
}

/// `apus timers stop DEVICE`
struct TimersStop: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "stop", abstract: "Silence the timers of a device that ring.")
    @OptionGroup var options: PropertyOptions

    func run() async throws {
        try await options.run { [output = options.output] session, device throws(ApusError) in
            let ended = try await session.ask(ClientStopRingingRequest.with { $0.device = device.rawValue })
            let lines = ended.timers.map { "Stopped \($0.id)." }
            try output.show(ended, lines.isEmpty ? ["Nothing rings."] : lines)
        }
    }
}

/// `apus timers watch DEVICE`
struct TimersWatch: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "watch", abstract: "Print the events of a device's timers, one a line.")
    @OptionGroup var options: PropertyOptions
    @Option(help: "Stop after this number of seconds.") var seconds: Double?

    func run() async throws {
        try await options.run(seconds: seconds) { [output = options.output] session, device throws(ApusError) in
            do {
                for try await event in session.timerChanges(of: device) {
                    let timer = event.message.timer
                    let label = timer.label.isEmpty ? "" : " \(timer.label)"
                    try output.show(
                        event.message, ["\(event.message.kind) \(TimerRow.kind(timer)) \(timer.id)\(label)"])
                }
            } catch {
                throw error as? ApusError ?? ApusError(.internalFailure, "\(error)")
            }
        }
    }
}

import ApusClient
import ApusCore
import ArgumentParser
import Foundation

/// A time on the command line: `2026-11-28T12:00:00Z`, also with milliseconds, Unix seconds, or, if negative, seconds
/// before now.
struct TimeArgument: ExpressibleByArgument, Sendable {
    let date: Date

    init?(argument: String) {
        if let seconds = Double(argument) {
            guard seconds.isFinite else { return nil }
            date = seconds < 0 ? Date(timeIntervalSinceNow: seconds) : Date(timeIntervalSince1970: seconds)
        } else if let date = try? Date(argument, strategy: .iso8601) {
            self.date = date
        } else if let date = try? Date(argument, strategy: Date.ISO8601FormatStyle(includingFractionalSeconds: true)) {
            self.date = date
        } else {
            return nil
        }
    }
}

/// `apus recordings DEVICE`
struct RecordingsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "recordings",
        abstract: "List what a device has recorded. `apus watch DEVICE --at TIME` plays it.")
    @OptionGroup var options: PropertyOptions
    @Option(help: "Set the number of the recorded source.") var source: UInt16 = 0
    @Option(help: "List recordings from this time on, as --at of `apus watch`. Default: a day ago.")
    var from: TimeArgument?
    @Option(help: "List recordings until this time. Default: now.") var to: TimeArgument?

    private struct Report: Encodable {
        struct Entry: Encodable {
            var start: String
            var end: String
            var seconds: Double
        }
        var recordings: [Entry]
    }

    func run() async throws {
        let from = from?.date ?? Date(timeIntervalSinceNow: -86_400)
        let to = to?.date ?? Date()
        try await options.run { [output = options.output, source] session, device throws(ApusError) in
            let found = try await session.recordings(of: device, source: source, from: from, to: to)
            let entries = found.map { recording in
                Report.Entry(
                    start: TimeText.exact(recording.start), end: TimeText.exact(recording.end),
                    seconds: (recording.duration * 1000).rounded() / 1000)
            }
            let lines = found.map { recording in
                "\(recording.start.ISO8601Format())  \(recording.end.ISO8601Format())  "
                    + "\((recording.duration * 10).rounded() / 10) s"
            }
            try output.show(Report(recordings: entries), lines.isEmpty ? ["Nothing was recorded."] : lines)
        }
    }
}

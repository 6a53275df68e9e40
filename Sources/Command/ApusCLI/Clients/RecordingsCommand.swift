import ApusClient
import ApusContract
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
        abstract: "List what a device, or the cluster, has recorded. `apus watch DEVICE --at TIME` plays the device's.")
    @OptionGroup var options: PropertyOptions
    @Option(help: "Set the number of the recorded source.") var source: UInt16 = 0
    @Option(help: "List recordings from this time on, as --at of `apus watch`. Default: a day ago.")
    var from: TimeArgument?
    @Option(help: "List recordings until this time. Default: now.") var to: TimeArgument?
    @Flag(help: "List the recordings in the cluster: the days that have some, and the times from --from to --to.")
    var cluster = false

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
        guard !cluster else { return try await listCluster(from, to) }
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
    private struct ClusterReport: Encodable {
        struct Entry: Encodable {
            var start: String
            var end: String
            var seconds: Double
            /// Why it ended; null if it continues.
            var reason: String?
        }
        var days: [String]
        var recordings: [Entry]
    }

    /// The longest range that one request lists, in seconds.
    private static let dayLength: TimeInterval = 86_400

    private func listCluster(_ from: Date, _ to: Date) async throws {
        try await options.run { [output = options.output, source] session, device throws(ApusError) in
            let channel = ClientSession.RecordedSource(device, source: source)
            let days = try await session.clusterRecordingDays(of: channel)
            var (found, start) = ([ClientSession.ClusterRecording](), from)
            while start < to {
                let end = min(to, start + Self.dayLength)
                found += try await session.clusterRecordings(of: channel, from: start, to: end)
                start = end
            }
            let entries = found.map { recording in
                ClusterReport.Entry(
                    start: TimeText.exact(recording.start), end: TimeText.exact(recording.end),
                    seconds: (recording.end.timeIntervalSince(recording.start) * 1000).rounded() / 1000,
                    reason: Self.reason(recording.reason))
            }
            let report = ClusterReport(days: days.map { $0.ISO8601Format() }, recordings: entries)
            let lines = entries.map { "\($0.start)  \($0.end)  \($0.seconds) s  \($0.reason ?? "")" }
            let head = days.isEmpty ? "No day has recordings." : "Days: \(report.days.joined(separator: ", "))"
            try output.show(report, [head] + lines)
        }
    }

    private static func reason(_ end: ClientRecordingEnd) -> String? {
        switch end {
        case .unspecified, .UNRECOGNIZED: nil
        case .epoch: "the device connected again"
        case .configuration: "its codecs changed"
        case .gap: "frames are missing"
        case .clock: "its clock made a step"
        case .stopped: "the stream ended"
        case .limit: "a limit was reached"
        case .event: "the event ended"
        case .deleted: "the rest was deleted"
        }
    }
}

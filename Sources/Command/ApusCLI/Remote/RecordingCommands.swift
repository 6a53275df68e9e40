import ApusClient
import ApusContract
import ApusCore
import ApusLocal
import ArgumentParser
import Foundation
import SwiftProtobuf

// Recordings in the cluster (docs/cluster-recordings.md).

/// The channel that a verb concerns.
struct RecordingOptions: ParsableArguments {
    @Argument(help: "The device's id.") var device: String
    @Option(help: "Set the number of the source.") var source: UInt16 = 0
    @OptionGroup var operators: OperatorOptions
}

/// A stretch of time of recordings.
struct RecordingRangeOptions: ParsableArguments {
    @Option(help: "The start, as --at of `apus watch`.") var from: TimeArgument
    @Option(help: "The end. Default: now.") var to: TimeArgument?
    @Option(help: "Use the recordings of this account. Default: that of the device.") var account = ""

    var start: Int64 { Int64(from.date.timeIntervalSince1970) }
    var end: Int64 { Int64((to?.date ?? Date()).timeIntervalSince1970.rounded(.up)) }

    func validate() throws {
        guard end > start, start > 0 else { throw ValidationError("--to must be behind --from.") }
    }
}

/// `apus record DEVICE on|off|status`
struct RecordCommand: AsyncParsableCommand {
    enum Verb: String, ExpressibleByArgument, CaseIterable { case on, off, status }

    static let configuration = CommandConfiguration(
        commandName: "record", abstract: "Record a device in the cluster, or show how it is recorded.",
        discussion: "`off` ends the recording. What is recorded is kept for its days.")
    @OptionGroup var options: RecordingOptions
    @Argument(help: "on, off or status.") var verb: Verb
    @Option(help: "Keep recordings for this number of days, 1 to 3650.") var days: UInt32 = 7
    @Option(help: "Keep at most this many MiB; 0: no bound of this channel's own.") var size: UInt64 = 0
    @Option(help: "Record until this time. Default: without an end.") var until: TimeArgument?

    func validate() throws {
        guard (1...3650).contains(days), size <= 1 << 40 else {
            throw ValidationError("--days must be 1 to 3650, and --size at most 1099511627776.")
        }
    }

    func run() async throws {
        let api = try await options.operators.api()
        let (device, source) = (options.device, UInt32(options.source))
        let plan: ClientRecordingPlan =
            switch verb {
            case .status:
                try await api.ask(ClientGetRecordingPlanRequest.with { ($0.device, $0.source) = (device, source) })
            case .off:
                try await api.ask(ClientEndRecordingPlanRequest.with { ($0.device, $0.source) = (device, source) })
            case .on:
                try await api.ask(
                    ClientSetRecordingPlanRequest.with {
                        ($0.device, $0.source, $0.days) = (device, source, days)
                        ($0.mode, $0.bytesMax) = (.continuous, size << 20)
                        $0.end = until.map { Int64($0.date.timeIntervalSince1970) } ?? 0
                    })
            }
        try options.operators.output.show(plan, TextTable.lines(Self.table(plan)))
    }

    private static func table(_ plan: ClientRecordingPlan) -> [[String]] {
        let status =
            switch plan.status {
            case .inUse: "recorded"
            case .history: "not recorded, has recordings"
            case .expired, .unspecified, .UNRECOGNIZED: "not recorded"
            }
        func time(_ seconds: Int64) -> String {
            seconds == 0 ? "-" : Date(timeIntervalSince1970: Double(seconds)).ISO8601Format()
        }
        let mode = plan.mode == .event ? "event" : plan.mode == .continuous ? "continuous" : "-"
        return [
            ["DEVICE", "STATUS", "MODE", "DAYS", "SINCE", "UNTIL", "OLDEST", "BYTES"],
            [
                "\(plan.device)/\(plan.source)", status, mode, plan.playbackDays == 0 ? "-" : "\(plan.playbackDays)",
                time(plan.curOrderStartTime), time(plan.curOrderEndTime), time(plan.playbackStartTime),
                "\(plan.bytes)",
            ],
        ]
    }
}

/// `apus protect DEVICE --from TIME --to TIME`
struct ProtectCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "protect", abstract: "Keep recordings in the cluster beyond their days.")
    @OptionGroup var options: RecordingOptions
    @OptionGroup var range: RecordingRangeOptions
    @Option(help: "Keep them until this time. Default: without an end.") var until: TimeArgument?
    @Flag(help: "End the protection.") var off = false

    func run() async throws {
        let api = try await options.operators.api()
        var (start, total) = (range.start, ClientProtectRecordingsResponse())
        while true {
            let answer = try await part(from: start, api)
            total.count += answer.count
            total.bytes += answer.bytes
            (total.done, total.endTime) = (answer.done, answer.endTime)
            guard !answer.done, answer.endTime > start, answer.endTime < range.end else { break }
            start = answer.endTime
        }
        let what = off ? "not protected any more" : "protected"
        try options.operators.output.show(total, ["\(total.count) segments with \(total.bytes) bytes are \(what)."])
    }

    private func part(from start: Int64, _ api: ClusterAPI) async throws -> ClientProtectRecordingsResponse {
        let (device, source, account) = (options.device, UInt32(options.source), range.account)
        guard !off else {
            return try await api.ask(
                ClientUnprotectRecordingsRequest.with {
                    ($0.device, $0.source, $0.account) = (device, source, account)
                    ($0.start, $0.end) = (start, range.end)
                })
        }
        return try await api.ask(
            ClientProtectRecordingsRequest.with {
                ($0.device, $0.source, $0.account) = (device, source, account)
                ($0.start, $0.end) = (start, range.end)
                $0.until = until.map { Int64($0.date.timeIntervalSince1970) } ?? 0
            })
    }
}

/// `apus export DEVICE --from TIME --to TIME FILE`
struct ExportCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "export", abstract: "Save recordings of the cluster as MP4 files.",
        discussion: "A stretch of more than a day, or of very many segments, becomes several files: FILE, FILE-2, ….")
    @OptionGroup var options: RecordingOptions
    @OptionGroup var range: RecordingRangeOptions
    @Argument(help: "The file to write. It must not exist.") var file: String

    private struct Report: Encodable {
        struct File: Encodable {
            var file: String
            var start: Int64
            var end: Int64
            var bytes: Int
        }
        var files: [File] = []
    }

    func run() async throws {
        let api = try await options.operators.api()
        var (start, report) = (range.start, Report())
        while start < range.end {
            let answer = try await api.ask(
                ClientGetRecordingAddressRequest.with {
                    ($0.device, $0.source, $0.account) = (options.device, UInt32(options.source), range.account)
                    ($0.start, $0.end) = (start, range.end)
                })
            if let path = Self.path(answer.exportURL) {
                let name = report.files.isEmpty ? file : Self.name(file, report.files.count + 1)
                let byteCount = try await Self.save(path, as: name, api)
                report.files.append(
                    Report.File(file: name, start: answer.startTime, end: answer.endTime, bytes: byteCount))
            }
            guard !answer.endflag, answer.endTime > start else { break }
            start = answer.endTime
        }
        guard !report.files.isEmpty else {
            throw ApusError(.targetUnknown, "there is no recording of this time in the cluster")
        }
        let lines = report.files.map { "Wrote \($0.file), \($0.bytes) bytes." }
        try options.operators.output.show(report, lines)
    }

    /// The path of an address, of which the host may be another one than this program uses. Nil if there is none.
    private static func path(_ url: String) -> String? {
        guard !url.isEmpty else { return nil }
        return url.hasPrefix("/") ? url : URLComponents(string: url).map { "\($0.percentEncodedPath)" }
    }

    /// `clip-2.mp4`
    private static func name(_ file: String, _ number: Int) -> String {
        let url = URL(fileURLWithPath: file)
        let suffix = url.pathExtension.isEmpty ? "" : ".\(url.pathExtension)"
        return "\(file.dropLast(suffix.count))-\(number)\(suffix)"
    }

    /// Writes a file beside its name first, so that an unfinished one is not mistaken for a whole one.
    private static func save(_ path: String, as file: String, _ api: ClusterAPI) async throws(ApusError) -> Int {
        let (manager, partial) = (FileManager.default, "\(file).part")
        guard !manager.fileExists(atPath: file) else { throw ApusError(.badParameter, "\(file) exists") }
        guard manager.createFile(atPath: partial, contents: nil), let handle = FileHandle(forWritingAtPath: partial)
        else { throw ApusError(.storageFailed, "\(partial) cannot be written") }
        do throws(ApusError) {
            let byteCount = try await api.load(path) { piece throws(ApusError) in
                do {
                    try handle.write(contentsOf: Data(piece))
                } catch {
                    throw ApusError(.storageFailed, "\(partial) cannot be written: \(error.localizedDescription)")
                }
            }
            try Self.finish(handle, partial, file)
            return byteCount
        } catch {
            try? manager.removeItem(atPath: partial)
            throw error
        }
    }

    private static func finish(_ handle: FileHandle, _ partial: String, _ file: String) throws(ApusError) {
        do {
            try handle.close()
            try FileManager.default.moveItem(atPath: partial, toPath: file)
        } catch {
            throw ApusError(.storageFailed, "\(file) cannot be written: \(error.localizedDescription)")
        }
    }
}

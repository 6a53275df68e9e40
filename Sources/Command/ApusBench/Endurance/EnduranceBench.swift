import ApusCore
import ArgumentParser
import Foundation

/// `apus-bench endurance`: long runs on a loaded machine.
/// - `quiet`: an undisturbed cluster, next to two others under load, CPU hogs and lost heartbeats. Members must not be
///   declared dead, except those that are killed now and then, and these within a second.
/// - `rolling`: every node is killed and restarted in turn under cameras and viewers, which must not be disturbed.
struct BenchEnduranceCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "endurance", abstract: "Watch clusters for a long time on a loaded machine.")

    enum Kind: String, CaseIterable, ExpressibleByArgument { case quiet, rolling }

    @Option(help: "Run quiet or rolling.") var kind: Kind = .quiet
    @Option(help: "Run for this number of minutes. Default: 60 for quiet, 15 for rolling.") var minutes: Double?
    @Option(help: "Run this number of CPU hogs. Default: 8 for quiet, 2 for rolling.")
    var hogs: Int?
    @Option(help: "Drop this percentage of heartbeats in quiet.") var loss = 5
    @Option(help: "Kill this number of nodes in quiet, spread over the time.") var kills = 10
    @Option(help: "Use this number of channels in rolling, and in each loaded cluster of quiet.") var channels = 8
    @Option(help: "Use this number of viewers per channel.") var viewers = 10
    @Option(help: "Use 300 ports from this one on.") var basePort = 26_500
    @Flag(help: "Print one JSON object as the last line.") var json = false

    func validate() throws {
        guard (0...100).contains(loss) else { throw ValidationError("--loss must be a percentage") }
        guard (1_024...65_000).contains(basePort) else { throw ValidationError("--base-port must be 1024 to 65000") }
        guard (minutes ?? 1) > 0, (hogs ?? 0) >= 0, kills >= 0, channels > 0, viewers > 0 else {
            throw ValidationError("numbers must be positive")
        }
    }

    func run() async throws {
        let (kind, basePort) = (kind, basePort)
        let options = EnduranceRun.Options(
            span: .milliseconds(Int64((minutes ?? (kind == .quiet ? 60 : 15)) * 60_000)),
            hogs: hogs ?? (kind == .quiet ? 8 : 2), lossPercent: loss, kills: kills, channels: channels,
            viewers: viewers, basePort: basePort)
        let report = EnduranceReport(kind: kind.rawValue)
        var failure: (any Error)?
        do {
            try await BenchScope.run { scope in
                let run = EnduranceRun(options: options, scope: scope, report: report)
                switch kind {
                case .quiet: try await run.quiet()
                case .rolling: try await run.rolling()
                }
            }
        } catch {
            failure = error
            report.note("cut short: \(error)")
        }
        print(report.summary)
        if json { print(try report.json()) }
        if let failure { throw failure }
        if !report.isClean { throw ExitCode.failure }
    }
}

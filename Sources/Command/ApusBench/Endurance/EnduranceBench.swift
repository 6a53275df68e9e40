import ApusCore
import ArgumentParser
import Foundation

/// `apus-bench endurance`: long runs on a machine that is not quiet.
///
/// - `quiet`: a cluster that nothing happens to, beside two others under load, CPU hogs and lost heartbeats. No member
///   may be declared dead but those that are killed now and then, and these within a second.
/// - `rolling`: every node is killed and restarted in turn under cameras and viewers, who may not notice.
struct BenchEnduranceCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "endurance", abstract: "Watch clusters for a long time on a machine that is not quiet.")

    enum Kind: String, CaseIterable, ExpressibleByArgument { case quiet, rolling }

    @Option(help: "quiet or rolling.") var kind: Kind = .quiet
    @Option(help: "How long; default: 60 for quiet, 15 for rolling.") var minutes: Double?
    @Option(help: "Processes that use all the CPU that they get; default: 8 for quiet, 2 for rolling.")
    var hogs: Int?
    @Option(help: "The share of heartbeats that quiet loses, in percent.") var loss = 5
    @Option(help: "Nodes that quiet kills, spread over the time.") var kills = 10
    @Option(help: "Channels of rolling, and of each cluster beside quiet's.") var channels = 8
    @Option(help: "Viewers of each channel of rolling, and of each cluster beside quiet's.") var viewers = 10
    @Option(help: "First port of the clusters; 300 from here on are used.") var basePort = 26_500
    @Flag(help: "Print one JSON object as the last line.") var json = false

    func validate() throws {
        guard (0...100).contains(loss) else { throw ValidationError("--loss is a percentage") }
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

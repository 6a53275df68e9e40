import ApusCore
import ApusLocal
import ArgumentParser
import Foundation
import NIOPosix

/// `apus-bench calls-kills`: calls in all states while the nodes of a cluster are killed in turn; beside it the dialogs
/// of kamailio when it is killed.
struct BenchCallKillsCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "calls-kills", abstract: "Kill nodes while calls are in all states, beside kamailio.",
        discussion: """
            Exits with 1 if a call ends otherwise than it should, or never; if a client rings that should not; if a \
            frame is lost or doubled; or if p99 of the pauses of media is over 120 ms.
            """)

    @Option(help: "Kill a node this number of times, each node in turn.") var kills = 3
    @Option(help: "Keep this number of calls in progress at each kill.") var calls = 500
    @Option(help: "Of these, this number have media in both directions through all kills.") var mediaCalls = 20
    @Option(help: "Spread what the calls do over this number of seconds after a kill.") var windowSeconds = 5
    @Option(help: "Start the node again this number of milliseconds after the kill.") var downMilliseconds = 1500
    @Flag(help: "Measure without kamailio.") var alone = false
    @Option(help: "Set the first port of the cluster.") var basePort = 26_300
    @Flag(help: "Print one JSON object as the last line.") var json = false

    func validate() throws {
        guard (1...1000).contains(kills), (30...5000).contains(calls), (0...calls / 2).contains(mediaCalls),
            (0...60_000).contains(downMilliseconds), (2...60).contains(windowSeconds)
        else { throw ValidationError("a number is out of range: at least 30 calls, half of them with media at most") }
        guard (1_024...32_500).contains(basePort) else { throw ValidationError("--base-port must be 1024 to 32500") }
    }

    func run() async throws {
        let options = self
        let result = try await BenchScope.run { scope in
            let directory = "\(NSTemporaryDirectory())/apus-call-kills-\(getpid())"
            let stage = try SignInStage(
                executable: try BenchPrograms.apus(), nodes: 3, directory: directory, basePort: options.basePort,
                group: MultiThreadedEventLoopGroup(numberOfThreads: 2))
            let end = scope.onEnd { stage.down() }
            var result: CallKillResult
            do {
                defer { scope.end(end) }
                let load = try await CallKillLoad(
                    stage, calls: options.calls, mediaCalls: options.mediaCalls, window: options.windowSeconds)
                result = try await load.run(
                    kills: options.kills, down: .milliseconds(Int64(options.downMilliseconds)))
            }
            guard !options.alone else { return result }
            BenchScope.say(result.table)
            try FileManager.default.createDirectory(atPath: directory, withIntermediateDirectories: true)
            scope.onEnd { try? FileManager.default.removeItem(atPath: directory) }
            let kamailio = try KamailioKill(
                directory: directory, port: options.basePort + 90, calls: options.calls, scope: scope)
            result.kamailio = try await kamailio.run(down: .milliseconds(Int64(options.downMilliseconds)))
            return result
        }
        print(result.table)
        if json { print(try result.json()) }
        guard result.isClean else { throw ExitCode.failure }
    }
}

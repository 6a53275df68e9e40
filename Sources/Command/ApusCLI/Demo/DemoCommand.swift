import ApusCore
import ApusLocal
import ArgumentParser
import Foundation
import UnixSignals

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// `apus demo`: a local cluster with a camera and viewers, interactive or as an unattended check.
struct DemoCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "demo", abstract: "Run a local cluster with a camera and viewers, and show its state.",
        discussion: """
            With --check the demo runs unattended: it kills the channel's primary, and succeeds only if every viewer
            received every frame exactly once, bit for bit.
            """)

    @Option(help: "Use this state directory. The state of an earlier demo is removed.")
    var dir = "~/.apus/demo"
    @Option(help: "Use the node configurations of this folder instead of three generated nodes.")
    var configs: String?
    @Option(help: "Set the first port of generated nodes.")
    var basePort = 7400
    @Option(help: "Publish this clip instead of a test pattern.")
    var file: String?
    @Option(help: "Publish this test pattern, WIDTHxHEIGHT@FPS.")
    var testPattern = "640x360@25"
    @Option(help: "Set the number of viewers. They connect to the nodes after the first in turn.")
    var viewers = 2
    @Flag(help: "Run unattended, kill the channel's primary, and check the result.")
    var check = false
    @OptionGroup var output: OutputOptions

    func validate() throws {
        guard check || !output.json else { throw ValidationError("--json needs --check") }
        guard (1...64).contains(viewers) else { throw ValidationError("--viewers must be 1 to 64") }
    }

    func run() async throws {
        let state = StateDirectory(dir)
        try await Self.clear(state, clients: DemoStage.clientNames(viewers: 64))
        var starter = ClusterStarter(state: state)
        starter.configs = configs
        starter.basePort = basePort
        do {
            output.progress("Starting the nodes; state in \(state.path).")
            let cluster = try await starter.start(timeout: .seconds(60))
            let source = file.map { ["--file", $0] } ?? ["--test-pattern", testPattern]
            let stage = DemoStage(cluster: cluster, source: source, viewerCount: viewers)
            try await stage.start()
            try await play(stage)
        } catch {
            try await stop(state)
            throw error
        }
        try await stop(state)
    }

    /// Runs the demo until it is done, or until Ctrl-C.
    private func play(_ stage: DemoStage) async throws {
        try await withThrowingTaskGroup(of: Void.self) { group in
            group.addTask {
                for await _ in await UnixSignalsSequence(trapping: .sigterm, .sigint) { return }
            }
            group.addTask { [check, output] in
                if check {
                    try await DemoCheck(stage: stage, output: output).run()
                } else {
                    try await DemoTable(stage: stage, link: await Self.link(stage)).run()
                }
            }
            defer { group.cancelAll() }
            try await group.next()
            if check, !Task.isCancelled, !stage.isChecked { throw ApusError(.cancelled, "the check was interrupted") }
        }
    }

    /// The console's address, for one browser.
    private static func link(_ stage: DemoStage) async -> SignInLink? {
        guard let api = try? await ServerOptions.local(stage.cluster.directory.path) else { return nil }
        return try? await SignInLink.make(api, role: "admin", account: LocalCluster.account.rawValue)
    }

    /// Stops and removes an earlier demo, so that each starts from an empty state.
    private static func clear(_ state: StateDirectory, clients: [String]) async throws {
        guard try state.mark() != nil else { return }
        try await state.locked {
            let mark = try state.requireMark()
            let nodes = mark.nodes.map { NodeProcess($0.name, in: state) }
            try await ClusterDown.stop(clients.map { DemoStage.process($0, in: state) } + nodes)
            if mark.network != nil { try IsolatedNetwork(mark, in: state).remove() }
            try FileManager.default.removeItem(atPath: state.path)
        }
    }

    private func stop(_ state: StateDirectory) async throws {
        guard let mark = try state.mark() else { return }
        try await ClusterDown.stop(DemoStage.clientNames(viewers: 64).map { DemoStage.process($0, in: state) })
        try await ClusterDown.stop(mark.nodes.map { NodeProcess($0.name, in: state) })
        output.progress("Stopped. Logs are in \(state.path).")
    }
}

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

/// `apus demo`: a local cluster with a camera and viewers, watched live or checked unattended.
struct DemoCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "demo", abstract: "Run a local cluster with a camera and viewers, and show what happens.",
        discussion: """
            With --check nobody needs to watch: the node that carries the channel is killed, and the end is success
            only if every viewer got every frame exactly once, bit for bit.
            """)

    @Option(help: "The demo's state directory; what an earlier demo left there is stopped and removed.")
    var dir = "~/.apus/demo"
    @Option(help: "A folder of node configurations; three generated nodes where none is given.")
    var configs: String?
    @Option(help: "The first port of generated nodes.")
    var basePort = 7400
    @Option(help: "Publish this clip instead of a test pattern.")
    var file: String?
    @Option(help: "The test pattern, WIDTHxHEIGHT@FPS.")
    var testPattern = "640x360@25"
    @Option(help: "How many viewers; they are spread over the nodes after the first.")
    var viewers = 2
    @Flag(help: "Run unattended, kill the channel's node, and judge.")
    var check = false

    func validate() throws {
        guard (1...64).contains(viewers) else { throw ValidationError("--viewers must be 1 to 64") }
    }

    func run() async throws {
        try await CommandFailure.reported {
            let state = StateDirectory(dir)
            try await Self.clear(state, clients: DemoStage.clientNames(viewers: 64))
            var starter = ClusterStarter(state: state)
            starter.configs = configs
            starter.basePort = basePort
            do {
                Console.say("Starting the nodes; state in \(state.path).")
                let cluster = try await starter.start(timeout: .seconds(60))
                let source = file.map { ["--file", $0] } ?? ["--test-pattern", testPattern]
                let stage = DemoStage(cluster: cluster, source: source, viewerCount: viewers)
                try await stage.start()
                try await play(stage)
            } catch {
                try await Self.stop(state)
                throw error
            }
            try await Self.stop(state)
        }
    }

    /// Runs the demo until it is done, or until Ctrl-C.
    private func play(_ stage: DemoStage) async throws {
        try await withThrowingTaskGroup(of: Void.self) { group in
            group.addTask {
                for await _ in await UnixSignalsSequence(trapping: .sigterm, .sigint) { return }
            }
            group.addTask { [check] in
                if check { try await DemoCheck(stage: stage).run() } else { try await DemoTable(stage: stage).run() }
            }
            defer { group.cancelAll() }
            try await group.next()
            if check, !Task.isCancelled, !stage.isChecked { throw ApusError(.cancelled, "the check was interrupted") }
        }
    }

    /// Removes what an earlier demo left, so that each begins from nothing.
    private static func clear(_ state: StateDirectory, clients: [String]) async throws {
        guard try state.mark() != nil else { return }
        try await state.locked {
            let nodes = try state.requireMark().nodes.map { NodeProcess($0.name, in: state) }
            try await ClusterDown.stop(clients.map { DemoStage.process($0, in: state) } + nodes)
            try FileManager.default.removeItem(atPath: state.path)
        }
    }

    private static func stop(_ state: StateDirectory) async throws {
        guard let mark = try state.mark() else { return }
        try await ClusterDown.stop(DemoStage.clientNames(viewers: 64).map { DemoStage.process($0, in: state) })
        try await ClusterDown.stop(mark.nodes.map { NodeProcess($0.name, in: state) })
        Console.say("Stopped. Logs are in \(state.path).")
    }
}

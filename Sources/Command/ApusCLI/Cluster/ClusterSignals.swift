import ApusCore
import ApusLocal
import ArgumentParser

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// `apus cluster kill N`: kills a node, as a crash would.
struct ClusterKill: AsyncParsableCommand {
    static let configuration = CommandConfiguration(commandName: "kill", abstract: "Kill a node's process (SIGKILL).")
    @OptionGroup var directory: DirectoryOption
    @OptionGroup var node: NodeArgument
    @OptionGroup var output: OutputOptions

    func run() async throws {
        try await NodeSignal.send(
            SIGKILL, to: try node.process(in: try directory.cluster()), done: "was killed", state: .stopped, output)
    }
}

/// `apus cluster pause N`: stops a node's process, as a frozen machine would.
struct ClusterPause: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "pause", abstract: "Freeze a node's process (SIGSTOP).")
    @OptionGroup var directory: DirectoryOption
    @OptionGroup var node: NodeArgument
    @OptionGroup var output: OutputOptions

    func run() async throws {
        try await NodeSignal.send(
            SIGSTOP, to: try node.process(in: try directory.cluster()), done: "is paused", state: .paused, output)
    }
}

/// `apus cluster resume N`: continues a paused node.
struct ClusterResume: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "resume", abstract: "Continue a paused node (SIGCONT).")
    @OptionGroup var directory: DirectoryOption
    @OptionGroup var node: NodeArgument
    @OptionGroup var output: OutputOptions

    func run() async throws {
        try await NodeSignal.send(
            SIGCONT, to: try node.process(in: try directory.cluster()), done: "continues", state: .running, output)
    }
}

/// Sends one signal to one node and prints the result.
enum NodeSignal {
    /// - Parameter state: the state of the process afterwards.
    /// - Throws: 21025 if the node is not running.
    static func send(
        _ number: CInt, to process: NodeProcess, done: String, state: NodeProcess.State, _ output: OutputOptions
    ) async throws {
        guard process.signal(number) else { throw ApusError(.unavailable, "the node \(process.name) is not running") }
        if state == .stopped { _ = try await process.waitUntilGone(.seconds(5)) }
        try output.show(NodeOutcome(node: process.name, process: state), ["The node \(process.name) \(done)."])
    }
}

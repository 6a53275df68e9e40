import ApusCore
import ApusLocal
import ArgumentParser

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// `apus cluster kill N`: ends a node as a crash would.
struct ClusterKill: AsyncParsableCommand {
    static let configuration = CommandConfiguration(commandName: "kill", abstract: "Kill a node's process (SIGKILL).")
    @OptionGroup var directory: DirectoryOption
    @OptionGroup var node: NodeArgument

    func run() async throws {
        try await NodeSignal.send(
            SIGKILL, to: try node.process(in: try directory.cluster()), done: "was killed", ends: true)
    }
}

/// `apus cluster pause N`: stops a node without ending it, as a frozen machine would.
struct ClusterPause: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "pause", abstract: "Freeze a node's process (SIGSTOP).")
    @OptionGroup var directory: DirectoryOption
    @OptionGroup var node: NodeArgument

    func run() async throws {
        try await NodeSignal.send(SIGSTOP, to: try node.process(in: try directory.cluster()), done: "is paused")
    }
}

/// `apus cluster resume N`: lets a paused node go on.
struct ClusterResume: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "resume", abstract: "Let a paused node go on (SIGCONT).")
    @OptionGroup var directory: DirectoryOption
    @OptionGroup var node: NodeArgument

    func run() async throws {
        try await NodeSignal.send(SIGCONT, to: try node.process(in: try directory.cluster()), done: "goes on")
    }
}

/// Sends one signal to one node and says what came of it.
enum NodeSignal {
    /// - Throws: 21025 where the node does not run.
    static func send(_ number: CInt, to process: NodeProcess, done: String, ends: Bool = false) async throws {
        guard process.signal(number) else { throw ApusError(.unavailable, "the node \(process.name) does not run") }
        if ends { _ = try await process.waitUntilGone(.seconds(5)) }
        print("The node \(process.name) \(done).")
    }
}

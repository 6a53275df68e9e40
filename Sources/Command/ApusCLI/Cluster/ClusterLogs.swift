import ApusCore
import ApusLocal
import ArgumentParser
import Foundation

/// `apus cluster logs [N]`: prints the end of one node's log, or of all logs.
struct ClusterLogs: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "logs", abstract: "Show the end of a node's log, or of all nodes' logs.")
    @OptionGroup var directory: DirectoryOption
    @Argument(help: "Select the node by its number from 1, or by its name. Default: all nodes.")
    var node: String?
    @Option(help: "Print this number of lines of each log.")
    var lines = 40
    @Flag(name: .shortAndLong, help: "Continue with new lines until interrupted.")
    var follow = false

    func run() async throws {
        let local = try directory.cluster()
        let nodes = try node.map { try [StateDirectory.node($0, in: local.mark)] } ?? local.mark.nodes
        let prefixes = nodes.count > 1
        for found in nodes {
            for line in NodeProcess(found.name, in: local.directory).logTail(lines: lines) {
                Console.say(prefixes ? "\(found.name) | \(line)" : String(line))
            }
        }
        guard follow else { return }
        var followers = nodes.map { LineFollower(path: local.directory.logFile($0.name), fromStart: false) }
        while true {
            for index in followers.indices {
                for line in followers[index].newLines() {
                    Console.say(prefixes ? "\(nodes[index].name) | \(line)" : line)
                }
            }
            try await Task.sleep(for: .milliseconds(200))
        }
    }
}

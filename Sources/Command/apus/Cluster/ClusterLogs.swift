import ApusCore
import ArgumentParser
import Foundation

/// `apus cluster logs [N]`: the end of one node's log, or of all.
struct ClusterLogs: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "logs", abstract: "Show the end of a node's log, or of all nodes' logs.")
    @OptionGroup var directory: DirectoryOption
    @Argument(help: "The node: its number from 1, or its name; all where none is given.")
    var node: String?
    @Option(help: "How many lines of each.")
    var lines = 40
    @Flag(name: .shortAndLong, help: "Go on with new lines until interrupted.")
    var follow = false

    func run() async throws {
        let local = try directory.cluster()
        let nodes = try node.map { try [StateDirectory.node($0, in: local.mark)] } ?? local.mark.nodes
        let prefixes = nodes.count > 1
        for found in nodes {
            for line in NodeProcess(found.name, in: local.directory).logTail(lines: lines) {
                print(prefixes ? "\(found.name) | \(line)" : line)
            }
        }
        guard follow else { return }
        var followers = nodes.map { Follower(name: $0.name, path: local.directory.logFile($0.name)) }
        while true {
            for index in followers.indices {
                for line in followers[index].newLines() {
                    print(prefixes ? "\(followers[index].name) | \(line)" : line)
                }
            }
            try await Task.sleep(for: .milliseconds(200))
        }
    }

    /// Reads what is added to a file, whole lines at a time.
    private struct Follower {
        let name: String
        let path: String
        var offset: UInt64
        var rest = Data()

        init(name: String, path: String) {
            self.name = name
            self.path = path
            let attributes = try? FileManager.default.attributesOfItem(atPath: path)
            offset = (attributes?[.size] as? NSNumber)?.uint64Value ?? 0
        }

        /// At most 1 MiB per look.
        mutating func newLines() -> [String] {
            guard let file = FileHandle(forReadingAtPath: path) else { return [] }
            defer { try? file.close() }
            guard (try? file.seek(toOffset: offset)) != nil, let data = try? file.read(upToCount: 1 << 20) else { return [] }
            offset += UInt64(data.count)
            rest += data
            var parts = rest.split(separator: UInt8(ascii: "\n"), omittingEmptySubsequences: false)
            rest = Data(parts.popLast() ?? Data())
            return parts.map { String(decoding: $0, as: UTF8.self) }
        }
    }
}

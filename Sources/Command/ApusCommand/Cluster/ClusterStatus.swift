import ApusCore
import ApusLocal
import ArgumentParser
import Foundation

/// `apus cluster status`: the status of every node.
struct ClusterStatus: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "status", abstract: "Show nodes, shards, sessions and channels.")

    @OptionGroup var directory: DirectoryOption
    @Flag(help: "Print one JSON object.")
    var json = false

    private struct Report: Encodable {
        var cluster: String
        var directory: String
        var nodes: [NodeReport]
    }

    func run() async throws {
        let local = try directory.cluster()
        let reports = await NodeReport.gather(local)
        guard json else {
            print("cluster \(local.mark.cluster), state in \(local.directory.path)")
            for line in NodeReport.table(reports) { print(line) }
            return
        }
        let encoder = JSONEncoder()
        encoder.outputFormatting = [.sortedKeys, .withoutEscapingSlashes]
        let data = try encoder.encode(
            Report(cluster: local.mark.cluster, directory: local.directory.path, nodes: reports))
        print(String(decoding: data, as: UTF8.self))
    }
}

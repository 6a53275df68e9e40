import ApusCore
import ApusLocal
import ArgumentParser

/// `apus cluster status`: the status of every node.
struct ClusterStatus: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "status", abstract: "Show nodes, shards, sessions, channels and faults of the network.")
    @OptionGroup var directory: DirectoryOption
    @OptionGroup var output: OutputOptions

    func run() async throws {
        let report = try await ClusterReport(try directory.cluster())
        try output.show(
            report,
            ["cluster \(report.cluster), state in \(report.directory)"] + report.table)
    }
}

import ApusCore
import ApusLocal
import ApusNodeConfiguration
import ApusStorage
import ArgumentParser
import Foundation

/// `apus admin ownership`: repairs the store of the cluster map.
struct AdminOwnership: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "ownership", abstract: "Repair a cluster's ownership store.",
        subcommands: [AdminOwnershipRestore.self])
}

/// `apus admin ownership restore`: restores the newest map of the nodes.
struct AdminOwnershipRestore: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "restore", abstract: "Restore the newest map of the nodes after the ownership store was lost.",
        discussion: """
            Use this if the store was deleted, damaged, or replaced by an older copy. Every node keeps the newest map
            that it adopted. The newest of these is written with a higher revision than all others, and running \
            nodes continue without a restart. An old directory is kept next to the new one; in etcd the map is \
            replaced. The cluster may be running or stopped.
            """)

    @OptionGroup var directory: DirectoryOption
    @Option(
        name: .customLong("config"),
        help: "Read a node's configuration, instead of --dir; repeat for each node of the machine.")
    var configs: [String] = []
    @Option(help: "Use the map of this node, even if the nodes disagree.")
    var from: String?
    @Flag(help: "Show the map of each node and the planned action, and change nothing.")
    var dryRun = false
    @OptionGroup var output: OutputOptions

    private struct Report: Encodable {
        /// The map that was restored, or would be.
        struct Choice: Encodable {
            /// The node that held it.
            var node: String
            /// Its revision at the node.
            var held_revision: UInt64
            /// Its revision in the store.
            var revision: UInt64
        }
        var survey: OwnershipSurvey.Report
        /// Nil if there was nothing to restore.
        var choice: Choice?
        var restored: Bool
        /// The earlier store, if there was one.
        var earlier_store: String?
    }

    func run() async throws {
        guard configs.isEmpty else { return try await restore(configs) }
        let local = try directory.cluster()
        try await local.directory.locked {
            try await restore(local.mark.nodes.map { local.directory.configurationFile($0.name) })
        }
    }

    private func restore(_ files: [String]) async throws {
        var configurations: [NodeConfiguration] = []
        for file in files { configurations.append(try NodeConfiguration(file: file)) }
        let survey = try await OwnershipSurvey.gather(configurations)
        for line in survey.table { output.progress(line) }
        var report = Report(survey: survey.report, restored: false)
        guard let choice = try survey.choice(from: from) else {
            return try output.show(report, ["The store agrees with the nodes; there is nothing to restore."])
        }
        let revision = survey.nextRevision
        report.choice = .init(node: choice.node, held_revision: choice.held.revision, revision: revision)
        guard !dryRun else {
            return try output.show(
                report, ["The map of \(choice.node) would be restored as revision \(revision)."])
        }
        let (written, old) = try await survey.put(choice, as: revision)
        (report.restored, report.earlier_store) = (true, old)
        report.choice?.revision = written
        output.progress(
            "The map of \(choice.node), revision \(choice.held.revision), was restored as revision \(written)."
                + (old.map { " The earlier store is in \($0)." } ?? ""))
        let missing = await survey.waitForLiving(revision: written, timeout: .seconds(10))
        guard missing.isEmpty else {
            throw ApusError(
                .deadlineExceeded,
                "\(missing.joined(separator: ", ")) did not adopt the map; see `apus cluster status` and the logs")
        }
        try output.show(report, [])
    }
}

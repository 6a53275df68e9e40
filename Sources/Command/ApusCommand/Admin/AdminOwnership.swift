import ApusCore
import ApusLocal
import ApusNode
import ApusStorage
import ArgumentParser
import Foundation

/// `apus admin ownership`: the store that says which node owns what.
struct AdminOwnership: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "ownership", abstract: "Repair a cluster's ownership store.",
        subcommands: [AdminOwnershipRestore.self])
}

/// `apus admin ownership restore`: puts the newest map back that the nodes hold.
struct AdminOwnershipRestore: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "restore", abstract: "Put the newest map of the nodes back where the ownership store was lost.",
        discussion: """
            For a store that was deleted, damaged, or replaced by an older copy. Every node keeps the newest map that it
            adopted; the newest of them is put back under a revision above all, and nodes that run go on by \
            themselves. The earlier store is kept beside the new one. Works on a cluster that runs and on one that is \
            stopped.
            """)

    @OptionGroup var directory: DirectoryOption
    @Option(
        name: .customLong("config"),
        help: "A node's configuration; several times, one for each node of the machine, instead of --dir.")
    var configs: [String] = []
    @Option(help: "Take the map of this node, also where the nodes do not agree.")
    var from: String?
    @Flag(help: "Show what each node holds and what would be done, and change nothing.")
    var dryRun = false

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
        for line in survey.table { print(line) }
        guard let choice = try survey.choice(from: from) else {
            return print("The store is as the nodes know it; there is nothing to restore.")
        }
        let revision = survey.nextRevision
        guard !dryRun else {
            return print("The map of \(choice.node) would be put back as revision \(revision).")
        }
        let old = try survey.put(choice, as: revision)
        print(
            "The map of \(choice.node), revision \(choice.held.revision), is back as revision \(revision)."
                + (old.map { " The earlier store is in \($0)." } ?? ""))
        let missing = await survey.waitForLiving(revision: revision, timeout: .seconds(10))
        guard missing.isEmpty else {
            throw ApusError(
                .deadlineExceeded,
                "\(missing.joined(separator: ", ")) did not take the map; look at `apus cluster status` and the logs")
        }
    }
}

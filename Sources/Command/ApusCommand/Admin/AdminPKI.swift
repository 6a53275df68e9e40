import ApusCore
import ApusLocal
import ArgumentParser

/// `apus admin pki`: creates a cluster's authority, certificates and keys.
struct AdminPKI: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "pki", abstract: "Create a cluster's authority, its nodes' certificates, and its keys.",
        discussion: """
            Existing files are kept: run it again with more --node options to add nodes. ca.key and token.key stay with
            the operator; a node needs ca.pem, its own NODE.pem and NODE.key, clients.pem and clients.key, cluster.key
            and token.pub.
            """)

    @Option(help: "Use this directory for the keys.")
    var dir: String
    @Option(help: "Set the cluster's name.")
    var cluster = "local"
    @Option(name: .customLong("node"), help: "Create a certificate for this node; repeatable.")
    var nodes: [String] = []
    @Option(name: .customLong("host"), help: "Add a name or address of the nodes to the certificates; repeatable.")
    var hosts: [String] = []
    @OptionGroup var output: OutputOptions

    private struct Report: Encodable {
        var directory: String
        /// The names of the new files.
        var created: [String]
    }

    func run() async throws {
        let cluster = try ClusterID.argument(cluster, "--cluster")
        var names: [NodeName] = []
        for node in nodes {
            // The directory's other files use these names.
            guard !["ca", "clients", "cluster", "token"].contains(node) else {
                throw ValidationError("'\(node)' cannot name a node: another file has this name")
            }
            names.append(try .argument(node, "a node's name"))
        }
        let directory = PKIDirectory(path: StateDirectory(dir).path)
        let made = try directory.make(cluster: cluster, nodes: names, hosts: hosts)
        let line =
            made.isEmpty
            ? "All files exist already in \(directory.path)."
            : "Created in \(directory.path): \(made.joined(separator: ", "))."
        try output.show(Report(directory: directory.path, created: made), [line])
    }
}

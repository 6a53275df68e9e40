import ApusCore
import ApusLocal
import ArgumentParser

/// `apus admin pki`: creates, renews, changes and revokes a cluster's certificates and keys.
struct AdminPKI: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "pki", abstract: "Create, renew, change and revoke a cluster's certificates and keys.",
        subcommands: [
            AdminPKIMake.self, AdminPKIRenew.self, AdminPKIChange.self, AdminPKIRevoke.self, AdminPKIList.self,
        ],
        defaultSubcommand: AdminPKIMake.self)
}

/// `apus admin pki make`: creates a cluster's authority, certificates and keys.
struct AdminPKIMake: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "make", abstract: "Create a cluster's authority, its nodes' certificates, and its keys.",
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
    @Option(
        name: .customLong("server"),
        help: "Create a certificate for another server, such as a database; repeatable.")
    var servers: [String] = []
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
        let names = try nodes.map(Self.name)
        let others = try servers.map(Self.name)
        let directory = PKIDirectory(path: StateDirectory(dir).path)
        let made = try directory.make(cluster: cluster, nodes: names, servers: others, hosts: hosts)
        let line =
            made.isEmpty
            ? "All files exist already in \(directory.path)."
            : "Created in \(directory.path): \(made.joined(separator: ", "))."
        try output.show(Report(directory: directory.path, created: made), [line])
    }

    private static func name(_ text: String) throws -> NodeName {
        // The directory's other files use these names.
        guard !["ca", "clients", "cluster", "token"].contains(text) else {
            throw ValidationError("'\(text)' cannot name a node or a server: another file has this name")
        }
        return try .argument(text, "a name")
    }
}

import ApusCore
import ApusLocal
import ArgumentParser

/// `apus admin pki`: a cluster's authority, certificates and keys.
struct AdminPKI: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "pki", abstract: "Make a cluster's authority, its nodes' certificates, and its keys.",
        discussion: """
            What exists is kept: run it again with further --node options to add nodes. ca.key and token.key stay with
            the operator; a node needs ca.pem, its own NODE.pem and NODE.key, clients.pem and clients.key, cluster.key
            and token.pub.
            """)

    @Option(help: "The directory of the keys.")
    var dir: String
    @Option(help: "The cluster's name.")
    var cluster = "local"
    @Option(name: .customLong("node"), help: "A node to make a certificate for; may be given several times.")
    var nodes: [String] = []
    @Option(name: .customLong("host"), help: "A name or address under which the nodes are reached; several times.")
    var hosts: [String] = []

    func run() async throws {
        let cluster = try ClusterID.argument(cluster, "--cluster")
        var names: [NodeName] = []
        for node in nodes {
            // The directory's other files have these names.
            guard !["ca", "clients", "cluster", "token"].contains(node) else {
                throw ValidationError("'\(node)' cannot name a node: another file has this name")
            }
            names.append(try .argument(node, "a node's name"))
        }
        let directory = PKIDirectory(path: StateDirectory(dir).path)
        let made = try directory.make(cluster: cluster, nodes: names, hosts: hosts)
        print(
            made.isEmpty
                ? "Everything is there already in \(directory.path)."
                : "Made in \(directory.path): \(made.joined(separator: ", ")).")
    }
}

import ApusCore
import ApusLocal
import ArgumentParser
import Foundation

/// What a verb of `apus admin pki` changed.
private struct PKIReport: Encodable {
    var directory: String
    /// The names of the files that were written.
    var written: [String]
}

/// `apus admin pki renew`: issues new certificates for those that expire.
struct AdminPKIRenew: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "renew", abstract: "Issue new certificates, with new keys, in place of the present ones.",
        discussion: """
            Copy the files to the nodes and reload them with SIGHUP. Connections and sessions continue. The old \
            certificates stay valid until they expire or are revoked.
            """)

    @Option(help: "Use this directory of `apus admin pki`.")
    var dir: String
    @Argument(help: "Renew NAME.pem; repeatable. Default: all of them, except the authority.")
    var names: [String] = []
    @Option(name: .customLong("host"), help: "Add a name or address to the certificates; repeatable.")
    var hosts: [String] = []
    @OptionGroup var output: OutputOptions

    func run() async throws {
        let directory = PKIDirectory(path: StateDirectory(dir).path)
        let made = try directory.renew(names, hosts: hosts)
        try output.show(
            PKIReport(directory: directory.path, written: made),
            ["Renewed in \(directory.path): \(made.joined(separator: ", "))."])
    }
}

/// `apus admin pki change`: changes the authority, the token key or the cluster's key, in three steps.
struct AdminPKIChange: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "change", abstract: "Change the authority, the token key or the cluster's key, step by step.",
        discussion: """
            Steps: `add` makes a new one, which is accepted beside the old one. `use` makes the new one the one that \
            is used. `remove` removes the old one. After each step, copy the changed files to every node, reload them \
            with SIGHUP, and check that none has the condition reload_failed. Before `remove`, renew the certificates \
            (authority), or wait until the tokens have expired (tokens).
            """)

    @Option(help: "Use this directory of `apus admin pki`.")
    var dir: String
    @Option(help: "Set the cluster's name, for a new authority.")
    var cluster = "local"
    @Argument(help: "Change this: authority, tokens or cluster.")
    var secret: String
    @Argument(help: "Carry out this step: add, use or remove.")
    var step: String
    @OptionGroup var output: OutputOptions

    func run() async throws {
        guard let secret = PKISecret(rawValue: secret) else {
            throw ValidationError("'\(secret)' is not one of authority, tokens and cluster")
        }
        guard let step = PKIStep(rawValue: step) else {
            throw ValidationError("'\(step)' is not one of add, use and remove")
        }
        let directory = PKIDirectory(path: StateDirectory(dir).path)
        let written = try directory.change(secret, step, cluster: try .argument(cluster, "--cluster"))
        try output.show(
            PKIReport(directory: directory.path, written: written),
            ["Changed in \(directory.path): \(written.joined(separator: ", ")). Copy this to every node and reload."])
    }
}

/// `apus admin pki revoke`: adds certificates to the list of those that nodes refuse.
struct AdminPKIRevoke: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "revoke", abstract: "Withdraw the certificates of a node.",
        discussion: """
            Adds every certificate that was issued to the node to revoked.txt. Copy this file to the other nodes, \
            where tls.revoked names it, and reload them with SIGHUP: their links to the node end, and the cluster \
            declares it dead. The node still has the cluster's key and its access to etcd and the database: see \
            "Withdrawing a certificate" in docs/three-servers.md.
            """)

    @Option(help: "Use this directory of `apus admin pki`.")
    var dir: String
    @Argument(help: "Withdraw the certificates of this node; repeatable.")
    var nodes: [String] = []
    @Option(name: .customLong("serial"), help: "Withdraw the certificate with this serial number; repeatable.")
    var serials: [String] = []
    @OptionGroup var output: OutputOptions

    private struct Report: Encodable {
        /// The list.
        var file: String
        /// The serial numbers that were added.
        var added: [String]
    }

    func run() async throws {
        guard !nodes.isEmpty || !serials.isEmpty else { throw ValidationError("name a node, or use --serial") }
        let directory = PKIDirectory(path: StateDirectory(dir).path)
        let names = try nodes.map { try NodeName.argument($0, "a node's name") }
        let added = try directory.revoke(nodes: names, serials: serials)
        let line =
            added.isEmpty
            ? "All of them were in \(directory.revokedList) already."
            : "Added to \(directory.revokedList): \(added.joined(separator: ", ")). Copy it to the nodes and reload."
        try output.show(Report(file: directory.revokedList, added: added), [line])
    }
}

/// `apus admin pki list`: shows the certificates, and when they expire.
struct AdminPKIList: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "list", abstract: "Show the certificates of a directory, and when they expire.")

    @Option(help: "Use this directory of `apus admin pki`.")
    var dir: String
    @OptionGroup var output: OutputOptions

    private struct Report: Encodable {
        var certificates: [PKIEntry]
    }

    func run() async throws {
        let entries = try PKIDirectory(path: StateDirectory(dir).path).entries()
        let lines = entries.map { entry in
            "\(entry.name)  \(entry.serial)  \(entry.days_left) days left" + (entry.revoked ? "  revoked" : "")
        }
        try output.show(Report(certificates: entries), lines)
    }
}

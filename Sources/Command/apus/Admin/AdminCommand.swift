import ArgumentParser

/// `apus admin`: keys, certificates and tokens. Run where the cluster's secrets live, not on a node.
struct AdminCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "admin", abstract: "Make keys, certificates and tokens of a cluster.",
        subcommands: [AdminPKI.self, AdminToken.self])
}

import ArgumentParser

/// `apus admin`: keys, certificates and tokens, which are made where the cluster's secrets live and not on a node; and
/// the repair of the ownership store, on the nodes' machine.
struct AdminCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "admin",
        abstract: "Make keys, certificates and tokens of a cluster, revoke tokens, and repair its ownership store.",
        subcommands: [AdminPKI.self, AdminToken.self, AdminRevoke.self, AdminOwnership.self])
}

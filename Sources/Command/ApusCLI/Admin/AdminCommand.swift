import ArgumentParser

/// `apus admin`: creates keys, certificates and tokens where the cluster's secrets are kept, which need not be a node.
/// On the nodes' machine it also repairs the ownership store and manages the records.
struct AdminCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "admin",
        abstract: "Create keys and tokens, repair the ownership store, and manage records.",
        subcommands: [
            AdminPKI.self, AdminToken.self, AdminSignIn.self, AdminRevoke.self, AdminOwnership.self, AdminRecords.self,
            AdminBackup.self, AdminRestore.self,
        ])
}

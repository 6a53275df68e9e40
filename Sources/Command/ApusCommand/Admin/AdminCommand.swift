import ArgumentParser

/// `apus admin`: keys, certificates and tokens, which are made where the cluster's secrets live and not on a node; and
/// the repair of the ownership store, and the records, on the nodes' machine.
struct AdminCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "admin",
        abstract: "Make keys and tokens, repair the ownership store, and show, back up and restore records and blobs.",
        subcommands: [
            AdminPKI.self, AdminToken.self, AdminRevoke.self, AdminOwnership.self, AdminRecords.self,
            AdminBackup.self, AdminRestore.self, AdminBlobs.self,
        ])
}

import ApusCore
import ApusNode
import ApusStorage
import ArgumentParser

/// `apus admin backup`: a copy of the records while the cluster runs.
struct AdminBackup: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "backup", abstract: "Copy a cluster's records to a new file, while it runs or not.",
        discussion: """
            The copy is what the records were at one moment. It is checked page by page and synced before it has its \
            name.
            """)

    @OptionGroup var records: RecordsOption
    @Argument(help: "The file to make; it must not exist.") var file: String

    func run() async throws {
        try await CommandFailure.reported {
            let configuration = try records.fileConfiguration
            let copy = try await RecordBackup.make(
                of: configuration.recordsFile, cluster: configuration.cluster, to: file)
            print("Copied \(copy.recordCount) records, \(copy.byteCount) bytes, to \(file).")
        }
    }
}

/// `apus admin restore`: puts a copy of the records back.
struct AdminRestore: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "restore", abstract: "Put a copy of the records in their place, while no node runs.",
        discussion: """
            The copy is checked first. What stood there is kept beside it, with `.replaced` after its name. What was \
            written after the copy was made is not in it: tokens that were revoked since are valid again.
            """)

    @OptionGroup var records: RecordsOption
    @Argument(help: "A file that `apus admin backup` made.") var file: String

    func run() async throws {
        try await CommandFailure.reported {
            let configuration = try records.fileConfiguration
            let copy = try await RecordBackup.restore(
                file, to: configuration.recordsFile, cluster: configuration.cluster)
            print("Put \(copy.recordCount) records back.")
        }
    }
}

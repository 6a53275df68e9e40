import ApusCore
import ApusNodeConfiguration
import ApusStorage
import ArgumentParser

/// `apus admin backup`: copies the records, also while the cluster runs.
struct AdminBackup: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "backup", abstract: "Copy a cluster's records to a new file; the cluster may be running.",
        discussion: """
            The copy is a consistent snapshot. It is checked page by page and synced before it gets its \
            name.
            """)

    @OptionGroup var records: RecordsOption
    @Argument(help: "Write this file, which must not exist.") var file: String
    @OptionGroup var output: OutputOptions

    func run() async throws {
        let configuration = try records.fileConfiguration
        let copy = try await RecordBackup.make(
            of: configuration.recordsFile, cluster: configuration.cluster, to: file)
        try output.show(
            BackupReport(copy, file: file),
            ["Copied \(copy.recordCount) records, \(copy.byteCount) bytes, to \(file)."])
    }
}

/// The result of a backup or a restore.
private struct BackupReport: Encodable {
    var file: String
    var records: Int
    var bytes: Int

    init(_ copy: RecordBackup.Summary, file: String) {
        (self.file, records, bytes) = (file, copy.recordCount, copy.byteCount)
    }
}

/// `apus admin restore`: restores a copy of the records.
struct AdminRestore: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "restore", abstract: "Restore a copy of the records, while no node is running.",
        discussion: """
            The copy is checked first. The old file is kept with the suffix `.replaced`. Later changes are not in \
            the copy: tokens that were revoked after the backup are valid again.
            """)

    @OptionGroup var records: RecordsOption
    @Argument(help: "Restore this file of `apus admin backup`.") var file: String
    @OptionGroup var output: OutputOptions

    func run() async throws {
        let configuration = try records.fileConfiguration
        let copy = try await RecordBackup.restore(
            file, to: configuration.recordsFile, cluster: configuration.cluster)
        try output.show(BackupReport(copy, file: file), ["Restored \(copy.recordCount) records."])
    }
}

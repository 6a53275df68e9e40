package import ApusCore
package import ApusNodeConfiguration
package import ApusStorage
import Foundation

/// Opens the record store that a node's configuration names.
package enum NodeRecords {
    /// Opens the store, with the collections of all services of this program.
    ///
    /// - Parameter node: the node that uses it; nil for a program that is not a node.
    /// - Throws: 10020 and 10021, as ``SQLiteRecordStore`` and ``PostgresRecordStore`` do.
    package static func open(
        _ configuration: NodeConfiguration, for node: NodeID? = nil
    ) async throws(ApusError) -> any RecordStore {
        let catalogue = ProgramServices.records
        guard configuration.recordsURL.isEmpty else { return try await connect(configuration, catalogue) }
        return try await SQLiteRecordStore(
            path: configuration.recordsFile, cluster: configuration.cluster, catalogue: catalogue,
            limits: configuration.records, files: configuration.recordsFiles,
            mark: node.map { RecordWriter.mark(of: $0) } ?? 0)
    }

    /// Opens the store for inspection, and does not change its layout.
    /// - Throws: 10020 and 10021, as ``SQLiteRecordStore`` does; 10021 if there is no file.
    package static func look(_ configuration: NodeConfiguration) async throws(ApusError) -> any RecordStore {
        guard configuration.recordsURL.isEmpty else {
            return try await connect(configuration, RecordCatalogue([]))
        }
        guard FileManager.default.fileExists(atPath: configuration.recordsFile) else {
            throw ApusError(.storageFailed, "there are no records at \(configuration.recordsFile)")
        }
        return try await SQLiteRecordStore(path: configuration.recordsFile, cluster: configuration.cluster)
    }

    private static func connect(
        _ configuration: NodeConfiguration, _ catalogue: RecordCatalogue
    ) async throws(ApusError) -> any RecordStore {
        try await PostgresRecordStore(
            url: configuration.recordsURL, cluster: configuration.cluster, catalogue: catalogue,
            limits: configuration.records, connections: configuration.recordsConnections)
    }
}

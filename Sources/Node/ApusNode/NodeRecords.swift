import ApusAnswering
import ApusCalls
import ApusCluster
import ApusCommands
package import ApusCore
import ApusFirmware
package import ApusNodeConfiguration
import ApusSessions
package import ApusStorage
import ApusEvents
import ApusThings
import Foundation

/// Opens the record store that a node's configuration names, with the collections of all services.
package enum NodeRecords {
    /// All collections of a program whose nodes carry these services.
    package static func catalogue(carrying services: [any NodeService]) -> RecordCatalogue {
        let own = [
            ClusterRecords.catalogue, SessionRecords.catalogue, ThingService.records, CommandService.records,
            CallRecords.catalogue, AnsweringRecords.catalogue, HookRecords.catalogue, FirmwareRecords.catalogue,
        ]
        return RecordCatalogue(merging: own + services.map(\.records))
    }

    /// Opens the store.
    ///
    /// - Parameters:
    ///   - services: the services that the program's nodes carry.
    ///   - node: the node that uses it; nil for a program that is not a node.
    /// - Throws: 10020 and 10021, as ``SQLiteRecordStore`` and ``PostgresRecordStore`` do.
    package static func open(
        _ configuration: NodeConfiguration, carrying services: [any NodeService], for node: NodeID? = nil
    ) async throws(ApusError) -> any RecordStore {
        let catalogue = catalogue(carrying: services)
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

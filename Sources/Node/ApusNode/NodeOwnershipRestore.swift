package import ApusCore
import ApusEtcd
package import ApusNodeConfiguration
package import ApusStorage
import Logging

/// The ownership store that a configuration names, for an operator who inspects or repairs it.
package enum NodeOwnershipRestore {
    private static let log = Logger(label: "apus.ownership") { _ in SwiftLogNoOpLogHandler() }

    /// The place of the store, for people: a directory, or the endpoints of etcd.
    package static func place(_ configuration: NodeConfiguration) -> String {
        guard let etcd = configuration.etcd else { return configuration.ownershipDirectory }
        return "etcd at " + etcd.endpoints.map(\.description).joined(separator: " ")
    }

    /// The store with its value, and the reason if it cannot be read.
    package static func look(
        _ configuration: NodeConfiguration
    ) async -> (found: OwnershipMark?, value: [UInt8], reason: String?) {
        guard let etcd = configuration.etcd else {
            return OwnershipRestore.look(path: configuration.ownershipDirectory, cluster: configuration.cluster)
        }
        return await EtcdRestore.look(etcd, cluster: configuration.cluster, log: log)
    }

    /// Writes a map to the store.
    ///
    /// - Parameters:
    ///   - record: The map, with the least revision that it may have.
    ///   - name: A part of the name under which an earlier directory is kept.
    /// - Returns: The map's revision, and the path of the earlier directory; nil if there was none.
    /// - Throws: 10021 if the store cannot be written.
    package static func put(
        _ record: RevisionFile, _ configuration: NodeConfiguration, name: String
    ) async throws(ApusError) -> (revision: UInt64, earlier: String?) {
        guard let etcd = configuration.etcd else {
            let earlier = try OwnershipRestore.put(record, at: configuration.ownershipDirectory, name: name)
            return (record.revision, earlier)
        }
        return (try await EtcdRestore.put(record, etcd, log: log), nil)
    }
}
